"""The sizes that a config leaves to the run: chosen before its first step, kept in its folder, the same when resumed.

    {"train.tokens_per_microbatch": 16384, "sampling.max_batch_rows": 256, "train.shard over 16": 8}      sizes.json

A gradient does not depend on them, but the order of its sums does, and with it the last bits. How many devices share a
copy of the weights is kept for each number of devices, because a run may go on with another number and come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from posttrain.train.before import BEFORE

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore

FILE = "sizes.json"
OPEN = ("train.tokens_per_microbatch", "sampling.max_batch_rows")
"""What may be `auto`, and is kept."""
SHARD = "train.shard"
"""Kept for each number of ranks, and of those that divide matrices."""


def with_sizes(config: RunConfig, store: RunStore, view: TerminalView, ranks: int = 1) -> RunConfig:
    """The config with numbers in place of `auto`: those on file, else what the device has room for, which is put there.

    Where nobody chooses, as on a CPU, `auto` stays, and means the numbers of a CPU.
    """
    on_file = {name: name for name in OPEN if _value(config, name) == "auto"}
    if ranks > 1 and _value(config, SHARD) == "auto":
        by = f" by {config.train.tensor}" if config.train.tensor > 1 else ""
        on_file[SHARD] = f"{SHARD} over {ranks}{by}"
    saved = store.read_record(FILE) or {}
    kept = {name: saved[key] for name, key in on_file.items() if key in saved}
    here = BEFORE.sizes(config) if kept.keys() < on_file.keys() else {}
    chosen = {**here, **kept}
    sizes = {name: int(chosen[name]) for name in on_file if name in chosen}
    if not sizes:
        return config
    now = saved | {on_file[name]: size for name, size in sizes.items()}
    if now != saved:
        store.record(FILE, now)
    told = f"{', '.join(f'{name} = {size}' for name, size in sizes.items())} (auto, by the memory of the GPU)"
    store.event("compute", told)
    view.event("compute", told)
    return _with(config, sizes)


def _value(config: RunConfig, name: str) -> object:
    section, _, field = name.partition(".")
    return getattr(getattr(config, section), field)


def _with(config: RunConfig, sizes: Mapping[str, int]) -> RunConfig:
    for name, size in sizes.items():
        section, _, field = name.partition(".")
        changed = getattr(config, section).model_copy(update={field: size})
        config = config.model_copy(update={section: changed})
    return config
