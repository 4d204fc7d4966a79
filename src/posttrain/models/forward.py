"""The trainer's one definition of a log-probability: temperature, precision, alignment, and no computed padding.

B rows, T tokens of a padded row, L packed tokens, N scored positions, D width of the hidden state.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.models.entering import enter
from posttrain.models.forward_path import ForwardPath, causal_lm, forward_path
from posttrain.models.packing import Packed
from posttrain.models.restarts import cut
from posttrain.models.transfer import to_device
from posttrain.types import Outputs, Tokens


def token_logprobs(
    model: nn.Module,
    tokens: Tokens,
    mask_BT: Tensor,
    *,
    temperature: float,
    with_entropy: bool = False,
    with_top1: bool = False,
    value_head: nn.Linear | None = None,
    chunk_tokens: int = 1024,
) -> Outputs:
    """Return the log-probability of every scored token given the tokens before it in its row, with gradient.

    With a `value_head`, the values of `token_values` come from the same pass. `with_top1` also tells whether each token
    is the most likely one.

    `mask_BT` says which tokens are scored; entry t of the result describes `input_ids_BT[:, t]` and is exactly 0 where
    the mask is False. Logits are divided by `temperature` (RULE 1); the log-softmax is float32, float64 for a float64
    model (RULE 2); everything before it runs in the precision of an enclosing autocast.

    `pack(tokens, mask_BT).num_tokens` tokens go through the model: for each row the tokens before its last scored one,
    none for a row that scores nothing, and a common beginning of rows once. The head sees only the positions before
    scored tokens, `chunk_tokens` at a time.

    If a row has several contexts (`Tokens.starts_BT`), each part is a separate sequence.

    Token ids, lengths and mask are on the CPU, where rows are packed. The result is on the model's device.

    If nothing is scored, two tokens go through the model and count nothing: ranks that share its weights must call each
    layer equally often.

    Raises ValueError if the mask scores padding or the first token of a row, ModelError for a model that is not a
    causal language model.
    """
    return enter(
        model,
        lambda: _token_logprobs(
            causal_lm(model),
            tokens,
            mask_BT,
            temperature=temperature,
            with_entropy=with_entropy,
            with_top1=with_top1,
            value_head=value_head,
            chunk_tokens=chunk_tokens,
        ),
    )


def _token_logprobs(
    lm: PreTrainedModel,
    tokens: Tokens,
    mask_BT: Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    with_top1: bool,
    value_head: nn.Linear | None,
    chunk_tokens: int,
) -> Outputs:
    how: dict[str, Any] = {"with_entropy": with_entropy, "with_top1": with_top1, "value_head": value_head}
    how |= {"temperature": temperature, "chunk_tokens": chunk_tokens}
    if tokens.starts_BT is not None:
        parts = cut(tokens, mask_BT)
        return parts.outputs(_token_logprobs(lm, parts.tokens, parts.mask_SU, **how))
    path = forward_path(lm)
    packed = path.pack(tokens, mask_BT)
    if packed.num_tokens == 0:
        return _nothing_scored(_token_logprobs(lm, *_filler(tokens), **how), tokens)
    hidden_ND = _hidden_before_targets(path, tokens, packed, lm.device)
    top1_N = hidden_ND.new_empty(len(hidden_ND), dtype=torch.bool) if with_top1 else None
    logprobs_N, entropy_N = path.score(
        lm,
        hidden_ND,
        to_device(_take(tokens.input_ids_BT.flatten(), packed.target_index_N), hidden_ND.device),
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        with_entropy=with_entropy,
        top1_N=top1_N,
    )
    return Outputs(
        logprobs_BT=_unpack(logprobs_N, tokens, packed),
        top1_BT=None if top1_N is None else _unpack(top1_N, tokens, packed),
        entropy_BT=None if entropy_N is None else _unpack(entropy_N, tokens, packed),
        values_BT=None if value_head is None else _unpack(_value(value_head, hidden_ND), tokens, packed),
    )


def token_values(path: ForwardPath, head: nn.Linear, tokens: Tokens, mask_BT: Tensor) -> Tensor:
    """Return `[B, T]`: value of the state before every scored token, with gradient, exactly 0 where the mask is False.

    That state is the hidden state from which the token was sampled: the state at the token before it. The head computes
    in the precision of its weights, regardless of an enclosing autocast.
    """
    if tokens.starts_BT is not None:
        parts = cut(tokens, mask_BT)
        return parts.joined(token_values(path, head, parts.tokens, parts.mask_SU))
    packed = path.pack(tokens, mask_BT)
    if packed.num_tokens == 0:
        return _zeros(token_values(path, head, *_filler(tokens)), tokens)
    hidden_ND = _hidden_before_targets(path, tokens, packed, head.weight.device)
    return _unpack(_value(head, hidden_ND), tokens, packed)


def _hidden_before_targets(path: ForwardPath, tokens: Tokens, packed: Packed, device: torch.device) -> Tensor:
    """Return `[N, D]`: the hidden state at the position before each scored token."""
    ids_L = to_device(_take(tokens.input_ids_BT.flatten(), packed.token_index_L), device)
    return _take(path.hidden(ids_L, packed), packed.source_N)


def _value(head: nn.Linear, hidden_ND: Tensor) -> Tensor:
    with torch.autocast(hidden_ND.device.type, enabled=False):
        return head(hidden_ND.to(head.weight.dtype))[:, 0]


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, to_device(index, x.device))


def _unpack(x_N: Tensor, tokens: Tokens, packed: Packed) -> Tensor:
    """Convert `[N]` to `[B, T]`, 0 where nothing was scored."""
    zeros = x_N.new_zeros(tokens.input_ids_BT.numel())
    index_N = to_device(packed.target_index_N, x_N.device)
    return zeros.index_copy(0, index_N, x_N).view(tokens.input_ids_BT.shape)


def _filler(tokens: Tokens) -> tuple[Tokens, Tensor]:
    """Return a row of two tokens, the second of them scored."""
    ids_12 = tokens.input_ids_BT.new_zeros(1, 2)
    return Tokens(input_ids_BT=ids_12, lengths_B=torch.tensor([2])), ids_12.new_tensor([[False, True]]).bool()


def _nothing_scored(filler: Outputs, tokens: Tokens) -> Outputs:
    """Return zeros for a batch that scores nothing, in the fields that the filler has."""
    more = {f.name: getattr(filler, f.name) for f in fields(filler) if f.name != "logprobs_BT"}
    found = {name: None if x is None else _zeros(x, tokens) for name, x in more.items()}
    return Outputs(logprobs_BT=_zeros(filler.logprobs_BT, tokens), **found)


def _zeros(filler_12: Tensor, tokens: Tokens) -> Tensor:
    """Return `[B, T]` zeros computed from the filler, so that a loss made of them has a gradient of zeros."""
    zero = filler_12.sum() * 0
    return zero.to(filler_12.dtype).expand(tokens.input_ids_BT.shape)
