"""Loose comparison of a text with the answer, and the normalization steps that decide which texts are the same."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from posttrain.errors import ConfigError, DataError
from posttrain.verify.verdict import Verdict

Step = Literal["unicode", "case", "punctuation", "articles", "whitespace"]
STEPS: tuple[Step, ...] = get_args(Step)
"""The normalization steps, in the order in which they are applied. Each removes one kind of difference:

    unicode      NFKC: full-width letters, ligatures, superscripts
    case         upper and lower
    punctuation  every character of the Unicode categories P and S
    articles     the words a, an, the
    whitespace   the amount of it between words; white space at the ends never counts

All but `unicode` are the normalisation of SQuAD (arXiv:1606.05250).
"""
SQUAD: tuple[Step, ...] = ("case", "punctuation", "articles", "whitespace")
Measure = Literal["token_f1", "edit"]
MAX_CHARACTERS = 20_000
"""Maximum length in characters for a comparison by edits. Two texts of this length take about half a second."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")


def fuzzy_match(
    completion: str,
    answer: Any,
    *,
    measure: Measure = "token_f1",
    at_least: float | None = None,
    normalize: Sequence[Step] = SQUAD,
) -> Verdict:
    """Similarity of the completion's final text to the answer, 0 to 1. With `at_least`: 1 from that value on, else 0.

    token_f1    2 c / (g + n): c words in common, counted with multiplicity, out of g and n words (SQuAD)
    edit        1 - d / max(len): d characters inserted, deleted or replaced (Levenshtein)

    The comparison uses the text after the last </think>. A list as the answer holds alternatives: the best one counts.
    """
    _check(measure, at_least)
    golds = [normalized(gold, normalize) for gold in alternatives(answer)]
    if not all(golds):
        raise DataError(
            given=f"nothing is left of the gold answer {answer!r} after {', '.join(normalize)}",
            fix="Remove steps from settings.normalize, or drop the row.",
        )
    given = normalized(after_reasoning(completion), normalize)
    if not given:
        return Verdict(0.0, "no_answer")
    if measure == "edit" and len(given) > MAX_CHARACTERS:
        return Verdict(0.0, "too_large", extracted=given, detail=f"more than {MAX_CHARACTERS} characters")
    compare: Callable[[str, str], float] = token_f1 if measure == "token_f1" else edit_similarity
    value = max(compare(gold, given) for gold in golds)
    score = value if at_least is None else float(value >= at_least)
    reason = "correct" if score == 1 else "partial" if score else "wrong"
    return Verdict(score, reason, extracted=given, detail=f"{measure} {value:.3f}")


def fuzzy_match_quick(
    completion: str, answer: Any, *, measure: Measure = "token_f1", **settings: Any
) -> Verdict | None:
    """`fuzzy_match` if it takes a few milliseconds at most. None for a comparison by edits or a very long text."""
    if measure == "edit" or len(completion) > MAX_CHARACTERS:
        return None
    return fuzzy_match(completion, answer, measure=measure, **settings)


def normalized(text: str, steps: Sequence[Step]) -> str:
    """The text after the normalization steps.

    >>> normalized("The  Eiffel Tower!", SQUAD), normalized(" Ｐi ", ["unicode"])
    ('eiffel tower', 'Pi')
    """
    for step in steps:
        if step not in STEPS:
            raise ConfigError(given=f"normalize holds {step!r}", allowed=", ".join(STEPS))
    for step in (step for step in STEPS if step in steps):
        if step == "unicode":
            text = unicodedata.normalize("NFKC", text)
        elif step == "case":
            text = text.casefold()
        elif step == "punctuation":
            text = "".join(letter for letter in text if unicodedata.category(letter)[0] not in "PS")
        elif step == "articles":
            text = _ARTICLES.sub(" ", text)
        else:
            text = " ".join(text.split())
    return text.strip()


def token_f1(gold: str, given: str) -> float:
    """2 c / (g + n) over the words, which white space separates.

    >>> token_f1("red brick house", "a red house")
    0.6666666666666666
    """
    ours, theirs = Counter(gold.split()), Counter(given.split())
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total()) if ours or theirs else 1.0


def edit_similarity(gold: str, given: str) -> float:
    """1 - d / length of the longer text.

    >>> edit_similarity("kitten", "sitting")
    0.5714285714285714
    """
    longer = max(len(gold), len(given))
    return 1 - edit_distance(gold, given) / longer if longer else 1.0


def edit_distance(one: str, other: str) -> int:
    """Number of characters to insert, delete or replace. A column of the table is one integer, as in Myers (JACM 46,
    1999) and Hyyrö (2003): bit i of `up` and `down` says that row i + 1 is one more, or one less, than row i."""
    if not one:
        return len(other)
    full, top = (1 << len(one)) - 1, 1 << (len(one) - 1)
    places: dict[str, int] = {}
    for i, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << i
    up, down, distance = full, 0, len(one)
    for letter in other:
        equal = places.get(letter, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        right, left = down | (full & ~(diagonal | up)), up & diagonal
        distance += bool(right & top) - bool(left & top)
        right, left = right << 1 | 1, left << 1
        up, down = (left | (full & ~(diagonal | right))) & full, right & diagonal & full
    return distance


def alternatives(answer: Any) -> list[str]:
    """The texts that count as right: a single one or all of a list. DataError for any other answer."""
    golds = answer if isinstance(answer, list | tuple) else [answer]
    texts = [str(gold) for gold in golds if isinstance(gold, str | int | float) and not isinstance(gold, bool)]
    if not texts or len(texts) < len(golds) or not all(text.strip() and text != "nan" for text in texts):
        raise DataError(
            given=f"the gold answer is {answer!r}",
            allowed="a text that is not empty, a number, or a list of them",
            fix="Correct or drop the row; `data.answer` names the column that holds the gold answer.",
        )
    return texts


def after_reasoning(completion: str) -> str:
    """The text after the last </think>; empty if the reasoning never ends.

    >>> after_reasoning("<think>4?</think> 5"), after_reasoning("<think>4"), after_reasoning("5")
    ('5', '', '5')
    """
    _, closed, rest = completion.rpartition("</think>")
    if not closed and completion.lstrip().startswith("<think>"):
        return ""
    return rest.strip()


def _check(measure: str, at_least: float | None) -> None:
    if measure not in get_args(Measure):
        raise ConfigError(given=f"measure = {measure!r}", allowed=", ".join(get_args(Measure)))
    if at_least is not None and not 0 < at_least <= 1:
        raise ConfigError(given=f"at_least = {at_least}", allowed="a share above 0, up to 1")
