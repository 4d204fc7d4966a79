"""Render rows as labelled answers: an answer, and whether it is desirable. forms.py says how columns are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from posttrain.data.dataset import numbers_of
from posttrain.data.dropped import Dropped, Rendered
from posttrain.data.forms import Form, detect, fits
from posttrain.data.layouts import NO_LABEL
from posttrain.data.pairs import judged_answer, render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.stream import collect
from posttrain.errors import DataError
from posttrain.types import LabelledExample, Pair


@dataclass(frozen=True, kw_only=True)
class LabelledSet(Rendered[LabelledExample]):
    """The usable labelled answers, and the dropped rows."""

    pairs: Sequence[Pair] | None = None
    """The pairs from which the rows were made, if the data has pairs."""

    @property
    def rows_read(self) -> int:
        return len(self.rows if self.pairs is None else self.pairs) + len(self.dropped)


class Unpaired(Sequence[LabelledExample]):
    """The two answers of each pair as separate rows: the chosen one is desirable, the rejected one is not."""

    record = LabelledExample

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return 2 * len(self.pairs)

    @property
    def numbers(self) -> np.ndarray:
        """1 for each desirable answer, 0 for the others."""
        return np.tile([1.0, 0.0], len(self.pairs))

    def __iter__(self) -> Iterator[LabelledExample]:
        for pair in self.pairs:
            for side in (pair.chosen, pair.rejected):
                yield LabelledExample(index=pair.index, example=side, label=side is pair.chosen)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        pair, side = divmod(range(len(self))[place], 2)  # IndexError past the end, where iteration stops
        found = self.pairs[pair]
        return LabelledExample(index=found.index, example=found.rejected if side else found.chosen, label=not side)


def render_labels(
    rows: Sequence[Row], renderer: Renderer, *, eos_ids: Collection[int], max_length: int, max_dropped: float, what: str
) -> LabelledSet:
    """Render each row as a `LabelledExample`, or count it as dropped, with the reason. A pair gives two examples.

    Raises `DataError` for the same reasons as `render_pairs`.
    """
    if not fits(rows, "labels") and fits(rows, "pairs"):
        limits = {"eos_ids": eos_ids, "max_length": max_length, "max_dropped": max_dropped, "what": what}
        pairs = render_pairs(rows, renderer, **limits)
        unpaired = Unpaired(pairs.rows)
        return LabelledSet(rows=unpaired, form=pairs.form, dropped=pairs.dropped, pairs=pairs.rows, source=rows)
    form = detect(rows, "labels")
    render = partial(render_label, form=form, renderer=renderer, eos_ids=eos_ids, max_length=max_length)
    usable, dropped = collect(rows, render, LabelledExample, max_dropped=max_dropped, what=what)
    return LabelledSet(rows=usable, form=form.name, dropped=dropped, source=rows)


def only_class(rows: Sequence[LabelledExample]) -> str:
    """The label that all answers share; "" if both labels occur, or if there are no answers."""
    labels = set(numbers_of(rows)) if len(rows) else set()
    return "" if len(labels) != 1 else "desirable" if labels.pop() else "undesirable"


def refuse_one_class(found: LabelledSet, what: str) -> None:
    """Raise `DataError` if all answers have the same label. It names the dropped rows, which may have had the other."""
    only = only_class(found.rows)
    if only:
        alone = ", or imitate these alone with algorithm: sft" if only == "desirable" else ""
        left = f"{found.dropped_summary}; all {len(found.rows)} answers left" if found.dropped else ""
        unread = 2 * sum(NO_LABEL in reason for _, reason in found.dropped) > len(found.dropped)
        add = f"Add answers with label {str(only != 'desirable').lower()}{alone}"
        raise DataError(
            given=f"{what}: {left or f'all {len(found.rows)} answers'} are {only}",
            allowed="desirable and undesirable answers: with only one kind there is nothing to compare",
            fix="Write true or false, or 1 or 0, as the label of the dropped rows."
            if unread
            else f"{add}, or mend what rows were dropped for."
            if found.dropped
            else f"{add}.",
        )


def render_label(
    row: Row, index: int, form: Form, renderer: Renderer, *, eos_ids: Collection[int], max_length: int
) -> LabelledExample | Dropped:
    """Render one row of layout `form`; `index` is its number in the data."""
    values = form.read(row, chat=renderer.chat)
    if isinstance(values, Dropped):
        return values
    example = judged_answer(values, index, row, renderer, eos_ids, max_length, to="train on")
    if isinstance(example, Dropped):
        return example
    return LabelledExample(index=index, example=example, label=values["label"])
