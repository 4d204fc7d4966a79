"""A forecast from a model's own answers: the share of groups that a run could learn from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError
from posttrain.evaluate.heldout import interval_of
from posttrain.experience.generate import draw
from posttrain.functional.estimators import differ_at_k, powers_of_two
from posttrain.functional.intervals import Interval, mean_interval
from posttrain.rewards.audit.finding import Finding, Status, quote
from posttrain.rewards.missing import columns_known
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.config import SamplingConfig
    from posttrain.engines.sampler import Answers
    from posttrain.rewards import RewardSet, Scores

FEW_USEFUL, NO_USEFUL = 0.2, 0.02
"""Shares of groups with a signal below which a run learns slowly, and below which it learns nothing."""
IN_REACH = 0.5
"""Minimum share of prompts whose answers do not all get the lowest, or all the highest, reward."""
SHOWN = 3
"""Number of answers to show."""


@dataclass(frozen=True, kw_only=True)
class ModelAnswers:
    """The rewards of the model's own answers, and what they mean for learning."""

    prompts: int
    completions: int
    """Completions per prompt."""
    group_size: int
    reward: Interval
    """Mean over prompts of the mean reward."""
    useful: Mapping[int, Interval]
    """Group size -> expected share of groups whose rewards differ."""
    too_hard: float
    """Share of prompts for which every answer got the lowest observed reward. NaN if all rewards are equal."""
    too_easy: float
    """Share of prompts for which every answer got the highest observed reward. NaN if all rewards are equal."""
    truncated: float
    reasons: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Reward -> reason of its verdict -> share of the answers."""
    samples: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        useful = {str(size): share._asdict() for size, share in self.useful.items()}
        return {**asdict(self), "reward": self.reward._asdict(), "useful": useful}

    def lines(self) -> list[str]:
        """Return the lines to print on a terminal."""
        lines = [
            f"The model: {self.prompts} prompts, {self.completions} answers each, mean reward "
            f"{_with_limits(self.reward)}",
            "  useful groups, by group size: "
            + "  ".join(f"{size}: {share.mean:.0%}" for size, share in self.useful.items()),
            f"  {_reach(self, 'too hard {}, too easy {} of the prompts')}",
        ]
        for label, reasons in self.reasons.items():
            lines.append(f"  {label}: " + ", ".join(f"{reason} {share:.0%}" for reason, share in reasons.items()))
        return [*lines, *(f"  {sample}" for sample in self.samples)]


def sample_answers(
    rewards: RewardSet,
    prompts: Sequence[Prompt],
    sampler: Answers,
    sampling: SamplingConfig,
    samples: int | None,
    seed: int,
    seen: Sequence[float] = (),
) -> tuple[ModelAnswers, Scores]:
    """Sample answers of the model and score them. `seen` are the scores of completions whose right score is known."""
    count = sampling.group_size if samples is None else samples
    if count < sampling.group_size:
        raise ConfigError(
            given=f"{count} answers to each prompt, for groups of {sampling.group_size}",
            allowed="at least sampling.group_size: fewer answers do not show how often a group differs",
            fix=f"Ask for {sampling.group_size} or more (--samples), or lower sampling.group_size.",
        )
    each = sampler.each(prompts, sampling, group_size=count, seed=seed)
    groups, scores = draw(each, prompts, rewards, group_size=count)[:2]
    assert scores is not None
    values_P = [[value for value in row if not math.isnan(value)] for row in scores.rewards_PG]
    known = [*seen, *(value for row in values_P for value in row)]
    too_hard, too_easy = _out_of_reach(values_P, known)
    sizes = sorted({*powers_of_two(count), sampling.group_size, count} - {1})
    answers = ModelAnswers(
        prompts=len(prompts),
        completions=count,
        group_size=sampling.group_size,
        reward=interval_of(values_P, 0.95),
        useful={size: _useful(values_P, size) for size in sizes},
        too_hard=too_hard,
        too_easy=too_easy,
        truncated=_share([c for group in groups for c in group], lambda c: c.truncated),
        reasons=_reasons(scores),
        samples=tuple(
            _shown(prompt, group[0], scores, p)
            for p, (prompt, group) in enumerate(zip(prompts, groups[:SHOWN], strict=False))
        ),
    )
    return answers, scores


def _out_of_reach(values_P: Sequence[Sequence[float]], known: Sequence[float]) -> tuple[float, float]:
    """Return the shares of prompts whose answers all got the lowest, or the highest, known reward."""
    low, high = min(known, default=0.0), max(known, default=1.0)
    if low == high:
        return math.nan, math.nan
    too_hard = _share(values_P, lambda row: bool(row) and max(row) <= low)
    return too_hard, _share(values_P, lambda row: bool(row) and min(row) >= high)


def _with_limits(reward: Interval) -> str:
    if reward.finite:
        return f"{reward.mean:.3g} ({reward.low:.3g} to {reward.high:.3g}, 95% interval)"
    return f"{reward.mean:.3g} (no interval: {reward.n} prompt{'' if reward.n == 1 else 's'})"


def _reach(answers: ModelAnswers, form: str) -> str:
    """Fill both shares into the form. If all rewards are equal, no prompt is harder or easier than another."""
    if math.isnan(answers.too_hard):
        return f"every answer got {answers.reward.mean:.3g}: nothing is told apart"
    return form.format(f"{answers.too_hard:.0%}", f"{answers.too_easy:.0%}")


def _useful(values_P: Sequence[Sequence[float]], size: int) -> Interval:
    """Return the mean over prompts of the probability that a group of this size has two different rewards."""
    shares = [differ_at_k(row, size) for row in values_P if len(row) >= size]
    return mean_interval(shares, bounds=(0.0, 1.0))


def about_unscored(check: str, found: Sequence[Scores], limit: float) -> Finding:
    """How many completions have no score? A run masks them, and stops if there are too many."""
    scored = [value for scores in found for row in scores.scored_PG for value in row]
    missing = scored.count(False)
    share = missing / len(scored) if scored else 0.0
    return finding(
        check,
        "ok" if share <= limit else "fail",
        share,
        f"at most {limit:.0%} have no score (guards.max_unscored)",
        f"{missing} of {len(scored)} have no score",
        [str(failure) for scores in found for failure in scores.failures][:SHOWN]
        or ["every reward returned None for them"] * (missing > 0),
    )


def about_answers(answers: ModelAnswers, sampling: SamplingConfig, max_truncated: float) -> list[Finding]:
    """Are too many answers cut off, and do the rewards within a group differ often enough?"""
    size = answers.group_size
    truncated = finding(
        "truncated answers",
        "ok" if answers.truncated <= max_truncated else "fail",
        answers.truncated,
        f"at most {max_truncated:.0%} of the model's answers are cut (guards.max_truncated); raise "
        f"sampling.max_completion_length (now {sampling.max_completion_length})",
        f"{answers.truncated:.0%} of {answers.prompts * answers.completions} answers cut",
    )
    if size < 2:
        text = "one completion per prompt: no comparison within a group"
        return [truncated, finding("useful groups", "skipped", None, "", text)]
    useful = answers.useful[size]
    if not useful.n:
        text = f"no prompt has {size} answers with a score"
        return [truncated, finding("useful groups", "skipped", None, "", text)]
    status: Status = "ok" if useful.mean >= FEW_USEFUL else "warn" if useful.mean >= NO_USEFUL else "fail"
    limit = f"at least {NO_USEFUL:.0%} of groups of {size} have two different rewards, {FEW_USEFUL:.0%} to learn fast"
    text = f"{useful.mean:.0%} of groups of {size} ({useful.low:.0%} to {useful.high:.0%})"
    text += ": nothing will be learned" if status == "fail" else ": most groups teach nothing" * (status == "warn")
    advice = [] if status == "ok" else [_advice(answers)]
    return [truncated, finding("useful groups", status, useful.mean, limit, text, advice), _about_reach(answers)]


def _about_reach(answers: ModelAnswers) -> Finding:
    """Are most prompts neither too hard nor too easy?"""
    alike, mean = math.isnan(answers.too_hard), f", mean reward {answers.reward.mean:.2g}"
    reached = 0.0 if alike else max(0.0, 1 - answers.too_hard - answers.too_easy)
    return finding(
        "prompts in reach",
        "ok" if reached >= IN_REACH else "warn",
        None if alike else reached,
        f"at least {IN_REACH:.0%} of the prompts are neither too hard nor too easy",
        _reach(answers, "{} of the prompts too hard, {} too easy" + mean),
        [] if reached >= IN_REACH else [_advice(answers)],
    )


def about_right(rewards: RewardSet, prompts: Sequence[Prompt], scores: Scores) -> list[Finding]:
    """Was any answer right? Even if none was, rewards for form or length can still make groups differ.

    An answer is right if it opens a gate. Without gates, it is right if it gets more than 0 from the reward with the
    largest weight among those that read a column. A single reward needs no check: groups can differ only by it.
    """
    weighted = [one for one in rewards.components if one.weight]
    if len(weighted) < 2:
        return []
    reaches: dict[str, Callable[[float], bool]] = {
        one.gate.label: lambda score, gate=one.gate: bool(gate.opens(score)) for one in weighted if one.gate
    }
    if not reaches:
        available = columns_known(prompts)
        graders = [one for one in weighted if one.weight > 0 and one.columns(available)]
        if not graders:
            return []
        reaches = {max(graders, key=lambda one: one.weight).label: lambda score: score > 0}
    found: list[Finding] = []
    for label, right in reaches.items():
        given = [value for row in scores.parts[label] for value in row if value is not None]
        count = sum(map(right, given))
        text = f"{count} of {len(given)} right by {label}"
        if not count:
            text += ": groups differ only by shaping, no answer was right"
        status: Status = "ok" if count else "warn"
        limit = f"at least one of the model's answers is right by {label}: use easier questions, or more of them"
        found.append(finding("right answers", status, count / len(given) if given else None, limit, text))
    return found


def _advice(answers: ModelAnswers) -> str:
    if math.isnan(answers.too_hard):
        return "All answers got the same reward: check whether the reward distinguishes anything, and read the answers."
    if answers.too_hard >= answers.too_easy:
        return (
            f"{answers.too_hard:.0%} of the prompts got the lowest reward for every answer: use easier questions "
            "or a larger sampling.group_size, or teach the model the answer format with a short SFT; its answers "
            "are below."
        )
    return (
        f"{answers.too_easy:.0%} of the prompts got the highest reward for every answer: use harder questions, or "
        "a higher sampling.temperature."
    )


def _reasons(scores: Scores) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for label, verdict_PG in scores.verdicts.items():
        reasons = [verdict.reason for row in verdict_PG for verdict in row if verdict is not None]
        found[label] = {reason: count / len(reasons) for reason, count in Counter(reasons).most_common()}
    return found


def _shown(prompt: Prompt, answer: Completion, scores: Scores, place: int) -> str:
    """Return prompt, gold answer, model answer and its reward, one per line."""
    value = scores.rewards_PG[place][0]
    got = "unscored" if math.isnan(value) else f"{value:.3g}"
    said = next((row[place][0] for row in scores.verdicts.values() if row[place][0] is not None), None)
    why = f" ({said.reason}{f', read as {quote(said.extracted, 40)}' if said.extracted else ''})" if said else ""
    gold = [f"    gold    {quote(prompt.columns['answer'])}"] if "answer" in prompt.columns else []
    return "\n".join(
        [f"  prompt  {quote(prompt.text)}", *gold, f"    answer  {quote(answer.text)}", f"    reward  {got}{why}"]
    )


def _share(items: Sequence[Any], holds: Callable[[Any], bool]) -> float:
    return sum(map(holds, items)) / len(items) if items else math.nan


def finding(
    check: str, status: Status, measured: float | None, limit: str, text: str, examples: Sequence[str] = ()
) -> Finding:
    return Finding(check=check, status=status, measured=measured, limit=limit, text=text, examples=tuple(examples))
