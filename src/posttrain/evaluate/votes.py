"""The votes of a majority vote: the answer inside a completion, normalised so that equal answers are equal texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from posttrain.rewards.verifiers import BUILTINS
from posttrain.verify.mathematics.choices import choice_of
from posttrain.verify.mathematics.extract import Reader, extract
from posttrain.verify.mathematics.numeric import WORDS, number_of
from posttrain.verify.mathematics.values import Number

if TYPE_CHECKING:
    from posttrain.rewards import RewardSet
    from posttrain.verify.verdict import Verdict

Extract = Callable[[str], str | None]
"""Text of a completion -> its answer, or None if it has none."""
Vote = Callable[[str, "Mapping[str, Verdict | None]"], str | None]
"""(text of a completion, verdicts of the rewards by label) -> its answer, or None if it has none."""


def vote_for(rewards: RewardSet) -> Vote:
    """Return the way to read answers that fits the first built-in verifier of the rewards.

    Verifiers of numbers read the single number, the `math` verifiers the single answer, `multiple_choice` a letter. For
    `exact_match` with a pattern, the answer comes from its verdict (the first 500 characters): a user's pattern can
    search for ever, so it only runs in a worker that can be stopped. Without a verifier that reads an answer, the whole
    completion is the answer.
    """
    for component in rewards.components:
        name = next((name for name, builtin in BUILTINS.items() if builtin is component.builtin), None)
        if name in _READERS:
            return by_text(_READERS[name])
        if name == "exact_match" and component.settings.get("extract") is not None:
            label = component.label
            return lambda text, verdicts: found.extracted if (found := verdicts.get(label)) is not None else None
    return by_text(lambda text: text)


def by_text(extract: Extract) -> Vote:
    """Return a way to read answers from the text only."""
    return lambda text, verdicts: extract(text)


def numeric_answer(text: str) -> str | None:
    """Return the single number in the text: `1,234`, `1234.0` and `2468/2` are the same vote.

    >>> numeric_answer("that makes $1,234.0")
    '1234'
    """
    number = number_of(text)
    return None if number is None else _spelled(number)


def math_answer(text: str) -> str | None:
    r"""Return the single answer in the text: normalised if it is a number, else as written.

    >>> math_answer(r"so \boxed{\frac{2}{4}}"), math_answer(r"so \boxed{x^2}")
    ('1/2', 'x^2')
    """
    number = number_of(text)
    return _spelled(number) if number is not None else extract(text, Reader(WORDS, _spelled_alike)).answer


_READERS: dict[str, Extract] = {
    **dict.fromkeys(("numeric", "gsm8k", "svamp", "aime"), numeric_answer),
    **dict.fromkeys(("math", "math500", "math_lenient"), math_answer),
    "multiple_choice": choice_of,
}


def _spelled(number: Number) -> str:
    return f"{number.value * 100}%" if number.percent else str(number.value)


def _spelled_alike(one: str, other: str) -> bool:
    """Compare two answers without spaces. Comparing by algebra would be too slow for counting votes."""
    return "".join(one.split()) == "".join(other.split())


def normalise(answer: str | None) -> str | None:
    """Normalise an answer: ignore case, surrounding space and repeated space. An empty answer becomes None.

    >>> normalise("  Forty  Two ")
    'forty two'
    """
    return " ".join((answer or "").split()).casefold() or None
