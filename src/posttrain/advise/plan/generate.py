"""Bytes of sampling in the trainer's process: keys and values of the rows in flight, and the choice of a token.

Rows sit in slots of columns (rollout/slots.py): `[slots, K, columns, d]` per layer for keys and for values.
"""

from __future__ import annotations

from functools import cache
from math import ceil

from posttrain.advise.plan.architecture import Architecture
from posttrain.advise.plan.library import SAMPLING_BLOCK, SLOT_COLUMNS, SLOT_GROWTH
from posttrain.advise.plan.records import BYTES, Workload

WIDE = 4


def rows_in_flight(workload: Workload) -> int:
    return min(workload.max_batch_rows, workload.rows)


@cache
def columns(prompt: int, completion: int) -> int:
    """Capacity of a slot in the end: it grows by a half, or to what is needed where that is more.

    >>> columns(31, 40), columns(600, 400)
    (96, 1024)
    """
    capacity = 0
    for length in range(prompt, prompt + completion):
        needed = ceil(length / SLOT_COLUMNS) * SLOT_COLUMNS
        if needed > capacity:
            capacity = max(needed, int(capacity * SLOT_GROWTH))
    return capacity


def keys_and_values(workload: Workload) -> int:
    """Of all rows in flight, and of the prompt that is held for those of its group that wait."""
    a, rows = workload.architecture, rows_in_flight(workload)
    slots = rows + (workload.rows > rows)
    capacity = columns(workload.prompt_tokens, workload.completion_tokens)
    return a.layers * slots * capacity * a.kv_width * BYTES[workload.precision]


def choice(workload: Workload) -> int:
    """Logits of all rows in float32, their exponentials, and those in whole blocks."""
    a: Architecture = workload.architecture
    padded = ceil(a.vocabulary / SAMPLING_BLOCK) * SAMPLING_BLOCK
    rows = rows_in_flight(workload)
    return rows * WIDE * (2 * a.vocabulary + padded)
