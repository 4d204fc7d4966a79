"""The trained part of a model, low-rank adapters or all weights, and the reference model for either.

With adapters, the base model is the reference, so there is no second copy: `reference_scope` switches the adapters off.
If all weights are trained, the reference is a frozen copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from posttrain.errors import ConfigError, ModelError
from posttrain.models.unread import device_of, standing_in

if TYPE_CHECKING:
    from posttrain.config import LoRAConfig


Model = TypeVar("Model", bound=nn.Module)


def apply_lora(
    model: PreTrainedModel, config: LoRAConfig, *, seed: int = 0, head: nn.Module | None = None
) -> PeftModel:
    """Freeze the model and put float32 adapters of `config.rank` on its linear layers; they start as the identity.

    A `head` other than a language model's gets no adapter and stays trainable itself. Initial values depend only on
    `seed`; the global random state is neither read nor changed. Raises ConfigError for a name that fits no linear
    layer, for a head that is tied to the embedding (merging would separate the two), and for what peft refuses.
    """
    if config.target_modules != "all-linear":
        _check_targets(model, config.target_modules)
    kept = [name for name, module in model.named_modules() if module is head]
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.target_modules,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        exclude_modules=kept or None,
        task_type=None if kept else "CAUSAL_LM",
    )
    device = device_of(model)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), standing_in(model):
        torch.manual_seed(seed)
        try:
            adapted = get_peft_model(model, lora)
        except ValueError as error:  # experts, for example, take no dropout
            raise ConfigError(
                given=f"lora cannot be applied to {type(model).__name__}: {error}",
                allowed="settings that peft supports for every adapted layer",
                fix="Set lora.dropout = 0, or name other layers in lora.target_modules.",
            ) from error
    if head is not None:
        head.requires_grad_(True)
    return adapted  # type: ignore[return-value]


def _check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    leaves = sorted({name.rpartition(".")[2] for name in linear})
    for target in targets:
        if not any(_is_named(name, target) for name in linear):
            raise ConfigError(
                given=f"lora.target_modules: {type(model).__name__} has no linear layer named {target!r}",
                allowed=", ".join(leaves),
                fix="Set lora.target_modules = all-linear, or name some of these.",
            )
    head = model.get_output_embeddings()
    tied = [name for name, module in model.named_modules() if module is head and model.config.tie_word_embeddings]
    for target in targets:
        if any(_is_named(name, target) for name in tied):
            raise ConfigError(
                given=f"lora.target_modules names the head {target!r}, which shares its weights with the embedding",
                allowed=", ".join(name for name in leaves if name != target),
                fix=f"Leave {target!r} out.",
            )


def _is_named(name: str, target: str) -> bool:
    """Match names as peft does: the whole name, or its end after a dot."""
    return name == target or name.endswith(f".{target}")


@contextmanager
def reference_scope(model: nn.Module) -> Iterator[nn.Module]:
    """Switch the adapters off inside, so that `model` is its base model. ModelError for a model without adapters."""
    if not isinstance(model, PeftModel):
        raise ModelError(
            given=f"{type(model).__name__} has no adapters to switch off",
            allowed="a model from apply_lora",
            fix="When all weights are trained, keep frozen_copy(model) as the reference.",
        )
    with trainable_as_before(model), model.disable_adapter():
        yield model


@contextmanager
def trainable_as_before(model: nn.Module) -> Iterator[None]:
    """Restore which parameters are trainable afterwards: peft freezes all but the active adapter when it switches.

    The backward pass would silently give no gradient to a frozen parameter.
    """
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, trainable in before:
            parameter.requires_grad_(trainable)


def active_adapter(model: PeftModel) -> str:
    """Return the name of the active adapter."""
    assert isinstance(model.active_adapter, str), "one adapter at a time"
    return model.active_adapter


@contextmanager
def adapter_scope(model: PeftModel, name: str) -> Iterator[None]:
    """Use the adapter of that name instead of the active one inside; neither is frozen, inside or afterwards."""
    active = active_adapter(model)
    with trainable_as_before(model):
        model.set_adapter(name)
    try:
        yield
    finally:
        with trainable_as_before(model):
            model.set_adapter(active)


def add_adapter(model: PeftModel, name: str, *, rank: int, alpha: int, seed: int) -> dict[str, nn.Parameter]:
    """Put a second adapter, without dropout, on the layers of the active one; return its parameters by name.

    It starts as the identity and is not active. Initial values depend only on `seed`.
    """
    beside = replace(model.peft_config[active_adapter(model)], r=rank, lora_alpha=alpha, lora_dropout=0.0)
    known = {id(parameter) for parameter in model.parameters()}
    device = device_of(model)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), standing_in(model), trainable_as_before(model):
        torch.manual_seed(seed)
        model.add_adapter(name, beside)
    added = {key: parameter for key, parameter in model.named_parameters() if id(parameter) not in known}
    for parameter in added.values():
        parameter.requires_grad_(True)
    return added


def frozen_copy(model: Model) -> Model:
    """Return a second model with the same weights, in evaluation mode and without gradients. It doubles the memory."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name, each once: all weights, or the adapters' weights."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
