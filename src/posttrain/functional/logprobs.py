"""Log-probabilities of given tokens (docs/rules.md), without ever holding the logits of all positions at once.

    logprobs_N = log_softmax(z / temperature)[targets]          z = hidden @ weight.T + bias
    entropy_N  = -sum_v p_v log p_v                             p = softmax(z / temperature), in nats

N positions, D width of the hidden state, V vocabulary. Position n is *scored against* `targets_N[n]`; which position
predicts which token (the causal shift) is not decided here. Softmax and everything after it is float32 whatever the
inputs are, float64 when they are float64 (RULE 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

LOG_OF_ZERO = -1e4
"""Stands for the -inf of a token with probability 0, so that `0 * log 0` is 0: exp of it is 0, in float64 too."""


def chunked_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
    top1_N: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target under a linear head, and the entropy of each distribution when asked for.

    A `top1_N` that is given is filled in place: is the target the most likely token (one of them, in a tie)?

    `chunk_tokens` positions are worked on together: memory is O(chunk_tokens * V), in the backward pass too.

    **The gradient is in closed form and the logits are computed again for it.** With g and e the incoming gradients of
    log-probability and entropy, the gradient of z / temperature is `g (onehot - p) - e p (log p + H)`. The alternative,
    computing gradients already in the forward pass, needs g and e before they exist: the hidden state could still be
    served (one row of D numbers per position, scaled later), the weight could not, because its gradient sums over
    positions. Recomputing costs one more product of N x D x V (four in place of three when the head is trained), keeps
    only two float numbers per position between the passes, and costs nothing where no gradient is taken.

    The product with `weight_VD` runs in the dtype of an enclosing autocast, as the model's own head would. Only inputs
    that ask for a gradient get one (a frozen head costs nothing); it is summed over the chunks in float32 or wider.

    >>> hidden_ND, weight_VD = torch.eye(2), torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> logprobs_N, entropy_N = chunked_logprobs(hidden_ND, weight_VD, None, torch.tensor([0, 2]), with_entropy=True)
    >>> [round(x, 4) for x in logprobs_N.tolist()], [round(x, 4) for x in entropy_N.tolist()]
    ([-1.0986, -0.4076], [1.0986, 0.8324])
    """
    _check(temperature, chunk_tokens)
    matmul_dtype = _matmul_dtype(hidden_ND, weight_VD)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logprobs_N, entropy_N = _LinearLogprobs.apply(
            hidden_ND, weight_VD, bias_V, targets_N, temperature, chunk_tokens, with_entropy, top1_N, matmul_dtype
        )
    return logprobs_N, entropy_N


