"""The records of sampling and scoring: what was drawn for a step, and which of it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from posttrain.rewards import Scores
from posttrain.rewards.judge import Judgement
from posttrain.types import Batch, Completion, Prompt, whole_pairs


@dataclass(frozen=True, kw_only=True)
class Judged:
    """P prompts with their completions, and what those were worth."""

    prompts: Sequence[Prompt]
    groups: Sequence[Sequence[Completion]]
    scores: Scores | None
    """None where there is no reward."""
    sample_seconds: float = 0.0
    """In the sampler."""
    score_seconds: float = 0.0
    """Work of the rewards, summed over all that did it side by side."""
    wait_seconds: float = 0.0
    """For which nothing was done but to wait for rewards."""

    def __len__(self) -> int:
        return len(self.prompts)

    def __add__(self, later: Judged) -> Judged:
        scores = None
        if self.scores is not None and later.scores is not None:
            scores = self.scores.followed_by(later.scores)
        return Judged(
            prompts=[*self.prompts, *later.prompts],
            groups=[*self.groups, *later.groups],
            scores=scores,
            sample_seconds=self.sample_seconds + later.sample_seconds,
            score_seconds=self.score_seconds + later.score_seconds,
            wait_seconds=self.wait_seconds + later.wait_seconds,
        )

    def at(self, places: Sequence[int]) -> Judged:
        """The groups at these places."""
        return Judged(
            prompts=[self.prompts[place] for place in places],
            groups=[self.groups[place] for place in places],
            scores=None if self.scores is None else self.scores.at(places),
        )

    @property
    def rewards_PG(self) -> Tensor:
        """NaN where a completion has no reward; needs groups of one size."""
        assert self.scores is not None
        return torch.tensor(self.scores.rewards_PG, dtype=torch.float32)

    @property
    def scored_PG(self) -> Tensor:
        assert self.scores is not None
        return torch.tensor(self.scores.scored_PG, dtype=torch.bool)

    @property
    def completions(self) -> list[Completion]:
        return list(chain.from_iterable(self.groups))

    @property
    def num_tokens(self) -> int:
        """Of all rows, prompts included."""
        return sum(len(p.ids) + len(c.ids) for p, group in zip(self.prompts, self.groups, strict=True) for c in group)

    @property
    def failures(self) -> list[str]:
        """What went wrong in the rewards, each with its traceback."""
        return [] if self.scores is None else [f"{failure}\n{failure.traceback}" for failure in self.scores.failures]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What was drawn for the groups of a step, in one round or in several."""

    sampled: Judged
    """Everything, in the order in which it was drawn."""
    trained: Sequence[int]
    """Places of the groups that are trained, in the order of the batch."""
    rounds: int = 1


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What sampling and scoring produced for one step."""

    step: int
    """The training step whose prompts these are."""
    version: int
    """The policy version that sampled them."""
    collected: Collected
    greedy: Judged | None = None
    """One greedy completion of each trained prompt, where the algorithm needs its reward."""

    @property
    def sampled(self) -> Judged:
        return self.collected.sampled

    @property
    def trained(self) -> Judged:
        """P groups of G completions: the rows of the batch."""
        return self.sampled.at(self.collected.trained)

    @property
    def discarded(self) -> Judged:
        """What was drawn and is not trained."""
        trained = set(self.collected.trained)
        return self.sampled.at([place for place in range(len(self.sampled)) if place not in trained])

    @property
    def parts(self) -> tuple[Judged, ...]:
        """All that was drawn, the greedy completions too."""
        return (self.sampled,) if self.greedy is None else (self.sampled, self.greedy)

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts)

    @property
    def failures(self) -> list[str]:
        return [failure for part in self.parts for failure in part.failures]

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """What judges said about all that was drawn."""
        return tuple(judgement for part in self.parts if part.scores for judgement in part.scores.judgements)


def pair_roles(batch: Batch, trained: Judged) -> list[str]:
    """What each completion is in the pairs that were made of its group, for a batch that holds pairs of them.

    chosen, rejected, or both of it; tie where the whole group gave no pair; unscored; unused for all others.
    """
    assert batch.row_ids_B is not None, "the rows of a pair know which completion they are"
    rows_2N = batch.row_ids_B[torch.stack(batch.pairs)]
    chosen, rejected = (set(side_N[whole_pairs(batch)].tolist()) for side_N in rows_2N)
    size = len(trained.completions) // max(1, len(trained))
    paired = {row // size for row in rows_2N.flatten().tolist()}

    def role(row: int, scored: bool) -> str:
        sides = [name for name, rows in (("chosen", chosen), ("rejected", rejected)) if row in rows]
        if sides or not scored:
            return " and ".join(sides) or "unscored"
        return "unused" if row // size in paired else "tie"

    scored_B = [True] * len(trained.completions) if trained.scores is None else trained.scored_PG.flatten().tolist()
    return [role(row, scored) for row, scored in enumerate(scored_B)]
