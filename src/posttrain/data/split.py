"""Training rows and held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from posttrain.data.read import Row, read_rows, size_of
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.stream import STREAMED_FROM, Source, StreamedRows
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.config import DataConfig


class Split(NamedTuple):
    train: Sequence[Row]
    heldout: Sequence[Row]


def read_split(config: DataConfig, seed: int) -> Split:
    """The rows of `data.train`, or of the part of them that is asked for, and those of `data.eval`.

    Without `data.eval`, a generated task brings its own held-out rows; of anything else `data.eval_fraction` of the
    training rows are held out, which ones is fixed by the seed: the same for every part. Raises `DataError`.
    """
    whole = _read_whole(config, seed)
    return whole if config.part_numbers is None else Split(_part(whole.train, *config.part_numbers), whole.heldout)


def _read_whole(config: DataConfig, seed: int) -> Split:
    train = open_rows(config, config.train, config.split, seed)
    if config.eval is not None:
        return Split(
            train, open_rows(config, config.eval, "eval" if _is_task(config.eval) else config.eval_split, seed)
        )
    if _is_task(config.train):
        return Split(train, open_rows(config, config.train, "eval", seed))
    prompts, sampled = _apart(train)
    split = _hold_out(prompts, config.eval_fraction, seed)
    return Split([*split.train, *sampled], split.heldout) if sampled else split


def _apart(rows: Sequence[Row]) -> tuple[Sequence[Row], list[Row]]:
    """Pairs of earlier rounds beside the prompts of this one are all trained on, so that the prompts held out are the
    same in every round; rows of one kind are left together."""
    sampled = [row for row in rows if is_sampled_pair(row)] if isinstance(rows, list) else []
    if len(sampled) in (0, len(rows)):
        return rows, []
    return [row for row in rows if not is_sampled_pair(row)], sampled


def open_rows(config: DataConfig, source: str | list[str], split: str, seed: int) -> Sequence[Row]:
    """The rows of a source: in memory, or streamed as `data.streaming` says."""
    streams = size_of(source, split=split) > STREAMED_FROM if config.streaming == "auto" else config.streaming
    if not streams:
        return read_rows(source, split=split, max_rows=config.max_rows, seed=seed)
    paths = (source,) if isinstance(source, str) else tuple(source)
    return StreamedRows.open(Source(paths=paths, split=split, max_rows=config.max_rows, seed=seed))


def read_auxiliary(config: DataConfig, seed: int) -> list[Row]:
    """The rows of `data.auxiliary`; none where it is not set. Raises `DataError`."""
    return [] if config.auxiliary is None else read_rows(config.auxiliary, split=config.split, seed=seed)


def _part(rows: Sequence[Row], number: int, parts: int) -> Sequence[Row]:
    """Rows in their order, cut into parts whose sizes differ by one at most."""
    if len(rows) < parts:
        raise DataError(
            given=f"data.part = {number}/{parts} of {len(rows)} training rows leaves parts without any",
            allowed="at least one row in each part",
            fix=f"Use at most {len(rows)} parts.",
        )
    return rows[(number - 1) * len(rows) // parts : number * len(rows) // parts]


def _is_task(source: str | list[str]) -> bool:
    return isinstance(source, str) and source.startswith("task:")


def _hold_out(rows: Sequence[Row], fraction: float, seed: int) -> Split:
    if fraction == 0:
        return Split(rows, [])
    count = max(1, round(fraction * len(rows)))
    if count >= len(rows):
        raise DataError(
            given=f"data.eval_fraction = {fraction} of {len(rows)} rows leaves nothing to train on",
            allowed="at least one training row",
            fix="Add rows, or name held-out data in data.eval.",
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    heldout_N = np.zeros(len(rows), dtype=np.bool_)
    heldout_N[order[:count].numpy()] = True
    return Split(_where(rows, ~heldout_N), _where(rows, heldout_N))


def _where(rows: Sequence[Row], wanted_N: np.ndarray) -> Sequence[Row]:
    if isinstance(rows, StreamedRows):
        return rows.where(wanted_N)
    return [row for row, wanted in zip(rows, wanted_N, strict=True) if wanted]
