r"""The built-in verifiers: pure functions on plain strings that return 1.0 or 0.0, usable alone.

    >>> exact_match("Paris", "Paris"), numeric("That makes 9.\n#### 18", "18"), regex("<b>hi</b>", pattern="<b>.+</b>")
    (1.0, 1.0, 1.0)
    >>> math(r"so \boxed{0.5}", r"\frac{1}{2}")
    1.0

A gold answer that cannot be used raises DataError, whatever the completion is. Which part of a completion is its answer
is decided in `answers.py`. No function evaluates model text. `BUILTINS` tells the machinery how each is run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from posttrain.errors import ConfigError, DataError
from posttrain.rewards import format as form
from posttrain.rewards import fuzzy, language, length, repetition
from posttrain.rewards.answers import Number, contradicts_itself, final_answer, last_formula, last_number, single_number
from posttrain.rewards.calls import Runner
from posttrain.rewards.code import COLUMNS, CodeRunner, code


def exact_match(completion: str, answer: Any, *, ignore_case: bool = False, extract: str | None = None) -> float:
    """1.0 when the completion is the answer, whitespace at both ends aside.

    `extract` is a regular expression that finds the answer in the completion: its last match counts, and of that the
    first group when there is one. No match: 0.0.
    """
    gold = gold_text(answer)
    found: str | None = completion
    if extract is not None:
        found = None
        for match in _compile(extract, "extract").finditer(completion):
            found = match[1] if match.re.groups else match[0]
    if found is None:
        return 0.0
    if ignore_case:
        found, gold = found.casefold(), gold.casefold()
    return float(found.strip() == gold)


def numeric(completion: str, answer: Any, *, relative_tolerance: float = 0.0, absolute_tolerance: float = 0.0) -> float:
    """1.0 when the completion's final number equals the answer, compared as exact fractions.

    `1,234`, `$1234`, `1234.0` and `2468/2` are the same number. With a percent sign on both sides the numbers are
    compared; with it on one side either reading counts: `20%` is right for 20 and for 0.2. With tolerances, right is
    |found - answer| <= max(relative_tolerance * |answer|, absolute_tolerance).
    """
    if relative_tolerance < 0 or absolute_tolerance < 0:
        raise ConfigError(given="a tolerance below 0", allowed="0 or more")
    gold = _gold_number(answer)
    found = last_number(completion)
    return float(found is not None and _close(gold, found, relative_tolerance, absolute_tolerance))


def regex(completion: str, *, pattern: str, whole: bool = True, ignore_case: bool = False) -> float:
    """1.0 when the pattern matches the whole completion or, with `whole` off, part of it. The dot matches newlines."""
    compiled = _compile(pattern, "pattern", re.DOTALL | (re.IGNORECASE if ignore_case else 0))
    return float(bool(compiled.fullmatch(completion) if whole else compiled.search(completion)))


def math(completion: str, answer: Any) -> float:
    """1.0 when the completion's final answer is mathematically equal to the gold answer.

    Numbers are compared exactly, here; everything else goes to math-verify, which can take arbitrarily long on hostile
    input and has its own time-outs switched off: outside a reward worker, call it only on text that you trust.
    """
    verdict = math_of_numbers(completion, answer)
    if verdict is None:
        from posttrain.rewards import symbolic  # loads sympy: only where it is needed

        verdict = symbolic.verify_answer(completion, answer)
    return verdict


def math_of_numbers(completion: str, answer: Any) -> float | None:
    """What `math` decides in microseconds, or None when it takes algebra.

    No final answer is wrong, and so is one that contradicts itself. Equal numbers are right. Integers and decimals
    without a percent sign that differ are wrong; a decimal may still be meant as a fraction, so that a difference there
    is left to math-verify.
    """
    gold = math_gold(answer)
    given = final_answer(completion)
    if given is None or contradicts_itself(given):
        return 0.0
    gold_number, number = single_number(gold), single_number(given)
    if gold_number is None or number is None:
        return None
    if gold_number == number:
        return 1.0
    exact = not (gold_number.percent or number.percent or _is_fraction(gold) or _is_fraction(given))
    return 0.0 if exact else None


def gold_text(answer: Any) -> str:
    """The gold answer as text: of a GSM8K solution what follows `####`; a number without a trailing `.0`.

    >>> gold_text("16 - 3 = 13 eggs\\n#### 13"), gold_text(145.0)
    ('13', '145')
    """
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, str):
        text = answer.rpartition("####")[2].strip()
    elif isinstance(answer, int | float) and not isinstance(answer, bool) and answer == answer:
        text = str(answer)
    else:
        text = ""
    if not text:
        raise DataError(
            given=f"the gold answer is {answer!r}",
            allowed="a text that is not empty, or a number",
            fix="Correct or drop the row; `data.answer` names the column that holds the gold answer.",
        )
    return text


def math_gold(answer: Any) -> str:
    r"""The LaTeX of a gold answer, out of its box or its dollar signs; a full solution is cut to its final answer.

    >>> math_gold("$\\frac{1}{2}$."), math_gold(r"Hence \boxed{(2, 3)}."), math_gold("x^2 + 1")
    ('\\frac{1}{2}', '(2, 3)', 'x^2 + 1')
    """
    text = gold_text(answer).rstrip(".,; ")
    if "\\boxed" in text or last_formula(text):
        return final_answer(text) or text
    return text


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """How the machinery runs a verifier."""

    function: Callable[..., Any]
    """The verifier: its signature says which columns it needs and which settings it has."""
    target: str
    """The same function as `module:name`; the module is what a worker imports before the clock starts."""
    quick: Callable[..., Any] | None = None
    """Linear-time decision in the main process; None of it, or None from it: the row goes to a worker."""
    golds: tuple[str, ...] = ()
    """Columns that say what is right, beside the required ones."""
    runner: Callable[[Mapping[str, Any]], Runner] | None = None
    """Makes, from the settings, what judges in processes of its own; then no worker is asked."""

    @property
    def needed_settings(self) -> list[str]:
        """Parameters without a default that come after `*`; those before it are columns, or come from the rollout."""
        parameters = inspect.signature(self.function).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]


def _exact_match_quick(
    completion: str, answer: Any, *, ignore_case: bool = False, extract: str | None = None
) -> float | None:
    """A user's regular expression can backtrack for ever, so only a worker runs it."""
    return exact_match(completion, answer, ignore_case=ignore_case) if extract is None else None


