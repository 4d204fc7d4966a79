r"""The places of answers in a completion: its final turn, the text after the reasoning, boxes, tags, statements.

Every scan is linear in the length of the text and stops early: after `MAX_SCANNED` characters from the first box, after
`MAX_PLACES` boxes or statements, or after `MAX_TAIL` characters of a text without either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_SCANNED = 100_000
"""Number of characters from the first box on in which further boxes are searched."""
MAX_PLACES = 64
"""Maximum number of boxes, tags or statements to read. No honest text states one answer that often."""
MAX_NESTED = 3
"""Maximum number of directly nested boxes that count as one."""
MAX_TAIL = 3000
"""Number of characters at the end of a text without box or statement in which its conclusion is searched."""

_TURN = re.compile(
    r"<\|im_start\|>\s*(\w+)|<\|start_header_id\|>\s*(\w+)\s*<\|end_header_id\|>|<start_of_turn>\s*(\w+)"
    r"|<\|(user|assistant|system|model)\|>|(\[INST\])|(\[/INST\])"
)
_TURN_END = re.compile(r"<\|im_end\|>|<\|eot_id\|>|<\|endoftext\|>|<end_of_turn>|<\|return\|>|</s>")
_OURS = frozenset({"assistant", "model", "ai", "gpt", "[/INST]"})
REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
"""The marks with which models open and close their reasoning."""

_BRACE_OR_BOX = re.compile(
    r"\\+(?:boxed|fbox|framebox)(?![A-Za-z])\s*+(?:\{|([0-9A-Za-z])(?![0-9A-Za-z.,/^]))?|\\.|[{}]", re.DOTALL
)
BOXES = ("\\boxed", "\\fbox", "\\framebox")
"""The commands that draw a box around an answer."""
_ANSWER_TAG = re.compile(r"<answer>(.*?)(</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG_OF_A_LINE = re.compile(r"<answer>\s*+(?:(?!</?answer>)[^\n])*+\s*+</answer>", re.IGNORECASE)
_CLOSING_TAG = re.compile(
    r"[\s*_]*</(?:b|i|u|p|em|strong|div|span|center|body|html|h[1-6]|li|ul|ol|code|pre|solution|response|output|result|final)>"
    r"[\s*_]*",
    re.IGNORECASE,
)
_MARKER = re.compile(
    r"#{4,}+|\bfinal\s+answer[\s*_]*\n"
    r"|\banswer(?<!check our answer)(?<!check the answer)(?<!verify our answer)(?<!verify the answer)"
    r"(?:[*_]*\s{1,3}(?:is\b|should\s+be\b|must\s+be\b|=)|\s?[*_]*\s?:)",
    re.IGNORECASE,
)
_DENIAL_BEFORE = re.compile(
    r"(?:\b(?:not?|never|doubt|deny|false|wrong|untrue|unlikely|unless|if|cannot|neither|nor)\b|n['’]t\b)[^.!?,;:\n]{0,40}$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\n|(?<!\\)(?<!\bNo)[.!?](?=[\s\"*)]|$)")
_LABEL = re.compile(r"^(?:A|[Aa]ns(?:wer)?|Result|Solution|Total)\s*[*_]*\s*[:=]\s*")
PERCENT_BEHIND = re.compile(r"\s?\$?\s?(?:\\?%|per\s?cent\b|percentage\b|pct\b)")
_MINUS_BEFORE = re.compile(r"(?:^|[^\w)\]}.\s])\s*([-−])[\s$]*$|(?:^|\s(?:is|are|be|equals))\s*([-−])[\s$]*$")
_DISPLAYED = re.compile(r"(\$\$|\\[\[(])((?:[^$\\]|\\(?![\[\]()]))*+)(\$\$|\\[\])])")
DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
"""The beginnings and ends of formulas in LaTeX."""


class Box(NamedTuple):
    """Positions of a `\\boxed{...}`: its start, and start and end of its content; the end is -1 if it never closes."""

    start: int
    opening: int
    closing: int


class Tag(NamedTuple):
    """Positions of an `<answer>...</answer>` with its tags, and what is between them."""

    start: int
    end: int
    content: str


def final_turn(text: str) -> str:
    """The assistant's last turn in a text with the marks of several turns, up to the end of that turn.

    >>> final_turn("It is 8.<|im_end|><|im_start|>user no<|im_end|><|im_start|>assistant It is 7.<|im_end|>")
    ' It is 7.'
    >>> final_turn("It is 7. <|im_start|>user")
    'It is 7. '
    """
    if "<" not in text and "INST]" not in text:
        return text
    ours, start, speaks = "", 0, True
    for turn in _TURN.finditer(text):
        said = text[start : turn.start()]
        if speaks and said.strip():
            ours = said
        speaks = next(group for group in turn.groups() if group).lower() in _OURS or turn.group() == "[/INST]"
        start = turn.end()
    if speaks and text[start:].strip():
        ours = text[start:]
    return after_reasoning_marks(ours)


def after_reasoning_marks(turn: str) -> str:
    """A turn up to its end mark. If channels are used, the final one counts, which follows such a mark."""
    _, final, said = turn.rpartition("<|channel|>final<|message|>")
    ends = _TURN_END.search(said)
    return final + (said[: ends.start()] if ends else said)


def after_reasoning(text: str) -> str:
    """The text that is meant as the answer: after the end of the reasoning, and before any reasoning that never ends.

    >>> after_reasoning("<think>8?</think> 7"), after_reasoning("so 6 <think> or 7")
    (' 7', 'so 6 ')
    """
    for opening, closing in REASONING:
        text = text.rpartition(closing)[2].partition(opening)[0]
    return text


def find_boxes(text: str) -> list[Box] | None:
    r"""The outermost boxes, in order; None if there are too many or too much text after the first.

    `\boxed 7` is a box as well, as in TeX.
    """
    first = min((at for at in map(text.find, BOXES) if at >= 0), default=-1)
    if first < 0:
        return []
    first = len(text[:first].rstrip("\\")) if first else 0
    found: list[Box] = []
    depth, inside = 0, -1  # number of open braces; depth of the open box, or -1
    for token in _BRACE_OR_BOX.finditer(text, first, first + MAX_SCANNED):
        mark = token.group()
        if len(mark) > 4 and inside < 0:  # a box that is not inside another one
            if len(found) >= MAX_PLACES:
                return None
            if token[1]:
                found.append(Box(token.start(), token.start(1), token.end(1)))
                continue
            found.append(Box(token.start(), token.end(), -1))
            if mark.endswith("{"):
                inside = depth
        if mark.endswith("{") and mark != "\\{":
            depth += 1
        elif mark == "}" and depth:
            depth -= 1
            if depth == inside:
                found[-1] = found[-1]._replace(closing=token.start())
                inside = -1
    if len(text) > first + MAX_SCANNED and (inside >= 0 or _has_box(text, first + MAX_SCANNED)):
        return None
    return found


def box_content(text: str, box: Box) -> str:
    r"""The content of a box, with a minus before it and a percent sign after it.

    >>> text = r"so $x = -\boxed{\boxed{28}}\%$"
    >>> box_content(text, find_boxes(text)[0])
    '-28\\%'
    """
    content = text[box.opening : box.closing].strip()
    for _ in range(MAX_NESTED):
        inner = (find_boxes(content) or []) if content.startswith("\\boxed{") else []
        if len(inner) != 1 or inner[0].closing != len(content) - 1:
            break
        content = content[inner[0].opening : -1].strip()
    if not content:
        return ""
    minus = _MINUS_BEFORE.search(text[max(box.start - 20, 0) : box.start])
    percent = PERCENT_BEHIND.match(text, box.closing + (text[box.closing : box.closing + 1] == "}"))
    return ("-" if minus else "") + content + ("\\%" if percent else "")


def with_empty_boxes(text: str, boxes: list[Box]) -> str:
    """The text with blanks in its boxes, so that their content is not read as a statement."""
    for box in boxes:
        text = text[: box.opening] + " " * (box.closing - box.opening) + text[box.closing :]
    return text


def last_line(text: str) -> str:
    r"""The last line with a letter or a digit that is not only a closing tag.

    A displayed formula is one line, and so is an `<answer>` tag that holds one line.

    >>> last_line("It is\n$$\n7\n$$\n**"), last_line("<answer>\n7\n</answer>"), last_line("<b>\n7\n</b>")
    ('$$ 7 $$', '<answer> 7 </answer>', '7')
    """
    lines = _TAG_OF_A_LINE.sub(_on_one_line, _DISPLAYED.sub(_on_one_line, text)).splitlines()
    said = (line for line in reversed(lines) if any(map(str.isalnum, line)))
    return next((line for line in said if not _CLOSING_TAG.fullmatch(line)), "")


def find_tags(text: str) -> list[Tag] | None:
    """The `<answer>` tags of a text; None if there are too many."""
    if "<answer>" not in text.lower():
        return []
    found: list[Tag] = []
    for tag in _ANSWER_TAG.finditer(text):
        if len(found) >= MAX_PLACES:
            return None
        found.append(Tag(tag.start(), tag.end(), tag[1].strip()))
    return found


def find_statements(text: str) -> list[str] | None:
    """The statements after `####`, "the answer is", "Answer:" and similar markers, each up to the end of its sentence.
    None if there are too many. A denied one ("I doubt that the answer is 7") gets the prefix "not"."""
    found: list[str] = []
    first = min((at for at in (text.find("####"), text.lower().find("answer")) if at >= 0), default=-1)
    if first < 0:
        return found
    for marker in _MARKER.finditer(text, max(first - 20, 0)):
        if len(found) >= MAX_PLACES:
            return None
        stated = _stated(text, marker.end(), whole_line=marker.group().endswith("#"))
        asked = text[text.find(stated, marker.end()) + len(stated) :][:12].lstrip(" *_$)").startswith("?")
        found.append(
            f"not {stated}"
            if asked or _DENIAL_BEFORE.search(text, max(marker.start() - 60, 0), marker.start())
            else stated
        )
    return found


def end_of_statements(text: str) -> int:
    """The position after the marker of the last statement."""
    last = _MARKER.match(text, max(text.rfind("####"), text.lower().rfind("answer"), 0))
    *_, end = (last.end(),) if last else (len(text), *(marker.end() for marker in _MARKER.finditer(text)))
    return end


def _stated(text: str, start: int, *, whole_line: bool) -> str:
    """The sentence from `start` on, or the formula at its beginning if only a full stop follows that."""
    tail = text[start : start + MAX_TAIL].lstrip(" \t*_:").lstrip("\n ")
    if whole_line:
        line = tail.partition("\n")[0]
        return line.partition("####")[0].strip(" \t*")
    formula = 0
    for opening, closing in DELIMITERS:
        end = tail.find(closing, len(opening)) if tail.startswith(opening) else -1
        if end > 0 and not formula:
            formula = end + len(closing)
    end = _SENTENCE_END.search(tail, formula)
    dots = end is not None and tail[: end.end()].endswith("..")  # `7..` continues: it is not 7
    return (tail[: end.end() if dots else end.start()] if end else tail).replace("\n", " ").strip(" \t*_")


def sentences_backwards(text: str) -> Iterator[str]:
    """Yield the sentences and lines at the end of a text, the last one first. Displayed formulas stay in one piece."""
    tail = text[-MAX_TAIL:].rstrip()
    tail = _DISPLAYED.sub(_on_one_line, tail)
    end = len(tail)
    starts = [0, *(match.end() for match in _SENTENCE_END.finditer(tail))]
    for start in reversed(starts):
        said = tail[start:end].strip()
        said = said if said.endswith("..") else said.removesuffix(".")
        if sentence := _LABEL.sub("", said.strip(" \t*_")):
            yield sentence
        end = start


def _on_one_line(match: re.Match[str]) -> str:
    return match.group().replace("\r\n", " ").replace("\n", " ")


def _has_box(text: str, start: int) -> bool:
    return any(text.find(box, start) >= 0 for box in BOXES)


def final_of(gold: Any) -> str:
    r"""The final answer in a gold column: the text after `####`, in the last box, or the whole text.

    >>> final_of("16 - 3 = 13\n#### 1,300"), final_of(r"so $\boxed{\frac{1}{2}}$."), final_of(145.0), final_of("Paris ")
    ('1,300', '\\frac{1}{2}', '145', 'Paris')
    """
    if isinstance(gold, float) and gold.is_integer():
        gold = int(gold)
    text = str(gold)
    if "####" in text:
        return text.rpartition("####")[2].strip()
    boxes = [text[box.opening : box.closing] for box in find_boxes(text) or () if box.closing >= 0]
    return ((boxes or [""])[-1] or text).strip()
