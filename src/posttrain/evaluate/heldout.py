"""Held-out evaluation: greedy and sampled answers to the same prompts, scored and summarised with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING

from posttrain.episodes.tools import ENOUGH_CALLS, UNKNOWN, calls_of
from posttrain.evaluate.evaluation import Answer, Evaluation, Record, bounds_of
from posttrain.evaluate.votes import Extract, Vote, by_text, normalise, vote_for
from posttrain.functional.estimators import majority_at_k, pass_at_k, powers_of_two
from posttrain.functional.intervals import Interval, mean_interval, wilson
from posttrain.rewards.scores import enforce_limit
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.config import SamplingConfig
    from posttrain.engines.sampler import Answers
    from posttrain.rewards import RewardSet, Scores
    from posttrain.rewards.judge import Judgement


def evaluate_sampler(
    sampler: Answers,
    prompts: Sequence[Prompt],
    reward_set: RewardSet,
    *,
    sampling: SamplingConfig,
    samples: int = 4,
    temperature: float = 1.0,
    max_completion_length: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    check: RewardSet | None = None,
    extract: Extract | None = None,
    max_unscored: float = 1.0,
) -> Evaluation:
    """Answer every prompt once greedily and `samples` times at `temperature`, with the sampler's current weights.

    `sampling` gives the other settings: top-p, top-k and min-p for the sampled answers, stop strings, batch rows.
    `extract` finds the answer that the majority vote counts; the default depends on the rewards (see `votes`). The same
    seed gives the same answers for the same weights. Answers without a score are counted and left out. Raises
    `RewardError` if their share is above `max_unscored`.
    """
    max_completion_length = max_completion_length or sampling.max_completion_length
    shared = {"max_completion_length": max_completion_length}
    greedy = sampling.model_copy(update={**shared, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0})
    sampled = sampling.model_copy(update={**shared, "temperature": temperature})
    answers: list[dict[int, Completion]] = [{} for _ in prompts]
    with reward_set.open(prompts) as scoring, check.open(prompts) if check is not None else nullcontext() as checking:
        for place, _, completion in sampler.each(prompts, greedy, group_size=1, seed=seed):
            answers[place][0] = completion
            scoring.add_one(place, 0, completion, group_size=1 + samples)
            if checking is not None:
                checking.add_one(place, 0, completion, group_size=1)
        for place, g, completion in sampler.each(prompts, sampled, group_size=samples, seed=seed) if samples else ():
            answers[place][1 + g] = completion
            scoring.add_one(place, 1 + g, completion, group_size=1 + samples)
        scores = scoring.result()
        enforce_limit(scores, max_unscored)
        check_scores = checking.result() if checking is not None else None
        if check_scores is not None:
            enforce_limit(check_scores, max_unscored)
    groups = [[answered[g] for g in range(1 + samples)] for answered in answers]
    vote = vote_for(reward_set) if extract is None else by_text(extract)
    records = [
        Record(index=prompt.index, prompt=prompt.text, greedy=judged[0], samples=tuple(judged[1:]))
        for prompt, judged in zip(prompts, _answers(groups, scores, check_scores, vote, reward_set), strict=True)
    ]
    return summarise(
        records,
        samples=samples,
        confidence=confidence,
        temperature=temperature,
        top_p=sampling.top_p,
        max_completion_length=max_completion_length,
        seed=seed,
        verifiers=reward_set.verifiers,
        errors=[str(failure) for judged in (scores, check_scores) if judged for failure in judged.failures],
        tools=_failing_tools(chain.from_iterable(groups)),
        judgements=[judgement for judged in (scores, check_scores) if judged for judgement in judged.judgements],
    )


def summarise(
    records: Sequence[Record],
    *,
    samples: int,
    confidence: float,
    temperature: float,
    top_p: float,
    max_completion_length: int,
    seed: int,
    verifiers: tuple[str, ...] | None = (),
    errors: Iterable[str] = (),
    tools: Iterable[str] = (),
    judgements: Iterable[Judgement] = (),
) -> Evaluation:
    """Summarise scored answers. Values are averaged within each problem first, then over problems (RULE 51)."""
    greedy = [record.greedy for record in records]
    sampled = [answer for record in records for answer in record.samples]
    scored = [answer for answer in greedy if answer.score is not None]
    per_problem = [[a for a in record.samples if a.score is not None] for record in records]
    totals = [answer.score for answer in chain(greedy, sampled) if answer.score is not None]
    ks = sorted({*powers_of_two(samples), samples} - {0})
    return Evaluation(
        prompts=len(records),
        samples=samples,
        confidence=confidence,
        temperature=temperature,
        top_p=top_p,
        max_completion_length=max_completion_length,
        seed=seed,
        greedy_score=interval_of([_scores([answer]) for answer in scored], confidence),
        greedy_accuracy=wilson(sum(answer.correct for answer in scored), len(scored), confidence),
        sampled_score=interval_of([_scores(answers) for answers in per_problem], confidence) if samples else None,
        pass_at_k={k: _share_interval(_pass, per_problem, k, confidence) for k in ks},
        majority_at_k={k: _share_interval(_majority, per_problem, k, confidence) for k in ks},
        mean_length=_mean(len(answer.ids) for answer in greedy),
        truncated=_mean(answer.truncated for answer in greedy),
        sampled_mean_length=_mean(len(answer.ids) for answer in sampled),
        sampled_truncated=_mean(answer.truncated for answer in sampled),
        rewards=_by_label((answer.parts for answer in greedy), confidence),
        check=_by_label((answer.check for answer in greedy), confidence),
        unscored=len(greedy) + len(sampled) - len(totals),
        score_range=(min(totals), max(totals)) if totals else (math.nan, math.nan),
        verifiers=verifiers,
        errors=tuple(dict.fromkeys(errors)),
        tools=tuple(tools),
        records=tuple(records),
        judgements=tuple(judgements),
    )


def interval_of(values_per_problem: Sequence[Sequence[float]], confidence: float) -> Interval:
    """Return the interval of the mean over problems of their mean values. Problems without values are left out.

    If all values are 0 or 1, the mean is a share. One answer per problem gives the Wilson interval; several answers
    give an interval over problems with bounds (0, 1). Equal scores between 0 and 1 have the same bounds, because they
    show no spread of their own.
    """
    answered = [values for values in values_per_problem if values]
    means = [math.fsum(values) / len(values) for values in answered]
    bounds = bounds_of(chain.from_iterable(answered)) or _bounds_of_equal(means)
    if bounds_of(means) is not None and all(len(values) == 1 for values in answered):
        return wilson(round(sum(means)), len(means), confidence)
    return mean_interval(means, confidence, bounds=bounds)


def _bounds_of_equal(means: Sequence[float]) -> tuple[float, float] | None:
    return (0.0, 1.0) if len(means) > 1 and len(set(means)) == 1 and 0 <= means[0] <= 1 else None


def _answers(
    groups: Sequence[Sequence[Completion]], scores: Scores, check: Scores | None, vote: Vote, rewards: RewardSet
) -> list[list[Answer]]:
    """Return `[P][1 + samples]` answers: completions with their scores. The check scores the first of each group."""

    def answer(p: int, g: int, completion: Completion) -> Answer:
        parts = {label: values[p][g] for label, values in scores.parts.items()}
        verdicts = {label: given[p][g] for label, given in scores.verdicts.items()}
        return Answer(
            text=completion.text,
            ids=completion.drawn_ids,
            finish_reason=completion.finish_reason,
            score=scores.rewards_PG[p][g] if scores.scored_PG[p][g] else None,
            parts=parts,
            reasons={label: verdict.reason for label, verdict in verdicts.items() if verdict is not None},
            check={label: values[p][0] for label, values in check.parts.items()} if check and g == 0 else {},
            vote=normalise(vote(completion.text, verdicts)),
            right=rewards.is_right(parts, {label: gate[p][g] for label, gate in scores.is_open.items()}),
        )

    return [[answer(p, g, completion) for g, completion in enumerate(group)] for p, group in enumerate(groups)]


def _failing_tools(completions: Iterable[Completion]) -> Iterator[str]:
    """Say which tools failed in every call, if the calls are enough to blame the tool."""
    for name, calls in calls_of(completions).items():
        if calls.failed == calls.made >= ENOUGH_CALLS and name != UNKNOWN:
            yield f"all {calls.made} calls of {name} failed: {calls.result}"


def _pass(answers: Sequence[Answer], k: int) -> float:
    return pass_at_k(len(answers), sum(answer.correct for answer in answers), k)


def _majority(answers: Sequence[Answer], k: int) -> float:
    return majority_at_k([answer.vote for answer in answers], [answer.correct for answer in answers], k)


def _share_interval(
    estimate: Callable[[Sequence[Answer], int], float],
    per_problem: Sequence[Sequence[Answer]],
    k: int,
    confidence: float,
) -> Interval:
    """Return the interval over problems. Problems with fewer than k scored answers are left out."""
    shares = [estimate(answers, k) for answers in per_problem if len(answers) >= k]
    return mean_interval(shares, confidence, bounds=(0.0, 1.0))


def _by_label(judged: Iterable[Mapping[str, float | None]], confidence: float) -> dict[str, Interval]:
    values: dict[str, list[list[float]]] = {}
    for parts in judged:
        for label, value in parts.items():
            values.setdefault(label, []).append([] if value is None or math.isnan(value) else [value])
    return {label: interval_of(found, confidence) for label, found in values.items()}


def _scores(answers: Sequence[Answer]) -> list[float]:
    return [answer.score for answer in answers if answer.score is not None]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else math.nan
