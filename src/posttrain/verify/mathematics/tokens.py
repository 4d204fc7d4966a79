r"""Split text into tokens: LaTeX, plain text and mixtures of both. Pure typesetting is dropped.

>>> [token.text for token in tokenise(r"\left( \tfrac12,\; 3{,}000 \right)")]
['(', '\\frac', '12', ',', '3000', ')']
>>> " ".join(token.text for token in tokenise("½ ≤ x² ＜ 3"))
'\\frac { 1 } { 2 } <= x ^ { 2 } < 3'
"""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from posttrain.verify import read_table
from posttrain.verify.mathematics.guard import MAX_CHARS, MAX_DIGITS, MAX_NESTING, Unreadable


class Token(NamedTuple):
    kind: str
    """The kind: number, letter (a symbol), word, command or operator."""
    text: str
    gap: bool = False
    """Whether a space precedes the token."""
    bold: bool = False
    """Whether a symbol is bold, as vectors are."""


_SCRIPTS = {"<super>": "^", "<sub>": "_"}
"""Unicode's marks for superscript and subscript characters, and the LaTeX commands for them."""
_LOOKS_ALIKE = frozenset({"<font>", "<wide>", "<narrow>", "<noBreak>", "<fraction>"})
"""Marks of characters that are typographic variants of a plain one. A digit in a circle or with a full stop is not."""
_UNSEEN = frozenset({"Cf", "Cc", "Cn", "Co", "Cs", "Mn", "Me"})
"""Unicode categories: format and control characters, unassigned characters, combining marks."""
_NOTATION = read_table(Path(__file__).with_name("notation.yaml"))
_GLYPHS, _OPERATORS, _LETTERS, _SAME = (_NOTATION[name] for name in ("glyphs", "operators", "letters", "same"))
_WORD_COMMANDS: dict[str, str] = _NOTATION["word_commands"]


def words(name: str, prefix: str = "") -> frozenset[str]:
    """A word list from `notation.yaml`."""
    return frozenset(prefix + word for word in _NOTATION[name].split())


_ONLY_TYPE, _SHORT_WORDS = words("only_type") | {*_NOTATION["only_type_signs"]}, words("short_words")
FORBIDDEN = words("forbidden")
"""Commands that hide, strike out, overprint or recolour: the visible result differs from the text."""
_BOLD = frozenset({"mathbf", "boldsymbol", "bm"})
_DOTS = frozenset({"ldots", "dots", "cdots", "dotsc", "dotsm", "dotsb", "dotso"})

_TOKEN = re.compile(
    r"(?P<space>[\s~]+)"
    r"|\\(?P<set_as_text>text|textbf|textit|textrm|textnormal|textsf|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathbb|mathcal"
    r"|operatorname|boldsymbol|bm)(?:\s*\{(?P<content>[^{}]*)\}|\s+(?P<lone>[A-Za-z0-9]))"
    r"|\\begin\s*\{(?P<begin>[a-z]+\*?)\}(?:\s*\{[|clr\s]*\})?"
    r"|\\end\s*\{(?P<end>[a-z]+\*?)\}"
    r"|(?P<blank>\\phantom\s*(?:\{\s*[-+]\s*\}|[-+]))"
    r"|\\(?P<command>[A-Za-z]+|.)"
    r"|(?P<dots>\.\.\.+)"
    r"|(?P<number>(?P<grouped>[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:[ ][0-9]{3})+)(?![0-9]|\s*/)(?:\.[0-9]+)?)"
    r"|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4}(?![0-9.A-Za-z]))?)"
    r"|(?P<letters>[A-Za-z]+)"
    r"|(?P<operator>\*\*|<=|>=|!=|.)",
    re.DOTALL,
)
_PLAIN_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_TYPESET_THOUSANDS = re.compile(
    r"(?<=[0-9])(?:\s?\{\s?,\s?\}[\s~]{0,3}|,\s?\\![\s~]{0,3}|\\!\s?,[\s~]{0,3}|\\[,;:]\s?|\\ )(?=[0-9]{3}(?![0-9]))"
)
_LONE_SIGN = re.compile(r"\{\s*([-+])\s*\}")
"""A sign in braces that only affect spacing, as in `{+}\\infty`."""
_RAISED = re.compile(r"\^\s*(?:\{\s*(?:\\circ|(?:\\prime\s*)+)\s*\}|\\(?:circ|prime)(?![A-Za-z]))")
"""A degree or prime, in braces or not."""
_ESCAPED_TWICE = re.compile(r"\\\\([A-Za-z])")
OPENING, CLOSING = frozenset({"(", "[", "{", "\\{", "⟨"}), frozenset({")", "]", "}", "\\}", "⟩"})
_ENDINGS = ".,;: \t\n\\"


