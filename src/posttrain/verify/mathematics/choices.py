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
from typing import Any

from posttrain.errors import DataError
from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.extract import MAX_SEGMENT, final_segment
from posttrain.verify.mathematics.sentences import without_dollars
from posttrain.verify.mathematics.verify import Message, hidden_characters, text_of
from posttrain.verify.verdict import Verdict, correct

LETTERS = "ABCDEFGHIJ"
MAX_SHOWN = 300
"""Maximum length of the text with which a completion names a choice, in characters."""

_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\s+)?[(\[]?\s*([A-Ja-j0-9])\s*[)\]]?\s*(?:[.:)]|$|(?=[\s,;/&]))\s*(.*)", re.DOTALL
)
_NAMES_CHOICE = re.compile(r"\b(?:correct|right|best)?\s*(?:option|choice)\s*(?:is|:)\s*", re.IGNORECASE)
_OTHER = re.compile(
    r"(?:\b(?:or|and|maybe|perhaps|possibly|either|nor)\b|[,/;&])\s*(?:option\s+|choice\s+)?[(\[]?[A-J0-9][)\]]?(?![\w'])"
)
_LAST_LINE = re.compile(r"[*_\s]*[(\[]?([A-J])[)\].:]?[*_\s.]*(?:\n|$)")

Options = Mapping[str, str]
"""The text of each choice, by label."""


def multiple_choice(
    completion: str | Sequence[Message],
    answer: Any,
    choices: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    truncated: bool = False,
) -> Verdict:
    """Whether the one choice of a completion is the gold: a letter, or its index from 0.

    `choices` is the column with the texts of the choices, in order, or with `text` and `label`. With it, the text of a
    choice counts as much as its letter, and a letter with the text of another choice is a contradiction.
    """
    start = perf_counter()
    options = _options(choices)
    gold = _gold(answer, options)
    verdict = _verdict(final_segment(text_of(completion)), gold, options, truncated=truncated)
    verdict.seconds = perf_counter() - start
    return verdict


def choice_of(completion: str | Sequence[Message]) -> str | None:
    """The one letter that a completion chooses.

    >>> choice_of("So the answer is (C)."), choice_of("A or B")
    ('C', None)
    """
    chosen = {
        choice for text in _named(final_segment(text_of(completion))) or () if (choice := _choice(text, {})) is not None
    }
    return chosen.pop() or None if len(chosen) == 1 else None


def _verdict(segment: str, gold: str, options: Options, *, truncated: bool) -> Verdict:
    if len(segment) > MAX_SEGMENT:
        return Verdict(0.0, "too_large", detail=f"a text of {len(segment)} characters")
    named = _named(segment)
    if named is None:
        return Verdict(0.0, "ambiguous", detail=f"more than {places.MAX_PLACES} answers")
    read = [(text, _choice(text, options)) for text in named]
    chosen = {choice for _, choice in read if choice is not None}
    if not chosen:
        found = named[-1] if named else None
        reason = "wrong" if found else "truncated" if truncated else "no_answer"
        return Verdict(0.0, reason, extracted=found, detail="names no choice" if found else "")
    if len(chosen) > 1 or "" in chosen:
        return Verdict(0.0, "ambiguous", extracted="; ".join(text for text, _ in read), detail="several choices")
    text = next(text for text, choice in read if choice is not None)
    return correct(gold in chosen, text)


def _named(segment: str) -> list[str] | None:
    """The texts that a completion names as its choice, in boxes, tags and statements, else in its last line."""
    boxes, tags, stated = places.find_boxes(segment), places.find_tags(segment), places.find_statements(segment)
    if boxes is None or tags is None or stated is None:
        return None
    if boxes and boxes[-1].closing < 0:
        return []
    stated += [sentence for sentence in _behind_names(segment) if sentence]
    shown = [places.box_content(segment, box) for box in boxes] + [tag for tag in tags if "\\boxed" not in tag]
    named = [text for text in shown + [text for text in stated if "\\boxed" not in text] if text]
    if not named and not boxes:
        line = segment.rstrip().rpartition("\n")[2].strip()
        named = [line] if line and (_LAST_LINE.fullmatch(line) or len(line) <= MAX_SHOWN) else []
    return named


def _behind_names(segment: str) -> list[str]:
    """The texts that follow "the correct option is"."""
    found = []
    for match in _NAMES_CHOICE.finditer(segment):
        if len(found) >= places.MAX_PLACES:
            break
        found.append(segment[match.end() : match.end() + MAX_SHOWN].partition("\n")[0].strip(" *_."))
    return found


def _choice(text: str, options: Options) -> str | None:
    """The label that a text names; "" if it names several, None if it names none."""
    text = _COMMAND.sub(r" \1 ", without_dollars(text)).strip(" \t\n*_.;:!\\")
    if len(text) > MAX_SHOWN or hidden_characters(text):
        return None
    by_text = [label for label, option in options.items() if _plain(option) == _plain(text)]
    if len(by_text) == 1:
        return by_text[0]
    match = _LETTER.match(text)
    if match is None:
        return None
    label, rest = match[1], match[2].strip()
    if label.islower() and rest:  # "a matter of taste" is not a choice
        return None
    label = label.upper()
    if options and label not in options:
        return None
    if _OTHER.search(text) or re.match(r"[A-J][)\].]?(?:\s+[A-J][)\].]?)+$", text):
        return ""
    contradicts = any(_plain(option) == _plain(rest) for other, option in options.items() if other != label)
    return "" if rest and contradicts else label


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(" .\"'").casefold()


def _options(choices: Sequence[Any] | Mapping[str, Any] | None) -> Options:
    if choices is None:
        return {}
    if isinstance(choices, Mapping):
        if "text" in choices:
            return dict(zip(map(str, choices.get("label", LETTERS)), map(str, choices["text"]), strict=False))
        return {str(label).upper(): str(text) for label, text in choices.items()}
    if isinstance(choices, str) or not 2 <= len(choices) <= len(LETTERS):
        raise DataError(given=f"choices = {choices!r}", allowed=f"a list of 2 to {len(LETTERS)} texts")
    return dict(zip(LETTERS, map(str, choices), strict=False))


def _gold(answer: Any, options: Options) -> str:
    """The label of the right choice. DataError if the gold answer names none."""
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < (len(options) or len(LETTERS)):
        return list(options)[answer] if options else LETTERS[answer]
    label = _choice(answer, options) if isinstance(answer, str) else None
    if not label:
        raise DataError(
            given=f"the gold answer {answer!r} names no choice",
            allowed=f"a letter from {LETTERS[0]} to {LETTERS[-1]}, an index counted from 0, or the text of a choice",
            fix="Correct or drop the row; `data.answer` names the column that holds the gold answer.",
        )
    return label
