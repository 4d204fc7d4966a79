"""Chooses batch sizes for a GPU if the config says `auto`: the largest that surely fit in memory.

Larger micro-batches cast trained weights less often and use the GPU better. More rows decoded together read each weight
for more tokens. Neither changes a result, except for the order of sums. A size surely fits if the estimate, with its
error added, is below the free memory. The rehearsal before the first step tries the micro-batch, and halves it if
memory runs out anyway (train/memory.py). On a CPU nothing is chosen, because smaller parts stay in its caches.
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
"""Candidate sizes of a micro-batch, in tokens. Larger ones make products no faster, and leave few to distribute."""
ROWS = (512, 256, 128, 64)
"""Candidate numbers of rows decoded together."""
Fits = Callable[[Workload], bool]
"""A function that tells whether a workload surely fits."""


def sized(workload: Workload, config: RunConfig, fits: Fits) -> Workload:
    """Return the workload with the sizes that the config leaves open. If none fits, they are those of a CPU."""
    if workload.device == "cpu":
        return workload
    if config.train.tokens_per_microbatch == "auto":
        update = ceil(workload.rows / workload.minibatches) * workload.row_tokens
        workload = _largest(workload, "tokens_per_microbatch", _up_to(update, TOKENS), fits)
    if config.sampling.max_batch_rows == "auto" and workload.data_kind == "prompts":
        workload = _largest(workload, "max_batch_rows", _up_to(workload.rows, ROWS), fits)
    return workload


def _up_to(needed: int, sizes: Sequence[int]) -> Sequence[int]:
    """Return the sizes below twice the needed number, or the smallest size.

    >>> _up_to(100, (512, 256, 128, 64)), _up_to(3, (512, 256, 128, 64))
    ((128, 64), (64,))
    """
    return tuple(size for size in sizes if size < 2 * needed or size == sizes[-1])


def _largest(workload: Workload, name: str, sizes: Sequence[int], fits: Fits) -> Workload:
    tried = (replace(workload, **{name: size}) for size in sizes)
    return next((one for one in tried if fits(one)), workload)
