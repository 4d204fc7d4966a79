"""Whether a model that is built like a plain decoder computes as one: tried where a difference would show.

A forward pass over a few tokens does not tell everything. What limits large numbers shows only at large numbers, what
depends on positions only at late ones, and what each layer may see is asked of the model itself.

T tokens, E width of the model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.rollout.decoding import base_model
from posttrain.rollout.group_attention import attend_prompt
from posttrain.rollout.group_rows import MaskFunction, prompt_mask
from posttrain.rollout.plain_decoder import PlainDecoder, check_parts
from posttrain.rollout.slot_attention import SlotMask

_TOKENS = 6
_LARGE_LOGIT = 100.0


def masks_of_plain_decoder(model: nn.Module, run_in_slots: Callable[[], object]) -> tuple[MaskFunction, ...]:
    """What the layers of a plain decoder may see; raises whatever goes wrong for a model that is none.

    `run_in_slots` runs its forward pass as `slots_sdpa`, where every layer is given a `SlotMask`.
    """
    decoder = PlainDecoder(model)
    functions = _mask_functions(model, run_in_slots)
    check_parts(model)
    _check_head(model, decoder)
    _check_late_positions(model, decoder, functions)
    return functions


def _mask_functions(model: nn.Module, run_in_slots: Callable[[], object]) -> tuple[MaskFunction, ...]:
    body: Any = base_model(model).base_model
    found: dict[nn.Module, MaskFunction] = {}

    def note(attention: nn.Module, _: Any, given: dict[str, Any]) -> None:
        mask = given["attention_mask"]
        if not isinstance(mask, SlotMask):
            raise NotImplementedError("its layers do not get the mask that the model builds")
        found.setdefault(attention, mask.function)

    attentions = [layer.self_attn for layer in body.layers]
    hooks = [attention.register_forward_pre_hook(note, with_kwargs=True) for attention in attentions]
    try:
        run_in_slots()
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found[attention] for attention in attentions)


def _check_head(model: nn.Module, decoder: PlainDecoder) -> None:
    """The model turns hidden states into logits as the decoder does, large logits too."""
    lm: Any = base_model(model)
    width: int = lm.get_input_embeddings().weight.shape[1]
    hidden_TE = torch.randn(_TOKENS, width, generator=torch.Generator().manual_seed(0)).to(lm.device, lm.dtype)
    hidden_TE = hidden_TE * (_LARGE_LOGIT / decoder.logits(hidden_TE).abs().max())

    def put_in(_: nn.Module, __: Any, output: Any) -> Any:
        output.last_hidden_state = hidden_TE[None]
        return output

    hook = lm.base_model.register_forward_hook(put_in)
    try:
        logits_TV = model(input_ids=_ids(lm)[None], use_cache=False).logits[0]
    finally:
        hook.remove()
    _require_same(decoder.logits(hidden_TE), logits_TV, "its head is more than a product")


def _check_late_positions(model: nn.Module, decoder: PlainDecoder, functions: tuple[MaskFunction, ...]) -> None:
    """At the end of the context window, too, the layers compute the same."""
    lm = base_model(model)
    window = getattr(lm.config.get_text_config(), "max_position_embeddings", None) or _TOKENS
    places_T = torch.arange(_TOKENS, device=lm.device)
    positions_T = places_T + (window - _TOKENS)

    def attend(layer: int, qkv_TND: Tensor) -> Tensor:
        return attend_prompt(qkv_TND, prompt_mask(functions[layer], places_T), decoder.heads)

    expected_TV = model(input_ids=_ids(lm)[None], position_ids=positions_T[None], use_cache=False).logits[0]
    logits_TV = decoder.logits(decoder.hidden(_ids(lm), positions_T, attend))
    _require_same(logits_TV, expected_TV, "its layers know more of positions")


def _ids(lm: Any) -> Tensor:
    return (5 * torch.arange(_TOKENS, device=lm.device) + 3) % lm.config.get_text_config().vocab_size


def _require_same(actual: Tensor, expected: Tensor, otherwise: str) -> None:
    """Equal but for rounding, relative to the largest value."""
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-3}.get(expected.dtype, 5e-2)
    if not (actual - expected).abs().max() <= tolerance * expected.abs().max():
        raise NotImplementedError(otherwise)
