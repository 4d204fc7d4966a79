"""The parts of a language model that matter for memory and arithmetic: its layers, their matrices, their parameters.

D width of the hidden state, V vocabulary, H heads for queries, K for keys and values, F width of an MLP, E experts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from posttrain.verify import read_table


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A family's config keys for its mixture of experts."""

    number: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared_width: str = ""
    """Key of the width of the shared MLP, which every token passes in addition to its experts."""
    shared_number: str = ""
    """Key of that width, if it is given as a number of experts."""
    shared_gate: bool = False
    """True if a gate weights the shared MLP with one number per token."""
    dense_layers: str = ""
    """Key of the number of first layers that have a plain MLP."""
    biases: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """The structure of a decoder family, without sizes."""

    norm: Literal["rms", "layer", "layer without bias"] = "rms"
    norms: int = 2
    """Number of norms per layer over the width of the hidden state."""
    final_norm: bool = True
    qk_norm: Literal["", "head", "width"] = ""
    """Norms of queries and keys: over each head, or over the full width."""
    qkv_bias: bool | str = False
    """True, False, or the config key that decides."""
    out_bias: bool | str = False
    fused_qkv: bool = False
    """True if one matrix computes queries, keys and values."""
    latent: bool = False
    """True if queries, keys and values pass through narrow latent states (arXiv:2405.04434)."""
    sinks: bool = False
    """True if a learned number per head takes part in the softmax (attention sinks)."""
    mlp: Literal["gated", "fused gated", "plain"] = "gated"
    mlp_bias: bool | str = False
    experts: Experts | None = None
    positions: str = ""
    """Config key of the number of learned positions."""
    head_bias: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    """Usual config key -> this family's key."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults for keys that config.json may omit."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """`Linear.name` -> the end of its module's name, where it is not NAME_proj in self_attn or mlp."""


@functools.cache
def families() -> Mapping[str, Family]:
    """Map `model_type` of a config.json to its family."""
    told = read_table(Path(__file__).with_name("families.yaml"))
    return {key: _family(**row) for key, row in told.items()}


def _family(experts: Mapping[str, Any] | None = None, **row: Any) -> Family:
    return Family(experts=None if experts is None else Experts(**experts), **row)


HEAD = "head"
"""The name of the head among those of linear layers."""


class Linear(NamedTuple):
    """A linear layer of a block. Its name is one of q, k, v, qkv, o, gate, up, down ..."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs + self.bias)


class Mixture(NamedTuple):
    """The experts of a block, with their matrices stacked in two parameters, and the router."""

    experts: int
    per_token: int
    width: int
    hidden: int
    biases: bool = False

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert: gate, up and down."""
        return 3 * self.hidden * self.width + self.biases * (2 * self.width + self.hidden)

    @property
    def router_parameters(self) -> int:
        return self.experts * (self.hidden + self.biases)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One layer: attention, and an MLP or experts."""

    attention: tuple[Linear, ...]
    mlp: tuple[Linear, ...]
    """The MLP that every token passes. Empty with experts but without a shared MLP."""
    mixture: Mixture | None
    norm_parameters: int
    other_parameters: int = 0
    """Parameters of sinks, and of the gate of a shared expert."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The layers that can have adapters. Experts are parameters, not layers."""
        return (*self.attention, *self.mlp)


class Counts(NamedTuple):
    """Parameters by part."""

    embeddings: int
    """Embeddings of tokens, and of positions if they are learned."""
    head: int
    """Parameters of the head. 0 if it is tied to the embedding."""
    attention: int
    mlp: int
    """MLPs that every token passes."""
    experts: int
    """All experts, routers included."""
    active_experts: int
    """Parameters of the experts that one token passes, and of the routers."""
    norms: int

    @property
    def total(self) -> int:
        return self.embeddings + self.head + self.attention + self.mlp + self.experts + self.norms

    @property
    def active(self) -> int:
        """Parameters that one token passes. The whole embedding table counts."""
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The properties of a model that decide its memory and arithmetic."""

    name: str
    """The name that the user gave, or the model type."""
    kind: str = ""
    """`model_type` of its config.json."""
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    key_width: int
    """The width of queries and keys in one head."""
    value_width: int
    mlp_width: int
    blocks: tuple[tuple[int, Block], ...]
    """(number of layers, block) for each kind of layer, in order."""
    tied: bool
    """True if the head is tied to the embedding."""
    learned_positions: int = 0
    head_bias: bool = False
    final_norm_parameters: int
    context: int | None = None
    """Context length in tokens. None if config.json does not give it."""
    sliding_window: int | None = None
    neighbours: int = 1
    """Number of ranks that shard the weights outside of layers, and gather them for a pass. All other fields describe
    one rank."""
    family: Family

    @functools.cached_property
    def layers(self) -> int:
        return sum(number for number, _ in self.blocks)

    @functools.cached_property
    def counts(self) -> Counts:
        """Parameters by part, without double counting. A plan asks for them thousands of times."""

        def over_layers(of: Any) -> int:
            return sum(number * of(block) for number, block in self.blocks)

        return Counts(
            embeddings=(self.vocabulary + self.learned_positions) * self.hidden // self.neighbours,
            head=(0 if self.tied else self.vocabulary * self.hidden // self.neighbours)
            + self.head_bias * self.vocabulary,
            attention=over_layers(lambda b: sum(m.parameters for m in b.attention)),
            mlp=over_layers(lambda b: sum(m.parameters for m in b.mlp) + b.other_parameters),
            experts=over_layers(lambda b: _all_experts(b.mixture)),
            active_experts=over_layers(lambda b: _active_experts(b.mixture)),
            norms=over_layers(lambda b: b.norm_parameters) + self.final_norm_parameters,
        )

    @property
    def parameters(self) -> int:
        return self.counts.total

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes."""
        return self.counts.active

    @property
    def trunk_parameters(self) -> int:
        """Parameters without the language-model head, as in a critic or a reward model."""
        return self.counts.total - self.counts.head

    def lora_parameters(self, rank: int, targets: tuple[str, ...] | None = None) -> int:
        """Return the parameters of adapters on all linear layers except the head, or on the named ones: each has
        rank * (inputs + outputs). The head can only be named."""
        chosen = [
            number * (linear.inputs + linear.outputs)
            for number, block in self.blocks
            for linear in block.linears
            if targets is None or linear.name in targets
        ]
        head = self.hidden + self.vocabulary if HEAD in (targets or ()) else 0
        return rank * (sum(chosen) + head)

    def named(self, module: str) -> tuple[str, ...]:
        """Return the names of the linear layers that a module's name means, whole or its end after a dot, as PEFT reads
        it. Empty if the family has no such module."""
        paths = {HEAD: "lm_head"}
        for _, block in self.blocks:
            for place, linears in (("self_attn", block.attention), ("mlp", block.mlp)):
                paths |= {one.name: self.family.modules.get(one.name, f"{place}.{one.name}_proj") for one in linears}
        ends = {name: (f".{path}", f".{module}") for name, path in paths.items()}
        return tuple(name for name, (own, asked) in ends.items() if own.endswith(asked) or asked.endswith(own))

    @property
    def kv_width(self) -> int:
        """Numbers per token in the cache of one layer: its keys and values."""
        return self.kv_heads * (self.key_width + self.value_width)


def _all_experts(mixture: Mixture | None) -> int:
    return 0 if mixture is None else mixture.experts * mixture.expert_parameters + mixture.router_parameters


def _active_experts(mixture: Mixture | None) -> int:
    return 0 if mixture is None else mixture.per_token * mixture.expert_parameters + mixture.router_parameters
