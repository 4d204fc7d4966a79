"""Bytes of sampling in the trainer's process: keys and values of the rows in flight, their prompts, and the next token.

On a CPU, a plain decoder (cpu/plain_decoder.py: RMSNorms, separate queries, keys and values) stores each prompt once
for all rows that share it, and the rest per row (cpu/group_attention.py). Other models store prompt and answer in a
slot per row (engines/slots.py). Per layer, with K key-value heads of width d:

    plain     [prompts, K, columns of a prompt, d] and [rows, K, columns of an answer, d], for keys and for values
    slots     [slots, K, columns, d] for keys and for values

While it decodes, a plain decoder joins small weights with the same input into one matrix (cpu/joint_linear.py): for
copies, and for shared modules in float32, without adapters. In half precision, shared modules on a CPU run under
autocast, which casts their weights: trained ones once per call, frozen ones for each product. On a GPU, a call casts
float32 weights and decodes with the casts (engines/precision.py). Frozen weights are stored in half precision there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil

from posttrain.lab.plan.architecture import Architecture, Block, Linear
from posttrain.lab.plan.records import BYTES, Workload
from posttrain.lab.plan.roles import comes_together
from posttrain.models.compute import SMALL
from posttrain.models.footprint import COPIED_WEIGHTS, GROUP_COLUMNS, SAMPLING_BLOCK, SLOT_COLUMNS, SLOT_GROWTH

WIDE = 4


def rows_in_flight(workload: Workload) -> int:
    return min(workload.max_batch_rows, workload.rows)


def prompts_in_flight(workload: Workload) -> int:
    return ceil(rows_in_flight(workload) / workload.group_size)


@cache
def columns(first: int, last: int, multiple: int = SLOT_COLUMNS) -> int:
    """Capacity of a slot whose length goes from `first` to `last`: it grows by a half, or to what is needed.

    >>> columns(31, 70), columns(600, 1000), columns(1, 130)
    (96, 1368, 216)
    """
    capacity = 0
    for length in range(first, last + 1):
        needed = ceil(length / multiple) * multiple
        if needed > capacity:
            capacity = max(needed, int(capacity * SLOT_GROWTH))
    return capacity


def is_plain(architecture: Architecture) -> bool:
    """Is it decoded as one list of operations?"""
    family = architecture.family
    plain_norms = family.norm == "rms" and family.norms == 2 and family.qk_norm != "width"
    other = family.fused_qkv or family.latent or family.sinks or family.positions
    return plain_norms and not other and family.mlp == "gated"


def has_plain_decoder(workload: Workload) -> bool:
    """Do rows of a plain decoder sample? Not with eager attention, which calls functions of the model's own file."""
    return workload.device == "cpu" and workload.attention == "sdpa" and is_plain(workload.architecture)


def keys_and_values(workload: Workload) -> int:
    """Return the bytes of keys and values for all rows in flight at their maximum length."""
    a, rows = workload.architecture, rows_in_flight(workload)
    prompt, answer = workload.prompt_tokens, max(1, workload.completion_tokens - 1)  # the last token is not fed again
    if has_plain_decoder(workload):
        places = prompts_in_flight(workload) * columns(prompt, prompt, GROUP_COLUMNS)
        places += rows * columns(1, answer, GROUP_COLUMNS)
    else:
        held = workload.rows > rows  # the prompt for the waiting rows of its group
        places = (rows + held) * columns(prompt, prompt + answer)
    return a.layers * places * a.kv_width * BYTES[workload.precision]


def repeated_keys(workload: Workload) -> int:
    """Return the bytes of keys and values that eager attention repeats, in one layer, for all heads of queries."""
    a = workload.architecture
    if workload.attention != "eager" or a.heads == a.kv_heads:
        return 0
    return keys_and_values(workload) // a.layers * a.heads // a.kv_heads


def joined_weights(workload: Workload) -> int:
    """Return the bytes of joined copies: queries, keys and values, and gate and up, if they are small enough; with
    compiled kernels, also of every other small layer. Adapters are merged into the copies."""
    a = workload.architecture
    if not has_plain_decoder(workload) or is_cast(workload):
        return 0
    by_kernels = workload.device == "cpu" and workload.precision == "float32" and not workload.packed_sampler
    alone = by_kernels and a.parameters >= SMALL
    numbers = sum(number * _copied(block, alone) for number, block in a.blocks)
    head = a.vocabulary * a.hidden
    return BYTES[workload.precision] * (numbers + (head if alone and head <= COPIED_WEIGHTS else 0))


def is_cast(workload: Workload) -> bool:
    """Does the sampler decode with the policy's float32 weights, in half precision?"""
    return workload.engine == "shared" and workload.precision != "float32"


def casts(workload: Workload) -> int:
    """On a GPU of what is trained. On a CPU of all matrices where they are trained; else of the adapters, and for a
    moment of the head, which is the largest. Those of weights that are divided among ranks are dropped with
    each layer."""
    if not is_cast(workload) or comes_together(workload):
        return 0
    a, lora = workload.architecture, workload.lora
    if workload.device == "cuda":
        trained = a.parameters if lora is None else a.lora_parameters(lora.rank, lora.targets)
        return BYTES[workload.precision] * trained
    layers = a.counts.attention + a.counts.mlp + a.counts.experts
    kept = layers if lora is None else a.lora_parameters(lora.rank, lora.targets)
    return BYTES[workload.precision] * (kept + a.vocabulary * a.hidden)


def choice(workload: Workload) -> int:
    """Return the bytes to choose a token for all rows: logits, their float32 copy, and exponentials in full blocks."""
    a: Architecture = workload.architecture
    padded = ceil(a.vocabulary / SAMPLING_BLOCK) * SAMPLING_BLOCK
    narrow = BYTES[workload.precision]
    wide = WIDE * (2 if narrow == WIDE else 3)
    return rows_in_flight(workload) * (narrow * a.vocabulary + WIDE * padded + (wide - WIDE) * a.vocabulary)


def prefill(workload: Workload) -> int:
    """Return the bytes for all prompts that enter together: an MLP's input, gate, up, act(gate) and product, and the
    hidden state with its norm."""
    a = workload.architecture
    tokens = prompts_in_flight(workload) * workload.prompt_tokens
    return tokens * (BYTES[workload.precision] * 4 * a.mlp_width + WIDE * 2 * a.hidden)


def prompt_cache(workload: Workload) -> int:
    """Return the bytes of keys and values when the prompts have just entered."""
    a, prompt = workload.architecture, workload.prompt_tokens
    slots, multiple = (
        (prompts_in_flight(workload), GROUP_COLUMNS)
        if has_plain_decoder(workload)
        else (rows_in_flight(workload), SLOT_COLUMNS)
    )
    return a.layers * slots * columns(prompt, prompt, multiple) * a.kv_width * BYTES[workload.precision]


def _copied(block: Block, alone: bool) -> int:
    """Count the weights of layers copied into joint matrices. With `alone`, also those of layers copied singly."""
    ups = tuple(linear for linear in block.mlp if linear.name != "down")
    copied = 0
    for linears in (block.attention[:-1], block.attention[-1:], ups, block.mlp[len(ups) :]):
        if len(linears) > 1 and _weights(linears) <= COPIED_WEIGHTS:
            copied += _weights(linears)
        elif alone:
            copied += sum(size for linear in linears if (size := _weights([linear])) <= COPIED_WEIGHTS)
    return copied


def _weights(linears: Sequence[Linear]) -> int:
    return sum(linear.inputs * linear.outputs for linear in linears)
