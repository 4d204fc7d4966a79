"""The prompt of a row as a number, to find rows with the same prompt without keeping their texts in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from posttrain.data.dropped import Dropped
from posttrain.data.forms import Form, Kind, detect, fits
from posttrain.data.prompts import prompt_form
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.stream import StreamedRows
from posttrain.data.texts import asked_words, key_of
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.config import DataConfig

GIVEN: tuple[Kind, ...] = ("pairs", "labels", "steps", "ratings", "examples")
"""Kinds of given answers, in the order in which their columns are looked for."""


def prompt_keys(rows: Sequence[Row], config: DataConfig) -> np.ndarray:
    """One number for each row: equal numbers are equal prompts. A row without a readable prompt has its own number.

    The columns alone decide which form the rows have, because the split must not depend on the algorithm.
    """
    forms = _forms(rows, config)
    keys_N, known_N = np.zeros(len(rows), dtype=np.uint64), np.zeros(len(rows), dtype=np.bool_)
    if isinstance(rows, StreamedRows) and forms and forms[0].prompt_column is not None:
        known_N, keys_N = rows.prompts_in(forms[0].prompt_column)
        known_N &= ~rows.sampled_N
    places = np.flatnonzero(~known_N)
    unread = rows.where(~known_N) if isinstance(rows, StreamedRows) else rows
    for place, row in zip(places.tolist(), unread, strict=True):
        words = _words(row, forms)
        keys_N[place] = key_of(f"row {place}" if words is None else words)
    return keys_N


def known_keys(rows: Sequence[Row], config: DataConfig) -> list[int]:
    """The numbers of `prompt_keys` for rows in memory, to compare them with other rows: 0 for a row without a readable
    prompt."""
    forms = _forms(rows, config)
    return [0 if (words := _words(row, forms)) is None else key_of(words) for row in rows]


def _forms(rows: Sequence[Row], config: DataConfig) -> list[Form]:
    """The forms that may find the prompt, in the order in which they are tried: `data.prompt`, given answers, columns
    of prompts, and last a text, which is its own prompt."""
    given = [detect(rows, kind) for kind in GIVEN if fits(rows, kind)]
    try:
        prompts = [prompt_form(rows, config)]
    except DataError:  # the reader of the rows reports it
        prompts = []
    forms = [*given, *prompts] if config.prompt is None else [*prompts, *given]
    return sorted(forms, key=lambda form: form.needs == ("text",) and form.kind == "examples")


def _words(row: Row, forms: Sequence[Form]) -> str | None:
    """The prompt by the first form that can use the row: a conversation without an answer has no example to train,
    but it is a prompt. None if no form finds one."""
    if is_sampled_pair(row):
        return repr(row.values["prompt_ids"])
    plain = row.values.get(forms[0].prompt_column or "") if forms else None
    if isinstance(plain, str) and plain.strip():
        return plain  # whatever else its form misses, and as in the index of streamed rows
    read = (form.read(row) for form in forms)
    found = (asked_words(values) for values in read if not isinstance(values, Dropped))
    return next((words for words in found if words is not None), None)


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
