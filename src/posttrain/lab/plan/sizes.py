"""How much goes through a GPU at once where the config says `auto`: the largest that its memory surely has room for.

Larger micro-batches cast trained weights less often and fill the card; more rows that are decoded together read each
weight for more tokens. Neither changes a result beyond the order of sums. Room is sure where the estimate, with its
error added, is below what is free. The rehearsal before the first step tries the micro-batch, and halves it if memory
ends all the same (train/memory.py). On a CPU nothing is chosen: smaller parts stay in its caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from posttrain.lab.plan.records import Workload

if TYPE_CHECKING:
    from posttrain.config import RunConfig

TOKENS = (32_768, 16_384, 8192, 4096, 2048, 1024, 512, 256)
"""Tokens of a micro-batch. Beyond this, products are no faster, and a step has few micro-batches to spread."""
ROWS = (512, 256, 128, 64)
"""That are decoded together."""
Fits = Callable[[Workload], bool]
"""Surely."""


def sized(workload: Workload, config: RunConfig, fits: Fits) -> Workload:
    """The workload with numbers for what the config leaves open; where none fits, with those of a CPU."""
    if workload.device == "cpu":
        return workload
    if config.train.tokens_per_microbatch == "auto":
        update = ceil(workload.rows / workload.minibatches) * workload.row_tokens
        workload = _largest(workload, "tokens_per_microbatch", _up_to(update, TOKENS), fits)
    if config.sampling.max_batch_rows == "auto" and workload.data_kind == "prompts":
        workload = _largest(workload, "max_batch_rows", _up_to(workload.rows, ROWS), fits)
    return workload


def _up_to(needed: int, sizes: Sequence[int]) -> Sequence[int]:
    """Those that are not twice as large as all there is.

    >>> _up_to(100, (512, 256, 128, 64)), _up_to(3, (512, 256, 128, 64))
    ((128, 64), (64,))
    """
    return tuple(size for size in sizes if size < 2 * needed or size == sizes[-1])


def _largest(workload: Workload, name: str, sizes: Sequence[int], fits: Fits) -> Workload:
    tried = (replace(workload, **{name: size}) for size in sizes)
    return next((one for one in tried if fits(one)), workload)
