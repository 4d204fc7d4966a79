"""The rows of a run, rendered: those it trains on and those held out, and what is to be said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from posttrain.data.prompts import Renderer
from posttrain.data.split import Split, first_rows
from posttrain.data.stream import StreamedRecords
from posttrain.train.source import longest_row
from posttrain.types import Pair

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.models.load import LoadedModel


def render_both(
    render: Callable[..., Any], config: RunConfig, rows: Split, loaded: LoadedModel, renderer: Renderer
) -> tuple[Any, Any]:
    """The training rows and the held-out ones, or None where there are none of those."""
    heldout = first_rows(rows.heldout, config.evaluation.prompts)
    sets = [
        render(
            part,
            renderer,
            max_length=longest_row(config, loaded),
            max_dropped=config.data.max_dropped,
            what=loaded.named(what),
        )
        for part, what in ((rows.train, "training data"), (heldout, "held-out data"))
        if part
    ]
    return sets[0], sets[1] if len(sets) > 1 else None


def data_notes(train: Any, heldout: Any) -> list[str]:
    """What the user should know about the two sets: rows that were left out, and held-out ones that are trained on."""
    parts = (("training data", train), ("held-out data", heldout))
    notes = [f"{what}: {part.dropped_summary}" for what, part in parts if part is not None and part.dropped]
    if heldout is None:
        return notes
    rows: list[Any] = [getattr(part, "pairs", None) for part in (train, heldout)]
    if any(pairs is None for pairs in rows):  # else a row is a pair, also where its answers are learned from one by one
        rows = [train.usable, heldout.usable]
    trained = getattr(train, "pairs", None) or train.usable
    if isinstance(trained, StreamedRecords):
        shared = trained.shared_with(heldout.source)
    else:
        shared = _overlap(*rows)
    if shared:
        notes.append(
            f"{shared} of {len(rows[1])} held-out rows are in the training data word for word: what is measured on "
            "them does not show what the model learned"
        )
    return notes


def _overlap(train: Sequence[Any], heldout: Sequence[Any]) -> int:
    """How many held-out rows stand in the training data too, whatever their scores or labels."""
    held_out = Counter(map(_answers, heldout))
    return sum(held_out[answers] for answers in set(map(_answers, train)) & held_out.keys())


def _answers(row: Any) -> tuple[tuple[int, ...], ...]:
    """The tokens of a row: those of both answers of a pair."""
    sides = (row.chosen, row.rejected) if isinstance(row, Pair) else (getattr(row, "example", row),)
    return tuple(side.input_ids for side in sides)
