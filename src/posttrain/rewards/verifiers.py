r"""The built-in verifiers: pure functions on plain strings that return a `Verdict`. They can be used on their own.

    >>> exact_match("Paris", "Paris"), regex("<b>hi</b>", pattern="<b>.+</b>").reason
    (Verdict(1.0, 'correct', extracted='Paris'), 'correct')
    >>> math(r"so \boxed{0.5}", r"\frac{1}{2}").reason, numeric("That makes 9.\n#### 18", "17").reason
    ('correct', 'wrong')

An unusable gold answer raises DataError, whatever the completion is. `mathematics/extract.py` decides which part of a
completion is its answer. No function evaluates model text. `BUILTINS` says how each verifier is run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from posttrain.errors import ConfigError, DataError
from posttrain.rewards import format as form
from posttrain.rewards import fuzzy, language, length, repetition
from posttrain.rewards.calls import Runner
from posttrain.rewards.code_runner import CodeRunner
from posttrain.verify.mathematics import presets
from posttrain.verify.mathematics.choices import multiple_choice
from posttrain.verify.mathematics.countdown import countdown
from posttrain.verify.mathematics.golds import gold_text
from posttrain.verify.mathematics.presets import math, numeric
from posttrain.verify.programs import COLUMNS, code
from posttrain.verify.verdict import Verdict, correct

__all__ = ["BUILTINS", "Builtin", "exact_match", "math", "numeric", "regex"]


def exact_match(
    completion: str,
    answer: Any,
    *,
    ignore_case: bool = False,
    extract: str | None = None,
    normalize: Sequence[fuzzy.Step] = (),
) -> Verdict:
    """Whether the completion equals the answer, apart from white space at both ends.

    `normalize` lists further differences to ignore: see `fuzzy.STEPS`.
    `extract` is a regular expression that finds the answer in the completion. Its last match counts, or the first group
    of that match if the expression has groups. Without a match there is no answer.
    """
    gold = fuzzy.normalized(gold_text(answer), normalize)
    if not gold:
        raise DataError(given=f"nothing is left of the gold answer {answer!r} after {', '.join(normalize)}")
    found: str | None = completion
    if extract is not None:
        found = None
        for match in _compile(extract, "extract").finditer(completion):
            found = match[1] if match.re.groups else match[0]
    if found is None or not found.strip():
        return Verdict(0.0, "no_answer", detail="" if extract is None else "the pattern matches nowhere")
    given = fuzzy.normalized(found, normalize)
    same = given.casefold() == gold.casefold() if ignore_case else given == gold
    return correct(same, given)


def regex(completion: str, *, pattern: str, whole: bool = True, ignore_case: bool = False) -> Verdict:
    """Whether the pattern matches the whole completion or, with `whole` off, part of it. The dot matches newlines."""
    compiled = _compile(pattern, "pattern", re.DOTALL | (re.IGNORECASE if ignore_case else 0))
    match = compiled.fullmatch(completion) if whole else compiled.search(completion)
    return correct(match is not None, match[0] if match else None)


def environment(completion: str, environment_reward: float | None) -> Verdict:
    """The reward from the trajectory's environment; not applicable if the environment gave none."""
    if environment_reward is None:
        return Verdict(None, "not_applicable")
    reason = "correct" if environment_reward >= 1 else "partial" if environment_reward > 0 else "wrong"
    return Verdict(environment_reward, reason)


def environment_by_turn(
    completion: str, environment_reward: float | None, environment_token_rewards: Sequence[float] | None
) -> Verdict | list[float]:
    """The environment's reward for each token: a turn's reward is on the turn's last token. A single number if no turn
    except the last has a reward."""
    if environment_token_rewards is None:
        return environment(completion, environment_reward)
    return list(environment_token_rewards)


environment_by_turn.per_token = True  # pyright: ignore[reportFunctionMemberAccess]


