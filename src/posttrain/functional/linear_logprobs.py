"""The linear head of a language model and its log-softmax, forward and backward, one tile of logits at a time.

N positions, D width of the hidden state, V vocabulary; n positions of a chunk, v columns of a tile. `logprobs.py` has
the definition and explains which logits are kept and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG_OF_ZERO = -1e4
"""Replacement for the -inf of a token with probability 0, so that `0 * log 0` is 0. Its exp is 0, also in float64."""
TILE_NUMBERS = 2**20
"""Number of logits in a tile on a CPU: 4 MB, which stay in the caches between the products that make and use them."""
TILE_NUMBERS_ELSEWHERE = 2**26
"""Number of logits in a tile on other devices, on which a kernel launch costs more than memory traffic: 256 MB."""
TILE_COLUMNS = 1024
"""Smallest number of columns of a tile. With fewer, the matrix products are inefficient."""
KEPT_BYTES = 2**28
"""Bytes of logits that are kept for the backward pass. The activations of a model take several times as much."""


class HeadSettings(NamedTuple):
    """Settings of the computation of log-probabilities."""

    temperature: float
    chunk_tokens: int
    matmul_dtype: torch.dtype
    kept_bytes: int
    """Bytes of logits that are kept for the backward pass."""


class LinearLogprobs(torch.autograd.Function):
    """Log-probability of each target and, on request, the entropy, with a closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        settings: HeadSettings,
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
    """A linear head that computes logits in tiles: a chunk of positions by a part of the vocabulary."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, settings: HeadSettings) -> None:
        self.weight_VD, self.bias_V = weight_VD, bias_V
        self.temperature, self.chunk_tokens, self.matmul_dtype, _ = settings
        self.wide = torch.promote_types(self.matmul_dtype, torch.float32)

    def tiles(self, positions: int) -> Iterator[tuple[_Columns, slice]]:
        """Yield the columns and positions of each tile. The outer loop is over columns, so weights are cast once."""
        numbers = TILE_NUMBERS if self.weight_VD.device.type == "cpu" else TILE_NUMBERS_ELSEWHERE
        rows = max(1, min(positions, self.chunk_tokens))
        for columns in chunks_of(len(self.weight_VD), max(TILE_COLUMNS, numbers // rows)):
            weight_vD = self.weight_VD[columns].to(self.matmul_dtype)
            bias_v = None if self.bias_V is None else self.bias_V[columns].to(self.matmul_dtype)
            for part in chunks_of(positions, self.chunk_tokens):
                yield _Columns(columns, weight_vD, bias_v), part

    def logits(self, product_nv: Tensor, *, overwrite: bool) -> Tensor:
        """Return `z / temperature` in float32 or wider. The caller may overwrite it."""
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
        """Return which targets are among these columns, and their column; an arbitrary column for the others."""
        place_n = targets_n - self.columns.start
        is_here_n = (place_n >= 0) & (place_n < len(self.weight_vD))
        return is_here_n, place_n.clamp(0, len(self.weight_vD) - 1)


class _OnlineSums:
    """Sums over the vocabulary of logits z that arrive one tile at a time; m is the largest logit so far.

        weights_N = sum_v exp(z_v - m)      moments_N = sum_v exp(z_v - m) (z_v - m)

    If a tile has a larger logit, the previous sums are rescaled to it. Differences to the largest logit keep the
    entropy exact for large logits.
    """

    def __init__(self, inputs_ND: Tensor, wide: torch.dtype, with_moments: bool) -> None:
        self.largest_N = inputs_ND.new_full((len(inputs_ND),), torch.finfo(wide).min, dtype=wide)
        self.weights_N = torch.zeros_like(self.largest_N)
        self.moments_N = torch.zeros_like(self.largest_N) if with_moments else None

    def add(self, part: slice, logits_nv: Tensor) -> None:
        """Add a tile of the positions in `part` to the sums. Overwrites the tile."""
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
    """Return `-p (g + e (log p + H))`, the gradient of the logits without the targets' part. Overwrites `log_p_nv`."""
    if entropy_N is None or e_N is None:
        return log_p_nv.exp_().mul_(-g_N[part, None])
    p_nv = log_p_nv.exp()
    weight_nv = log_p_nv.clamp_(min=LOG_OF_ZERO).add_(entropy_N[part, None]).mul_(e_N[part, None])
    return weight_nv.add_(g_N[part, None]).mul_(p_nv).neg_()


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Compute `total += a @ b`, with the sum in the dtype of `total` even if the product has a narrower one."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def chunks_of(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))
