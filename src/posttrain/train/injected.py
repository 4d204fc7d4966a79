"""What a run says about special tokens in the text of its data."""

from __future__ import annotations

from posttrain.algorithms.base import DataKind
from posttrain.data.special import injected
from posttrain.data.split import Split
from posttrain.data.stream import StreamedRows
from posttrain.models.load import LoadedModel


def injection_notes(rows: Split, kind: DataKind, loaded: LoadedModel) -> list[str]:
    """Of rows in memory; those that are streamed would be read once more, which `data check` does."""
    notes = []
    for part, what in ((rows.train, "training data"), (rows.heldout, "held-out data")):
        if not part or isinstance(part, StreamedRows):
            continue
        found = injected(part, kind, loaded.tokenizer, loaded.eos_ids, chat=bool(loaded.tokenizer.chat_template))
        notes += [f"{what}: {found.message}. {found.fix}"] if found else []
    return notes
