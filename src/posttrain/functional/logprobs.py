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
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

LOG_OF_ZERO = -1e4
"""Stands for the -inf of a token with probability 0, so that `0 * log 0` is 0: exp of it is 0, in float64 too."""
TILE_NUMBERS = 2**20
"""Logits in a tile: 4 MB, which stay in the caches of a CPU from the product that makes them to those that use them."""
TILE_NUMBERS_ELSEWHERE = 2**26
"""The same where starting a kernel costs more than a way to memory: 256 MB."""
TILE_COLUMNS = 1024
"""The fewest columns of a tile: below, the products are too thin."""
KEPT_BYTES = 2**28
"""Logits that are kept for the backward pass; activations of a model take several times as much."""


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

    **Logits are made a tile at a time**, `chunk_tokens` positions by a part of the vocabulary, which is used up while
    it is in the cache: memory is O(N * D + V * D), in the backward pass too. The largest logit and the sums below it
    are carried from tile to tile (the online softmax of arXiv:1805.02867).

    **The gradient is in closed form.** With g and e the incoming gradients of log-probability and entropy, that of
    z / temperature is `g (onehot - p) - e p (log p + H)`. It needs the logits again: the first `KEPT_BYTES` of them
    stay in the dtype of the product, from which both passes start, and the rest is computed a second time (four
    products of N x D x V in place of three when the head is trained). The result is the same bit for bit. Computing
    gradients in the forward pass already would need g and e before they exist. Without gradient nothing is kept.

    The product with `weight_VD` runs in the dtype of an enclosing autocast, as the model's own head would. Only inputs
    that ask for a gradient get one (a frozen head costs nothing); it is summed over the chunks in float32 or wider.

    >>> hidden_ND, weight_VD = torch.eye(2), torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> logprobs_N, entropy_N = chunked_logprobs(hidden_ND, weight_VD, None, torch.tensor([0, 2]), with_entropy=True)
    >>> [round(x, 4) for x in logprobs_N.tolist()], [round(x, 4) for x in entropy_N.tolist()]
    ([-1.0986, -0.4076], [1.0986, 0.8324])
    """
    _check(temperature, chunk_tokens)
    room = KEPT_BYTES if torch.is_grad_enabled() else 0
    settings = _Settings(temperature, chunk_tokens, _matmul_dtype(hidden_ND, weight_VD), room)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logprobs_N, entropy_N = _LinearLogprobs.apply(
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


class _Settings(NamedTuple):
    temperature: float
    chunk_tokens: int
    matmul_dtype: torch.dtype
    kept_bytes: int


class _LinearLogprobs(torch.autograd.Function):
    """`chunked_logprobs` with its gradient in closed form."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        settings: _Settings,
        with_entropy: bool,
        top1_N: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        head = _LinearHead(weight_VD, bias_V, settings)
        inputs_ND = hidden_ND.to(settings.matmul_dtype)
        sums = _OnlineSums(inputs_ND, head.wide, with_entropy)
        target_logits_N = inputs_ND.new_zeros(len(targets_N), dtype=head.wide)
        kept, room = [], settings.kept_bytes
        for tile, part in head.tiles(len(targets_N)):
            product_nv = tile.product(inputs_ND[part])
            room -= product_nv.nbytes
            if room >= 0:
                kept.append(product_nv)
            logits_nv = head.logits(product_nv, overwrite=room < 0)
            is_here_n, place_n = tile.find(targets_N[part])
            found_n = logits_nv.gather(1, place_n[:, None])[:, 0]
            target_logits_N[part] = found_n.where(is_here_n, target_logits_N[part])
            sums.add(part, logits_nv)
        if top1_N is not None:
            top1_N.copy_(target_logits_N >= sums.largest_N)
        log_sum_N, entropy_N = sums.log_sum(), sums.entropy() if with_entropy else None
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, log_sum_N, entropy_N, *kept)
        ctx.settings = settings
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing in the backward pass
        return target_logits_N - log_sum_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, log_sum_N, entropy_N, *kept = ctx.saved_tensors
        head = _LinearHead(weight_VD, bias_V, ctx.settings)
        inputs_ND = hidden_ND.to(head.matmul_dtype)
        g_N = torch.zeros_like(log_sum_N) if grad_logprobs_N is None else grad_logprobs_N / head.temperature
        e_N = None if grad_entropy_N is None else grad_entropy_N / head.temperature
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=head.wide) if for_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=head.wide) if for_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=head.wide) if for_bias else None
        for number, (tile, part) in enumerate(head.tiles(len(targets_N))):
            is_kept = number < len(kept)
            product_nv = kept[number] if is_kept else tile.product(inputs_ND[part])
            log_p_nv = head.logits(product_nv, overwrite=not is_kept).sub_(log_sum_N[part, None])
            grad_nv = _weigh_probabilities(log_p_nv, part, g_N, entropy_N, e_N)
            is_here_n, place_n = tile.find(targets_N[part])
            grad_nv.scatter_add_(1, place_n[:, None], g_N[part].where(is_here_n, 0.0)[:, None])
            if grad_bias_V is not None:
                grad_bias_V[tile.columns] += grad_nv.sum(dim=0)
            grad_nv = grad_nv.to(head.matmul_dtype)
            if grad_hidden_ND is not None:
                _add_product(grad_hidden_ND[part], grad_nv, tile.weight_vD)
            if grad_weight_VD is not None:
                _add_product(grad_weight_VD[tile.columns], grad_nv.T, inputs_ND[part])
        return (
            None if grad_hidden_ND is None else grad_hidden_ND.to(hidden_ND.dtype),
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            *(None,) * 4,
        )


