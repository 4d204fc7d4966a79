"""The prompt of a row as a number, to find rows with the same prompt without keeping their texts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posttrain.data.dropped import Dropped
from posttrain.data.forms import Form, Kind, detect, fits
from posttrain.data.prompts import prompt_form
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.texts import key_of, prompt_words
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.config import DataConfig

GIVEN: tuple[Kind, ...] = ("pairs", "labels", "steps", "ratings", "examples")
"""Kinds of given answers, in the order in which their columns are looked for."""


def prompt_keys(rows: Sequence[Row], config: DataConfig) -> np.ndarray:
    """One number for each row: equal numbers are equal prompts. A row without a readable prompt has its own number.

    The columns alone decide which form the rows have, because the split must not depend on the algorithm.
    """
    form = _form(rows, config)
    keys = (_words(row, place, form) for place, row in enumerate(rows))
    return np.fromiter(map(key_of, keys), dtype=np.uint64, count=len(rows))


def _form(rows: Sequence[Row], config: DataConfig) -> Form | None:
    """The form that finds the prompt; None for columns that no form reads."""
    ways: list[Callable[[], Form]] = [lambda kind=kind: detect(rows, kind) for kind in GIVEN if fits(rows, kind)]
    ways.insert(len(ways) if config.prompt is None else 0, lambda: prompt_form(rows, config))
    for way in ways:
        try:
            return way()
        except DataError:  # the reader of the rows reports it
            continue
    return None


def _words(row: Row, place: int, form: Form | None) -> str:
    if is_sampled_pair(row):
        return repr(row.values["prompt_ids"])
    values: Mapping[str, Any] | Dropped | None = None if form is None else form.read(row)
    words = None if values is None or isinstance(values, Dropped) else prompt_words(values)
    return f"row {place}" if words is None else words


def drawn_N(keys_N: np.ndarray, count: int, order: Callable[[int], np.ndarray]) -> np.ndarray:
    """The mask of the rows to hold out: all rows of some prompts, together at most `count` rows. If every prompt has
    more rows, it is the prompt with the fewest. If there is only one prompt, single rows are drawn.

    `order(n)` permutes the numbers below n. It draws the prompts, numbered by their first rows. If all prompts differ,
    the rows are the first `count` ones of the permutation.
    """
    _, first_G, group_N, size_G = np.unique(keys_N, return_index=True, return_inverse=True, return_counts=True)
    if len(first_G) in (1, len(keys_N)):
        return np.isin(np.arange(len(keys_N)), order(len(keys_N))[:count])
    by_place_G = np.argsort(first_G)[order(len(first_G))]
    chosen, left = list[int](), count
    for group in by_place_G.tolist():
        if size_G[group] <= left:
            chosen.append(group)
            left -= int(size_G[group])
        if left == 0:
            break
    smallest = by_place_G[np.argmin(size_G[by_place_G])]
    return np.isin(group_N.reshape(-1), chosen or [smallest])
