"""Where the rows of an update depend on each other, a part of them must not pass for the whole."""

from __future__ import annotations

from posttrain.errors import ConfigError
from posttrain.types import Batch, Totals


def require_whole_update(batch: Batch, totals: Totals, missing: str) -> None:
    """Refuse a part of an update where its rows depend on each other: every split would give other numbers."""
    in_loss = int(batch.completion_mask_BT.sum())
    if in_loss == totals.tokens:
        return
    rejected = 0
    if batch.correction_BT is not None:
        rejected = int(((batch.correction_BT == 0) & ~batch.completion_mask_BT).sum())
    if rejected and in_loss + rejected == totals.tokens:
        raise ConfigError(
            given=f"totals that count {totals.tokens} tokens, {rejected} of which the correction rejects and takes out "
            "of the denominator",
            allowed="totals of the batch that algorithm.prepare returns",
            fix=f"Call batch = algorithm.prepare(batch) with {missing}, then count_totals(batch), then the loss.",
        )
    raise ConfigError(
        given="some rows of an update whose rows depend on each other, and nothing that was computed over all",
        allowed="the whole update, or a batch from algorithm.to_batch and algorithm.prepare",
        fix=f"Call algorithm.prepare(batch) with {missing} before the batch is split.",
    )