class _LinearHead:
    """A linear head whose logits are made in tiles: a chunk of positions by a part of the vocabulary."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, settings: _Settings) -> None:
        self.weight_VD, self.bias_V = weight_VD, bias_V
        self.temperature, self.chunk_tokens, self.matmul_dtype, _ = settings
        self.wide = torch.promote_types(self.matmul_dtype, torch.float32)

    def tiles(self, positions: int) -> Iterator[tuple[_Columns, slice]]:
        """Columns and positions of each, the columns outside, so that their weights are cast once."""
        numbers = TILE_NUMBERS if self.weight_VD.device.type == "cpu" else TILE_NUMBERS_ELSEWHERE
        rows = max(1, min(positions, self.chunk_tokens))
        for columns in _chunks(len(self.weight_VD), max(TILE_COLUMNS, numbers // rows)):
            weight_vD = self.weight_VD[columns].to(self.matmul_dtype)
            bias_v = None if self.bias_V is None else self.bias_V[columns].to(self.matmul_dtype)
            for part in _chunks(positions, self.chunk_tokens):
                yield _Columns(columns, weight_vD, bias_v), part

    def logits(self, product_nv: Tensor, *, overwrite: bool) -> Tensor:
        """`z / temperature` in float32 or wider, which the caller may overwrite."""
        logits_nv = product_nv.to(self.wide, copy=not overwrite)
        return logits_nv if self.temperature == 1.0 else logits_nv.div_(self.temperature)


class _Columns(NamedTuple):
    """A part of the vocabulary."""

    columns: slice
    weight_vD: Tensor
    bias_v: Tensor | None

    def product(self, inputs_nD: Tensor) -> Tensor:
        return F.linear(inputs_nD, self.weight_vD, self.bias_v)

    def find(self, targets_n: Tensor) -> tuple[Tensor, Tensor]:
        """Which targets are among these columns, and in which of them; some column where they are not."""
        place_n = targets_n - self.columns.start
        is_here_n = (place_n >= 0) & (place_n < len(self.weight_vD))
        return is_here_n, place_n.clamp(0, len(self.weight_vD) - 1)


class _OnlineSums:
    """Sums over the vocabulary of logits z that are seen a tile at a time, m being the largest seen so far.

        weights_N = sum_v exp(z_v - m)      moments_N = sum_v exp(z_v - m) (z_v - m)

    When a tile has a larger logit, what was summed before is scaled down to it. Differences to the largest logit keep
    the entropy exact where logits are large.
    """

    def __init__(self, inputs_ND: Tensor, wide: torch.dtype, with_moments: bool) -> None:
        self.largest_N = inputs_ND.new_full((len(inputs_ND),), torch.finfo(wide).min, dtype=wide)
        self.weights_N = torch.zeros_like(self.largest_N)
        self.moments_N = torch.zeros_like(self.largest_N) if with_moments else None

    def add(self, part: slice, logits_nv: Tensor) -> None:
        """Take in a tile of the positions in `part`; overwrites it."""
        largest_n = torch.maximum(self.largest_N[part], logits_nv.amax(dim=-1))
        fall_n = self.largest_N[part] - largest_n
        scale_n, weights_n = fall_n.exp(), self.weights_N[part]
        below_nv = logits_nv.sub_(largest_n[:, None])
        if self.moments_N is None:
            exp_nv = below_nv.exp_()
        else:
            exp_nv = below_nv.exp()
            moments_n = self.moments_N[part]
            moments_n.add_(fall_n * weights_n).mul_(scale_n)
            moments_n.add_(below_nv.clamp_(min=LOG_OF_ZERO).mul_(exp_nv).sum(dim=-1))
        weights_n.mul_(scale_n).add_(exp_nv.sum(dim=-1))
        self.largest_N[part] = largest_n

    def log_sum(self) -> Tensor:
        """`[N]` log sum_v exp(z_v)."""
        return self.largest_N + self.weights_N.log()

    def entropy(self) -> Tensor:
        """`[N]` log sum_v exp(z_v - m) minus the mean of z - m."""
        assert self.moments_N is not None
        return self.weights_N.log() - self.moments_N / self.weights_N


def _weigh_probabilities(
    log_p_nv: Tensor, part: slice, g_N: Tensor, entropy_N: Tensor | None, e_N: Tensor | None
) -> Tensor:
    """`-p (g + e (log p + H))`: the gradient of the logits before the targets are added. Overwrites `log_p_nv`."""
    if entropy_N is None or e_N is None:
        return log_p_nv.exp_().mul_(-g_N[part, None])
    p_nv = log_p_nv.exp()
    weight_nv = log_p_nv.clamp_(min=LOG_OF_ZERO).add_(entropy_N[part, None]).mul_(e_N[part, None])
    return weight_nv.add_(g_N[part, None]).mul_(p_nv).neg_()


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
