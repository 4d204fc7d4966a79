"""Reads the commands of a bash script with its variables and arrays. Nothing is run."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

_BRACES = r"\$\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_CODE = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_PIECES = re.compile(
    rf"""(?P<gap>\\\n|[ \t\r]+) | (?P<end>\n|;+|&&|\|\|?)
    | '(?P<single>[^']*)' | "(?P<double>(?:\\.|{_BRACES}|{_CODE}|[^"\\])*)" | \\(?P<escaped>.)
    | (?P<code>{_CODE}|`[^`]*`) | (?P<name>{_BRACES}|\$(?:\w+|[@*]))
    | (?P<plain>[^\s'"\\;|&`$()]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}|\$(\w+)|\$\{(\w+)\}")
_NAME = re.compile(rf"(?<!\\)(?:\$(\w+)|(?={_BRACES})\$\{{(\w+)(?:(:?[-=])((?:[^{{}}]|{_BRACES})*))?\}})")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_NUMBER = r"\s*(?:0|[1-9]\d*)\s*"
_OPERATORS = {"*": operator.mul, "+": operator.add, "-": operator.sub}
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=")
_OPENING, _CLOSING = {"if", "for", "while", "until", "case", "select", "{"}, {"fi", "done", "esac", "}"}
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"\\]?)(\w+)['\"]?[^\n]*\n(.*?)^\s*\2[ \t]*$", re.DOTALL | re.MULTILINE)
_SHELLS = re.compile(r"(?:^|[\s;|&(/])(?:(?:ba|z|k|da)?sh|sbatch|srun|ssh|qsub)(?=[\s;|&)<]|$)")
"""The name of a command that runs the commands it reads."""
_SUCCEEDS = {"cd", "set", "export", "mkdir", "source", ".", "echo", "true", ":"}
"""Commands that are taken to succeed before `&&`."""
_BEFORE = {"export", "declare", "local", "readonly", "typeset", "then", "else", "do", "!", "time"}
"""Words that may stand before an assignment or a command."""
_SETS = re.compile(r"(source|\.|eval|unset|read|mapfile|readarray|let|getopts|alias|printf -v) |\(\(")
"""The beginning of a command that may set any variable."""


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


def commands(text: str, *, written: bool = False) -> Iterator[list[Word]]:
    """Yield the words of each command, without the assignments before it. Variables have the values assigned above it.

    A variable keeps its name, `$LR`, if it is assigned in a branch, loop or function, or before a command that may set
    any variable, such as `source`. The commands of a heredoc count if a shell gets it; if `written`, those of others,
    such as `cat > job.sh <<EOF`, come last. Their values are those of the script around it, as bash expands them.
    """
    shell, kept = _Shell(), list[list[Word]]()
    bodies, blank = [found for found in _HEREDOC.finditer(text) if _is_one(found)], text
    for found in bodies:
        start, end = found.start(3), found.end()
        blank = blank[:start] + re.sub(r"[^\n]", " ", blank[start:end]) + blank[end:]
    for raw, end in _raw_commands(blank):
        words = shell.take(raw)
        shell.follows(raw, end)
        if words:
            yield words
        while bodies and raw and raw[-1].line > blank.count("\n", 0, bodies[0].start()):
            body = bodies.pop(0)
            inside = [*_in_heredoc(body, shell)]
            if _is_run(body):
                yield from inside
            elif written:
                kept += inside
    yield from kept


def _is_one(heredoc: re.Match[str]) -> bool:
    """Is `<<` neither in a comment nor in arithmetic?"""
    before = heredoc.string[: heredoc.start()].rpartition("\n")[2]
    return re.search(r"^\s*#|\(\(", before) is None


def _is_run(heredoc: re.Match[str]) -> bool:
    """Does a line with `<<` hold a command that runs what it reads?"""
    line = heredoc.string[heredoc.string.rfind("\n", 0, heredoc.start()) + 1 : heredoc.start(3)]
    return _SHELLS.search(line) is not None


def _in_heredoc(found: re.Match[str], shell: _Shell) -> Iterator[list[Word]]:
    """Yield the commands in a heredoc. Its own assignments, and all variables of one in quotes, stay unknown."""
    reader = _Shell() if found[1] else shell
    for raw, _ in _raw_commands(found[3], found.string.count("\n", 0, found.start(3)) + 1):
        while raw and (_ASSIGNMENT.match(raw[0].plain) or raw[0].plain in _BEFORE):
            raw = raw[1:]
        if words := [word for one in raw for word in reader.expanded(one)]:
            yield words


