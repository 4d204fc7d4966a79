"""Split data into training rows and held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from posttrain.data.columns import renamed_rows, require_columns
from posttrain.data.forms import columns_of
from posttrain.data.read import Row, read_rows, size_of
from posttrain.data.same_prompts import drawn_N, prompt_keys
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.stream import STREAMED_FROM, RowSource, StreamedRows
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.config import DataConfig


class Split(NamedTuple):
    train: Sequence[Row]
    heldout: Sequence[Row]


def read_split(config: DataConfig, seed: int) -> Split:
    """Read the rows of `data.train`, or of the requested part of it, and the rows of `data.eval`.

    Without `data.eval`, a generated task has its own held-out rows. For other data, `data.eval_fraction` of the
    training rows are held out, all rows of a prompt together (`data.hold_out`). The seed determines which ones: the
    same for every part. Raises `DataError`.
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
    return _hold_out(train, config, seed)


def _eligible(rows: Sequence[Row]) -> np.ndarray:
    """The mask of rows that may be held out. If the data has prompts and sampled pairs of earlier rounds, only prompts
    may be: all pairs are trained, and the same prompts are held out in every round. Otherwise any row may be."""
    sampled_N = (
        rows.sampled_N
        if isinstance(rows, StreamedRows)
        else np.fromiter(map(is_sampled_pair, rows), dtype=np.bool_, count=len(rows))
    )
    return np.ones(len(rows), dtype=np.bool_) if sampled_N.all() else ~sampled_N


def open_rows(config: DataConfig, source: str | list[str], split: str, seed: int) -> Sequence[Row]:
    """The rows of a source, in memory or streamed, depending on `data.streaming`."""
    streams = size_of(source, split=split) > STREAMED_FROM if config.streaming == "auto" else config.streaming
    names = {} if _is_task(source) else config.columns
    if not streams:
        rows = read_rows(source, split=split, max_rows=config.max_rows, seed=seed)
        if names and source == config.train:
            require_columns(names, columns_of(rows))
        return list(renamed_rows(rows, names))
    paths = (source,) if isinstance(source, str) else tuple(source)
    streamed = StreamedRows.open(RowSource(paths=paths, split=split, max_rows=config.max_rows, seed=seed))
    if names and source == config.train:
        require_columns(names, streamed.columns)
    return streamed.named(names) if names else streamed


def first_training_rows(config: DataConfig, seed: int, most: int) -> Sequence[Row]:
    """The first `most` rows of `data.train`, or of the requested part of it, with the columns that a run sees. They
    include rows that it would hold out, or leave out because of `data.max_rows`. Raises `DataError`."""
    if config.part_numbers is not None:
        return _part(open_rows(config, config.train, config.split, seed), *config.part_numbers)[:most]
    rows = read_rows(config.train, split=config.split, max_rows=most, seed=seed)
    names = {} if _is_task(config.train) else config.columns
    if len(rows) < most:  # a column may first occur in a later row
        require_columns(names, columns_of(rows))
    return list(renamed_rows(rows, names))[:most]


def read_auxiliary(config: DataConfig, seed: int) -> list[Row]:
    """The rows of `data.auxiliary`; none if it is not set. Raises `DataError`."""
    return [] if config.auxiliary is None else read_rows(config.auxiliary, split=config.split, seed=seed)


def _part(rows: Sequence[Row], number: int, parts: int) -> Sequence[Row]:
    """Part `number` of the rows, which are cut in order into `parts` parts. Their sizes differ by at most one."""
    if len(rows) < parts:
        raise DataError(
            given=f"data.part = {number}/{parts} of {len(rows)} training rows leaves some parts empty",
            allowed="at least one row in each part",
            fix=f"Use at most {len(rows)} parts.",
        )
    return rows[(number - 1) * len(rows) // parts : number * len(rows) // parts]


def first_rows(rows: Sequence[Row], needed: int) -> Sequence[Row]:
    """Enough rows to expect `needed` usable ones: the first `2 * needed` of streamed rows, in memory, or else all."""
    return list(rows[: 2 * needed]) if isinstance(rows, StreamedRows) else rows


def _is_task(source: str | list[str]) -> bool:
    return isinstance(source, str) and source.startswith("task:")


def _hold_out(rows: Sequence[Row], config: DataConfig, seed: int) -> Split:
    fraction = config.eval_fraction
    if fraction == 0:
        return Split(rows, [])
    places = np.flatnonzero(_eligible(rows))
    count = max(1, round(fraction * len(places)))
    if count >= len(places):
        raise DataError(
            given=f"data.eval_fraction = {fraction} of {len(places)} rows leaves nothing to train on",
            allowed="at least one training row",
            fix="Add rows, or name held-out data in data.eval.",
        )

    def order(size: int) -> np.ndarray:
        return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy()

    keys_N = prompt_keys(rows, config)[places] if config.hold_out == "prompts" else np.arange(len(places))
    heldout_N = np.zeros(len(rows), dtype=np.bool_)
    heldout_N[places[drawn_N(keys_N, count, order)]] = True
    return Split(_where(rows, ~heldout_N), _where(rows, heldout_N))


def _where(rows: Sequence[Row], wanted_N: np.ndarray) -> Sequence[Row]:
    if isinstance(rows, StreamedRows):
        return rows.where(wanted_N)
    return [row for row, wanted in zip(rows, wanted_N, strict=True) if wanted]
