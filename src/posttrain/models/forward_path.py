"""How a model runs on several rows at a time, found by trying it on a few short rows, never by its name.

    packed       attention on short grids, everything else only on real tokens (packed_attention.py); a common beginning
                 of rows is computed once, unless the trial shows that this changes a row
    block mask   one sequence with a block-diagonal attention mask, which transformers derives from restarting positions
    padded       right-padded rows, for architectures that support neither, such as state-space models

L packed tokens, D width of the hidden state, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from posttrain.errors import ModelError, NonFiniteError
from posttrain.functional.logprobs import chunked_head_logprobs, chunked_logprobs
from posttrain.models.context import RotaryLimit, context_window, rotary_limit
from posttrain.models.packed_attention import PLAIN_MANNER, Manner, packed_rows
from posttrain.models.packing import Bucket, Packed, make_buckets, pack, pack_whole
from posttrain.models.transfer import to_device
from posttrain.models.transformers_private import attention_name, can_set_attention
from posttrain.types import Tokens

Attention = Literal["packed", "block mask", "padded"]


@dataclass(frozen=True, kw_only=True)
class ForwardPath:
    """How one model is run: its two halves, and how rows are kept apart in the first one."""

    body: nn.Module
    """The submodule that computes the hidden states that the head reads."""
    output_type: type[Any]
    """The record type in which the body returns them."""
    plain_head: bool
    """Whether the head is only `hidden @ weight.T + bias`: no soft cap, no scale."""
    attention: Attention
    implementation: str
    """The attention implementation in the model's config."""
    shares_prefixes: bool
    """Whether the common beginning of rows is computed once."""
    manner: Manner = PLAIN_MANNER
    """How packed attention is computed."""
    rotary_limit: RotaryLimit | None = None
    """The maximum length of a row, if rotary factors depend on it."""
    note: str = ""
    """Why a faster way was not taken; empty for `packed` with shared prefixes."""

    def pack(self, tokens: Tokens, mask_BT: Tensor) -> Packed:
        """Pack the rows in which `mask_BT` scores a token, in the form for `hidden`."""
        return pack(tokens, mask_BT, share=self.shares_prefixes)

    def pack_whole(self, tokens: Tokens) -> Packed:
        """Pack every row up to its last token."""
        return pack_whole(tokens, share=self.shares_prefixes)

    def hidden(self, ids_L: Tensor, packed: Packed) -> Tensor:
        """Return `[L, D]` hidden states of the packed tokens; rows do not see each other.

        Raises DataError for a row so long that the rotary factors of all rows would change (context.py).
        """
        if self.rotary_limit is not None:
            self.rotary_limit.check(int(packed.position_ids_L.max()) + 1)
        return _HIDDEN[self.attention](self.body, ids_L, packed, self.manner)

    def score(
        self, lm: PreTrainedModel, hidden_ND: Tensor, targets_N: Tensor, **settings: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probability of each target and, `with_entropy`, the entropy at each position."""
        head = lm.get_output_embeddings()
        if self.plain_head and type(head) is nn.Linear:  # a head with an adapter has another type
            return chunked_logprobs(hidden_ND, head.weight, head.bias, targets_N, **settings)
        logits = partial(_logits, lm, self.body, self.output_type)
        return chunked_head_logprobs(logits, hidden_ND, targets_N, **settings)


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside `model`; any adapters work inside its layers."""
    lm = without_adapters(model)
    if not isinstance(lm, PreTrainedModel) or lm.get_output_embeddings() is None:
        raise ModelError(
            given=f"{type(lm).__name__} has no language-model head",
            allowed="a transformers …ForCausalLM model, with LoRA adapters or without",
            fix="Load it with posttrain.models.load.load_model or AutoModelForCausalLM.from_pretrained.",
        )
    return lm


def without_adapters(model: nn.Module) -> nn.Module:
    """Return the model that peft has wrapped, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model  # type: ignore[return-value]


_paths: WeakKeyDictionary[nn.Module, ForwardPath] = WeakKeyDictionary()


def forward_path(model: nn.Module) -> ForwardPath:
    """Return the fastest way that gives a few short rows the results of single rows. Found once per model, then kept.

    If that way is packed, the config's attention implementation becomes `packed_sdpa` or `packed_eager`. Raises
    ModelError if not even padded rows equal single ones: then the model is not causal.
    """
    lm = causal_lm(model)
    path = _paths.get(lm)
    if path is None or path.implementation != attention_name(lm.config):
        with _exact(lm):
            path = _find_path(lm)
            _paths[lm] = path
    return path


def body_path(model: PreTrainedModel, body: nn.Module) -> ForwardPath:
    """Do the same for a model whose body is known and whose head is of another kind, such as a score per row."""
    path = _paths.get(model)
    if path is None or path.implementation != attention_name(model.config):
        with _exact(model):
            path = _find_body_path(model, body)
            _paths[model] = path
    return path


def shares_prefixes(model: nn.Module) -> bool:
    """Return whether this model computes a common beginning once, so that micro-batches may count it once."""
    plain = without_adapters(model)
    if not isinstance(plain, PreTrainedModel):
        return True
    has_lm_head = plain.get_output_embeddings() is not None
    path = forward_path(plain) if has_lm_head else body_path(plain, plain.base_model)
    return path.shares_prefixes


def _hidden_packed(body: nn.Module, ids_L: Tensor, packed: Packed, manner: Manner) -> Tensor:
    # Given only positions, transformers tests whether rows are packed, which waits for a GPU. With a mask it does not
    # test. Packed attention that is plainly causal needs neither.
    mask = {"attention_mask": torch.ones_like(ids_L)[None]} if manner.plain else {}
    with packed_rows(packed.segments, ids_L.device, manner):
        return _hidden_block_mask(body, ids_L, packed, manner, **mask)


def _hidden_block_mask(body: nn.Module, ids_L: Tensor, packed: Packed, manner: Manner, **mask: Tensor) -> Tensor:
    position_ids_1L = to_device(packed.position_ids_L, ids_L.device)[None]
    return body(input_ids=ids_L[None], position_ids=position_ids_1L, use_cache=False, **mask).last_hidden_state[0]


def _hidden_padded(body: nn.Module, ids_L: Tensor, packed: Packed, manner: Manner) -> Tensor:
    """Run rows padded to the longest row of their bucket. Causality hides the padding, so there is no mask."""
    filler = ids_L[0]  # a real id, because transformers warns about pad ids without a mask

    def run(bucket: Bucket) -> Tensor:
        ids_RT = bucket.spread(ids_L - filler) + filler
        return bucket.collect(body(input_ids=ids_RT, use_cache=False).last_hidden_state)

    return torch.cat([run(bucket) for bucket in make_buckets(packed.segments, ids_L.device)])


_HIDDEN: dict[Attention, Callable[[nn.Module, Tensor, Packed, Manner], Tensor]] = {
    "packed": _hidden_packed,
    "block mask": _hidden_block_mask,
    "padded": _hidden_padded,
}


def _logits(lm: PreTrainedModel, body: nn.Module, output_type: type[Any], hidden_nD: Tensor) -> Tensor:
    """Return `[n, V]`: the model's own logits for these hidden states, with head, its adapters, soft cap and scale.

    The model's forward pass runs with a body that returns these states, so no code of heads is repeated here.
    """
    path = next(name for name, module in lm.named_modules() if module is body)
    head_alone = _with_body(lm, path.split("."), _States(output_type(last_hidden_state=hidden_nD[None])))
    ids_1n = torch.zeros(1, len(hidden_nD), dtype=torch.long, device=hidden_nD.device)
    return head_alone(input_ids=ids_1n, use_cache=False).logits[0]


class _States(nn.Module):
    """Replaces a body: returns these states whatever the input."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.output


def _with_body(module: nn.Module, path: Sequence[str], body: nn.Module) -> nn.Module:
    """Return the same modules and weights with another body. `module` itself does not change."""
    seen = copy.copy(module)
    inner = _with_body(module.get_submodule(path[0]), path[1:], body) if len(path) > 1 else body
    seen._modules = {**module._modules, path[0]: inner}
    return seen


@contextmanager
def _exact(lm: PreTrainedModel) -> Iterator[None]:
    """Switch off gradient, dropout and autocast inside; restore the training flag of each module afterwards."""
    training = [module for module in lm.modules() if module.training]
    with torch.no_grad(), torch.autocast(lm.device.type, enabled=False):
        try:
            lm.eval()
            yield
        finally:
            for module in training:
                module.training = True


def _find_path(lm: PreTrainedModel) -> ForwardPath:
    implementation = attention_name(lm.config).removeprefix("packed_")
    _set_attention(lm, implementation)
    tokens = _probe_rows(lm)
    body, output_type, expected_BTD = _find_body(lm, tokens)
    plain_head = _head_is_linear(lm, body, output_type, width=expected_BTD.shape[-1])
    return ForwardPath(
        body=body,
        output_type=output_type,
        plain_head=plain_head,
        **_fastest(_Probe(lm, body, tokens, expected_BTD), implementation),
    )


def _find_body_path(model: PreTrainedModel, body: nn.Module) -> ForwardPath:
    implementation = attention_name(model.config).removeprefix("packed_")
    _set_attention(model, implementation)
    tokens = _probe_rows(model)
    outputs = [body(input_ids=row_T[None], use_cache=False) for row_T in _single(tokens)]
    expected_BTD = pad_sequence([output.last_hidden_state[0] for output in outputs], batch_first=True)
    return ForwardPath(
        body=body,
        output_type=type(outputs[0]),
        plain_head=False,
        **_fastest(_Probe(model, body, tokens, expected_BTD), implementation),
    )


class _Probe(NamedTuple):
    """A few short rows, and the results of running them one at a time."""

    lm: PreTrainedModel
    body: nn.Module
    tokens: Tokens
    expected_BTD: Tensor


def _fastest(probe: _Probe, implementation: str) -> dict[str, Any]:
    """Return fields of `ForwardPath`: the first way of `_HIDDEN` that works, and why earlier ones do not."""
    reasons: list[str] = []
    for attention in _HIDDEN:
        reason = _try(probe, attention, share=False)
        if reason is None:
            unshared = "it is not packed" if attention != "packed" else _try(probe, attention, share=True)
            if attention == "packed" and unshared is not None:
                reasons.append(f"shared prefixes: {unshared}")
            manner = PLAIN_MANNER
            if attention == "packed" and probe.lm.device.type == "cuda":
                manner, more = _on_a_gpu(probe, share=unshared is None)
                reasons += more
            return {
                "attention": attention,
                "shares_prefixes": unshared is None,
                "manner": manner,
                "implementation": attention_name(probe.lm.config),
                "rotary_limit": rotary_limit(probe.lm.config),
                "note": "; ".join(reasons),
            }
        reasons.append(f"{attention}: {reason}")
        _set_attention(probe.lm, implementation)
    require_finite(probe.lm)
    raise ModelError(
        given=f"{type(probe.lm).__name__} gives other hidden states when rows are run together ({'; '.join(reasons)})",
        allowed="a causal language model: a token depends on the tokens before it in its row and on nothing else",
        fix="Check that the folder holds a decoder (…ForCausalLM), not an encoder.",
    )


def _probe_rows(lm: PreTrainedModel) -> Tokens:
    """Return a few short rows of different lengths within the context; three begin alike, enough to form a family."""
    width, prefix = min(18, context_window(lm.config) or 18), 12
    lengths_B, places_T = torch.tensor([15, 18, 3, 13]).clamp(max=width), torch.arange(width)
    row_B1 = torch.tensor([0, 1, 2, 3])[:, None].where(places_T >= prefix, torch.tensor([0, 0, 2, 0])[:, None])
    ids_BT = ((row_B1 * 18 + places_T) * 5 + 3) % lm.config.get_text_config().vocab_size
    return Tokens(input_ids_BT=ids_BT.to(lm.device), lengths_B=lengths_B)


def _single(tokens: Tokens) -> list[Tensor]:
    """Return the rows one by one, without padding."""
    return [ids_T[:length] for ids_T, length in zip(tokens.input_ids_BT, tokens.lengths_B.tolist(), strict=True)]


def _find_body(lm: PreTrainedModel, tokens: Tokens) -> tuple[nn.Module, type[Any], Tensor]:
    """Return the outermost submodule whose hidden states the head turns into the model's logits.

    Also return its record type, and the hidden states of all rows, run one at a time: `[B, T, D]`, right-padded.
    """
    runs = [_watch(lm, row_T[None]) for row_T in _single(tokens)]
    first_logits_TV, first_outputs = runs[0]
    for body, output in first_outputs.items():
        hidden_TD = output.last_hidden_state[0]
        if hidden_TD.dim() == 2 and _same(_logits(lm, body, type(output), hidden_TD), first_logits_TV):
            hidden = [outputs[body].last_hidden_state[0] for _, outputs in runs]
            return body, type(output), pad_sequence(hidden, batch_first=True)
    require_finite(lm)
    raise ModelError(
        given=f"{type(lm).__name__} has no part that returns the hidden states which its head reads",
        allowed="a transformers …ForCausalLM model, with LoRA adapters or without",
        fix="Use a model of a standard architecture.",
    )


def require_finite(model: nn.Module) -> None:
    """Raise NonFiniteError for weights that are not finite: no two passes with them are equal."""
    for name, tensor in model.named_parameters():
        if not tensor.sum().isfinite() and (bad := int((~tensor.isfinite()).sum())):
            raise NonFiniteError(
                given=f"{bad} of the {tensor.numel()} numbers of {name} are not finite",
                allowed="finite weights",
                fix="Use a checkpoint from before the damage, or copy the model again.",
            )


def _watch(lm: PreTrainedModel, ids_1T: Tensor) -> tuple[Tensor, dict[nn.Module, Any]]:
    """Return logits `[T, V]` of one row, and outputs of the submodules that return hidden states, outermost first."""
    seen: dict[nn.Module, Any] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if getattr(output, "last_hidden_state", None) is not None:
            seen[module] = output

    parts = [module for module in lm.modules() if module is not lm]
    hooks = [module.register_forward_hook(note) for module in parts]
    try:
        logits_TV = lm(input_ids=ids_1T, use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    return logits_TV, {module: seen[module] for module in parts if module in seen}


def _on_a_gpu(probe: _Probe, *, share: bool) -> tuple[Manner, list[str]]:
    """Return how to compute packed attention on a GPU, where waiting is costly, and why not in a faster way.

    Kernels compute in bfloat16, in which no two ways give the same numbers. Their result must be about as close to
    float32 as the result of grids.
    """
    grids, kernel = Manner(plain=True, accelerated=False), Manner(plain=True)
    reason = _try(probe, "packed", share=share, manner=grids)
    if reason is not None:
        return Manner(accelerated=False), [f"attention without grids: {reason}"]
    try:
        with torch.autocast(probe.lm.device.type, dtype=torch.bfloat16):
            off_grids, off_kernel = (_largest_error(probe, "packed", share, manner) for manner in (grids, kernel))
            learns = _has_a_gradient(probe, "packed", share, kernel)
    except Exception as error:  # a GPU, or a version of PyTorch, that has no such kernel
        return grids, [f"attention without grids: {type(error).__name__}: {error}"]
    if not off_kernel <= 3 * off_grids + 1e-3:  # also refuses NaN
        return grids, [f"attention without grids: it is off by {off_kernel:.1e}, grids by {off_grids:.1e}"]
    return (kernel, []) if learns else (grids, ["attention without grids: its gradient is not finite"])


def _largest_error(probe: _Probe, attention: Attention, share: bool, manner: Manner) -> float:
    """Return the largest error of the rows together against single rows, relative to the largest value of those."""
    actual_ND, expected_ND = _together(probe, attention, share, manner)
    return float((actual_ND - expected_ND).abs().max() / expected_ND.abs().max())


def _has_a_gradient(probe: _Probe, attention: Attention, share: bool, manner: Manner) -> bool:
    """Return whether the backward pass gives a finite gradient for the first trained weight. Only that one is kept."""
    first = next((parameter for parameter in probe.body.parameters() if parameter.requires_grad), None)
    if first is None:
        return True
    with torch.enable_grad():
        actual_ND, _ = _together(probe, attention, share, manner)
        (gradient,) = torch.autograd.grad(actual_ND.float().square().mean(), first, materialize_grads=True)
    return bool(gradient.isfinite().all())


def _try(probe: _Probe, attention: Attention, *, share: bool, manner: Manner = PLAIN_MANNER) -> str | None:
    """Return None if the rows together have the hidden states of the single rows, else the reason."""
    lm = probe.lm
    if attention != "padded" and "position_ids" not in inspect.signature(probe.body.forward).parameters:
        return "the model takes no position_ids"
    if attention == "packed" and not _set_attention(lm, f"packed_{attention_name(lm.config).removeprefix('packed_')}"):
        return "its attention cannot be replaced"
    try:
        actual_ND, expected_ND = _together(probe, attention, share, manner)
    except Exception as error:  # any failure of an architecture on unfamiliar inputs: there is another way
        if attention == "padded":
            raise
        return f"{type(error).__name__}: {error}"
    return None if _same(actual_ND, expected_ND) else "a row changes when it is run with others"


def _together(probe: _Probe, attention: Attention, share: bool, manner: Manner) -> tuple[Tensor, Tensor]:
    """Return `[N, D]` hidden states of all real tokens with the rows run together, and those of the single rows."""
    lm, body, tokens, expected_BTD = probe
    packed = pack_whole(tokens, share=share)
    ids_L = tokens.input_ids_BT.flatten()[packed.token_index_L.to(lm.device)]
    hidden_LD = _HIDDEN[attention](body, ids_L, packed, manner)
    places_N = (packed.place_BT.flatten() >= 0).nonzero()[:, 0]
    actual_ND = hidden_LD[packed.place_BT.flatten()[places_N].to(lm.device)]
    return actual_ND, expected_BTD.flatten(0, 1)[places_N.to(lm.device)]


def _same(actual: Tensor, expected: Tensor) -> bool:
    """Return whether both are equal up to rounding, relative to the largest value. Rows that mix differ far more."""
    if actual.shape != expected.shape:
        return False
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-3}.get(expected.dtype, 5e-2)
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


def _set_attention(lm: PreTrainedModel, implementation: str) -> bool:
    """Set the attention implementation, and return whether the model now runs with it."""
    if implementation == attention_name(lm.config):
        return True
    if implementation.startswith("packed_") and implementation not in ("packed_sdpa", "packed_eager"):
        return False
    if not can_set_attention(lm):
        return False
    lm.set_attn_implementation(implementation)
    return True


def _head_is_linear(lm: PreTrainedModel, body: nn.Module, output_type: type[Any], width: int) -> bool:
    """Return whether logits are `hidden @ weight.T + bias`, tested at logits of 100, where caps and scales show."""
    head = lm.get_output_embeddings()
    if type(head) is not nn.Linear or head.in_features != width:
        return False
    hidden_nD = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).to(head.weight)
    largest = head(hidden_nD).abs().max()
    if not 0 < largest < float("inf"):
        return False
    hidden_nD = hidden_nD * (100 / largest)
    return _same(_logits(lm, body, output_type, hidden_nD), head(hidden_nD))
