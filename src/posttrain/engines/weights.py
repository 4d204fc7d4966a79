"""The tensors of a model by name, with adapters merged in, and how they get into a copy that the sampler owns."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Set
from itertools import chain
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from posttrain.engines.packed_linear import PackedLinear, pack_linears
from posttrain.errors import PublishError
from posttrain.models import onednn


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer, adapters apart; a tensor with two names (tied embeddings) comes under both.

    The weight of a packed layer comes as it is: opaque, see `dense`.
    """
    yield from chain(
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    )


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters, each once, and the weights of packed layers, which are none: what a version of a model is."""
    yield from model.named_parameters()
    for name, tensor in model.named_buffers():
        if onednn.is_packed(tensor):
            yield name, tensor


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself, or what was packed in it."""
    return onednn.unpack(tensor) if onednn.is_packed(tensor) else tensor


@torch.no_grad()
def merged_tensors(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer of the plain model that computes the same as `policy`, one layer at a time.

    A layer with an adapter is copied and merged by peft itself; `policy` is not touched, and no second model is held.
    """
    yield from _merged(policy.get_base_model() if isinstance(policy, PeftModel) else policy, prefix="")


def plain_copy(policy: nn.Module, dtype: torch.dtype | None, *, packed: bool = False) -> nn.Module:
    """A model of its own with the weights of `policy`, adapters merged; floating-point parameters are cast to `dtype`.

    Buffers keep their precision: in bfloat16 the frequencies of rotary embeddings could not tell positions apart. Where
    `packed`, the weights of linear layers are held in oneDNN's layout and no other; raises ModelError for a model that
    does not allow it.
    """
    casts = {id(p): nn.Parameter(_cast(p.detach(), dtype), requires_grad=False) for p in policy.parameters()}
    model = copy.deepcopy(policy, casts)
    if isinstance(model, PeftModel):
        model = model.unload()
        _untie(policy, model)
    copy_weights(policy, model)
    if packed:
        pack_linears(model)
    return model.eval()


@torch.no_grad()
def pack_in_place(model: nn.Module, dtype: torch.dtype) -> None:
    """Turn a model that nobody trains into what `plain_copy(model, dtype, packed=True)` would be, with no second copy.

    Raises ModelError for a model that does not allow packed weights; it is then in that precision, and dense.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = _cast(parameter.data, dtype)
    pack_linears(model)


@torch.inference_mode()
def copy_weights(policy: nn.Module, model: nn.Module) -> None:
    """Write every tensor of `policy` over the one of the same name in `model`, cast to its precision.

    In `inference_mode`, as the sampler decodes: a buffer that a module of `model` made there can be written only so.
    Raises PublishError when a name is missing on either side.
    """
    names = {name for name, _ in named_tensors(model)}
    trained = set()
    for name, tensor in merged_tensors(policy):
        trained.add(name)
        if name in names:
            write_tensor(model, name, tensor)
    check_names(trained, names)


@torch.inference_mode()
def write_tensor(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Write over the parameter or buffer of that name, cast to its precision."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    if isinstance(owner, PackedLinear) and leaf == "weight":
        owner.load(tensor)
    else:
        getattr(owner, leaf).copy_(tensor)


def check_names(trained: Set[str], decoded: Set[str]) -> None:
    """Raises PublishError naming what only the trained model has, or only the one that decodes."""
    missing, extra = sorted(trained - decoded), sorted(decoded - trained)
    if missing or extra:
        raise PublishError(
            given=f"the sampler's model lacks {_count(missing)} of the trained model and has {_count(extra)} too many",
            allowed="the same names on both sides",
            fix="Build the sampler from the model that is trained.",
        )


def _merged(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
        module = _without_adapter(module)
    for name, tensor in chain(module._parameters.items(), module._buffers.items()):
        if tensor is not None:
            yield prefix + name, tensor
    for name, child in module._modules.items():
        if child is not None:
            yield from _merged(child, f"{prefix}{name}.")


def _without_adapter(layer: Any) -> nn.Module:
    """What peft's `merge_and_unload` would put in place of the layer, made from a copy of it."""
    layer = copy.deepcopy(layer)
    if hasattr(layer, "unload_and_optionally_merge_module"):
        return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    layer.merge()
    return layer.get_base_layer()


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
