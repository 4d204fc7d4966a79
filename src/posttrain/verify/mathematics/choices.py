r"""Multiple choice: one letter, in any notation.

>>> multiple_choice("So the answer is (C).", "C").reason, multiple_choice(r"\boxed{B}", 2).reason
('correct', 'wrong')
>>> multiple_choice("The answer is Paris.", "B", choices=["Rome", "Paris"]).reason
'correct'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from posttrain.errors import DataError
from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.denials import is_denied
from posttrain.verify.mathematics.extract import MAX_SEGMENT, final_segment
from posttrain.verify.mathematics.options import AnswerFrom
from posttrain.verify.mathematics.options import Options as Reading
from posttrain.verify.mathematics.sentences import without_dollars
from posttrain.verify.mathematics.verify import Message, hidden_characters, text_of
from posttrain.verify.verdict import Verdict, correct

LETTERS = "ABCDEFGHIJ"
MAX_SHOWN = 300
"""Maximum length of the text with which a completion names a choice, in characters."""

_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
_LETTER = re.compile(
    r"(?:(?:the\s+)?(?:option|choice|answer)\s+)?(?P<open>[(\[])?\s*(?-i:(?P<label>[A-Ja-j0-9]))(?![\w'’])"
    r"(?P<mark>(?:\s*[)\]])?(?:\s*[:.](?![0-9])|\s+[-–—]+(?=\s)|\s*→|\s+\((?![A-J]\)))?)\s*(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
"""A letter, the mark between it and its text, as in `B)`, `B:`, `B - `, and the rest."""
_SPACE = re.compile(r"\\(?:[ ,;:!]|q?quad\b)|~")
_LETTER_BEHIND = re.compile(r"(.+?)\s*[(\[]([A-J0-9])[)\]]", re.DOTALL)
"""The text of a choice before its letter: `Paris (B)`."""
_NAMES_CHOICE = re.compile(r"\b(?:correct|right|best)?\s*(?:option|choice)\s*(?:is|:)\s*", re.IGNORECASE)
_OTHER = re.compile(
    r"(?:\b(?i:or|and|maybe|perhaps|possibly|either|nor)\b|[,/;&])\s*(?i:(?:option|choice)\s+)?[(\[]?[A-J0-9][)\]]?(?![\w'])"
)
_LETTERS = re.compile(r"[A-J][)\].:]*(?:\s+(?i:(?:option|choice)\s+)?[(\[]?[A-J][)\].:]*)+$")
_REASON = re.compile(
    r"(?:^|[\s,;.:(—–-]+)(?:(?:because|since)\b.*"
    r"|(?:as\s+(?:shown|seen|stated)(?:\s+(?:above|below|before|earlier))?|based\s+on\s+the\s+\w+)\W*$)",
    re.DOTALL | re.IGNORECASE,
)
"""A reason behind a choice. `as shown above` and `based on the passage` must end it: "as shown above is wrong"."""
_AFFIRMED = re.compile(
    r"is\s+(?:the\s+)?(?:(?:correct|right|best|final|only)\s+)*(?:correct|right|answer|option|choice)", re.IGNORECASE
)
"""`B is the right answer`."""
_PREDICATE = re.compile(
    r"(?:am|is|are|was|were|be|been|has|have|had|does|do|did|can|could|will|would|shall|should|may|might|must|cannot|wo)"
    r"(?:n?['’]t)?\b"
)
"""The auxiliary verbs of English, with which a statement about a choice begins: `B) is out`."""
_NEW_SENTENCE = re.compile(r"(?<=[.!?])[\s*_]+(?=[A-Z\"“(])")
_LAST_LINE = re.compile(r"[*_\s]*[(\[]?([A-J])[)\].:]?[*_\s.]*(?:\n|$)")

Options = Mapping[str, str]
"""The text of each choice, by label."""


def multiple_choice(
    completion: str | Sequence[Message],
    answer: Any,
    choices: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    truncated: bool = False,
    answer_from: AnswerFrom = "anywhere",
) -> Verdict:
    """Whether the one choice of a completion is the gold: a letter, or its index from 0.

    `choices` is the column with the texts of the choices, in order, or with `text` and `label`. With it, the text of a
    choice counts as much as its letter, and any other text behind a letter makes it ambiguous. Without it, nobody can
    tell the text of a choice from other words: behind a mark, as in `B)`, only a statement about the choice (`B) is
    out`) makes it ambiguous, and behind a bare letter, any words do (`B, not A`). A reason or praise may follow.
    """
    start = perf_counter()
    Reading(answer_from=answer_from)  # ConfigError for any other place
    options = _options(choices)
    gold = _gold(answer, options)
    verdict = _verdict(final_segment(text_of(completion)), gold, options, answer_from, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def choice_of(completion: str | Sequence[Message]) -> str | None:
    """The one letter that a completion chooses.

    >>> choice_of("So the answer is (C)."), choice_of("A or B")
    ('C', None)
    """
    segment = final_segment(text_of(completion))
    read = [_read(one, segment, {}) for one in _named(segment, "anywhere") or ()]
    chosen = {choice for choice in read if choice is not None}
    return chosen.pop() or None if len(chosen) == 1 else None


class _Named(NamedTuple):
    """A text that names a choice, and its place in the segment: -1, 0 if the words around it do not count."""

    text: str
    start: int
    end: int


def _verdict(segment: str, gold: str, options: Options, place: AnswerFrom, *, truncated: bool) -> Verdict:
    if len(segment) > MAX_SEGMENT:
        return Verdict(0.0, "too_large", detail=f"a text of {len(segment)} characters")
    segment = places.last_line(segment) if place == "last_line" else segment
    named = _named(segment, place)
    if named is None:
        return Verdict(0.0, "ambiguous", detail=f"more than {places.MAX_PLACES} answers")
    read = [(one.text, _read(one, segment, options)) for one in named]
    chosen = {choice for _, choice in read if choice is not None}
    if not chosen:
        found = named[-1].text if named else None
        reason = "wrong" if found else "truncated" if truncated else "no_answer"
        return Verdict(0.0, reason, extracted=found, detail="names no choice" if found else "")
    if len(chosen) > 1 or "" in chosen:
        detail = "several choices" if len(chosen) > 1 else "several choices, or words that are not the choice's text"
        return Verdict(0.0, "ambiguous", extracted="; ".join(text for text, _ in read), detail=detail)
    text = next(text for text, choice in read if choice is not None)
    return correct(gold in chosen, text)


def _named(segment: str, place: AnswerFrom) -> list[_Named] | None:
    """The texts that a completion names as its choice: in boxes, tags and statements, else the last line."""
    boxes, tags = places.find_boxes(segment), places.find_tags(segment)
    if boxes is None or tags is None:
        return None
    if place != "tag" and boxes and boxes[-1].closing < 0:
        return []
    boxed = [_Named(places.box_content(segment, box), box.start, box.closing + 1) for box in boxes]
    if place in ("box", "tag"):
        texts = [one.text for one in boxed] if place == "box" else [_inner(tag.content) for tag in tags]
        return [_Named(text, -1, 0) for text in texts if text]
    stated = places.find_statements(segment)
    if stated is None:
        return None
    tagged = [_Named(tag.content, tag.start, tag.end) for tag in tags if "\\boxed" not in tag.content]
    said = [_located(text, segment) for text in stated + _behind_names(segment) if "\\boxed" not in text]
    named = [one for one in boxed + tagged + said if one.text]
    if not named and not boxes:
        line = segment.rstrip().rpartition("\n")[2].strip()
        named = [_located(line, segment)] if line and (_LAST_LINE.fullmatch(line) or len(line) <= MAX_SHOWN) else []
    return named


def _inner(tag: str) -> str:
    """The content of a tag, or of the last box in it."""
    boxes = places.find_boxes(tag)
    return places.box_content(tag, boxes[-1]) if boxes and boxes[-1].closing >= 0 else tag


def _located(text: str, segment: str) -> _Named:
    """A text at the last place where the segment has it as whole words."""
    end = len(segment)
    for _ in range(places.MAX_PLACES):
        start = segment.rfind(text, 0, end)
        end = start + len(text)
        if start < 0 or not (segment[max(start - 1, 0) : start].isalnum() or segment[end : end + 1].isalnum()):
            return _Named(text, start, end)
        end -= 1
    return _Named(text, -1, 0)


def _behind_names(segment: str) -> list[str]:
    """The texts that follow "the correct option is"."""
    found = []
    for match in _NAMES_CHOICE.finditer(segment):
        if len(found) >= places.MAX_PLACES:
            break
        line = segment[match.end() : match.end() + MAX_SHOWN].partition("\n")[0]
        found.append(_NEW_SENTENCE.split(line, maxsplit=1)[0].strip(" *_."))
    return found


def _read(named: _Named, segment: str, options: Options) -> str | None:
    """The label that a text names, in view of the words around it; "" if it names several, None if it names none."""
    choice = _choice(named.text, options)
    if not choice or named.start < 0:
        return choice
    if is_denied(segment, named.start, named.end):
        return None
    behind = _plain(segment[named.end : named.end + MAX_SHOWN].partition("\n")[0])
    if not behind:
        return choice
    return "" if any(_plain(text) == behind for label, text in options.items() if label != choice) else choice


def _choice(text: str, options: Options, *, trusted: bool = False) -> str | None:
    """The label that a text names; "" if it names several or says more than that, None if it names none.

    `trusted`: the text is a gold answer, in which any words but the text of another choice may follow the letter.
    """
    text = _SPACE.sub(" ", _COMMAND.sub(r" \1 ", without_dollars(text))).replace("*", "").strip(" \t\n_.;:!\\\"'“”‘’")
    if len(text) > MAX_SHOWN or hidden_characters(text):
        return None
    by_text = [label for label, option in options.items() if _plain(option) == _plain(text)]
    if len(by_text) == 1:
        return _label_alone(text, options) or by_text[0]
    match = _LETTER.match(text)
    label, rest = (match["label"].upper(), match["rest"].strip()) if match else ("", "")
    if match is None or (label not in options if options else label.isdigit() and rest):
        return _before_letter(text, options)
    if match["label"].islower() and rest:  # "a matter of taste" is not a choice
        return None
    reason = _REASON.search(rest)
    said = rest[: reason.start()] if reason else rest
    if said and label in options and _plain(said) == _plain(options[label]):
        others = _OTHER.search(rest, len(said))
        return "" if others else label
    if _OTHER.search(text) or _LETTERS.match(text, match.start("label")):
        return ""
    if is_denied(text, match.start("label"), match.end("label")):
        return None
    if trusted:
        return "" if any(_plain(option) == _plain(said) for option in options.values()) else label
    marked = bool(match["open"] or match["mark"])
    return label if _may_follow(said.strip(" \t\n_.,;:!)]"), marked=marked and not options) else ""


def _label_alone(text: str, options: Options) -> str | None:
    """The label that a text is, in either case and without anything else; None for any other text."""
    match = _LETTER.fullmatch(text)
    label = match["label"].upper() if match is not None and not match["rest"] else None
    return label if label in options else None


def _may_follow(said: str, *, marked: bool) -> bool:
    """Whether a letter may be followed by this: nothing, "is the answer", or what may be its text behind a mark."""
    return not said or bool(_AFFIRMED.fullmatch(said)) or (marked and _PREDICATE.match(said) is None)


def _before_letter(text: str, options: Options) -> str | None:
    """The label in brackets behind the text of its choice, or behind a number if the texts are not known."""
    match = _LETTER_BEHIND.fullmatch(text)
    if match is None or (options and match[2] not in options):
        return None
    if options:
        return match[2] if _plain(match[1]) == _plain(options[match[2]]) else ""
    return match[2] if re.fullmatch(r"\S*[0-9]\S*", match[1]) else ""


def _plain(text: str) -> str:
    text = without_dollars(text) if "$" in text or "\\" in text else text
    return " ".join(text.split()).strip(" .,;:!?()[]*_\"'“”‘’").casefold()


def _options(choices: Sequence[Any] | Mapping[str, Any] | None) -> Options:
    if choices is None:
        return {}
    if isinstance(choices, Mapping):
        if "text" in choices:
            choices = dict(zip(choices.get("label", LETTERS), choices["text"], strict=False))
        return {str(label).upper(): str(text) for label, text in choices.items()}
    if isinstance(choices, str) or not 2 <= len(choices) <= len(LETTERS):
        raise DataError(given=f"choices = {choices!r}", allowed=f"a list of 2 to {len(LETTERS)} texts")
    return dict(zip(LETTERS, map(str, choices), strict=False))


def _gold(answer: Any, options: Options) -> str:
    """The label of the right choice. DataError if the gold answer names none."""
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < (len(options) or len(LETTERS)):
        return list(options)[answer] if options else LETTERS[answer]
    label = _choice(answer, options, trusted=True) if isinstance(answer, str) else None
    if not label:
        raise DataError(
            given=f"the gold answer {answer!r} names no choice",
            allowed=f"a letter from {LETTERS[0]} to {LETTERS[-1]}, an index counted from 0, or the text of a choice",
            fix="Correct or drop the row; `data.answer` names the column that holds the gold answer.",
        )
    return label
