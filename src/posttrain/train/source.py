"""What a run learns from and is measured by: the part of its set-up that depends on the kind of its data."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.watch import Watch, nothing_to_watch

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.data.split import Split
    from posttrain.evaluate.measure import Measure
    from posttrain.experience.feed import Feed
    from posttrain.models.load import LoadedModel
    from posttrain.models.policy import Forward
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import EventKind, RunStore
    from posttrain.train.judges import Judges, Samplers


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What there is of a run when its data is looked at: what every builder of a source is given."""

    config: RunConfig
    rows: Split
    loaded: LoadedModel
    forward: Forward
    samplers: Samplers
    judges: Judges
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Source:
    """Made by the builder of a kind of data."""

    feed: Feed
    measure: Measure
    watch: Watch = field(default_factory=nothing_to_watch)
    notes: Sequence[str] = ()
    """What the user should know about the data, in sentences."""
    facts: Sequence[str] = ()
    """What was done for the run before its first step."""
    probe: Sequence[Sequence[int]] = ()
    """Prompts on which the delivery of weights is proved; none where the run samples nothing."""


def longest_row(config: RunConfig, loaded: LoadedModel) -> int:
    """Most tokens of a given prompt and answer together."""
    context = context_length(loaded)
    return min(context, config.data.max_length or context)


def context_length(loaded: LoadedModel) -> int:
    """Most tokens of prompt and completion together; some architectures set no limit."""
    return loaded.context_length if loaded.context_length is not None else sys.maxsize


def tell(store: RunStore, view: TerminalView, kind: EventKind, sentences: Iterable[str]) -> None:
    """On file and on the screen."""
    for sentence in sentences:
        store.event(kind, sentence)
        view.event(kind, sentence)
