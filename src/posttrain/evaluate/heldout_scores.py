"""The measures of a run that trains a reward model, on held-out pairs and rated answers.

    pairs     accuracy   share of pairs with r_w > r_l, a tie is wrong       margin   mean of r_w - r_l
    ratings   rmse, pearson, spearman of score and rating, in the units of the data

For pairs, calibration is about sigmoid(|r_w - r_l|) as the probability that the order is right. For ratings, it
compares predicted ratings with the mean given rating, by tenths. Labelled steps: `posttrain.evaluate.heldout_steps`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from posttrain.data.dataset import pairs_batch, ratings_batch
from posttrain.evaluate.row_scores import of_baseline, read_numbers, refuse_non_finite
from posttrain.files import write_sealed
from posttrain.functional.calibration import (
    ReliabilityBin,
    by_chance,
    calibration_error,
    even_edges,
    pearson,
    reliability,
    root_mean_square_error,
    spearman,
)
from posttrain.functional.intervals import Interval, mean_interval, paired_interval, wilson
from posttrain.models.microbatches import Split
from posttrain.models.reward_head import ScoringFacts
from posttrain.types import Batch, Outputs, Pair, RatedExample

Forward = Callable[[Batch], Outputs]
Scores = dict[str, list[Any]]
"""Scores of the held-out rows under one state of the weights, by name."""
Record = dict[str, Any]
SHARES = (0.0, 1.0)
HALF_TO_ONE = even_edges(0.5, 1.0)


class Subject(Protocol):
    """Held-out rows, and the measures of their scores."""

    def __len__(self) -> int: ...
    def scores(self) -> Scores:
        """Return the scores under the current weights."""
        ...

    def measures(self, scores: Scores, confidence: float) -> Record: ...
    def changes(self, before: Scores, after: Scores, confidence: float) -> Record: ...
    def answers(self, scores: Scores) -> list[float]:
        """Return the score of each answer, as the reward model would give it as a reward."""
        ...


class HeldOutScores:
    """A measure of a reward model: for each state of its weights, and the change from baseline to trained."""

    def __init__(self, subject: Subject, confidence: float) -> None:
        self.subject, self.confidence = subject, confidence

    def __call__(self, folder: Path, name: str) -> Record:
        if not len(self.subject):
            return {}
        scores = self.subject.scores()
        write_sealed(folder / f"{name.replace(' ', '-')}-scores.json", json.dumps(scores))
        measured = self.subject.measures(scores, self.confidence) | {"confidence": self.confidence}
        if name != "trained":
            return {name: measured}
        before, lost = of_baseline(lambda: read_numbers(folder, "baseline-scores.json", like=scores))
        if before is None:
            return {name: measured, **lost}
        return {name: measured, "difference": self.subject.changes(before, scores, self.confidence)}

    def spread(self) -> tuple[float, float, int] | None:
        """Return mean, standard deviation (n - 1) and number of the held-out scores; None if there are fewer than 2."""
        if not len(self.subject):
            return None
        answers = self.subject.answers(self.subject.scores())
        return (statistics.fmean(answers), statistics.stdev(answers), len(answers)) if len(answers) > 1 else None

    def accuracy(self) -> tuple[float, float, float] | None:
        """Return the share of held-out pairs in the right order and its interval's limits; None for other data."""
        measured = self.subject.measures(self.subject.scores(), self.confidence) if len(self.subject) else {}
        found = measured.get("accuracy") if "pairs" in measured else None
        return None if found is None else (found["mean"], found["low"], found["high"])


class HeldOutPairs:
    """How often the better answer of a held-out pair scores higher, and by how much."""

    def __init__(self, forward: Forward, pairs: Sequence[Pair], *, pad_id: int, tokens_per_microbatch: int) -> None:
        self.forward, self.pairs, self.pad_id, self.tokens = forward, pairs, pad_id, tokens_per_microbatch

    def __len__(self) -> int:
        return len(self.pairs)

    def scores(self) -> Scores:
        batch = pairs_batch(self.pairs, self.pad_id)
        scores_B, (chosen, rejected) = score_rows(self.forward, batch, self.tokens), batch.pairs
        return {"chosen_N": scores_B[chosen].tolist(), "rejected_N": scores_B[rejected].tolist()}

    def measures(self, scores: Scores, confidence: float) -> Record:
        margins, n = _margins(scores), len(self.pairs)
        believed = [sigmoid(abs(margin)) for margin in margins]
        right = [1.0 if margin > 0 else 0.5 if margin == 0 else 0.0 for margin in margins]
        return {
            "pairs": n,
            "accuracy": wilson(sum(margin > 0 for margin in margins), n, confidence)._asdict(),
            "margin": mean_interval(margins, confidence)._asdict(),
        } | probability_record(believed, right, confidence, edges=HALF_TO_ONE)

    def changes(self, before: Scores, after: Scores, confidence: float) -> Record:
        old, new = ([float(margin > 0) for margin in _margins(scores)] for scores in (before, after))
        return {"accuracy": paired_interval(old, new, confidence, bounds=SHARES)._asdict()}

    def answers(self, scores: Scores) -> list[float]:
        return scores["chosen_N"] + scores["rejected_N"]


