"""Metrics of the completions that were sampled and scored for a step, under TRL's names where TRL has one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from posttrain.experience.group import Group, completions_of, rewards_of, scores_of
from posttrain.functional.baselines import group_std, has_signal
from posttrain.rewards.judge import judge_metrics
from posttrain.types import Completion, Episode, Max, Mean, Metrics, Min
from posttrain.verify.verdict import Verdict

SHOWN_TURNS = 10
"""Number of turns with a metric of their own."""


def sampled_metrics(
    sampled: Sequence[Group], trained: Sequence[Group], greedy: Sequence[Group], version: int
) -> Metrics:
    """Return the metrics of everything that was sampled, and the staleness of what is trained; `version` is the
    version of the learning policy."""
    metrics = length_metrics(completions_of(sampled)) | turn_metrics(completions_of(sampled))
    metrics |= staleness_metrics(completions_of(trained), version)
    if (scores := scores_of(sampled)) is not None:
        metrics |= reward_metrics(*rewards_of(sampled)) | component_metrics(scores.parts)
        metrics |= reason_metrics(scores.verdicts) | gate_metrics(scores.is_open)
    if greedy and greedy[0].scores is not None:
        metrics |= greedy_metrics(*rewards_of(greedy))
    scored = [group.scores for group in (*sampled, *greedy) if group.scores is not None]
    return metrics | judge_metrics([judgement for scores in scored for judgement in scores.judgements])


def component_metrics(parts: Mapping[str, Sequence[Sequence[float | None]]]) -> Metrics:
    """Mean and spread of each unweighted reward `[P][G]`, under TRL's names."""
    metrics: Metrics = {}
    for label, part_PG in parts.items():
        applicable = torch.tensor([r for group in part_PG for r in group if r is not None], dtype=torch.float64)
        metrics[f"rewards/{label}/mean"] = Mean(float(applicable.sum()), len(applicable))
        metrics[f"rewards/{label}/std"] = _std(applicable)
    return metrics


def reason_metrics(verdicts: Mapping[str, Sequence[Sequence[Verdict | None]]]) -> Metrics:
    """`rewards/<label>/reason/<reason>`: share of the completions whose verdict had this reason."""
    metrics: Metrics = {}
    for label, verdict_PG in verdicts.items():
        given = [verdict for group in verdict_PG for verdict in group]
        counts = Counter(verdict.reason for verdict in given if verdict is not None)
        for reason, count in sorted(counts.items()):
            metrics[f"rewards/{label}/reason/{reason}"] = Mean(count, len(given))
    return metrics


def gate_metrics(is_open: Mapping[str, Sequence[Sequence[bool | None]]]) -> Metrics:
    """`rewards/<label>/gated`: share of the completions whose gate was closed, so that this reward did not count."""
    metrics: Metrics = {}
    for label, open_PG in is_open.items():
        known = [is_open for group in open_PG for is_open in group if is_open is not None]
        metrics[f"rewards/{label}/gated"] = Mean(float(known.count(False)), len(known))
    return metrics


def reward_metrics(rewards_PG: Tensor, scored_PG: Tensor) -> Metrics:
    """Statistics of the total reward.

    reward                 mean over scored completions
    reward_std             standard deviation (n - 1) over a prompt's scored completions, mean over prompts
    frac_reward_zero_std   share of prompts whose rewards do not differ (RULE 11), so that they teach nothing
    unscored_fraction      share of completions without a reward

    With one completion per prompt, the standard deviation is taken over the step, and there is no share of prompts.
    """
    scored_P1 = scored_PG.sum(dim=-1, keepdim=True)
    rewards = rewards_PG[scored_PG].double()
    metrics: Metrics = {"reward": Mean(float(rewards.sum()), len(rewards))}
    if rewards_PG.shape[1] == 1:
        metrics["reward_std"] = _std(rewards)
    else:
        with_std_P1 = scored_P1 >= 2
        std_P1 = group_std(rewards_PG.double(), scored_PG)
        same_P1 = ~has_signal(rewards_PG, scored_PG)
        metrics["reward_std"] = Mean(float(std_P1[with_std_P1].sum()), float(with_std_P1.sum()))
        metrics["frac_reward_zero_std"] = Mean(float(same_P1.sum()), same_P1.numel())
    metrics["unscored_fraction"] = Mean(float((~scored_PG).sum()), scored_PG.numel())
    return metrics


def greedy_metrics(rewards_P1: Tensor, scored_P1: Tensor) -> Metrics:
    """`reward/greedy`: mean reward of the greedy completions; `reward/greedy_unscored`: share without a reward."""
    scored = rewards_P1[scored_P1].double()
    return {
        "reward/greedy": Mean(float(scored.sum()), len(scored)),
        "reward/greedy_unscored": Mean(float((~scored_P1).sum()), scored_P1.numel()),
    }