def fold(text: str) -> str:
    """Normalize characters: superscripts, subscripts, vulgar fractions, full width, minus signs.

    Unreadable for invisible and directional characters, because a reader sees something else than the text.

    >>> fold("x₁² = ７ + 1₂"), fold("①")
    ('x_{1}^{2} = 7 + 1_{2}', '①')
    """
    if text.isascii():
        return text
    runs = groupby(text, key=script_of)
    return "".join(
        f"{script}{{{''.join(unicodedata.normalize('NFKC', char).replace('−', '-') for char in run)}}}"
        if script
        else "".join(map(_folded, run))
        for script, run in runs
    )


def script_of(char: str) -> str:
    """`^` for a superscript such as ², `_` for a subscript such as ₂; empty for other characters."""
    return "" if char.isascii() else _SCRIPTS.get(unicodedata.decomposition(char).partition(" ")[0], "")


def _folded(char: str) -> str:
    if char.isascii():
        return char
    if char in _GLYPHS:
        return _GLYPHS[char]
    if unicodedata.category(char) in _UNSEEN and not char.isspace():
        raise Unreadable("wrong", f"the answer contains the invisible or combining character U+{ord(char):04X}")
    spelled = unicodedata.normalize("NFKC", char)
    mark = unicodedata.decomposition(char).partition(" ")[0]
    if mark not in _LOOKS_ALIKE and any(one.isdigit() for one in spelled):
        return char
    above, slash, below = spelled.partition("\u2044")
    return f"\\frac{{{above}}}{{{below}}}" if slash and above and below else spelled


def tokenise(text: str) -> list[Token]:
    """The tokens of an answer. Unreadable for characters and commands that hide something, and beyond the limits."""
    text = _RAISED.sub(_raised, fold(text))
    text = _without_delimiters(_TYPESET_THOUSANDS.sub("", _LONE_SIGN.sub(r"\1", text)))
    if len(text) > 2 * MAX_CHARS:
        raise Unreadable("too_large", f"the answer has more than {2 * MAX_CHARS} characters when it is spelled out")
    tokens: list[Token] = []
    position, depth, gap = 0, 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None  # the last alternative takes any character
        kind = match.lastgroup
        position = match.end()
        if kind in ("space", "blank"):
            gap = True
            continue
        found, position = _tokens_of(match, depth, gap)
        for token in found:
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if depth > MAX_NESTING:
                raise Unreadable("too_large", f"brackets are nested deeper than {MAX_NESTING}")
        tokens += found
        gap = not found
    return tokens


def _tokens_of(match: re.Match[str], depth: int, gap: bool) -> tuple[list[Token], int]:
    """The tokens of one match, and its end position."""
    end = match.end()
    if match["number"] is not None:
        text, end = match["number"], end
        if match["grouped"] is not None and depth > 0:  # within brackets a comma separates: (20,100) is a point
            plain = _PLAIN_NUMBER.match(match.string, match.start())
            assert plain is not None
            text, end = plain.group(), plain.end()
        text = text.replace(",", "").replace(" ", "")
        if len(text) > MAX_DIGITS:
            raise Unreadable("too_large", f"a number of more than {MAX_DIGITS} digits")
        return [Token("number", text, gap)], end
    if match["letters"] is not None:
        return _letters(match["letters"], gap), end
    if match["command"] is not None:
        return _command(match["command"], gap), end
    if match["set_as_text"] is not None:
        return _set_as_text(match["set_as_text"], match["content"] or match["lone"] or "", gap), end
    for environment in ("begin", "end"):
        if match[environment] is not None:
            return [Token("command", f"\\{environment}{{{match[environment].rstrip('*')}}}", gap)], end
    if match["dots"] is not None:
        return [Token("letter", "…", gap)], end
    return [Token("operator", {"**": "^", "!=": "≠"}.get(match["operator"], match["operator"]), gap)], end