def agent(
    completion: str, environment_reward: float | None, truncated: bool, *, when_cut: float | None = None
) -> Verdict:
    """The reward that the trajectory's agent returned; not applicable if it returned no number. A trajectory that hit a
    limit and has no reward gets `when_cut`. Without `when_cut`: ValueError, so that it stays unscored."""
    if environment_reward is not None or not truncated:
        return environment(completion, environment_reward)
    if when_cut is None:
        raise ValueError(
            "a limit has cut the trajectory, and its agent returned no reward: catch the error of the endpoint in the "
            "agent, or set a reward for such trajectories: rewards = [{name: agent, settings: {when_cut: 0}}]"
        )
    return Verdict(when_cut, "truncated")


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """How a built-in verifier is run."""

    function: Callable[..., Any]
    """The verifier: its signature says which columns it needs and which settings it has."""
    target: str
    """The same function as `module:name`. A worker imports the module before the clock starts."""
    quick: Callable[..., Any] | None = None
    """Function that decides in milliseconds, in the main process. If it is None or returns None, a worker decides."""
    golds: tuple[str, ...] = ()
    """Columns with gold answers, in addition to the required ones."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Default settings in a training run. They are stricter than the defaults of the function."""
    runner: Callable[[Mapping[str, Any]], Runner] | None = None
    """Makes, from the settings, a runner that judges in its own processes instead of a worker."""
    of_sum: Callable[[float], Verdict] | None = None
    """The verdict on the sum of a completion's numbers, if the function gives each token a number."""
    verifies: bool | None = None
    """Does a score of 1 mean that the answer is right? False: the score is about its form or length. None: it depends,
    as for an environment and for functions of users."""

    @property
    def needed_settings(self) -> list[str]:
        """Parameters without a default after `*`. Parameters before it are columns, or come from the rollout."""
        parameters = inspect.signature(self.function).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]


def _exact_match_quick(completion: str, answer: Any, *, extract: str | None = None, **settings: Any) -> Verdict | None:
    """`exact_match` without `extract`. A user's regular expression can backtrack forever, so only a worker runs it."""
    return exact_match(completion, answer, **settings) if extract is None else None


_BOX, _LAST_LINE = {"answer_from": "box"}, {"answer_from": "last_line"}
_HERE, _ALGEBRA = "posttrain.rewards.verifiers", "posttrain.verify.mathematics.algebra"
BUILTINS: dict[str, Builtin] = {
    "exact_match": Builtin(
        function=exact_match, target=f"{_HERE}:exact_match", quick=_exact_match_quick, verifies=True
    ),
    "regex": Builtin(function=regex, target=f"{_HERE}:regex"),
    "environment": Builtin(function=environment, target=f"{_HERE}:environment", quick=environment),
    "agent": Builtin(function=agent, target=f"{_HERE}:agent", quick=agent),
    "fuzzy_match": Builtin(
        function=fuzzy.fuzzy_match,
        target="posttrain.rewards.fuzzy:fuzzy_match",
        quick=fuzzy.fuzzy_match_quick,
        verifies=True,
    ),
    "format": Builtin(
        function=form.format_tags,
        target="posttrain.rewards.format:format_tags",
        quick=form.format_tags,
        verifies=False,
    ),
    "json_schema": Builtin(function=form.json_schema, target="posttrain.rewards.format:json_schema"),
    **{
        name: Builtin(function=function, target=f"{function.__module__}:{name}", quick=function, verifies=False)
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
    "code": Builtin(
        function=code, target="posttrain.verify.programs:code", golds=COLUMNS, runner=CodeRunner, verifies=True
    ),
    **{
        name: Builtin(
            function=function,
            target=f"{_ALGEBRA}:{name}",
            quick=presets.in_time(function),
            training=_BOX,
            verifies=True,
        )
        for name, function in (
            ("math", presets.math),
            ("math500", presets.math500),
            ("math_lenient", presets.math_lenient),
        )
    },
    **{
        name: Builtin(
            function=function,
            target=f"{function.__module__}:{name}",
            quick=presets.in_time(function),
            golds=golds,
            training=training,
            verifies=True,
        )
        for name, function, golds, training in (
            ("numeric", presets.numeric, (), _LAST_LINE),
            ("gsm8k", presets.gsm8k, (), _LAST_LINE),
            ("svamp", presets.svamp, (), _LAST_LINE),
            ("aime", presets.aime, (), _BOX),
            ("countdown", countdown, ("numbers", "nums"), {}),
            ("multiple_choice", multiple_choice, ("choices",), _LAST_LINE),
        )
    },
}

BY_TURN: Mapping[str, Builtin] = {
    "environment": Builtin(
        function=environment_by_turn,
        target=f"{_HERE}:environment_by_turn",
        quick=environment_by_turn,
        of_sum=partial(environment, ""),
    )
}
"""Replacements for built-ins if each turn has its own reward."""


def _compile(pattern: str, setting: str, flags: int = re.DOTALL) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, TypeError) as error:
        raise ConfigError(
            given=f"{setting} = {pattern!r} is not a regular expression: {error}", fix="See the re module of Python."
        ) from None