def chunked_head_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
    top1_N: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The same for any head: `head([n, D]) -> [n, V]` logits (soft-capped, scaled, with an adapter on it ...).

    Each chunk is checkpointed: its logits are dropped after the forward pass and computed again, by autograd, in the
    backward pass. Slower than `chunked_logprobs`, which knows its gradient; the memory is bounded in the same way.
    """
    _check(temperature, chunk_tokens)

    def score(hidden_nD: Tensor, targets_n: Tensor, top1_n: Tensor | None) -> tuple[Tensor, Tensor]:
        logits_nV = _widen(head(hidden_nD)) / temperature
        log_p_nV = logits_nV.log_softmax(dim=-1)
        _fill_top1(top1_n, logits_nV.detach(), targets_n)
        entropy_n = _entropy(log_p_nV) if with_entropy else log_p_nV.new_zeros(len(targets_n))
        return log_p_nV.gather(1, targets_n[:, None])[:, 0], entropy_n

    if len(targets_N) == 0:
        nothing_N = _widen(hidden_ND).sum(dim=-1)
        return nothing_N, nothing_N if with_entropy else None
    recompute = torch.is_grad_enabled()
    parts = [
        checkpoint(partial(score, top1_n=_part(top1_N, part)), hidden_ND[part], targets_N[part], use_reentrant=False)
        if recompute
        else score(hidden_ND[part], targets_N[part], _part(top1_N, part))
        for part in _chunks(len(targets_N), chunk_tokens)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


class _LinearLogprobs(torch.autograd.Function):
    """`chunked_logprobs` with its gradient in closed form; keeps two numbers per position, nothing of size V."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        chunk_tokens: int,
        with_entropy: bool,
        top1_N: Tensor | None,
        matmul_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        head = _LinearHead(weight_VD, bias_V, temperature, matmul_dtype)
        logprobs_N = hidden_ND.new_empty(len(targets_N), dtype=head.wide)
        log_sum_N, entropy_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        for part in _chunks(len(targets_N), chunk_tokens):
            logits_nV = head.logits(hidden_ND[part])
            _fill_top1(_part(top1_N, part), logits_nV, targets_N[part])
            log_sum_N[part] = logits_nV.logsumexp(dim=-1)
            logprobs_N[part] = logits_nV.gather(1, targets_N[part, None])[:, 0] - log_sum_N[part]
            if with_entropy:
                entropy_N[part] = _entropy(logits_nV.sub_(log_sum_N[part, None]))
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, log_sum_N, entropy_N if with_entropy else None)
        ctx.settings = temperature, chunk_tokens, matmul_dtype
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing in the backward pass
        return logprobs_N, entropy_N if with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, log_sum_N, entropy_N = ctx.saved_tensors
        grad_logprobs_N = torch.zeros_like(log_sum_N) if grad_logprobs_N is None else grad_logprobs_N
        temperature, chunk_tokens, matmul_dtype = ctx.settings
        head = _LinearHead(weight_VD, bias_V, temperature, matmul_dtype)
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_hidden_ND = torch.empty_like(hidden_ND) if for_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=head.wide) if for_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=head.wide) if for_bias else None
        for part in _chunks(len(targets_N), chunk_tokens):
            log_p_nV = head.logits(hidden_ND[part]).sub_(log_sum_N[part, None])
            grad_nV = _weigh_probabilities(log_p_nV, part, grad_logprobs_N, entropy_N, grad_entropy_N)
            grad_nV.scatter_add_(1, targets_N[part, None], grad_logprobs_N[part, None])
            grad_nV.div_(temperature)
            if grad_bias_V is not None:
                grad_bias_V += grad_nV.sum(dim=0)
            grad_nV = grad_nV.to(matmul_dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND[part] = (grad_nV @ head.weight_VD).to(hidden_ND.dtype)
            if grad_weight_VD is not None:
                _add_product(grad_weight_VD, grad_nV.T, hidden_ND[part].to(matmul_dtype))
        return (
            grad_hidden_ND,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            *(None,) * 6,
        )


class _LinearHead:
    """A linear head with its weights cast once for all chunks."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, temperature: float, matmul_dtype: torch.dtype) -> None:
        self.weight_VD = weight_VD.to(matmul_dtype)
        self.bias_V = None if bias_V is None else bias_V.to(matmul_dtype)
        self.temperature = temperature
        self.wide = torch.promote_types(matmul_dtype, torch.float32)

    def logits(self, hidden_nD: Tensor) -> Tensor:
        """`z / temperature` in float32 or wider: a fresh tensor that the caller may overwrite."""
        logits_nV = F.linear(hidden_nD.to(self.weight_VD.dtype), self.weight_VD, self.bias_V).to(self.wide)
        return logits_nV if self.temperature == 1.0 else logits_nV.div_(self.temperature)


def _weigh_probabilities(
    log_p_nV: Tensor, part: slice, grad_logprobs_N: Tensor, entropy_N: Tensor | None, grad_entropy_N: Tensor | None
) -> Tensor:
    """`-p (g + e (log p + H))`: the gradient of z / temperature before the targets are added. Overwrites `log_p_nV`."""
    if entropy_N is None or grad_entropy_N is None:
        return log_p_nV.exp_().mul_(-grad_logprobs_N[part, None])
    p_nV = log_p_nV.exp()
    weight_nV = log_p_nV.clamp_(min=LOG_OF_ZERO).add_(entropy_N[part, None]).mul_(grad_entropy_N[part, None])
    return weight_nV.add_(grad_logprobs_N[part, None]).mul_(p_nV).neg_()


def _part(x_N: Tensor | None, part: slice) -> Tensor | None:
    return None if x_N is None else x_N[part]


def _fill_top1(top1_n: Tensor | None, logits_nV: Tensor, targets_n: Tensor) -> None:
    if top1_n is not None:
        top1_n.copy_(logits_nV.gather(1, targets_n[:, None])[:, 0] >= logits_nV.amax(dim=-1))


def _entropy(log_p_nV: Tensor) -> Tensor:
    return -(log_p_nV.exp() * log_p_nV.clamp(min=LOG_OF_ZERO)).sum(dim=-1)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """`total += a @ b`, the sum in the dtype of `total` also where the product is in a narrower one."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _matmul_dtype(hidden_ND: Tensor, weight_VD: Tensor) -> torch.dtype:
    device = hidden_ND.device.type
    given = torch.promote_types(hidden_ND.dtype, weight_VD.dtype)
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and given != torch.float64 else given


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _chunks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))


def _check(temperature: float, chunk_tokens: int) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}, but logits are divided by it: it must be greater than 0")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens = {chunk_tokens}, but a chunk has at least one position")
