"""The measures of a run on preferences: its policy on held-out pairs and on held-out labelled answers.

S(y) is the summed log-probability of an answer and |y| the number of its trained tokens. S_before comes from the scores
that the baseline evaluation stored, so no second model is loaded:

    accuracy            share of pairs with S(chosen) > S(rejected), ties 1/2
    accuracy_per_token  the same with S / |y|
    implicit            the same with the implicit reward S - S_before, which is 0 before training
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.evaluate.row_scores import RowScores, first, of_baseline, score_rows
from posttrain.functional.auc import auc_change, auc_interval
from posttrain.functional.intervals import (
    Interval,
    mean_interval,
    paired_interval,
    ratio_interval,
    wilson,
)
from posttrain.types import Batch, LabelledExample, Outputs, Pair

if TYPE_CHECKING:
    from posttrain.config import RunConfig

Forward = Callable[[Batch], Outputs]
Record = dict[str, Any]


class HeldOutPolicyPairs:
    """How often the policy finds the chosen answer of a held-out pair likelier than the rejected one, and by how much.

    `logps_chosen` and `logps_rejected` show which side moved. If both fell, probability moved to other answers.
    """

    def __init__(self, config: RunConfig, forward: Forward, pairs: Sequence[Pair], pad_id: int) -> None:
        self.config, self.forward, self.pad_id = config, forward, pad_id
        self.pairs = first(pairs, config.evaluation.prompts)

    def __call__(self, folder: Path, name: str) -> Record:
        if not self.pairs:
            return {}
        rows = [pair.chosen for pair in self.pairs] + [pair.rejected for pair in self.pairs]
        scores = score_rows(
            self.forward, rows, pad_id=self.pad_id, tokens_per_microbatch=self.config.train.microbatch_tokens
        )
        scores.write(folder, name)
        n, confidence = len(self.pairs), self.config.evaluation.confidence
        measured = pair_measures(*scores.split(n), confidence)
        if name == "baseline":
            return {name: measured}
        before, lost = of_baseline(lambda: RowScores.read(folder))
        if before is None:
            return {name: measured, **lost}
        chosen, rejected = _halves(scores - before, n)
        measured["implicit"] = _records(
            accuracy=share(wins(chosen, rejected), confidence),
            margin=mean_interval(_minus(chosen, rejected), confidence),
        )
        if name != "trained":
            return {name: measured}
        return {name: measured, "difference": pair_changes(before, scores, n, confidence)}


class HeldOutLabels:
    """How well the policy separates desirable held-out answers from undesirable ones.

    `auc` is the probability that a desirable answer has the higher log-probability per token. `implicit` has the same
    for the log-ratio to the model before training.
    """

    def __init__(self, config: RunConfig, forward: Forward, examples: Sequence[LabelledExample], pad_id: int) -> None:
        self.config, self.forward, self.pad_id = config, forward, pad_id
        chosen = first(examples, config.evaluation.prompts)
        self.rows = sorted(chosen, key=lambda row: not row.label)
        """Rows sorted so that the desirable answers come first."""
        self.desirable = sum(row.label for row in chosen)

    def __call__(self, folder: Path, name: str) -> Record:
        if not self.rows:
            return {}
        rows = [row.example for row in self.rows]
        scores = score_rows(
            self.forward, rows, pad_id=self.pad_id, tokens_per_microbatch=self.config.train.microbatch_tokens
        )
        scores.write(folder, name)
        confidence = self.config.evaluation.confidence
        measured = self.measures(scores)
        if name == "baseline":
            return {name: measured}
        before, lost = of_baseline(lambda: RowScores.read(folder))
        if before is None:
            return {name: measured, **lost}
        ratios = self._by_label(scores - before)
        measured["implicit"] = _records(
            auc=auc_interval(*ratios, confidence),
            desirable=mean_interval(ratios[0], confidence),
            undesirable=mean_interval(ratios[1], confidence),
        )
        if name != "trained":
            return {name: measured}
        by_token = self._by_label(before.per_token), self._by_label(scores.per_token)
        return {
            name: measured,
            "difference": _records(
                auc=auc_change(*by_token, confidence),
                logps_desirable=mean_interval(ratios[0], confidence),
                logps_undesirable=mean_interval(ratios[1], confidence),
            ),
        }

    def measures(self, scores: RowScores) -> Record:
        """Return the measures for one state of the weights."""
        confidence = self.config.evaluation.confidence
        desirable, undesirable = self._by_label(scores.logprobs)
        return {
            "answers": len(self.rows),
            "desirable": len(desirable),
            "undesirable": len(undesirable),
            "confidence": confidence,
        } | _records(
            auc=auc_interval(*self._by_label(scores.per_token), confidence),
            logps_desirable=mean_interval(desirable, confidence),
            logps_undesirable=mean_interval(undesirable, confidence),
        )

    def _by_label(self, values: list[float]) -> tuple[list[float], list[float]]:
        return _halves(values, self.desirable)


def pair_measures(chosen: RowScores, rejected: RowScores, confidence: float) -> Record:
    """Return the measures for one state of the weights. Row i of both sides is pair i."""
    nll = [-total for total in chosen.logprobs]
    return {
        "pairs": len(nll),
        "confidence": confidence,
        "ranked_by": "sequence log-probability",
    } | _records(
        accuracy=share(wins(chosen.logprobs, rejected.logprobs), confidence),
        accuracy_per_token=share(wins(chosen.per_token, rejected.per_token), confidence),
        margin=mean_interval(_minus(chosen.logprobs, rejected.logprobs), confidence),
        nll_chosen=ratio_interval(nll, chosen.tokens, confidence, bounds=(0.0, math.inf)),
        logps_chosen=mean_interval(chosen.logprobs, confidence),
        logps_rejected=mean_interval(rejected.logprobs, confidence),
    )


def pair_changes(before: RowScores, after: RowScores, n: int, confidence: float) -> Record:
    """Return the paired changes, after - before. Rows 0..n-1 are the chosen answers."""
    old, new, moved = before.split(n), after.split(n), _halves(after - before, n)

    def paired(old_wins: list[float], new_wins: list[float]) -> Interval:
        return paired_interval(old_wins, new_wins, confidence, bounds=(0.0, 1.0))

    return _records(
        accuracy=paired(*(wins(chosen.logprobs, rejected.logprobs) for chosen, rejected in (old, new))),
        accuracy_per_token=paired(*(wins(chosen.per_token, rejected.per_token) for chosen, rejected in (old, new))),
        margin=mean_interval(_minus(*moved), confidence),
        nll_chosen=ratio_interval([-change for change in moved[0]], old[0].tokens, confidence),
        logps_chosen=mean_interval(moved[0], confidence),
        logps_rejected=mean_interval(moved[1], confidence),
    )


def wins(better: Sequence[float], worse: Sequence[float]) -> list[float]:
    """Return 1 for each pair whose first score is higher, 1/2 for a tie, 0 otherwise.

    >>> wins([2.0, 1.0, 0.0], [1.0, 1.0, 1.0])
    [1.0, 0.5, 0.0]
    """
    return [(a > b) + 0.5 * (a == b) for a, b in zip(better, worse, strict=True)]


def share(outcomes: Sequence[float], confidence: float) -> Interval:
    """Return the interval of the mean of wins: a Wilson interval, unless there are ties."""
    if 0.5 in outcomes:
        return mean_interval(outcomes, confidence, bounds=(0.0, 1.0))
    return wilson(round(sum(outcomes)), len(outcomes), confidence)


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _halves(values: list[float], n: int) -> tuple[list[float], list[float]]:
    return values[:n], values[n:]


def _records(**intervals: Interval) -> Record:
    return {name: interval._asdict() for name, interval in intervals.items()}
