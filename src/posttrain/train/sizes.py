"""The sizes that a config leaves to the run. They are chosen before the first step and kept in the run's folder.

    {"train.tokens_per_microbatch": 16384, "sampling.max_batch_rows": 256, "train.shard over 16": 8}      sizes.json

A resumed run keeps them: they decide the order of the sums of a gradient, and so its last bits. `train.shard` is kept
for each number of devices, because a run may continue with another number of devices and later return to the first.
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
"""Settings that may be `auto` and whose numbers are kept."""
SHARD = "train.shard"
"""Kept for each number of ranks, and for each number of ranks that share a matrix."""


def with_sizes(config: RunConfig, store: RunStore, view: TerminalView, ranks: int = 1) -> RunConfig:
    """The config with numbers in place of `auto`: from sizes.json, or else chosen for the device's memory and saved.

    If there is nothing to choose, as on a CPU, `auto` stays and stands for the CPU's numbers.
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
