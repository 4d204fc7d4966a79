"""Attention of rows in slots: one new token each for many rows, together with whole prompts, in one sequence.

transformers looks up the attention implementation by name in two registries: one builds the mask once per forward pass,
the other computes attention in every layer. `slots_sdpa` and `slots_eager` are registered in both. The sequence that
goes through the model is

    [ token of row 0 | token of row 1 | ... | prompt a | prompt b | ... ]

and everything but attention treats it as one row. The mask is a `SlotMask`: the model's own mask function (causal,
sliding window, chunks ...), evaluated at (position of the row, column of its slot), and the plain mask of the longest
prompt; shorter prompts use a corner of it.

n rows that get a token, L tokens in the sequence, C columns of a slot, H heads for queries, K for keys and values, G
queries per key (H = K G), D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from posttrain.models.packed_attention import _eager_attention


@dataclass(frozen=True)
class Pass:
    """The facts about the slots that one forward pass needs."""

    positions_n: Tensor
    """Column of each row's new token; the columns before it hold its past."""
    num_columns: int
    """Number of columns in use."""
    capacity: int
    """Number of allocated columns."""
    prompts: tuple[slice, ...]
    """Ranges of the prompts in the sequence."""
    stored: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Returns keys and values `[n, K, C, D]` of the rows, in the layer that has just returned the given keys: the
    columns in use, or all columns if a slot's columns come first in memory."""


_active: ContextVar[Pass | None] = ContextVar("posttrain_slots", default=None)


def active_pass() -> Pass | None:
    """Return the pass of the model call in progress; None outside of `slots_in_use`."""
    return _active.get()


@dataclass(frozen=True)
class SlotMask:
    """Passed to layers instead of a mask. Parts that are tensors of numbers are added to the scores."""

    rows_n11C: Tensor
    prompt: Tensor | None
    """`[1, 1, T, T]` for the longest prompt; None if the attention function applies plain causality itself."""
    function: Callable[..., Tensor]
    """The model's mask function: (batch, head, position of query, of key) -> whether the query may see the key."""

    def of_prompt(self, length: int) -> Tensor | None:
        return None if self.prompt is None else self.prompt[:, :, :length, :length]


@contextmanager
def slots_in_use(one_pass: Pass) -> Iterator[None]:
    """Let models called inside treat their input as tokens of these rows and prompts."""
    token = _active.set(one_pass)
    try:
        yield
    finally:
        _active.reset(token)


def _slot_mask(plain_mask: Callable[..., Tensor | None]) -> Callable[..., Tensor | SlotMask | None]:
    def mask(**settings: Any) -> Tensor | SlotMask | None:
        one_pass = _active.get()
        if one_pass is None:
            return plain_mask(**settings)
        if settings.get("use_vmap") or settings.get("attention_mask") is not None:
            raise NotImplementedError("its mask is not a function of two positions")
        longest = max((part.stop - part.start for part in one_pass.prompts), default=0)
        square = {
            "q_length": longest,
            "kv_length": longest,
            "q_offset": 0,
            "kv_offset": 0,
            "allow_is_causal_skip": True,
        }
        prompt = plain_mask(**settings | square) if longest else None
        return SlotMask(_row_mask(one_pass, settings), prompt, settings["mask_function"])

    return mask


def _row_mask(one_pass: Pass, settings: dict[str, Any]) -> Tensor:
    """Return `[n, 1, 1, C]`: 0 where a row may look; elsewhere the lowest number, which hides old slot content."""
    positions_n111 = one_pass.positions_n[:, None, None, None]
    columns_C = torch.arange(one_pass.num_columns, device=positions_n111.device)
    first = torch.zeros((), dtype=torch.long, device=positions_n111.device)
    seen_n11C = settings["mask_function"](first, first, positions_n111, columns_C) & (columns_C <= positions_n111)
    lowest = torch.finfo(settings["dtype"]).min
    return torch.zeros((), dtype=settings["dtype"], device=seen_n11C.device).where(seen_n11C, lowest)


