"""The tensors of a model by name, with adapters merged in, and how they get into a copy that the sampler owns."""

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
    """Every parameter and buffer, adapters apart; a tensor with two names (tied embeddings) comes under both.

    A weight that is laid out for products comes as it is: opaque, see `dense`. One that lies in parts on several ranks
    comes whole, and is gone with the reference to it: no more than one is held.
    """
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        yield name, whole(tensor)


def tensor_names(model: nn.Module) -> set[str]:
    """Those of `named_tensors`."""
    parameters = (name for name, _ in model.named_parameters(remove_duplicate=False))
    return {*parameters, *(name for name, _ in model.named_buffers(remove_duplicate=False))}


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters, each once, and weights that are laid out for products: what a version of a model is."""
    yield from model.named_parameters()
    yield from ((name, tensor) for name, tensor in model.named_buffers() if is_laid_out(tensor))


def is_laid_out(tensor: Tensor) -> bool:
    """Not in rows (`Acceleration.pack`): such a tensor has no address, and is known by being the same object."""
    return tensor.layout is not torch.strided


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself, or what is laid out in it, bit by bit."""
    return tensor.to_dense() if is_laid_out(tensor) else tensor


@torch.no_grad()
def merged_tensors(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer of the plain model that computes the same as `policy`, one layer at a time.

    A layer with an adapter is copied and merged by peft itself; `policy` is not touched, and no second model is held.
    """
    yield from _merged(policy.get_base_model() if isinstance(policy, PeftModel) else policy, prefix="")


def plain_copy(policy: nn.Module, dtype: torch.dtype | None, *, packed: bool = False) -> nn.Module:
    """A model of its own with the weights of `policy`, adapters merged; floating-point parameters are cast to `dtype`.

    Buffers keep their precision: in bfloat16 the frequencies of rotary embeddings could not tell positions apart.
    `packed`: weights are laid out for products (`Acceleration.pack`, which raises ModelError where that is impossible).
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
    """Store the weights of a model that nobody trains in this precision, with no second copy. Adapters stay apart."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = _cast(parameter.data, dtype)


def pack_in_place(model: nn.Module, dtype: torch.dtype) -> None:
    """Turn a model that nobody trains into what `plain_copy(model, dtype, packed=True)` would be, with no second copy.

    Raises ModelError for a model that does not allow packed weights; it is then in that precision, and dense.
    """
    cast_in_place(model, dtype)
    with torch.no_grad():
        acceleration().pack(model)


def copy_weights(policy: nn.Module, model: nn.Module) -> None:
    """Write every tensor of `policy` over the one of the same name in `model`, cast to its precision.

    Raises PublishError when a name is missing on either side.
    """
    check_names(write_tensors(model, merged_tensors(policy)), {name for name, _ in named_tensors(model)})


@torch.inference_mode()
def write_tensors(model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> Set[str]:
    """Write each over the one of the same name, if there is one; the names that were given.

    In `inference_mode`, as the sampler decodes: a buffer that a module of `model` made there can be written only so.
    """
    names, given = {name for name, _ in named_tensors(model)}, set[str]()
    for name, tensor in tensors:
        given.add(name)
        if name in names:
            _write(model, name, tensor)
    return given


def _write(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Cast to the precision of what is there."""
    path, _, leaf = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    if is_laid_out(getattr(owner, leaf)):
        owner.load_weight(tensor)
    else:
        getattr(owner, leaf).copy_(tensor)


def check_names(trained: Set[str], decoded: Set[str]) -> None:
    """Raises PublishError naming what only the trained model has, or only the one that decodes."""
    missing, extra = sorted(trained - decoded), sorted(decoded - trained)
    if missing or extra:
        raise PublishError(
            given=f"the sampler's model lacks {_count(missing)} of the trained model and has {_count(extra)} in excess",
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
    """What peft's `merge_and_unload` would put in place of the layer, made from a copy of it."""
    copied: Any = whole_copy(layer)
    base = copied.get_base_layer() if isinstance(layer, BaseTunerLayer) else None
    if isinstance(base, nn.Linear | Conv1D):
        base.to(torch.promote_types(base.weight.dtype, torch.float32))  # a small step would be lost in bfloat16
    if hasattr(copied, "unload_and_optionally_merge_module"):
        return copied.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    copied.merge()
    return copied.get_base_layer()


def _untie(policy: nn.Module, model: nn.Module) -> None:
    """Give names that share a parameter one each where the policy's differ: an adapter sits on one of the two only."""
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
