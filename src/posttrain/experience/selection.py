"""Selection of a step's prompts: the step's rows of the data, or more rows until enough groups have signal.

A group whose rewards do not differ changes no weight. If the algorithm declares the need "signal" (DAPO's dynamic
sampling, RULE 22), other prompts replace such groups until the step is full. The samples of round r of step s depend
on the seed, s, r and the results of the step's earlier rounds only, so a resumed run samples them again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from torch import Tensor

from posttrain.config import RunConfig
from posttrain.data.order import Strata, rows_for_round, rows_for_step
from posttrain.errors import GuardStop
from posttrain.experience.generate import Generated
from posttrain.experience.group import Group, completions_of, rewards_of, scores_of
from posttrain.functional.baselines import has_signal
from posttrain.rewards.scores import CORRECT_AT, enforce_limit
from posttrain.types import Mean, Metrics

Generate = Callable[[Sequence[int], int], Generated]
"""Maps (rows of the data, round) to their scored groups."""


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The groups generated for a step, in one round or several, and the selection that is trained."""

    generated: Generated
    """All groups, in the order in which they were requested."""
    places: Sequence[int]
    """Indices of the trained groups in `generated`, in the order of the batch."""
    rounds: int = 1

    @property
    def trained(self) -> list[Group]:
        return [self.generated.groups[place] for place in self.places]

    @property
    def discarded(self) -> list[Group]:
        trained = set(self.places)
        return [group for place, group in enumerate(self.generated.groups) if place not in trained]

    def metrics(self) -> Metrics:
        return {}


Select = Callable[[int, Generate], Selected]
"""Maps (step, generate) to the groups of the step."""


@dataclass(frozen=True)
class EveryGroup:
    """The prompts of the step, whatever their rewards."""

    config: RunConfig
    num_prompts: int
    strata: Strata | None = None

    def __call__(self, step: int, generate: Generate) -> Selected:
        rows = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, self.num_prompts, self.strata)
        return Selected(generated=generate(rows, 0), places=range(len(rows)))


@dataclass(frozen=True)
class DynamicSampling:
    """Selects only groups with signal, `prompts_per_step` of them, in as many rounds as that takes, up to a bound.

    The rewards themselves decide, without any penalty that the algorithm adds: otherwise eight wrong answers of
    different lengths would count as informative. Surplus groups are discarded, the last ones first.
    """

    config: RunConfig
    num_prompts: int
    strata: Strata | None = None

    def __call__(self, step: int, generate: Generate) -> Selected:
        train = self.config.train
        rows = rows_for_step(self.config.seed, step, train.prompts_per_step, self.num_prompts, self.strata)
        generated, rounds = generate(rows, 0), 1
        while len(kept := informative(generated.groups)) < train.prompts_per_step:
            scores = scores_of(generated.groups)
            assert scores is not None, "an algorithm that asks for a signal has rewards"
            enforce_limit(scores, self.config.guards.max_unscored)
            if rounds == train.max_sampling_rounds:
                raise self.no_signal(generated.groups, len(kept), f"step {step}: ")
            rows += self._further_rows(step, rounds, rows, self._expected(len(rows), len(kept)))
            generated += generate(rows[len(generated.groups) :], rounds)
            rounds += 1
        return DynamicallySelected(generated=generated, places=kept[: train.prompts_per_step], rounds=rounds)

    def _expected(self, drawn: int, kept: int) -> int:
        """Return how many more prompts should fill the step at the present share of signal; at most
        `prompts_per_step`."""
        wanted = self.config.train.prompts_per_step
        return min(wanted, math.ceil((wanted - kept) * drawn / kept)) if kept else wanted

    def _further_rows(self, step: int, number: int, drawn: Sequence[int], count: int) -> list[int]:
        """Return shuffled rows of the data; the rows that this step has sampled least often come first."""
        order, times = rows_for_round(self.config.seed, step, number, self.num_prompts), Counter(drawn)
        return list(islice(cycle(sorted(order, key=lambda row: times[row])), count))

    def no_signal(self, groups: Sequence[Group], kept: int, where: str = "") -> GuardStop:
        """Return the error for too few groups with signal. It says what kinds of groups were sampled."""
        wanted, rounds, group_size = (
            self.config.train.prompts_per_step,
            self.config.train.max_sampling_rounds,
            self.config.sampling.group_size,
        )
        kinds = kinds_of(groups)
        shares = ", ".join(f"{100 * count / len(groups):.0f}% {what}" for what, count in kinds.named().items())
        advice = "easier" if kinds.low >= kinds.high else "harder"
        completions = completions_of(groups)
        cut = sum(completion.truncated for completion in completions) / max(1, len(completions))
        return GuardStop(
            given=f"{where}{kept} of {len(groups)} groups in {rounds} rounds of sampling had a signal; "
            f"{shares}; {100 * cut:.0f}% of the answers were truncated",
            allowed=f"{wanted} groups of {group_size} answers whose rewards differ, within train.max_sampling_rounds",
            fix=f"Does the reward recognise a right answer (`posttrain eval` shows some)? If so, take {advice} prompts "
            f"(data.train), raise sampling.group_size, or set train.max_sampling_rounds = {2 * rounds}.",
        )


