"""Reads the commands of a bash script with its variables and arrays. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PIECES = re.compile(
    r"""(?P<gap>\\\n|[ \t\r]+) | (?P<end>\n|;+|&&|\|\|?)
    | '(?P<single>[^']*)' | "(?P<double>(?:\\.|[^"\\])*)" | \\(?P<escaped>.)
    | (?P<code>\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`) | (?P<name>\$\{[^}]*\}|\$(?:\w+|[@*]))
    | (?P<plain>[^\s'"\\;|&`$()]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}|\$(\w+)|\$\{(\w+)\}")
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}]*))?\})")
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=")
_OPENING, _CLOSING = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n(.*?)(?=^\s*\2[ \t]*$)", re.DOTALL | re.MULTILINE)
_SUCCEEDS = {"cd", "set", "export", "mkdir", "source", ".", "echo", "true", ":"}
"""Commands that are taken to succeed before `&&`."""
_BEFORE = {"export", "declare", "local", "readonly", "typeset", "then", "else", "do", "{", "!", "time"}
"""Words that may stand before an assignment or a command."""


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion, and its line in the file."""

    text: str
    line: int


@dataclass
class _Raw:
    """A word as it is written: pieces of one kind each, or the elements of an array."""

    line: int
    pieces: list[tuple[str, str]] = field(default_factory=list)
    elements: list[_Raw] | None = None

    @property
    def plain(self) -> str:
        return "".join(text for _, text in self.pieces)


def commands(text: str) -> Iterator[list[Word]]:
    """Yield the words of each command, without the assignments before it. Variables have the values assigned above it.

    A variable that is assigned in a branch or loop keeps its name: `$LR`.
    """
    shell = _Shell()
    text = _HEREDOC.sub(_without_body, text)
    for raw, end in _raw_commands(text):
        words = shell.take(raw)
        shell.follows(raw, end)
        if words:
            yield words


def _without_body(found: re.Match[str]) -> str:
    """Blank a heredoc, unless a shell runs it, or it is none: in a comment or in arithmetic."""
    line = found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()]
    if re.search(r"\b(?:sbatch|bash|sh|srun|ssh|qsub)\b|^\s*#|\(\(", line):
        return found[0]
    return found[0].replace(found[3], "\n" * found[3].count("\n"))


def _raw_commands(text: str) -> Iterator[tuple[list[_Raw], str]]:
    """Yield the words of each command, and the operator or newline after it."""
    command: list[_Raw] = []
    word: _Raw | None = None
    array: _Raw | None = None
    place, line = 0, 1
    while place < len(text):
        if text[place] == "#" and word is None:  # a comment
            place = len(text) if (end := text.find("\n", place)) < 0 else end
            continue
        found = _PIECES.match(text, place)
        kind, piece = (found.lastgroup or "", found[found.lastgroup or 0]) if found else ("plain", text[place])
        place, here = found.end() if found else place + 1, line
        line += text.count("\n", found.start(), place) if found else 0
        in_word = kind not in ("gap", "end")
        if piece == ")" and kind == "plain" and array is not None:
            word = array = None
        elif piece == "(" and kind == "plain" and word and array is None and _ASSIGNMENT.fullmatch(word.plain):
            word.elements, array, word = [], word, None
        elif in_word:
            if word is None:
                word = _Raw(here)
                (command if array is None or array.elements is None else array.elements).append(word)
            word.pieces.append((kind, piece))
        else:
            word = None
            if kind == "end" and array is None:
                yield command, piece
                command = []
    yield command, "\n"


class _Shell:
    """The variables of a script, as its commands change them one after the other."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"HOME": "~"}
        self.arrays: dict[str, list[Word]] = {}
        self.depth = self.functions = 0
        self.after_test = False

    def follows(self, raw: list[_Raw], end: str) -> None:
        """Note whether the next command runs only if this one succeeds or fails: `[ $A = b ] && LR=1`."""
        told = bool(raw) and not _ASSIGNMENT.match(raw[0].plain) and raw[0].plain not in _SUCCEEDS
        self.after_test = end == "||" or (end == "&&" and (told or self.after_test))

    def take(self, raw: list[_Raw]) -> list[Word]:
        """Apply the assignments at the start of a command, and return its other words, expanded."""
        words, before, prefix = list(raw), dict(self.values), list[str]()
        if raw and (any(word.plain.endswith("()") for word in raw[:2]) or raw[0].plain == "function"):
            self.depth, self.functions = self.depth + 1, self.functions + 1
        while words:
            first = words[0].plain
            if first == "}" and self.functions:
                self.depth, self.functions = self.depth - 1, self.functions - 1
            self._unset_by(words)
            self.depth += (first in _OPENING) - (first in _CLOSING and self.depth > 0)
            found = _ASSIGNMENT.match(first) if words[0].pieces[0][0] == "plain" else None
            if found:
                prefix.append(found[1])
                self._assign(words[0], found[1], added=bool(found[2]), start=found.end())
            elif first == "case" and (arms := [n for n, word in enumerate(words) if word.plain.endswith(")")]):
                words = words[arms[0] :]  # up to the first pattern
            elif not (
                first in {*_BEFORE, "while", "until", "if", "elif"}
                or (self.depth and first.endswith(")"))
                or self._is_flag(first, raw)
            ):
                break
            words = words[1:]
        expanded = [word for one in words for word in self._expanded(one)]
        if words and _ASSIGNMENT.match(raw[0].plain):  # `LR=1 command` sets it for this command only
            for name in prefix:
                self.values[name] = before.get(name, f"${{{name}}}")
        return expanded

    def _unset_by(self, words: list[_Raw]) -> None:
        """Make variables unknown that a loop or `read` sets."""
        first = words[0].plain
        named = words[1:2] if first in ("for", "select") else words[1:] if first == "read" else []
        for name in (word.plain for word in named):
            self.values[name] = f"${{{name}}}"

    def _is_flag(self, word: str, raw: list[_Raw]) -> bool:
        return raw[0].plain in _BEFORE and re.fullmatch(r"-\w+", word) is not None

    def _assign(self, word: _Raw, name: str, *, added: bool, start: int) -> None:
        """Assign a variable or an array. In a branch or loop, its value stays unknown."""
        unknown = self.depth > 0 or self.after_test
        if word.elements is not None:
            given = [found for element in word.elements for found in self._expanded(element)]
            if unknown:
                given = [Word(f"${{{name}[@]}}", word.line)]
            self.values.pop(name, None)
            self.arrays[name] = [*self.arrays.get(name, []), *given] if added else given
            return
        (kind, first), *rest = word.pieces
        value = self._joined([(kind, first[start:]), *rest])
        self.arrays.pop(name, None)
        before = self.values.get(name, "") if added else ""
        self.values[name] = f"${{{name}}}" if unknown else before + value

    def _joined(self, pieces: list[tuple[str, str]]) -> str:
        return "".join(text if kind in ("single", "escaped") else self._filled(text) for kind, text in pieces)

    def _filled(self, text: str) -> str:
        """Replace the variables in a text that are known."""

        def value(found: re.Match[str]) -> str:
            default = found[0] if found[3] is None else found[3].strip("\"'")
            return self.values.get(found[1] or found[2], default)

        return re.sub(r"\\([$\"\\`])", r"\1", _NAME.sub(value, text))

    def _expanded(self, word: _Raw) -> list[Word]:
        """Expand a word. Arrays, and variables without quotes, may become several words."""
        if len(word.pieces) == 1 and word.pieces[0][0] in ("name", "double") and word.elements is None:
            found = _ARRAY.fullmatch(word.pieces[0][1])
            array = self.arrays.get(found[1] or found[2] or found[3]) if found else None
            if array is not None:
                return array if found and found[1] else array[:1]
        texts: list[str] = []
        joined = False
        for kind, piece in word.pieces:
            parts = [piece] if kind in ("single", "escaped") else [self._filled(piece)]
            if kind == "name" and "$" not in parts[0] and "`" not in parts[0]:  # a known variable without quotes
                parts = re.split(r"[ \t\n]+", parts[0])
            joined = joined or kind != "name"
            last = texts.pop() if texts else ""
            texts += [last + parts[0], *parts[1:]]
        return [Word(text, word.line) for text in texts if text or joined]
