"""The measures of a run that trains a process reward model, on held-out answers with labelled steps.

    accuracy   share of an answer's labelled steps on the right side of 1/2, mean over the answers
    auc        probability that a right step scores above a wrong one
    answer_auc probability that an answer without a wrong step scores above another answer

Calibration is about the score of a step as the probability that it is right.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from posttrain.data.dataset import steps_batch
from posttrain.evaluate.heldout_scores import SHARES, Forward, Record, Scores, finite, probability_record
from posttrain.functional.auc import auc_change, auc_interval
from posttrain.functional.calibration import even_edges
from posttrain.functional.intervals import mean_interval, paired_interval
from posttrain.models.microbatches import Split
from posttrain.types import StepExample

ZERO_TO_ONE = even_edges(0.0, 1.0)
T = TypeVar("T")


class HeldOutSteps:
    """How well the model separates right steps of held-out answers from wrong ones. The unit of the intervals is the
    answer, because the steps of an answer are not independent."""

    def __init__(
        self,
        forward: Forward,
        rows: Sequence[StepExample],
        aggregate: Callable[[Tensor], Tensor],
        *,
        pad_id: int,
        tokens_per_microbatch: int,
    ) -> None:
        self.forward, self.rows, self.aggregate = forward, rows, aggregate
        self.pad_id, self.tokens = pad_id, tokens_per_microbatch
        self.labels = [label for row in rows for label in row.labels]
        self.owners = [place for place, row in enumerate(rows) for _ in row.labels]
        """Index of the answer that each step belongs to."""
        self.clusters = self._split(self.owners)

    def __len__(self) -> int:
        return len(self.rows)

    @torch.no_grad()
    def scores(self) -> Scores:
        batch = steps_batch(self.rows, self.pad_id)
        found: list[list[float]] = [[] for _ in self.rows]
        for rows, micro in Split(self.forward, self.tokens)(batch):
            scores_BT = self.forward(micro).scores_BT
            assert scores_BT is not None
            for row, scores_T, ends_T in zip(rows, scores_BT.double().cpu(), micro.completion_mask_BT, strict=True):
                found[row] = scores_T[ends_T].sigmoid().tolist()
        return {"steps": found}

    def measures(self, scores: Scores, confidence: float) -> Record:
        probabilities = [p for row in scores["steps"] for p in row]
        return {
            "answers": len(self.rows),
            "steps": len(self.labels),
            "accuracy": mean_interval(self._right(scores), confidence, bounds=SHARES)._asdict(),
            "auc": finite(auc_interval(*self._by_label(scores), confidence, clusters=self.clusters)),
            "answer_auc": finite(auc_interval(*self._by_answer(scores), confidence)),
            "answer_score": mean_interval(self.answers(scores), confidence, bounds=SHARES)._asdict(),
        } | probability_record(probabilities, self.labels, confidence, edges=ZERO_TO_ONE, clusters=self.owners)

    def changes(self, before: Scores, after: Scores, confidence: float) -> Record:
        accuracy = paired_interval(self._right(before), self._right(after), confidence, bounds=SHARES)
        auc = auc_change(self._by_label(before), self._by_label(after), confidence, clusters=self.clusters)
        return {"accuracy": accuracy._asdict(), "auc": finite(auc)}

    def answers(self, scores: Scores) -> list[float]:
        """Return the score of each answer: the aggregate of the probabilities of its steps."""
        return [float(self.aggregate(torch.tensor(row))) for row in scores["steps"]]

    def _right(self, scores: Scores) -> list[float]:
        return [
            statistics.fmean(float((p > 0.5) == (y > 0.5)) for p, y in zip(found, row.labels, strict=True))
            for found, row in zip(scores["steps"], self.rows, strict=True)
        ]

    def _by_label(self, scores: Scores) -> tuple[list[float], list[float]]:
        return self._split([p for row in scores["steps"] for p in row])

    def _split(self, values: Sequence[T]) -> tuple[list[T], list[T]]:
        """Split values of all steps into (right steps, wrong steps)."""
        both = list(zip(values, self.labels, strict=True))
        return [value for value, y in both if y > 0.5], [value for value, y in both if y <= 0.5]

    def _by_answer(self, scores: Scores) -> tuple[list[float], list[float]]:
        both = [(found, min(row.labels) > 0.5) for found, row in zip(self.answers(scores), self.rows, strict=True)]
        return [found for found, right in both if right], [found for found, right in both if not right]