def informative(groups: Sequence[Group]) -> list[int]:
    """Return the indices of the groups with at least two scored rewards that differ (RULE 11)."""
    return has_signal(*rewards_of(groups)).flatten().nonzero().flatten().tolist()


@dataclass(frozen=True)
class Kinds:
    """Number of groups of each kind."""

    informative: int
    high: int
    """Groups in which all rewards equal the highest reward of the step."""
    low: int
    """Groups in which all rewards equal the lowest. If the whole step has a single reward, `low` unless it is above 0.
    """
    between: int
    """Groups in which all rewards equal some value in between."""
    unscored: int
    """Groups with fewer than two scored completions."""

    def named(self) -> dict[str, int]:
        found = {
            "all right (every answer got the highest reward)": self.high,
            "all wrong (every answer got the lowest)": self.low,
            "all equal in between": self.between,
            "without two scored answers": self.unscored,
        }
        return {what: count for what, count in found.items() if count or "all right" in what or "all wrong" in what}


def kinds_of(groups: Sequence[Group]) -> Kinds:
    """Count the groups by what their rewards have in common."""
    rewards_PG, scored_PG = rewards_of(groups)
    signal_P = has_signal(rewards_PG, scored_PG).flatten()
    unscored_P = scored_PG.sum(dim=-1) < 2
    equal_P = ~signal_P & ~unscored_P
    value_P = rewards_PG.masked_fill(~scored_PG, -torch.inf).amax(dim=-1)
    seen = rewards_PG[scored_PG]
    lowest, highest = (seen.min(), seen.max()) if len(seen) else (torch.tensor(0.0), torch.tensor(0.0))
    is_high_P = _near(value_P, highest) & ((highest > 0) | ~_near(highest, lowest))
    high_P = equal_P & is_high_P
    low_P = equal_P & ~is_high_P & _near(value_P, lowest)
    return Kinds(
        informative=int(signal_P.sum()),
        high=int(high_P.sum()),
        low=int(low_P.sum()),
        between=int((equal_P & ~high_P & ~low_P).sum()),
        unscored=int(unscored_P.sum()),
    )


def _near(x: Tensor, edge: Tensor) -> Tensor:
    return (x - edge).abs() <= 1e-6 * edge.abs().clamp(min=1)


class DynamicallySelected(Selected):
    """A selection with groups that were sampled but are not trained."""

    def metrics(self) -> Metrics:
        """The cost of dynamic sampling, and the prompts that caused it.

        data/sampling_rounds            rounds of sampling in the step
        data/generated_per_trained      groups sampled / groups trained
        data/discarded_all_high, _low   share of the sampled groups whose rewards all equal the highest, the lowest seen
        data/discarded_surplus          share of the sampled groups that had signal but did not fit into the step
        data/discarded_other            share without signal for another reason: equal in between, or unscored
        data/pass_rate/none, under_half, over_half, all
                                        share of the sampled groups by their share of answers with reward 1 (or more)
        """
        groups, total = self.generated.groups, len(self.generated.groups)
        kinds, (rewards_PG, scored_PG) = kinds_of(groups), rewards_of(groups)
        right_P = ((rewards_PG >= CORRECT_AT) & scored_PG).sum(dim=-1)
        rate_P = right_P / scored_PG.sum(dim=-1).clamp(min=1)
        rates = {
            "none": rate_P == 0,
            "under_half": (rate_P > 0) & (rate_P < 0.5),
            "over_half": (rate_P >= 0.5) & (rate_P < 1),
            "all": rate_P == 1,
        }
        return {
            "data/sampling_rounds": Mean(self.rounds, 1),
            "data/generated_per_trained": Mean(total, len(self.places)),
            "data/discarded_all_high": Mean(kinds.high, total),
            "data/discarded_all_low": Mean(kinds.low, total),
            "data/discarded_surplus": Mean(kinds.informative - len(self.places), total),
            "data/discarded_other": Mean(kinds.between + kinds.unscored, total),
            **{f"data/pass_rate/{name}": Mean(float(found_P.sum()), total) for name, found_P in rates.items()},
        }
