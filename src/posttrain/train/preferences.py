"""Training on preference pairs: where those of a step come from, and how often held-out ones are told apart."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from posttrain.data.collate import collate_examples
from posttrain.data.order import rows_for_step
from posttrain.functional.intervals import mean_interval, paired_interval, wilson
from posttrain.train.feed import Fed
from posttrain.train.guards import Guards, name_pairs
from posttrain.train.loop import microbatches
from posttrain.train.references import References
from posttrain.types import Batch, Example, Pair

if TYPE_CHECKING:
    from posttrain.config import RunConfig

Score = Callable[[Batch], Tensor]
"""`[B]`: the number by which the rows of a batch are ranked."""


class PairFeed:
    """Preference pairs of a dataset, `prompts_per_step` of them at a time."""

    samples = False

    def __init__(
        self, config: RunConfig, pairs: Sequence[Pair], *, pad_id: int, references: References | None = None
    ) -> None:
        """`references` are of the answers in the order of `Sides`."""
        self.config, self.pairs, self.pad_id, self.references = config, pairs, pad_id, references

    def take(self, step: int, version: int) -> Fed:
        rows = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.pairs))
        pairs = [self.pairs[row] for row in rows]
        examples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        batch = pairs_batch(pairs, self.pad_id)
        if self.references is not None:
            sides = [*rows, *(len(self.pairs) + row for row in rows)]
            batch = replace(batch, ref_logprobs_BT=self.references.beside(sides, batch.completion_mask_BT))
        return Fed(experience=batch, version=version, examples=examples)

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_pairs(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def describe(self) -> str:
        return f"{len(self.pairs)} pairs"


class Sides(Sequence[Example]):
    """The answers of pairs, one by one: all chosen ones, then all rejected ones."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return 2 * len(self.pairs)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        place = range(len(self))[place]  # IndexError past the end, where iteration stops
        pair = self.pairs[place % len(self.pairs)]
        return pair.chosen if place < len(self.pairs) else pair.rejected


def pairs_batch(pairs: Sequence[Pair], pad_id: int) -> Batch:
    """Chosen rows, then rejected ones; with margins where every row of the data has one."""
    tokens, mask_BT = collate_examples([p.chosen for p in pairs] + [p.rejected for p in pairs], pad_id)
    margins = [pair.margin for pair in pairs if pair.margin is not None]
    known = len(margins) == len(pairs)
    return Batch.from_pairs(mask_BT, margins_N=torch.tensor(margins) if known else None, tokens=tokens)


class PairScores(NamedTuple):
    """Scores of the chosen and of the rejected answers of N pairs."""

    chosen_N: list[float]
    rejected_N: list[float]

    @property
    def right_N(self) -> list[float]:
        """1 where the chosen answer scores higher; a tie is wrong."""
        return [float(better > worse) for better, worse in zip(self.chosen_N, self.rejected_N, strict=True)]

    @property
    def margins_N(self) -> list[float]:
        return [better - worse for better, worse in zip(self.chosen_N, self.rejected_N, strict=True)]

    @property
    def spread(self) -> tuple[float, float]:
        """Mean and standard deviation (n - 1) of all answers, chosen and rejected."""
        answers = self.chosen_N + self.rejected_N
        return statistics.fmean(answers), statistics.stdev(answers)


class HeldOutPairs:
    """How often the better answer of a held-out pair scores higher, and by how much, before and after."""

    def __init__(self, config: RunConfig, score: Score, pairs: Sequence[Pair], pad_id: int) -> None:
        self.config, self.score, self.pad_id = config, score, pad_id
        self.pairs = pairs[: config.evaluation.prompts]

    def __call__(self, folder: Path, name: str) -> dict[str, Any]:
        if not self.pairs:
            return {}
        confidence, scores = self.config.evaluation.confidence, self.scores()
        folder.mkdir(exist_ok=True)
        (folder / f"{name.replace(' ', '-')}-scores.json").write_text(json.dumps(scores._asdict()))
        right, n = scores.right_N, len(self.pairs)
        measured = {
            "pairs": n,
            "confidence": confidence,
            "accuracy": wilson(round(sum(right)), n, confidence)._asdict(),
            "margin": mean_interval(scores.margins_N, confidence)._asdict(),
        }
        if name != "trained":
            return {name: measured}
        before = PairScores(**json.loads((folder / "baseline-scores.json").read_text()))
        change = paired_interval(before.right_N, right, confidence, bounds=(0.0, 1.0))
        return {name: measured, "difference": {"accuracy": change._asdict()}}

    @torch.no_grad()
    def scores(self) -> PairScores:
        """Under the present weights."""
        batch = pairs_batch(self.pairs, self.pad_id)
        scores_B = torch.full((batch.num_rows,), math.nan)
        for rows, micro in microbatches(batch, self.config.train.tokens_per_microbatch):
            scores_B[rows] = self.score(micro).float().cpu()
        chosen, rejected = batch.pairs
        return PairScores(scores_B[chosen].tolist(), scores_B[rejected].tolist())
