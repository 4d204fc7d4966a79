"""Where the rows of an update depend on each other, a part of them must not pass for the whole."""

from __future__ import annotations

from posttrain.errors import ConfigError
from posttrain.types import Batch, Totals


def require_whole_update(batch: Batch, totals: Totals, missing: str) -> None:
    """Refuse a part of an update where its rows depend on each other: every split would give other numbers."""
    if int(batch.completion_mask_BT.sum()) != totals.tokens:
        raise ConfigError(
            given="some rows of an update whose rows depend on each other, and nothing that was computed over all",
            allowed="the whole update, or a batch from algorithm.to_batch and algorithm.prepare",
            fix=f"Call algorithm.prepare(batch) with {missing} before the batch is split.",
        )
