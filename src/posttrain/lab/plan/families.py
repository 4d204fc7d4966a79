"""What kinds of decoder the planner can count: where each keeps its sizes, and which small tensors it has.

One row per `model_type` of a Hugging Face config.json. Large matrices follow from the sizes; a family says what else is
there: biases, the norms of a layer, the form of the MLP, experts, and the values that its config.json may leave out. A
test compares every family with the model that transformers builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The names under which a family's config keeps its mixture of experts."""

    number: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared_width: str = ""
    """Of the MLP that every token passes beside its experts."""
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


_UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", defaults=_UNTIED)
_QWEN2 = Family(qkv_bias=True, defaults=_UNTIED)
_QWEN3 = Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", defaults=_UNTIED)
_QWEN3_MOE = replace(_QWEN3, experts=Experts())
_GEMMA2 = Family(norms=4, defaults=_TIED | {"head_dim": 256})
_PLAIN = Family(norm="layer", mlp="plain", qkv_bias=True, out_bias=True, mlp_bias=True)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(defaults=_UNTIED),
    "granite": _LLAMA,
    "smollm3": replace(_LLAMA, defaults=_TIED),
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen2_moe": replace(
        _QWEN2, experts=Experts(shared_width="shared_expert_intermediate_size", shared_gate=True)
    ),
    "qwen3_moe": _QWEN3_MOE,
    "mixtral": Family(
        experts=Experts(number="num_local_experts", width="intermediate_size"), defaults=_UNTIED
    ),
    "olmo2": Family(qk_norm="width", defaults=_UNTIED),
    "olmo3": Family(qk_norm="width", defaults=_UNTIED),
    "olmoe": Family(qk_norm="width", experts=Experts(width="intermediate_size"), defaults=_UNTIED),
    "gemma": Family(defaults=_TIED | {"head_dim": 256}),
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2,
        qk_norm="head",
        defaults=_TIED | {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
    ),
    "phi3": Family(fused_qkv=True, mlp="fused gated", defaults=_UNTIED),
    "phi": replace(_PLAIN, norms=1, head_bias=True, defaults=_UNTIED),
    "gpt_neox": replace(
        _PLAIN, fused_qkv=True, qkv_bias="attention_bias", out_bias="attention_bias",
        defaults=_UNTIED | {"attention_bias": True},
    ),
    "gpt2": replace(
        _PLAIN,
        fused_qkv=True,
        positions="n_positions",
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
        defaults=_TIED,
    ),
    "starcoder2": Family(
        norm="layer", mlp="plain", qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias",
        defaults=_TIED | {"use_bias": True},
    ),
    "stablelm": Family(norm="layer", qkv_bias="use_qkv_bias", defaults=_UNTIED),
    "cohere": Family(norm="layer without bias", norms=1, defaults=_TIED),
    "cohere2": Family(norm="layer without bias", norms=1, defaults=_TIED),
    "deepseek_v3": Family(
        latent=True,
        experts=Experts(
            number="n_routed_experts", shared_number="n_shared_experts", dense_layers="first_k_dense_replace"
        ),
        defaults=_UNTIED,
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        sinks=True,
        experts=Experts(number="num_local_experts", width="intermediate_size", biases=True),
        defaults=_UNTIED | {"attention_bias": True},
    ),
}  # fmt: skip