_HERE = "posttrain.rewards.verifiers"
BUILTINS: dict[str, Builtin] = {
    "exact_match": Builtin(function=exact_match, target=f"{_HERE}:exact_match", quick=_exact_match_quick),
    "numeric": Builtin(function=numeric, target=f"{_HERE}:numeric", quick=numeric),
    "regex": Builtin(function=regex, target=f"{_HERE}:regex"),
    "fuzzy_match": Builtin(
        function=fuzzy.fuzzy_match, target="posttrain.rewards.fuzzy:fuzzy_match", quick=fuzzy.fuzzy_match_quick
    ),
    "format": Builtin(function=form.format_tags, target="posttrain.rewards.format:format_tags", quick=form.format_tags),
    "json_schema": Builtin(function=form.json_schema, target="posttrain.rewards.format:json_schema"),
    **{
        name: Builtin(function=function, target=f"{function.__module__}:{name}", quick=function)
        for name, function in {
            "soft_overlong": length.soft_overlong,
            "l1_exact": length.l1_exact,
            "l1_max": length.l1_max,
            "cosine": length.cosine,
            "kimi_length": length.kimi_length,
            "arora_zanette": length.arora_zanette,
            "finished": length.finished,
            "repetition": repetition.repetition,
            "language": language.language,
        }.items()
    },
    "code": Builtin(function=code, target="posttrain.rewards.code:code", golds=COLUMNS, runner=CodeRunner),
    "math": Builtin(function=math, target="posttrain.rewards.symbolic:verify_answer", quick=math_of_numbers),
}


def _compile(pattern: str, setting: str, flags: int = re.DOTALL) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, TypeError) as error:
        raise ConfigError(
            given=f"{setting} = {pattern!r} is not a regular expression: {error}", fix="See the re module of Python."
        ) from None


def _gold_number(answer: Any) -> Number:
    """The one number that a gold answer states."""
    number = single_number(math_gold(answer))
    if number is None:
        raise DataError(
            given=f"the gold answer {gold_text(answer)!r} is not one number",
            fix='Correct or drop the row, or use the reward "math" for answers that are formulas.',
        )
    return number


def _close(gold: Number, found: Number, relative: float, absolute: float) -> bool:
    if gold.percent == found.percent:
        pairs = [(gold.value, found.value)]
    elif gold.percent:
        pairs = [(gold.value, found.value), (gold.value / 100, found.value)]
    else:
        pairs = [(gold.value, found.value), (gold.value, found.value / 100)]
    if not (relative or absolute):
        return any(g == f for g, f in pairs)
    return any(abs(g - f) <= max(Fraction(str(relative)) * abs(g), Fraction(str(absolute))) for g, f in pairs)


def _is_fraction(text: str) -> bool:
    return "/" in text or "frac" in text