def _raw_commands(text: str, line: int = 1) -> Iterator[tuple[list[_Raw], str]]:
    """Yield the words of each command, and the operator or newline after it. `line` is the line of the beginning."""
    command: list[_Raw] = []
    word: _Raw | None = None
    array: _Raw | None = None
    place = 0
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
        self.depth = self.body = self.subshells = 0
        """The number of open branches, loops and groups, and that at the outermost function; 0 outside of one."""
        self.functions: set[str] = set()
        self.after_test = self.any_set = False

    def follows(self, raw: list[_Raw], end: str) -> None:
        """Note whether the next command runs only if this one succeeds or fails: `[ $A = b ] && LR=1`."""
        told = bool(raw) and not _ASSIGNMENT.match(raw[0].plain) and raw[0].plain not in _SUCCEEDS
        self.after_test = end == "||" or (end == "&&" and (told or self.after_test))

    def take(self, raw: list[_Raw]) -> list[Word]:
        """Apply the assignments at the start of a command, and return its other words, expanded."""
        words, before, prefix = self._after_head(raw), dict(self.values), list[str]()
        while words:
            first = words[0].plain
            self._note(words)
            found = _ASSIGNMENT.match(first) if words[0].pieces[0][0] == "plain" else None
            if found:
                prefix.append(found[1])
                self._assign(words[0], found[1], added=bool(found[2]), start=found.end())
            elif first == "case" and (arms := [n for n, word in enumerate(words) if word.plain.endswith(")")]):
                words = words[arms[0] :]  # up to the first pattern
            elif not (
                first in {*_BEFORE, "while", "until", "if", "elif", "{"}
                or (self.depth and first.endswith(")"))
                or self._is_flag(first, raw)
            ):
                break
            words = words[1:]
        if self.subshells or (words and words[0].plain.startswith("(")):
            whole = "".join(text for word in raw for kind, text in word.pieces if kind == "plain")
            self.subshells = max(0, self.subshells + whole.count("(") - whole.count(")"))
        if words and _ASSIGNMENT.match(raw[0].plain):  # `LR=1 command` sets it for this command only
            for name in prefix:
                self.values[name] = before.get(name, f"${{{name}}}")
        return [word for one in words for word in self.expanded(one)]

    def _after_head(self, raw: list[_Raw]) -> list[_Raw]:
        """Return a command without the head of a function, `name() {`."""
        names = [word.plain for word in raw[:2]]
        place = 1 if names[:1] == ["function"] else 0
        if not (place or re.match(r"[\w.-]+ ?\(\)", " ".join(names))):
            return list(raw)
        self.functions.add(names[place].removesuffix("()"))
        self.body = self.body or self.depth + 1
        return [word for word in raw[place + 1 :] if word.plain != "()"]

    def _note(self, words: list[_Raw]) -> None:
        """Follow branches, loops and functions, and forget variables that a command may set."""
        first = words[0].plain
        self.depth += (first in _OPENING) - (first in _CLOSING and self.depth > 0)
        if first in _CLOSING and self.depth < self.body:
            self.body = 0
        if first in ("for", "select") and len(words) > 1:
            self.values[words[1].plain] = f"${{{words[1].plain}}}"
        text = " ".join(word.plain for word in words) + " "
        if first in self.functions or _SETS.match(text) or (first[0:1] == "(" and self._may_set(text.lstrip("( "))):
            self.values = {name: f"${{{name}}}" for name in (*self.values, *self.arrays)}
            self.arrays, self.any_set = {}, True

    def _may_set(self, text: str) -> bool:
        """May the first command of a subshell set a variable for the commands after it?"""
        first = text.partition(" ")[0].rstrip(")")
        own = first in self.functions or first in _BEFORE or first in _OPENING
        return own or bool(_ASSIGNMENT.match(text) or _SETS.match(text))

    def _is_flag(self, word: str, raw: list[_Raw]) -> bool:
        return raw[0].plain in _BEFORE and re.fullmatch(r"-\w+", word) is not None

    def _assign(self, word: _Raw, name: str, *, added: bool, start: int) -> None:
        """Assign a variable or an array. In a branch or loop, its value stays unknown."""
        unknown = self.depth > 0 or self.subshells > 0 or self.after_test
        if word.elements is not None:
            given = [found for element in word.elements for found in self.expanded(element)]
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
        """Replace the variables in a text that are known, and sums of them."""
        filled = _NAME.sub(self._value, _SUM.sub(self._sum, text))
        return re.sub(r"\\([$\"\\`])", r"\1", filled)

    def _value(self, found: re.Match[str]) -> str:
        """Return the value of `$NAME` or `${NAME:-default}`. In a function, no value is known."""
        name, default = found[1] or found[2], found[4]
        known = None if self.body else self.values.get(name)
        if known or (known is not None and ":" not in (found[3] or "")):
            return known
        if default is None or self.any_set or self.body:
            return found[0]
        if "=" in found[3]:
            self.values[name] = f"${{{name}}}"
        return self._filled(default.replace('"', "").strip("'"))

    def _sum(self, found: re.Match[str]) -> str:
        """Compute `$((2 * A))`: whole numbers with one kind of operator between them."""
        if self.body:
            return found[0]
        text = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda name: self.values.get(name[1], "?"), found[1])
        kinds = {*re.findall(r"[^\w\s]", text)}
        if len(kinds) > 1 or not re.fullmatch(rf"{_NUMBER}([*+-]{_NUMBER})*", text):
            return found[0]
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        return str(reduce(_OPERATORS[kinds.pop()], numbers)) if kinds else str(numbers[0])

    def expanded(self, word: _Raw) -> list[Word]:
        """Expand a word. Arrays, and variables without quotes, may become several words."""
        simple = len(word.pieces) == 1 and word.pieces[0][0] in ("name", "double") and word.elements is None
        if simple and not self.body:
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
