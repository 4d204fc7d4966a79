"""The rows of a run, rendered: those it trains on and those held out, and what was left out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from posttrain.data.prompts import Renderer
from posttrain.data.split import Split
from posttrain.train.source import longest_row

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.models.load import LoadedModel


def render_both(
    render: Callable[..., Any], config: RunConfig, rows: Split, loaded: LoadedModel, renderer: Renderer
) -> tuple[Any, Any]:
    """The training rows and the held-out ones, or None where there are none of those."""
    sets = [
        render(
            part,
            renderer,
            max_length=longest_row(config, loaded),
            max_dropped=config.data.max_dropped,
            what=loaded.named(what),
        )
        for part, what in ((rows.train, "training data"), (rows.heldout, "held-out data"))
        if part
    ]
    return sets[0], sets[1] if len(sets) > 1 else None


def drop_notes(train: Any, heldout: Any) -> list[str]:
    """What the user should know about rows that were left out of the two sets."""
    parts = (("training data", train), ("held-out data", heldout))
    return [f"{what}: {part.dropped_summary}" for what, part in parts if part is not None and part.dropped]
