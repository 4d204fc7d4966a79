"""Check that a model that is built like a plain decoder also computes like one, with inputs that reveal differences.

A forward pass over a few tokens does not reveal all of them. A limit on large numbers shows only with large numbers.
An effect of positions shows only at late positions and with scores that differ. The model itself tells which tokens
each layer may see.

T tokens, E width of the model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.cpu import kernels
from posttrain.cpu.group_attention import attend_prompt
from posttrain.cpu.group_rows import GroupRows, MaskFunction, prompt_mask
from posttrain.cpu.plain_decoder import PlainDecoder, bypassed, check_parts
from posttrain.engines.decoding import base_model
from posttrain.engines.slot_attention import SlotMask
from posttrain.models.compute import Compute
from posttrain.models.context import context_window

_TOKENS = 6
_LARGE_LOGIT = 100.0
_SCORES = 2.0
"""Standard deviation of attention scores in a trial."""


@dataclass(frozen=True)
class GroupDecoder:
    """Implements `posttrain.engines.decoding_path.Decoder` for plain decoders."""

    mask_functions: tuple[MaskFunction, ...]
    """One function for each layer."""

    def rows(self, model: nn.Module, compute: Compute) -> GroupRows:
        return GroupRows(model, self.mask_functions, kernels.chosen(compute))

    def passes_by(self, model: nn.Module) -> Iterable[nn.Module]:
        return bypassed(model)


def decoder(model: nn.Module, run_in_slots: Callable[[], object]) -> GroupDecoder:
    """See `Acceleration`. Raises an exception of any kind for a model that is no plain decoder."""
    return GroupDecoder(masks_of_plain_decoder(model, run_in_slots))


def masks_of_plain_decoder(model: nn.Module, run_in_slots: Callable[[], object]) -> tuple[MaskFunction, ...]:
    """The mask function of each layer of a plain decoder. Raises an exception of any kind for another model.

    `run_in_slots` runs its forward pass with the attention `slots_sdpa`, which gives each layer a `SlotMask`.
    """
    decoder = PlainDecoder(model)
    functions = _mask_functions(model, run_in_slots)
    check_parts(model)
    _check_head(model, decoder)
    _check_layers(model, functions)
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
    """Check that model and decoder compute the same logits from hidden states, including large logits."""
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


def _check_layers(model: nn.Module, functions: tuple[MaskFunction, ...]) -> None:
    """Check that the layers compute the same at the end of the context window, with clearly different scores."""
    lm = base_model(model)
    window = context_window(lm.config) or _TOKENS
    places_T = torch.arange(_TOKENS, device=lm.device)
    positions_T = places_T + (window - _TOKENS)
    with _loud(model) as attended:
        decoder = PlainDecoder(model)

        def attend(layer: int, qkv_TND: Tensor) -> Tensor:
            return attend_prompt(qkv_TND, prompt_mask(functions[layer], places_T), decoder.heads)

        expected_TV = model(input_ids=_ids(lm)[None], position_ids=positions_T[None], use_cache=False).logits[0]
        logits_TV = decoder.logits(decoder.hidden(_ids(lm), positions_T, attend))
    for theirs, ours in zip(attended, attended[decoder.num_layers :], strict=False):
        _require_same(ours, theirs[0], "its layers know more of positions")
    _require_same(logits_TV, expected_TV, "its layers are more than what is added to their input")


@contextmanager
def _loud(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, attention reads noise, its scores have the size `_SCORES`, and each layer adds as much as its input has.

    With the small weights of a new model all scores are near 0. Attention is then the mean of its values, however
    queries are rotated, and half precision hides the rest. An MLP is tested elsewhere; here it returns its input.
    Yields the list of inputs of the output projections, layer by layer, call by call.
    """
    body: Any = base_model(model).base_model
    attended: list[Tensor] = []
    handles = [body.embed_tokens.register_forward_hook(lambda _, __, output: _scaled(output))]
    for layer in body.layers:
        attention = layer.self_attn
        size = math.sqrt(_SCORES / (attention.scaling * math.sqrt(attention.head_dim)))
        handles += [
            layer.input_layernorm.register_forward_hook(lambda _, __, output: _noise(output)),
            attention.q_proj.register_forward_hook(lambda _, __, output, size=size: _scaled(output, size)),
            attention.k_proj.register_forward_hook(lambda _, __, output, size=size: _scaled(output, size)),
            attention.o_proj.register_forward_pre_hook(lambda _, given: attended.append(given[0])),
            attention.o_proj.register_forward_hook(lambda _, __, output: _scaled(output)),
            layer.mlp.register_forward_hook(_give_input),
        ]
    try:
        yield attended
    finally:
        for handle in handles:
            handle.remove()


def _scaled(x: Tensor, size: float = 1.0) -> Tensor:
    """`x` scaled to the root mean square `size`; if `x` is all zeros, unchanged."""
    found = x.float().square().mean().sqrt()
    return x * (size / found).to(x.dtype) if found > 0 else x


def _noise(like: Tensor) -> Tensor:
    """Noise in the shape of `like`. Tensors with the same number of elements get the same noise."""
    return torch.randn(like.numel(), generator=torch.Generator().manual_seed(1)).to(like).view_as(like)


def _give_input(mlp: nn.Module, given: tuple[Tensor, ...], output: Any) -> Any:
    loud = _scaled(given[0])
    return (loud, *output[1:]) if isinstance(output, tuple) else loud


def _ids(lm: Any) -> Tensor:
    return (5 * torch.arange(_TOKENS, device=lm.device) + 3) % lm.config.get_text_config().vocab_size


def _require_same(actual: Tensor, expected: Tensor, otherwise: str) -> None:
    """Raise NotImplementedError unless both are equal up to rounding, relative to the largest value."""
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-3}.get(expected.dtype, 5e-2)
    if not (actual - expected).abs().max() <= tolerance * expected.abs().max():
        raise NotImplementedError(otherwise)
