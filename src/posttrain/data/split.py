"""Training rows and held-out rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from posttrain.data.read import Row, read_rows
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.config import DataConfig


class Split(NamedTuple):
    train: list[Row]
    heldout: list[Row]


def read_split(config: DataConfig, seed: int) -> Split:
    """The rows of `data.train`, and those of `data.eval`.

    Without `data.eval`, a generated task brings its own held-out rows; of anything else `data.eval_fraction` of the
    training rows are held out, which ones is fixed by the seed. Raises `DataError`.
    """
    train = read_rows(config.train, split=config.split, max_rows=config.max_rows, seed=seed)
    if config.eval is not None:
        named_split = "eval" if _is_task(config.eval) else config.eval_split
        return Split(train, read_rows(config.eval, split=named_split, max_rows=config.max_rows, seed=seed))
    if _is_task(config.train):
        return Split(train, read_rows(config.train, split="eval", max_rows=config.max_rows, seed=seed))
    return _hold_out(train, config.eval_fraction, seed)


def read_auxiliary(config: DataConfig, seed: int) -> list[Row]:
    """The rows of `data.auxiliary`; none where it is not set. Raises `DataError`."""
    return [] if config.auxiliary is None else read_rows(config.auxiliary, split=config.split, seed=seed)


def _is_task(source: str | list[str]) -> bool:
    return isinstance(source, str) and source.startswith("task:")


def _hold_out(rows: list[Row], fraction: float, seed: int) -> Split:
    if fraction == 0:
        return Split(rows, [])
    count = max(1, round(fraction * len(rows)))
    if count >= len(rows):
        raise DataError(
            given=f"data.eval_fraction = {fraction} of {len(rows)} rows leaves nothing to train on",
            allowed="at least one training row",
            fix="Add rows, or name held-out data in data.eval.",
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    heldout = set(order[:count])
    return Split(
        [row for place, row in enumerate(rows) if place not in heldout],
        [row for place, row in enumerate(rows) if place in heldout],
    )
