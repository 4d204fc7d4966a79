"""Every private name of transformers that this library reads, and nothing else: what a new version may break."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


def attention_name(config: PreTrainedConfig) -> str:
    """The name of the attention implementation that its models run with."""
    return getattr(config, "_attn_implementation", None) or "eager"


def can_set_attention(model: PreTrainedModel) -> bool:
    """Whether its attention is looked up in the registry, so that `set_attn_implementation` has an effect."""
    return model._can_set_attn_implementation()


def router_kinds(model: PreTrainedModel) -> tuple[type[nn.Module], ...]:
    """The classes of its modules that choose experts: what `output_router_logits` records. Empty for a dense model."""
    declared = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits", ())
    recorders = declared if isinstance(declared, list | tuple) else [declared]
    return tuple(kind for one in recorders if isinstance(kind := getattr(one, "target_class", one), type))


def is_expert_parallel(experts: nn.Module) -> bool:
    """Whether it holds some of the experts of a layer only."""
    return getattr(experts, "_is_expert_parallel", False)
