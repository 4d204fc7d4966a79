"""A block of experts by one kernel, where it is built and computes as most are; its router is called as it is.

    y = sum over the k experts that the router chose for x of  share * down(silu(gate x) * up x)

The model's own code calls products for each expert that some row chose, which for a few rows takes far longer than
reading the weights. The kernel groups the rows by expert itself. Whatever differs (another activation, a shared expert,
biases, an adapter, a hook on the experts, other precisions) has other parts or is called as it is; what is built alike
and computes something else is found by trying it (`by_formula`).

n rows, E width of the model, I of an expert, X experts, k of them per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from posttrain.cpu.kernels import LANES, Kernels, can_compute
from posttrain.engines.decoding import is_hooked
from posttrain.models.transformers_private import is_expert_parallel

SILU = (nn.SiLU, SiLUActivation)
HALF_ROWS = 16
"""Rows of an expert up to which the kernel is the faster one in bfloat16, whose products processors have instructions
for; in float32 it always is."""
SLAB = 1024
"""Rows of a call: it keeps what every expert gives for each of them."""
_BLOCK = {"gate", "experts"}
_WEIGHTS = {"gate_up_proj", "down_proj"}


def built_as_experts(block: Any) -> bool:
    """Whether it has the parts: a router, and weights `[X, 2 I, E]` and `[X, E, I]` of experts with SiLU gates."""
    if {name for name, _ in block.named_children()} != _BLOCK or any(_own_tensors(block)):
        return False
    experts = block.experts
    if {name for name, _ in experts.named_children()} != {"act_fn"} or set(_own_tensors(experts)) != _WEIGHTS:
        return False
    gate_up, down = experts.gate_up_proj, experts.down_proj
    if gate_up.dim() != 3 or down.dim() != 3 or type(experts.act_fn) not in SILU:
        return False
    num_experts, width, inner = down.shape
    return gate_up.shape == (num_experts, 2 * inner, width) and not is_expert_parallel(experts)


def experts_by_kernel(block: Any, kernels: Kernels | None) -> Callable[[Tensor], Tensor] | None:
    """A function of rows `[n, E]` that reads the weights the experts hold now; None where they have to be called."""
    if kernels is None or not built_as_experts(block):
        return None
    experts = block.experts
    if any(map(is_hooked, (block, experts, experts.act_fn))):
        return None
    gate_up_XJE, down_XEI = experts.gate_up_proj.detach(), experts.down_proj.detach()  # seen by who watches reads
    kinds = {gate_up_XJE.dtype, down_XEI.dtype}
    known = len(kinds) == 1 and can_compute(down_XEI.device, *kinds)
    whole = not down_XEI.shape[1] % LANES and not down_XEI.shape[2] % LANES
    as_stored = gate_up_XJE.is_contiguous() and down_XEI.is_contiguous()
    if not (known and whole and as_stored) or torch.is_autocast_enabled(down_XEI.device.type):
        return None

    def routed(x_nE: Tensor) -> Tensor:
        _, shares_nk, chosen_nk = block.gate(x_nE)
        if down_XEI.dtype == torch.bfloat16 and chosen_nk.numel() > HALF_ROWS * len(down_XEI):
            return experts(x_nE, chosen_nk, shares_nk)
        slabs = zip(*(rows.split(SLAB) for rows in (x_nE, chosen_nk, shares_nk)), strict=True)
        return torch.cat([kernels.experts(x, gate_up_XJE, down_XEI, chosen, shares) for x, chosen, shares in slabs])

    return routed


def by_formula(block: Any, x_nE: Tensor) -> Tensor:
    """What a block of these parts is taken to compute: `[n, E]`, in operations of PyTorch, of a few rows."""
    _, shares_nk, chosen_nk = block.gate(x_nE)
    out_nE = torch.zeros_like(x_nE)
    for row, experts_k in enumerate(chosen_nk.tolist()):
        for expert, share in zip(experts_k, shares_nk[row], strict=True):
            gate_I, up_I = F.linear(x_nE[row], block.experts.gate_up_proj[expert]).chunk(2)
            out_nE[row] += share * F.linear(F.silu(gate_I) * up_I, block.experts.down_proj[expert])
    return out_nE


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