def _letters(letters: str, gap: bool) -> list[Token]:
    """The tokens of a run of letters: a word of plain text, a function, or a product of symbols."""
    if len(letters) == 1:
        return [Token("letter", letters, gap)]
    if letters in _WORD_COMMANDS:
        return _command(_WORD_COMMANDS[letters], gap)
    if letters in _SHORT_WORDS or (len(letters) > 3 and not (letters.isupper() and len(letters) < 9)):
        return [Token("word", letters, gap)]
    return [Token("letter", letter, gap and index == 0) for index, letter in enumerate(letters)]


def _command(name: str, gap: bool) -> list[Token]:
    if name in _ONLY_TYPE:
        return []
    if name in FORBIDDEN:
        raise Unreadable("wrong", f"the answer uses \\{name}, which hides part of it")
    if name in _OPERATORS:
        return [Token("operator", _OPERATORS[name], gap)]
    if name in _LETTERS:
        return [Token("letter", _LETTERS[name], gap)]
    if name in _DOTS:
        return [Token("letter", "…", gap)]
    if name.startswith("quad"):  # `\quadx` for `\quad x`
        return _letters(name.removeprefix("quad"), gap=True)
    return [Token("command", "\\" + _SAME.get(name, name), gap)]


def _set_as_text(command: str, content: str, gap: bool) -> list[Token]:
    r"""The tokens of `\text{ or }`, `\mathrm{cm}`, `\mathbf{x}`, `\text{13}`: words, symbols or numbers."""
    if command == "mathbb":
        return [Token("letter", f"\\mathbb{{{content}}}", gap)]
    if command == "operatorname":
        return _letters(content, gap) if content.isalpha() else [Token("command", f"\\{content}", gap)]
    tokens: list[Token] = []
    gap = gap or content[:1].isspace()
    for match in _IN_TEXT.finditer(content):
        if match["space"]:
            gap = True
            continue
        if match["word"]:
            symbol = len(match["word"]) == 1 and command not in ("text", "mbox", "hbox", "textnormal")
            tokens.append(Token("letter" if symbol else "word", match["word"], gap, bold=symbol and command in _BOLD))
        elif match["number"]:
            tokens.append(Token("number", match["number"].replace(",", ""), gap))
        else:
            tokens.append(Token("operator", match.group(), gap))
        gap = False
    return tokens


_IN_TEXT = re.compile(
    r"(?P<space>[\s~]+)|(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+(?:\.[0-9]+)?)"
    r"|(?P<word>(?:sq\.|cu\.|[ap]\.\s?m\.?|[^\W\d_]+(?:['-][^\W\d_]+)*))|.",
    re.DOTALL,
)


def _raised(match: re.Match[str]) -> str:
    return "^\\circ " if "circ" in match.group() else "'" * match.group().count("prime")


def _without_delimiters(text: str) -> str:
    r"""The text without the dollar signs of formulas. A single one is a currency sign, and so is `\$`."""
    text = _without_ending(text)
    if "\\begin" not in text:
        text = _ESCAPED_TWICE.sub(r"\\\1", text)
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(closing):
            text = _without_ending(text[2:-2])
    if "$" not in text:
        return text
    bare = [match.start() for match in re.finditer(r"\\.|\$", text, re.DOTALL) if match.group() == "$"]
    if len(bare) % 2 == 0:
        for start in reversed(bare):
            text = text[:start] + " " + text[start + 1 :]
    return _without_ending(text)


def _without_ending(text: str) -> str:
    """The text without the punctuation at its end. Dots that mean "and so on" stay."""
    text = text.strip()
    return text if text.endswith("...") else text.rstrip(_ENDINGS)
