"""The model architectures that can be written as GGUF, and the metadata that llama.cpp needs for each.

A GGUF file names an architecture. Properties without a key are built into llama.cpp. So this file checks every setting
of a config that the GGUF file cannot hold: a different value would give a model that answers differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig

from posttrain.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder that llama.cpp can run and transformers can read back."""

    name: str
    """Name in llama.cpp."""
    requires: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Setting of the config -> values that the file can hold."""
    permutes: bool = False
    """True if rows of the query and key matrices are in the order of rotated pairs, not of halves (see writer.py)."""
    writes_head_dim: bool = False
    """True if the head dimension has its own key; else it equals the dimension of the rotation."""


_PLAIN: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "attention_bias": (False, None)}
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(name="llama", permutes=True, requires={**_PLAIN, "mlp_bias": (False, None)}),
    "mistral": Architecture(name="llama", permutes=True, requires={**_PLAIN, "sliding_window": (None,)}),
    "qwen2": Architecture(name="qwen2", requires={"hidden_act": ("silu",), "use_sliding_window": (False, None)}),
    "qwen3": Architecture(
        name="qwen3",
        writes_head_dim=True,
        # transformers does not read the head dimension from the file and always uses this one
        requires={**_PLAIN, "use_sliding_window": (False, None), "head_dim": (128,)},
    ),
}
"""model_type in transformers -> architecture to write."""


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Return the architecture of a model. Raises ModelError if the file cannot hold all its properties."""
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        raise ModelError(
            given=f"models of type {config.model_type} cannot be written as GGUF here",
            allowed=", ".join(ARCHITECTURES),
            fix="Export with --to hf; llama.cpp's own converter knows more architectures and reads that folder.",
        )
    for name, values in found.requires.items():
        if (value := getattr(config, name, None)) not in values:
            raise _unknown(config, f"{name} = {value!r}", " or ".join(map(repr, values)))
    rope = rope_of(config)
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unknown(config, f"rope_type = {rope.get('rope_type')!r}", "plain rotary embeddings of the whole head")
    if found.name == "qwen2" and head_dim(config) * config.num_attention_heads != config.hidden_size:
        raise _unknown(config, f"head_dim = {head_dim(config)}", "hidden_size / num_attention_heads")
    return found


def rope_of(config: PreTrainedConfig) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def head_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def metadata(config: PreTrainedConfig, found: Architecture) -> dict[str, int | float]:
    """Return the metadata as key (without the architecture's name) -> value."""
    keys: dict[str, int | float] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": head_dim(config),
        "rope.freq_base": float(rope_of(config).get("rope_theta", 10000.0)),
        "vocab_size": config.vocab_size,
    }
    if found.writes_head_dim:
        keys |= {"attention.key_length": head_dim(config), "attention.value_length": head_dim(config)}
    return keys


def _unknown(config: PreTrainedConfig, given: str, allowed: str) -> ModelError:
    return ModelError(
        given=f"this {config.model_type} model has {given}, which the GGUF format cannot express",
        allowed=allowed,
        fix="Export with --to hf.",
    )
