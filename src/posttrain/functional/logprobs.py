"""Log-probabilities of given tokens (docs/rules.md), without holding the logits of all positions in memory.

    logprobs_N = log_softmax(z / temperature)[targets]          z = hidden @ weight.T + bias
    entropy_N  = -sum_v p_v log p_v                             p = softmax(z / temperature), in nats

N positions, D width of the hidden state, V vocabulary. Position n is *scored against* `targets_N[n]`; the caller
applies the causal shift. Softmax and all later operations run in float32, or float64 for float64 inputs (RULE 2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posttrain.functional import linear_logprobs as tiled
from posttrain.functional.linear_logprobs import LOG_OF_ZERO, HeadSettings, LinearLogprobs, chunks_of


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
    """Return the log-probability of each target under a linear head and, on request, the entropy of each distribution.

    `top1_N`, if given, is filled in place: true if the target is the most likely token, or one of them in a tie.

    **Logits are computed one tile at a time**, `chunk_tokens` positions by a part of the vocabulary, and are used while
    the tile is in the cache. Memory is O(N * D + V * D), also in the backward pass. The largest logit and the sums
    relative to it are carried from tile to tile (the online softmax of arXiv:1805.02867).

    **The gradient is in closed form.** With g and e the incoming gradients of log-probability and entropy, that of
    z / temperature is `g (onehot - p) - e p (log p + H)`. It needs the logits again. The first `KEPT_BYTES` of them are
    kept in the dtype of the product, from which both passes start; the others are computed a second time (four products
    of N x D x V instead of three if the head is trained). The result is the same bit for bit. Computing gradients in
    the forward pass would need g and e before they exist. Without gradient no logits are kept.

    The product with `weight_VD` runs in the dtype of an enclosing autocast, like the model's own head. Only inputs that
    require a gradient get one (a frozen head costs nothing); it is summed over the chunks in float32 or wider.

    >>> hidden_ND, weight_VD = torch.eye(2), torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> logprobs_N, entropy_N = chunked_logprobs(hidden_ND, weight_VD, None, torch.tensor([0, 2]), with_entropy=True)
    >>> [round(x, 4) for x in logprobs_N.tolist()], [round(x, 4) for x in entropy_N.tolist()]
    ([-1.0986, -0.4076], [1.0986, 0.8324])
    """
    _check(temperature, chunk_tokens)
    room = tiled.KEPT_BYTES if torch.is_grad_enabled() else 0
    settings = HeadSettings(temperature, chunk_tokens, _matmul_dtype(hidden_ND, weight_VD), room)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logprobs_N, entropy_N = LinearLogprobs.apply(
            hidden_ND, weight_VD, bias_V, targets_N, settings, with_entropy, top1_N
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
    """`chunked_logprobs` for any head `head([n, D]) -> [n, V]` (soft-capped or scaled logits, an adapter ...).

    Each chunk is checkpointed: its logits are dropped after the forward pass, and autograd computes them again in the
    backward pass. It is slower than `chunked_logprobs`, which has a closed-form gradient; memory has the same bound.
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
        for part in chunks_of(len(targets_N), chunk_tokens)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


def _part(x_N: Tensor | None, part: slice) -> Tensor | None:
    return None if x_N is None else x_N[part]


def _fill_top1(top1_n: Tensor | None, logits_nV: Tensor, targets_n: Tensor) -> None:
    if top1_n is not None:
        top1_n.copy_(logits_nV.gather(1, targets_n[:, None])[:, 0] >= logits_nV.amax(dim=-1))


def _entropy(log_p_nV: Tensor) -> Tensor:
    return -(log_p_nV.exp() * log_p_nV.clamp(min=LOG_OF_ZERO)).sum(dim=-1)


def _matmul_dtype(hidden_ND: Tensor, weight_VD: Tensor) -> torch.dtype:
    device = hidden_ND.device.type
    given = torch.promote_types(hidden_ND.dtype, weight_VD.dtype)
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and given != torch.float64 else given


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check(temperature: float, chunk_tokens: int) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}, but logits are divided by it: it must be greater than 0")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens = {chunk_tokens}, but a chunk has at least one position")