def _slot_attention(
    plain_attention: Callable[..., tuple[Tensor, Any]], row_attention: Callable[..., Tensor]
) -> Callable[..., tuple[Tensor, Any]]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
    ) -> tuple[Tensor, Any]:
        one_pass = _active.get()
        if one_pass is None:
            return plain_attention(module, query, key, value, attention_mask, **settings)
        if not isinstance(attention_mask, SlotMask):
            raise NotImplementedError("its layers do not get the mask that the model builds")
        outputs = []
        num_rows = len(one_pass.positions_n)
        if num_rows:
            query_nHD = query[0, :, :num_rows].transpose(0, 1)
            keys, values = one_pass.stored(key)
            outputs.append(row_attention(module, query_nHD, keys, values, attention_mask.rows_n11C, **settings)[None])
        for part in one_pass.prompts:
            mask = attention_mask.of_prompt(part.stop - part.start)
            one_prompt = (x[:, :, part] for x in (query, key, value))
            outputs.append(plain_attention(module, *one_prompt, mask, **settings)[0])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), None

    return attention


def _row_attention_sdpa(
    module: nn.Module,
    query_nHD: Tensor,
    key_nKCD: Tensor,
    value_nKCD: Tensor,
    mask_n11C: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **settings: Any,
) -> Tensor:
    """Return `[n, H, D]`. The G queries that share a key take the place of positions, so that no key is repeated.

    On the CPU this is two batched matrix products. The fused kernel, made for many queries, takes up to ten times as
    long for single ones (bfloat16).
    """
    if softcap is not None or settings.get("position_bias") is not None:
        raise NotImplementedError("its scores are more than products of queries and keys")
    num_rows, num_heads, width = query_nHD.shape
    num_keys = key_nKCD.shape[1]
    factor = float(width**-0.5 if scaling is None else scaling)
    query_nKGD = query_nHD.reshape(num_rows, num_keys, -1, width).to(key_nKCD.dtype)
    if query_nHD.device.type != "cpu":
        mask_n11C = mask_n11C.to(query_nKGD.dtype)
        output = F.scaled_dot_product_attention(query_nKGD, key_nKCD, value_nKCD, attn_mask=mask_n11C, scale=factor)
        return output.reshape(num_rows, num_heads, -1)
    scores_NGC = torch.bmm((query_nKGD * factor).flatten(0, 1), key_nKCD.flatten(0, 1).transpose(1, 2))
    scores_NGC.view(num_rows, num_keys, -1, mask_n11C.shape[-1]).add_(mask_n11C)
    weights_NGC = scores_NGC.softmax(dim=-1, dtype=torch.promote_types(scores_NGC.dtype, torch.float32))
    output_NGD = torch.bmm(weights_NGC.to(value_nKCD.dtype), value_nKCD.flatten(0, 1))
    return output_NGD.view(num_rows, num_heads, -1)


def _row_attention_eager(
    module: nn.Module, query_nHD: Tensor, key_nKCD: Tensor, value_nKCD: Tensor, mask_n11C: Tensor, **settings: Any
) -> Tensor:
    """Call the eager function of the layer's own file, which knows soft caps, sinks and so on."""
    output_n1HD, _ = _eager_attention(module, query_nHD[:, :, None], key_nKCD, value_nKCD, mask_n11C, **settings)
    return output_n1HD[:, 0]


AttentionInterface.register("slots_sdpa", _slot_attention(sdpa_attention_forward, _row_attention_sdpa))
AttentionMaskInterface.register("slots_sdpa", _slot_mask(sdpa_mask))
AttentionInterface.register("slots_eager", _slot_attention(_eager_attention, _row_attention_eager))
AttentionMaskInterface.register("slots_eager", _slot_mask(eager_mask))
