"""A plain decoder as a short list of tensor operations, which needs a third of the calls of its modules.

    x = embed(ids)
    x = x + o(attention(rotate(q(n x)), rotate(k(n x)), v(n x)))        for every layer
    x = x + mlp(n x)
    logits = head(n x)                                                  n: RMSNorm

With a few rows, the overhead of calls dominates a pass. Here queries, keys and values are one product, and so are the
two halves of a gated MLP. The norm is one operation instead of six, and the rotation of queries and keys is three
instead of fourteen. With compiled kernels (kernels.py), norm, rotation and gate are one call each. So is each product
of float32 layers that are not large, with LoRA adapters merged, and so are all experts of a layer. All other modules of
a model (another kind of MLP, experts with an adapter, a layer with a hook) are called unchanged.

A model is recognised by its parts and by what it computes, never by its name: decoding_path.py tries it. Make a new
`PlainDecoder` for each call of the sampler: it reads the modules at that time and keeps nothing for later.

L tokens of a pass, E width of the model, H query heads, K key-value heads, D width of a head.

One kernel computes a block of experts of the usual structure. The router is called unchanged.

    y = sum over the k experts that the router chose for x of  share * down(silu(gate x) * up x)

The model's own code calls products for each expert that a row chose. For a few rows that takes far longer than reading
the weights. The kernel itself groups the rows by expert. Other blocks (another activation, a shared expert, biases, an
adapter, a hook on the experts, other precisions) have other parts or are called unchanged. Blocks with the same parts
that compute something else are found by a trial (`by_formula`).

n rows, E width of the model, I width of an expert, X experts, k experts for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from posttrain.cpu.group_attention import Heads
from posttrain.cpu.joint_linear import joint_linear
from posttrain.cpu.kernels import LANES, Kernels, can_compute
from posttrain.engines.decoding import base_model, is_hooked
from posttrain.models.context import context_window
from posttrain.models.transformers_private import is_expert_parallel

SILU = (nn.SiLU, SiLUActivation)
HALF_ROWS = 16
"""Number of rows for each expert up to which the kernel is faster in bfloat16, for which processors have special
instructions. In float32 it is always faster."""
SLAB = 1024
"""Largest number of rows in one call. The kernel stores the output of each chosen expert for each of them."""
_BLOCK = {"gate", "experts"}
_WEIGHTS = {"gate_up_proj", "down_proj"}


def built_as_experts(block: Any) -> bool:
    """Whether a block has a router, and weights `[X, 2 I, E]` and `[X, E, I]` of experts with SiLU gates."""
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
    """A function of rows `[n, E]` with the current weights of the experts; None if their module must be called."""
    if kernels is None or not built_as_experts(block):
        return None
    experts = block.experts
    if any(map(is_hooked, (block, experts, experts.act_fn))):
        return None
    gate_up_XJE, down_XEI = experts.gate_up_proj.detach(), experts.down_proj.detach()  # reads that tools can watch
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
    """The expected output `[n, E]` of a block with these parts for a few rows, computed in operations of PyTorch."""
    _, shares_nk, chosen_nk = block.gate(x_nE)
    out_nE = torch.zeros_like(x_nE)
    for row, experts_k in enumerate(chosen_nk.tolist()):
        for expert, share in zip(experts_k, shares_nk[row], strict=True):
            gate_I, up_I = F.linear(x_nE[row], block.experts.gate_up_proj[expert]).chunk(2)
            out_nE[row] += share * F.linear(F.silu(gate_I) * up_I, block.experts.down_proj[expert])
    return out_nE


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


Function = Callable[[Tensor], Tensor]
Attend = Callable[[int, Tensor], Tensor]
"""A function (layer, `[L, H + 2 K, D]` rotated queries, rotated keys, values) -> attention `[L, H D]`. It also stores
the keys and values."""

_BODY = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_GATED_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True)
class _Layer:
    attention_norm: Function
    qkv: Function
    head_norms: tuple[Function, Function] | None
    out: Function
    mlp_norm: Function
    mlp: Function


class PlainDecoder:
    """The functions of one model, in the order of a forward pass."""

    def __init__(self, model: nn.Module, kernels: Kernels | None = None) -> None:
        """Raises NotImplementedError, with the reason, for a model with other parts."""
        self._kernels = kernels
        lm = base_model(model)
        body: Any = lm.base_model
        _require_parts(body, _BODY, "the model")
        first = body.layers[0].self_attn
        _require_parts(first, _ATTENTION | (_HEAD_NORMS & _parts(first)), "its attention")
        self.heads = _heads(first)
        self._embed: nn.Module = body.embed_tokens
        self._rotary: nn.Module = body.rotary_emb
        self._kept: tuple[Tensor, Tensor] | None = None
        """Cosines and sines of the rotations of the first positions."""
        self._window = context_window(lm.config)
        self._layers = [self._layer(layer) for layer in body.layers]
        self._norm = _norm(body.norm, kernels)
        self._head = joint_linear([lm.get_output_embeddings()], kernels)  # pyright: ignore[reportArgumentType]

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def hidden(self, ids_L: Tensor, positions_L: Tensor, attend: Attend, *, below: int = 0) -> Tensor:
        """The hidden states `[L, E]` that the head reads.

        All positions must be less than `below`; their rotations are then kept for further passes. 0: no known bound.
        """
        x_LE = self._embed(ids_L[None])[0]
        rotate = None
        for number, layer in enumerate(self._layers):
            qkv_LND = layer.qkv(layer.attention_norm(x_LE)).view(len(ids_L), -1, self.heads.width)
            if layer.head_norms is not None:
                qkv_LND = self._normed(qkv_LND, *layer.head_norms)
            if rotate is None:
                rotate = self._rotation(x_LE, positions_L, below, qkv_LND.dtype)
            rotate(qkv_LND[:, : self.heads.query + self.heads.key])
            x_LE = x_LE + layer.out(attend(number, qkv_LND))
            x_LE = x_LE + layer.mlp(layer.mlp_norm(x_LE))
        return self._norm(x_LE)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        """The logits `[N, V]` of hidden states."""
        return self._head(hidden_NE)

    def _layer(self, layer: Any) -> _Layer:
        _require_parts(layer, _LAYER, "a layer")
        attention = layer.self_attn
        has_norms = _parts(attention) >= _HEAD_NORMS
        _require_parts(attention, _ATTENTION | (_HEAD_NORMS if has_norms else set()), "its attention")
        if _heads(attention) != self.heads:
            raise NotImplementedError("its layers differ in their heads")
        return _Layer(
            attention_norm=_norm(layer.input_layernorm, self._kernels),
            qkv=joint_linear([attention.q_proj, attention.k_proj, attention.v_proj], self._kernels),
            head_norms=_head_norms(attention, self._kernels) if has_norms else None,
            out=joint_linear([attention.o_proj], self._kernels),
            mlp_norm=_norm(layer.post_attention_layernorm, self._kernels),
            mlp=_mlp(layer.mlp, self._kernels),
        )

    def _normed(self, qkv_LND: Tensor, q_norm: Function, k_norm: Function) -> Tensor:
        query, key, value = qkv_LND.split([self.heads.query, self.heads.key, self.heads.key], dim=1)
        return torch.cat([q_norm(query), k_norm(key), value], dim=1)

    def _rotation(self, x_LE: Tensor, positions_L: Tensor, below: int, dtype: torch.dtype) -> Callable[[Tensor], None]:
        """A function that rotates `[L, N, D]` in place: `x cos + swap(x) sin`. The sine includes the sign of the
        swapped halves."""
        if not below:
            cos_L1D, sin_L1D = self._cos_sin(x_LE, positions_L, dtype)
        else:
            if self._kept is None or len(self._kept[0]) < below:
                positions = max(below, min(2 * below, self._window or 2 * below))
                self._kept = self._cos_sin(x_LE, torch.arange(positions, device=positions_L.device), dtype)
            cos_L1D, sin_L1D = (x.index_select(0, positions_L) for x in self._kept)
        half = self.heads.width // 2
        if self._kernels is not None and not half % LANES:
            kernels = self._kernels
            return lambda x_LND: kernels.rotate_(x_LND, cos_L1D, sin_L1D)

        def rotate(x_LND: Tensor) -> None:
            swapped_LND = torch.cat([x_LND[..., half:], x_LND[..., :half]], dim=-1)
            x_LND.mul_(cos_L1D).addcmul_(swapped_LND, sin_L1D)

        return rotate

    def _cos_sin(self, x_LE: Tensor, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the model, `[T, 1, D]` each. The first half of the sine has its sign changed."""
        cos_T1D, sin_T1D = (x[0, :, None].to(dtype) for x in self._rotary(x_LE[None], positions_T[None]))
        if cos_T1D.shape[-1] != self.heads.width:
            raise NotImplementedError("it rotates a part of a head")
        half = self.heads.width // 2
        return cos_T1D, torch.cat([-sin_T1D[..., :half], sin_T1D[..., half:]], dim=-1)


