"""The private names of transformers that this library uses: a new version may break any of them.

One more is in episodes/tools.py, which must not import torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel


def attention_name(config: PreTrainedConfig) -> str:
    """Return the name of the attention implementation that models with this config use."""
    return getattr(config, "_attn_implementation", None) or "eager"


def can_set_attention(model: PreTrainedModel) -> bool:
    """Return whether its attention is looked up in the registry, so that `set_attn_implementation` has an effect."""
    return model._can_set_attn_implementation()


def router_kinds(model: PreTrainedModel) -> tuple[type[nn.Module], ...]:
    """Return the classes of its modules that choose experts, from `output_router_logits`; empty for a dense model."""
    declared = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits", ())
    recorders = declared if isinstance(declared, list | tuple) else [declared]
    return tuple(kind for one in recorders if isinstance(kind := getattr(one, "target_class", one), type))


def is_expert_parallel(experts: nn.Module) -> bool:
    """Return whether it holds only some of the experts of a layer."""
    return getattr(experts, "_is_expert_parallel", False)


# --- conversion of weights between files and models -------------------------------------------------------------------


class Recipe(NamedTuple):
    """How one weight of a model is made from the files."""

    names: tuple[str, ...]
    """Names in the files: of the weight itself, or of the tensors from which it is made."""
    convert: Callable[[Callable[[str], Tensor]], Tensor] | None
    """Makes the weight from these tensors, which it reads by name; None if the file holds the weight itself."""


def recipes_for(model: PreTrainedModel, names: Collection[str]) -> dict[str, Recipe] | str:
    """Return recipes for the weights that transformers would load into `model` from files with these names, by their
    names in the model. If the installed version works in an unknown way, return a text that says so.

    `model` may be on the meta device. Like `convert_and_load_state_dict_in_model`, but for one weight at a time.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        rules = get_model_conversion_mapping(model)
        renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        if len(renamings) + len(converters) < len(rules):
            return "transformers loads it by an unknown kind of rule"
        converter_of = {pattern: one for one in converters for pattern in one.source_patterns}
        state, prefix = model.state_dict(), model.base_model_prefix
        parts: dict[str, list[tuple[str | None, str]]] = {}
        for name in sorted(names, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, prefix, state)
            if target not in state and name in state:
                target, pattern = rename_source_key(name, [], [], prefix, state)
            if target in state:
                parts.setdefault(target, []).append((pattern, name))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return f"the installed transformers converts weights in an unknown way ({error})"
    found: dict[str, Recipe] = {}
    for target, sources in parts.items():
        pattern, of = sources[-1][0], tuple(name for _, name in sources)
        if pattern is None:
            found[target] = Recipe(of[-1:], None)
        else:
            found[target] = Recipe(of, partial(_converted, model, converter_of[pattern], target, sources))
    return found


def _converted(
    model: PreTrainedModel,
    converter: Any,
    target: str,
    sources: Sequence[tuple[str | None, str]],
    read: Callable[[str], Tensor],
) -> Tensor:
    working = copy.deepcopy(converter)
    for pattern, name in sources:
        working.add_tensor(target, name, pattern, partial(read, name))
    found = working.convert(target, model=model, config=model.config)[target]
    return found[0] if isinstance(found, list) else found


def converts_weights(model: PreTrainedModel) -> bool:
    """Return whether its weights are cut or joined when they are written to files; False also if that is unknown."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, revert_weight_conversion  # noqa: F401
    except ImportError:
        return False
    return any(isinstance(rule, WeightConverter) for rule in get_model_conversion_mapping(model, add_legacy=False))


def as_in_files(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return these weights under the names, and in the pieces, that `save_pretrained` writes."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(weights))


def initialise_again(model: PreTrainedModel) -> None:
    """Give the buffers of a model on the meta device memory and the values that `from_pretrained` gives them. The
    model's own initialisation does it, which skips weights that are marked as loaded."""
    for module in model.modules():
        empty = {name: one for name, one in module._buffers.items() if one is not None and one.is_meta}
        if empty:
            module._is_hf_initialized = False  # type: ignore[assignment]
        for name, buffer in empty.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
    model.initialize_weights()


def tied_names(model: PreTrainedModel) -> dict[str, str]:
    """Return the weights that the config ties, each with the weight that it shares: the model's own record."""
    return getattr(model, "all_tied_weights_keys", None) or {}