class HeldOutRatings:
    """How close the scores of held-out answers are to their ratings."""

    def __init__(
        self,
        forward: Forward,
        rows: Sequence[RatedExample],
        facts: ScoringFacts,
        *,
        pad_id: int,
        tokens_per_microbatch: int,
    ) -> None:
        self.forward, self.rows, self.facts, self.pad_id = forward, rows, facts, pad_id
        self.tokens, self.ratings = tokens_per_microbatch, [row.score for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def scores(self) -> Scores:
        outputs_B = score_rows(self.forward, ratings_batch(self.rows, self.pad_id), self.tokens)
        return {"scores_N": self.facts.in_units(outputs_B).tolist()}

    def measures(self, scores: Scores, confidence: float) -> Record:
        predicted, found = scores["scores_N"], self.ratings
        return {
            "ratings": len(found),
            "rmse": root_mean_square_error(predicted, found, confidence)._asdict(),
            "pearson": finite(pearson(predicted, found, confidence)),
            "spearman": finite(spearman(predicted, found, confidence)),
            "calibration": {"bins": _bins(reliability(predicted, found, confidence))},
        }

    def changes(self, before: Scores, after: Scores, confidence: float) -> Record:
        """Return the change of the RMSE: the paired change of the mean square, divided by the sum of both roots."""
        old, new = (self._squares(scores) for scores in (before, after))
        roots = math.sqrt(statistics.fmean(old)) + math.sqrt(statistics.fmean(new))
        change = paired_interval(old, new, confidence)
        mean, low, high = (edge / (roots or 1.0) for edge in change[:3])
        return {"rmse": finite(Interval(mean, low, high, change.n))}

    def answers(self, scores: Scores) -> list[float]:
        return scores["scores_N"]

    def _squares(self, scores: Scores) -> list[float]:
        return [(score - y) ** 2 for score, y in zip(scores["scores_N"], self.ratings, strict=True)]


@torch.no_grad()
def score_rows(forward: Forward, batch: Batch, tokens_per_microbatch: int) -> Tensor:
    """Return the scores `[B]` in float64."""
    scores_B = torch.full((batch.num_rows,), math.nan, dtype=torch.float64)
    for rows, micro in Split(forward, tokens_per_microbatch)(batch):
        found_B = forward(micro).scores_B
        assert found_B is not None
        scores_B[rows] = found_B.double().cpu()
    refuse_non_finite(scores_B, "score")
    return scores_B


def probability_record(
    believed: Sequence[float],
    found: Sequence[float],
    confidence: float,
    *,
    edges: Sequence[float],
    clusters: Sequence[int] | None = None,
) -> Record:
    """Return Brier score and calibration of probabilities. `clusters` are the indices of the answers they belong to."""
    squares: dict[int, list[float]] = {}
    for p, y, owner in zip(believed, found, clusters or range(len(believed)), strict=True):
        squares.setdefault(owner, []).append((p - y) ** 2)
    brier = mean_interval([statistics.fmean(group) for group in squares.values()], confidence, bounds=SHARES)
    return {
        "brier": brier._asdict(),
        "calibration": {
            "error": calibration_error(believed, found, confidence, edges=edges, clusters=clusters)._asdict(),
            "error_by_chance": by_chance(believed, found, edges=edges, clusters=clusters),
            "bins": _bins(reliability(believed, found, confidence, edges=edges, bounds=SHARES)),
        },
    }


def in_words(measured: Record) -> str:
    """Return the main measure of a reward model in one line."""
    if "ratings" in measured:
        found, n = measured["spearman"], measured["ratings"]
        if found["mean"] is None:
            return f"all scores of {n} held-out answers are the same"
        return "rank correlation {mean:.2f} ({low:.2f} to {high:.2f})".format(**found) + f" with {n} held-out ratings"
    share, low, high = (f"{measured['accuracy'][name]:.1%}" for name in ("mean", "low", "high"))
    if "steps" in measured:
        return f"{share} of the steps of {measured['answers']} held-out answers judged rightly ({low} to {high})"
    return f"{share} of {measured['pairs']} held-out pairs in the right order ({low} to {high})"


def sigmoid(x: float) -> float:
    """Return the logistic function of x >= 0."""
    return 1 / (1 + math.exp(-x))


def _margins(scores: Scores) -> list[float]:
    return [better - worse for better, worse in zip(scores["chosen_N"], scores["rejected_N"], strict=True)]


def _bins(bins: Sequence[ReliabilityBin]) -> list[Record]:
    return [{"n": b.n, "predicted": b.predicted, "found": finite(b.found)} for b in bins]


def finite(interval: Interval) -> Record:
    """Return the interval as a mapping for JSON: non-finite numbers become None."""
    return {name: value if name == "n" or math.isfinite(value) else None for name, value in interval._asdict().items()}