def bypassed(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model that its `PlainDecoder` does not call."""
    lm = base_model(model)
    body: Any = lm.base_model
    yield from dict.fromkeys([model, lm, body])
    for layer in body.layers:
        yield from (layer, layer.self_attn)


def _heads(attention: Any) -> Heads:
    width: int = attention.head_dim
    features = [attention.q_proj.out_features, attention.k_proj.out_features, attention.v_proj.out_features]
    if features[1] != features[2]:
        raise NotImplementedError("its keys and values differ in their width")
    return Heads(query=features[0] // width, key=features[1] // width, width=width, scaling=attention.scaling)


def check_parts(model: nn.Module) -> None:
    """Raise NotImplementedError if a norm or an MLP does not compute what this module assumes.

    The trial uses numbers far larger than in a forward pass, which reveal any limits on them.
    """
    body: Any = base_model(model).base_model
    for layer in body.layers:
        norms = [layer.input_layernorm, layer.post_attention_layernorm, body.norm]
        norms += [norm for name, norm in layer.self_attn.named_children() if name in _HEAD_NORMS]
        for norm in norms:
            x = _noise(3, *norm.weight.shape, like=norm.weight)
            if not _same(_norm(norm)(x), norm(x)):
                raise NotImplementedError(f"its {type(norm).__name__} is no RMSNorm")
        x_LE = _noise(3, *body.norm.weight.shape, like=body.norm.weight)
        if not _same(_mlp(layer.mlp)(x_LE), _first(layer.mlp(x_LE[None]))[0]):
            raise NotImplementedError(f"its {type(layer.mlp).__name__} is no gated one")
        if built_as_experts(layer.mlp) and not _same(by_formula(layer.mlp, x_LE), _first(layer.mlp(x_LE[None]))[0]):
            raise NotImplementedError(f"its {type(layer.mlp).__name__} is more than experts with shares")


def _mlp(mlp: Any, kernels: Kernels | None = None) -> Function:
    if _parts(mlp) != _GATED_MLP or is_hooked(mlp):
        return experts_by_kernel(mlp, kernels) or (lambda x_LE: _first(mlp(x_LE[None]))[0])
    gate_up, down, act = (
        joint_linear([mlp.gate_proj, mlp.up_proj], kernels),
        joint_linear([mlp.down_proj], kernels),
        mlp.act_fn,
    )

    if kernels is not None and type(act) in SILU and not is_hooked(act) and not mlp.up_proj.out_features % LANES:
        return lambda x_LE: down(kernels.silu_gate(gate_up(x_LE)))

    def gated(x_LE: Tensor) -> Tensor:
        gate_LI, up_LI = gate_up(x_LE).chunk(2, dim=-1)
        return down(act(gate_LI) * up_LI)

    return gated


def _norm(norm: Any, kernels: Kernels | None = None) -> Function:
    """The norm as one kernel or a few operations. A module with hooks is called itself.

    `rms_norm` is one operation on a GPU and ten on the CPU. The operations written here take two thirds of its time,
    and round to half precision once, at the end.
    """
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if epsilon is None:
        raise NotImplementedError(f"its {type(norm).__name__} is no RMSNorm")
    if is_hooked(norm):
        return norm
    weight_E: Tensor = norm.weight
    if weight_E.device.type != "cpu" or weight_E.dtype not in (torch.float32, torch.bfloat16):
        return lambda x: F.rms_norm(x, weight_E.shape, weight_E, epsilon)
    weight_E = weight_E.to(torch.float32, copy=True)  # tools that watch tensors would not see a kernel read memory
    if kernels is not None and not len(weight_E) % LANES:
        return lambda x: kernels.rms_norm(x, weight_E, epsilon)
    epsilon_1, scale = weight_E.new_full((1,), epsilon), 1 / len(weight_E)

    def normed(x: Tensor) -> Tensor:
        exact = x.float()
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        return (exact * weight_E).mul_(torch.addcmul(epsilon_1, length, length, value=scale).rsqrt_()).to(x.dtype)

    return normed


def _head_norms(attention: Any, kernels: Kernels | None) -> tuple[Function, Function]:
    return _norm(attention.q_norm, kernels), _norm(attention.k_norm, kernels)


def _noise(*shape: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 10 * torch.randn(*shape, generator=generator).to(like.device, like.dtype)


def _same(actual: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-5 if expected.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


def _parts(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _require_parts(module: nn.Module, names: set[str], what: str) -> None:
    if (found := _parts(module)) != names:
        different = ", ".join(sorted(found ^ names))
        raise NotImplementedError(f"{what} is not built like a plain decoder's ({different})")


def _first(output: Any) -> Tensor:
    """The result of a module that may also return other values."""
    return output[0] if isinstance(output, tuple) else output
