"""The tensors of a model by name, with adapters merged, and how they are written into the sampler's copy."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from posttrain.errors import PublishError
from posttrain.models.acceleration import acceleration
from posttrain.models.entering import whole, whole_copy


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer, adapters separate; a tensor with two names (tied embeddings) under both.

    A packed weight comes unchanged, as an opaque tensor: see `dense`. A weight that is sharded over several ranks comes
    whole, and is freed with the last reference to it: only one is held at a time.
    """
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        yield name, whole(tensor)


def tensor_names(model: nn.Module) -> set[str]:
    """Return the names of `named_tensors`."""
    parameters = (name for name, _ in model.named_parameters(remove_duplicate=False))
    return {*parameters, *(name for name, _ in model.named_buffers(remove_duplicate=False))}


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters, each once, and packed weights. Together they are one version of a model."""
    yield from model.named_parameters()
    yield from ((name, tensor) for name, tensor in model.named_buffers() if is_laid_out(tensor))


def is_laid_out(tensor: Tensor) -> bool:
    """Return whether a tensor is packed (`Acceleration.pack`): it has no address, and is known by its identity."""
    return tensor.layout is not torch.strided


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or the exact content of a packed one."""
    return tensor.to_dense() if is_laid_out(tensor) else tensor


@torch.no_grad()
def merged_tensors(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer of the plain model that computes the same as `policy`, one layer at a time.

    peft itself merges a copy of each layer with an adapter; `policy` is not changed, and no second model is held.
    """
    yield from _merged(policy.get_base_model() if isinstance(policy, PeftModel) else policy, prefix="")


def plain_copy(policy: nn.Module, dtype: torch.dtype | None, *, packed: bool = False) -> nn.Module:
    """Return a separate model with the weights of `policy`, adapters merged, floating-point parameters cast to `dtype`.

    Buffers keep their precision: in bfloat16, the frequencies of rotary embeddings could not tell positions apart.
    `packed`: weights get the layout for fast products (`Acceleration.pack`, which raises ModelError if impossible).
    """
    casts = {id(p): nn.Parameter(_cast(p.detach(), dtype), requires_grad=False) for p in policy.parameters()}
    model = copy.deepcopy(policy, casts)
    if isinstance(model, PeftModel):
        model = model.unload()
        _untie(policy, model)
    copy_weights(policy, model)
    if packed:
        acceleration().pack(model)
    return model.eval()


@torch.no_grad()
def cast_in_place(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of a model that nobody trains, without a second copy. Adapters stay separate."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = _cast(parameter.data, dtype)


def pack_in_place(model: nn.Module, dtype: torch.dtype) -> None:
    """Turn a model that nobody trains into `plain_copy(model, dtype, packed=True)`, without a second copy.

    Raises ModelError for a model that does not allow packed weights; it then has that precision, and is not packed.
    """
    cast_in_place(model, dtype)
    with torch.no_grad():
        acceleration().pack(model)


def copy_weights(policy: nn.Module, model: nn.Module) -> None:
    """Copy every tensor of `policy` to the one of the same name in `model`, cast to the precision there.

    Raises PublishError if a name is missing on either side.
    """
    check_names(write_tensors(model, merged_tensors(policy)), {name for name, _ in named_tensors(model)})


@torch.inference_mode()
def write_tensors(model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> Set[str]:
    """Copy each tensor to the one of the same name in the model, if there is one; return the given names.

    It runs in `inference_mode`, as the sampler does: only there can a buffer be written that a module made there.
    """
    names, given = {name for name, _ in named_tensors(model)}, set[str]()
    for name, tensor in tensors:
        given.add(name)
        if name in names:
            _write(model, name, tensor)
    return given


def _write(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Write one tensor, cast to the precision of the existing one."""
    path, _, leaf = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    if is_laid_out(getattr(owner, leaf)):
        owner.load_weight(tensor)
    else:
        getattr(owner, leaf).copy_(tensor)


def check_names(trained: Set[str], decoded: Set[str]) -> None:
    """Raise PublishError naming the tensors that only the trained model or only the sampler's model has."""
    missing, extra = sorted(trained - decoded), sorted(decoded - trained)
    if missing or extra:
        raise PublishError(
            given=f"the sampler's model lacks {_count(missing)} of the trained model and has {_count(extra)} too many",
            allowed="the same names on both sides",
            fix="Build the sampler from the trained model.",
        )


def _merged(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
        module = _without_adapter(module)
    for name, tensor in chain(module._parameters.items(), module._buffers.items()):
        if tensor is not None:
            yield prefix + name, whole(tensor)
    for name, child in module._modules.items():
        if child is not None:
            yield from _merged(child, f"{prefix}{name}.")


def _without_adapter(layer: nn.Module) -> nn.Module:
    """Return what peft's `merge_and_unload` would put in place of the layer, made from a copy of it."""
    copied: Any = whole_copy(layer)
    base = copied.get_base_layer() if isinstance(layer, BaseTunerLayer) else None
    if isinstance(base, nn.Linear | Conv1D):
        base.to(torch.promote_types(base.weight.dtype, torch.float32))  # a small step would be lost in bfloat16
    if hasattr(copied, "unload_and_optionally_merge_module"):
        return copied.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    copied.merge()
    return copied.get_base_layer()


def _untie(policy: nn.Module, model: nn.Module) -> None:
    """Split parameters that `model` shares but the policy does not: an adapter may sit on only one of tied weights."""
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    first: dict[int, Tensor] = {}
    for name, tensor in merged_tensors(policy):
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        param = owner._parameters.get(leaf)
        if param is not None and uses[id(param)] > 1 and first.setdefault(id(param), tensor) is not tensor:
            setattr(owner, leaf, nn.Parameter(param.detach().clone(), requires_grad=False))


def _count(names: list[str]) -> str:
    return f"{len(names)} tensors ({', '.join(names[:2])}{' ...' if len(names) > 2 else ''})" if names else "no tensor"


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype, copy=True)
