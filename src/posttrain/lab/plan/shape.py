"""The parts of a language model that matter for memory and arithmetic: its layers, their matrices, their parameters.

D width of the hidden state, V vocabulary, H heads for queries, K for keys and values, F width of an MLP, E experts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The names under which a family's config keeps its mixture of experts."""

    number: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared_width: str = ""
    """The width of the MLP that every token passes beside its experts."""
    shared_number: str = ""
    """Where that width is given as a number of experts."""
    shared_gate: bool = False
    """One number per token weighs the shared MLP."""
    dense_layers: str = ""
    """How many of the first layers have a plain MLP."""
    biases: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """A decoder architecture, beside its sizes."""

    norm: Literal["rms", "layer", "layer without bias"] = "rms"
    norms: int = 2
    """Per layer, over the width of the hidden state."""
    final_norm: bool = True
    qk_norm: Literal["", "head", "width"] = ""
    """Norms of queries and keys: over one head, or over all of them."""
    qkv_bias: bool | str = False
    """Yes, no, or the setting that says so."""
    out_bias: bool | str = False
    fused_qkv: bool = False
    """Queries, keys and values come from one matrix."""
    latent: bool = False
    """Queries, keys and values pass through narrow latent states (arXiv:2405.04434)."""
    sinks: bool = False
    """One number per head takes part in the softmax."""
    mlp: Literal["gated", "fused gated", "plain"] = "gated"
    mlp_bias: bool | str = False
    experts: Experts | None = None
    positions: str = ""
    """The setting with the number of learned positions."""
    head_bias: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    """Settings that have another name here."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What config.json may leave out."""


@functools.cache
def families() -> Mapping[str, Family]:
    """`model_type` of a config.json -> what the planner has to know of it."""
    told = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
    return {key: _family(**row) for key, row in told.items()}


def _family(experts: Mapping[str, Any] | None = None, **row: Any) -> Family:
    return Family(experts=None if experts is None else Experts(**experts), **row)


class Linear(NamedTuple):
    """A linear layer of a block, with its name in the words of the field: q, k, v, qkv, o, gate, up, down ..."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs + self.bias)


class Mixture(NamedTuple):
    """The experts of a block, whose matrices are stacked in two parameters, and their router."""

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
    """One layer: attention and an MLP, or experts in its place."""

    attention: tuple[Linear, ...]
    mlp: tuple[Linear, ...]
    """The MLP of every token; empty where there are experts and no shared one."""
    mixture: Mixture | None
    norm_parameters: int
    other_parameters: int = 0
    """Sinks, and the gate of a shared expert."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The layers that carry adapters; experts are parameters, not layers."""
        return (*self.attention, *self.mlp)


class Counts(NamedTuple):
    """Parameters by part."""

    embeddings: int
    """Embeddings of tokens, and of positions if they are learned."""
    head: int
    """0 where it is the embedding."""
    attention: int
    mlp: int
    """MLPs that every token passes."""
    experts: int
    """All experts, routers included."""
    active_experts: int
    """What one token passes of them."""
    norms: int

    @property
    def total(self) -> int:
        return self.embeddings + self.head + self.attention + self.mlp + self.experts + self.norms

    @property
    def active(self) -> int:
        """The parameters that one token passes; its row of the embedding counts as the whole table."""
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Everything about a model that decides its memory and its arithmetic."""

    name: str
    """The model type, or what the user called it."""
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
    """(how many, what) of each kind of layer, in their order."""
    tied: bool
    """The head is the embedding."""
    learned_positions: int = 0
    head_bias: bool = False
    final_norm_parameters: int
    context: int | None = None
    """Most tokens of a row; None where config.json does not say."""
    sliding_window: int | None = None
    neighbours: int = 1
    """Ranks that keep what is outside of layers in parts, and have all of it during a pass. Everything else here is
    what one of them computes."""
    family: Family

    @property
    def layers(self) -> int:
        return sum(number for number, _ in self.blocks)

    @property
    def counts(self) -> Counts:
        """Parameters by part, each once."""

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
        """What one token passes."""
        return self.counts.active

    @property
    def trunk_parameters(self) -> int:
        """All but the head of a language model: what a critic or a reward model has of it."""
        return self.counts.total - self.counts.head

    def lora_parameters(self, rank: int, targets: tuple[str, ...] | None = None) -> int:
        """Parameters of adapters on every linear layer but the head, or on the named ones: rank * (inputs + outputs)
        each."""
        chosen = [
            number * (linear.inputs + linear.outputs)
            for number, block in self.blocks
            for linear in block.linears
            if targets is None or linear.name in targets
        ]
        return rank * sum(chosen)

    @property
    def kv_width(self) -> int:
        """Numbers that one token leaves in the cache of one layer: all its keys and values."""
        return self.kv_heads * (self.key_width + self.value_width)


def _all_experts(mixture: Mixture | None) -> int:
    return 0 if mixture is None else mixture.experts * mixture.expert_parameters + mixture.router_parameters


def _active_experts(mixture: Mixture | None) -> int:
    return 0 if mixture is None else mixture.per_token * mixture.expert_parameters + mixture.router_parameters
