"""The sizes that a config leaves to the run: chosen before its first step, kept in its folder, the same when resumed.

    {"train.tokens_per_microbatch": 16384, "sampling.max_batch_rows": 256}        sizes.json

A gradient does not depend on them, but the order of its sums does, and with it the last bits. How many devices share a
copy of the weights is chosen at each start, because a run may go on with another number of devices.
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


def with_sizes(config: RunConfig, store: RunStore, view: TerminalView) -> RunConfig:
    """The config with numbers in place of `auto`: those on file, else what the device has room for, which is put there.

    Where nobody chooses, as on a CPU, `auto` stays, and means the numbers of a CPU.
    """
    wanted = {name for name in OPEN if _value(config, name) == "auto"}
    anew = {SHARD} if config.train.devices != 1 and config.train.shard == "auto" else set[str]()
    saved = store.read_record(FILE)
    known = saved if saved is not None and saved.keys() >= wanted else None
    here = BEFORE.sizes(config) if anew or (wanted and known is None) else {}
    chosen = here if known is None else known
    sizes = {name: int(chosen[name]) for name in OPEN if name in wanted & chosen.keys()}
    if sizes and sizes != saved:
        store.record(FILE, sizes)
    sizes |= {name: int(here[name]) for name in anew & here.keys()}
    if not sizes:
        return config
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
