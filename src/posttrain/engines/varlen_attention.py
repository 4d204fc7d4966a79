"""Attention of rows in slots with the kernel for sequences of different lengths, for GPUs: `slots_varlen`.

`slot_attention.py` gives every row the columns of the longest row, and masks the columns that the row does not have.
The kernel here (`torch.nn.attention.varlen`, FlashAttention) reads only the columns of each slot that its row has, and
processes all prompts of a pass together. It supports half precision and causal masks only. `slots_sdpa` handles
windows, soft caps, sinks and whatever else the kernel refuses. `decoding_path.py` finds out by trying.

The block of a layer has the layout `[S, C, K, D]`, so that the slots in a row form one sequence `[S C, K, D]`, in which
slot s begins at column s C.

n rows that get a token, P prompts, L tokens in the sequence, C columns of a slot, H heads for queries, K for keys and
values, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from posttrain.engines.slot_attention import Pass, active_pass
from posttrain.engines.transfer import to_device

NAME = "slots_varlen"
_UNKNOWN = ("softcap", "position_bias", "s_aux", "sliding_window")
"""Arguments of attention functions that this one does not support."""


@dataclass(frozen=True)
class Lengths:
    """Passed to layers instead of a mask: the starts of rows and prompts, in int32 for the kernel."""

    tokens_n1: Tensor
    """`[n + 1]`: starts of the rows' tokens among the queries, one token per row."""
    slots_n1: Tensor
    """`[n + 1]`: starts of the slots among the columns of the block."""
    used_n: Tensor
    """Number of columns in each slot that its row has."""
    prompts_P1: Tensor | None
    """`[P + 1]`: starts of the prompts among their tokens; None without prompts."""
    longest: int
    """Number of tokens of the longest prompt."""


def _lengths(**settings: Any) -> Tensor | Lengths | None:
    one_pass = active_pass()
    if one_pass is None:
        return sdpa_mask(**settings)
    if settings["mask_function"] is not causal_mask_function or settings.get("attention_mask") is not None:
        raise NotImplementedError("its mask is more than causal")
    device = one_pass.positions_n.device
    tokens_n1 = torch.arange(len(one_pass.positions_n) + 1, dtype=torch.int32, device=device)
    parts = one_pass.prompts
    ends = [0, *(part.stop - parts[0].start for part in parts)]
    return Lengths(
        tokens_n1=tokens_n1,
        slots_n1=tokens_n1 * one_pass.capacity,
        used_n=(one_pass.positions_n + 1).int(),
        prompts_P1=to_device(ends, device).int() if parts else None,
        longest=max((part.stop - part.start for part in parts), default=0),
    )


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
) -> tuple[Tensor, Any]:
    """Return `[1, L, H, D]` for queries `[1, H, L, D]` and keys and values `[1, K, L, D]`."""
    one_pass = active_pass()
    if one_pass is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    if not isinstance(attention_mask, Lengths):
        raise NotImplementedError("its layers do not get the mask that the model builds")
    if any(settings.get(name) is not None for name in _UNKNOWN):
        raise NotImplementedError("its scores are more than products of queries and keys")
    keys, values = one_pass.stored(key)
    query_LHD = query[0].transpose(0, 1).to(keys.dtype)
    num_rows, outputs, scale = len(one_pass.positions_n), [], settings.get("scaling")
    if num_rows:
        outputs.append(_of_rows(query_LHD[:num_rows], keys, values, one_pass, attention_mask, scale))
    if attention_mask.prompts_P1 is not None:
        new_keys, new_values = (x[0].transpose(0, 1)[num_rows:].to(keys.dtype) for x in (key, value))
        outputs.append(_of_prompts(query_LHD[num_rows:], new_keys, new_values, attention_mask, scale))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _of_rows(
    query_nHD: Tensor, keys_nKCD: Tensor, values_nKCD: Tensor, one_pass: Pass, lengths: Lengths, scale: float | None
) -> Tensor:
    """Return `[n, H, D]`: one query for each row, which sees all that its slot holds."""
    keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (keys_nKCD, values_nKCD))
    found = varlen_attn(
        query_nHD, keys, values, lengths.tokens_n1, lengths.slots_n1, 1, one_pass.num_columns,
        scale=scale, enable_gqa=True, seqused_k=lengths.used_n,
    )  # fmt: skip
    assert isinstance(found, Tensor)
    return found


def _of_prompts(query_LHD: Tensor, key_LKD: Tensor, value_LKD: Tensor, lengths: Lengths, scale: float | None) -> Tensor:
    """Return `[L, H, D]`: each token sees its own prompt up to itself."""
    assert lengths.prompts_P1 is not None
    found = varlen_attn(
        query_LHD, key_LKD, value_LKD, lengths.prompts_P1, lengths.prompts_P1, lengths.longest, lengths.longest,
        scale=scale, enable_gqa=True, window_size=(-1, 0),
    )  # fmt: skip
    assert isinstance(found, Tensor)
    return found


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _lengths)  # pyright: ignore[reportArgumentType]