def staleness_metrics(completions: Sequence[Completion], version: int) -> Metrics:
    """Policy versions between sampling and training, per token; `version` is the version of the learning policy."""
    lags = [version - sampled for completion in completions for sampled in completion.versions]
    if not lags:
        return {}
    return {
        "staleness/mean": Mean(sum(lags), len(lags)),
        "staleness/max": Max(float(max(lags))),
        "staleness/min": Min(float(min(lags))),
    }


def length_metrics(completions: Sequence[Completion]) -> Metrics:
    """Lengths in sampled tokens, including EOS, and the share of truncated completions; `terminated` are the others."""
    if not completions:
        return {}
    lengths = [len(completion.drawn_ids) for completion in completions]
    ended = [len(completion.drawn_ids) for completion in completions if not completion.truncated]
    return {
        "completions/mean_length": Mean(sum(lengths), len(lengths)),
        "completions/min_length": Min(float(min(lengths))),
        "completions/max_length": Max(float(max(lengths))),
        "completions/clipped_ratio": Mean(len(lengths) - len(ended), len(lengths)),
        "completions/mean_terminated_length": Mean(sum(ended), len(ended)),
        **({"completions/min_terminated_length": Min(float(min(ended)))} if ended else {}),
        **({"completions/max_terminated_length": Max(float(max(ended)))} if ended else {}),
    }


def turn_metrics(completions: Sequence[Completion]) -> Metrics:
    """Return the metrics of completions that may have several turns; empty for plain answers.

    turns/mean, turns/max          turns of the policy in a trajectory
    turns/reward/<k>               mean reward of turn k over the trajectories in which it got one; for the first ten
                                   turns, and absent if it got none
    turns/contexts                 mean number of contexts per trajectory; 1 if each turn continues the one before
    turns/cut_by/<limit>           share of the trajectories that hit this limit
    environment/failed/<cause>     share whose environment failed for good: exception, timeout, crash or template
    environment/attempts           mean number of times that a trajectory was begun
    environment/metrics/<name>     the environment's own metric, mean over the trajectories that have it
    tools/calls                    mean number of calls per trajectory
    tools/calls/<name>             the same for one tool
    tools/errors/<name>            share of its calls that failed
    """
    in_turns = [completion for completion in completions if completion.episode is not None]
    episodes = [completion.episode for completion in in_turns if completion.episode is not None]
    if not episodes:
        return {}
    total, ends = len(episodes), Counter(episode.ended for episode in episodes)
    failures = Counter(episode.failure for episode in episodes if episode.failure)
    calls = Counter(name for episode in episodes for name in episode.calls)
    errors = Counter(name for episode in episodes for name in episode.errors)
    measured = sorted({name for episode in episodes for name in episode.metrics})
    own = {name: [one.metrics[name] for one in episodes if name in one.metrics] for name in measured}
    contexts = sum(1 + sum(start > 0 for start in completion.starts) for completion in in_turns)
    return {
        **{f"environment/metrics/{name}": Mean(sum(values), len(values)) for name, values in own.items()},
        "turns/mean": Mean(sum(episode.turns for episode in episodes), total),
        "turns/max": Max(float(max(episode.turns for episode in episodes))),
        **_turn_rewards(episodes),
        "turns/contexts": Mean(contexts, total),
        **{f"turns/cut_by/{end}": Mean(ends[end], total) for end in sorted(ends.keys() - {"done", "failed"})},
        **{f"environment/failed/{cause}": Mean(count, total) for cause, count in sorted(failures.items())},
        "environment/attempts": Mean(sum(episode.attempts for episode in episodes), total),
        "tools/calls": Mean(calls.total(), total),
        **{f"tools/calls/{name}": Mean(count, total) for name, count in sorted(calls.items())},
        **{f"tools/errors/{name}": Mean(errors[name], count) for name, count in sorted(calls.items())},
    }


def _turn_rewards(episodes: Sequence[Episode]) -> Metrics:
    """Return the mean of each turn's rewards. A turn without a reward, such as one that a limit cut, does not count."""
    scored = [episode.turn_rewards[:SHOWN_TURNS] for episode in episodes if not episode.failure]
    turns = [[reward for reward in own if reward is not None] for own in zip_longest(*scored)]
    return {f"turns/reward/{k}": Mean(math.fsum(own), len(own)) for k, own in enumerate(turns, start=1) if own}


def _std(values: Tensor) -> Mean:
    """Return the standard deviation (n - 1) as a metric; NaN, a mean of no values, for fewer than two values."""
    return Mean(float(values.std()), 1) if len(values) >= 2 else Mean(0.0, 0.0)
