"""The scores of held-out rows under the current weights: a sum of log-probabilities and a token count per row."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from posttrain.data.dataset import examples_batch
from posttrain.errors import DataError, NonFiniteError
from posttrain.files import Damaged, read_sealed_json, write_sealed
from posttrain.functional.masks import masked
from posttrain.models.microbatches import Split
from posttrain.types import Batch, Example, Outputs

Row = TypeVar("Row")
T = TypeVar("T")
Score = Callable[[Batch], Outputs]


class RowScores(NamedTuple):
    """The scores of each row, over its trained tokens."""

    logprobs: list[float]
    """Sum of the log-probabilities of each row."""
    tokens: list[int]
    top1: list[int] | None = None
    """Number of tokens in each row that were the most likely ones; None if the forward pass does not say."""

    @property
    def per_token(self) -> list[float]:
        return [total / max(1, tokens) for total, tokens in zip(self.logprobs, self.tokens, strict=True)]

    def __sub__(self, before: RowScores) -> list[float]:
        """Return the log-ratio of each row to other weights. Raises DataError if they scored other rows."""
        if self.tokens != before.tokens:
            raise DataError(
                given=f"{len(self.tokens)} held-out answers with {sum(self.tokens)} tokens, but the baseline of the "
                f"run has scored {len(before.tokens)} with {sum(before.tokens)}",
                allowed="the held-out rows with which the run was started",
                fix="Restore the data, or train a new run on the new data.",
            )
        return [b - a for a, b in zip(before.logprobs, self.logprobs, strict=True)]

    def split(self, rows: int) -> tuple[RowScores, RowScores]:
        """Return the first `rows` rows, and the rest."""
        return (
            RowScores(self.logprobs[:rows], self.tokens[:rows]),
            RowScores(self.logprobs[rows:], self.tokens[rows:]),
        )

    def write(self, folder: Path, name: str) -> None:
        write_sealed(folder / f"{name.replace(' ', '-')}-scores.json", json.dumps(self._asdict()))

    @staticmethod
    def read(folder: Path, name: str = "baseline") -> RowScores:
        """Read the scores of `write`. Raises `Damaged` if the file's checksum or content is wrong."""
        found = read_numbers(folder, f"{name}-scores.json")
        if found.keys() != set(RowScores._fields) or len(found["logprobs"]) != len(found["tokens"]):
            raise Damaged(f"{name}-scores.json holds no scores of rows")
        return RowScores(**found)


def read_numbers(folder: Path, name: str, like: Mapping[str, list[Any]] | None = None) -> dict[str, list[Any]]:
    """Read named (nested) lists of finite numbers. If `like` is given, names and lengths must be the same.

    Raises `Damaged` for a file that holds anything else.
    """

    def is_numbers(value: Any) -> bool:
        if isinstance(value, list):
            return all(map(is_numbers, value))
        return type(value) in (int, float) and math.isfinite(value)

    found = read_sealed_json(folder, name)
    if not isinstance(found, dict) or not all(value is None or is_numbers(value) for value in found.values()):
        raise Damaged(f"{name} holds no numbers")
    if like is not None and [(key, len(found.get(key) or ())) for key in like] != [
        (k, len(v)) for k, v in like.items()
    ]:
        raise Damaged(f"{name} holds the scores of other rows")
    return found


def of_baseline(read: Callable[[], T]) -> tuple[T | None, dict[str, str]]:
    """Return (the stored data from before training, {}), or (None, {"lost": reason}) if it is lost."""
    try:
        return read(), {}
    except KeyError as error:
        return None, {"lost": f"evaluation.json has no {error}"}
    except Damaged as damage:
        return None, {"lost": str(damage)}


def first(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the first rows of a sequence, in memory or read from a file."""
    return [rows[number] for number in range(min(limit, len(rows)))]


def refuse_non_finite(values_B: Tensor, what: str) -> None:
    """Raise NonFiniteError for values that are not finite, so that a run with a broken model does not end well."""
    if values_B.isfinite().all():
        return
    bad = (~values_B.isfinite()).nonzero()[:, 0]
    raise NonFiniteError(
        given=f"the {what} of {len(bad)} of {len(values_B)} held-out rows is not finite (row {int(bad[0])} …)",
        allowed="finite numbers",
        fix="The weights have become too large: lower train.learning_rate, and start again.",
    )


@torch.no_grad()
def score_rows(forward: Score, examples: Sequence[Example], *, pad_id: int, tokens_per_microbatch: int) -> RowScores:
    """Score the rows under the current weights. A row without trained tokens has a sum of 0."""
    batch = examples_batch(examples, pad_id)
    counts_B = batch.completion_mask_BT.sum(dim=-1)
    sums_B = torch.zeros(batch.num_rows, dtype=torch.float64)
    top1_B: Tensor | None = None
    for rows, micro in Split(forward, tokens_per_microbatch)(batch):
        outputs, mask_BT = forward(micro), micro.completion_mask_BT
        sums_B[rows] = masked(outputs.logprobs_BT.double().cpu(), mask_BT).sum(dim=-1)
        if outputs.top1_BT is not None:
            top1_B = torch.zeros_like(counts_B) if top1_B is None else top1_B
            top1_B[rows] = (outputs.top1_BT.cpu() & mask_BT).sum(dim=-1)
    refuse_non_finite(sums_B, "log-probability")
    return RowScores(sums_B.tolist(), counts_B.tolist(), None if top1_B is None else top1_B.tolist())
