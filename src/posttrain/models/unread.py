"""A model whose weights are still in their files: each process reads only its part, and none holds all of them.

    leave    after the model was built on the meta device, where weights have shapes and no memory
    fill     after it was sharded: this process reads its rows of each weight directly from the safetensors files

So several devices can train a model for which one has no room. transformers may make a weight from several in the
files, such as the experts of a layer. Such weights are made whole and cut one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.utils import cached_file

from posttrain.errors import DoesNotFit, ModelError, NonFiniteError
from posttrain.models.forward_path import without_adapters
from posttrain.models.layout import box, local_part
from posttrain.models.transformers_private import Recipe, initialise_again, recipes_for, tied_names

if TYPE_CHECKING:
    from posttrain.models.reading import ModelSource

ROWS_AT_ONCE = 4096
"""Rows of two weights that are compared at a time."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Files:
    """The weights of a model by its own names, in safetensors files."""

    paths: tuple[Path, ...]
    recipes: Mapping[str, Recipe]
    """The recipe for each weight; see `recipes_for`."""

    @cached_property
    def _slices(self) -> dict[str, Any]:
        """A slice for each name in the files. Nothing is read until rows are requested."""
        opened = [safe_open(path, framework="pt") for path in self.paths]
        return {name: file.get_slice(name) for file in opened for name in file.keys()}  # noqa: SIM118  not a dict

    def part(self, name: str, box: tuple[slice, ...] = ()) -> Tensor:
        """Return the part of a weight inside that box (rows, columns and so on), in float32 and in main memory; ():
        the whole weight."""
        recipe = self.recipes[name]
        if recipe.convert is None:
            return self._slices[recipe.names[0]][box or ...].to(torch.float32)
        return recipe.convert(lambda key: self._slices[key][...].to(torch.float32))[box]

    def same(self, name: str, other: str) -> bool:
        """Return whether two weights are equal, compared a few rows at a time."""
        if {self.recipes[one].convert for one in (name, other)} != {None}:
            return False
        slices = [self._slices[self.recipes[one].names[0]] for one in (name, other)]
        shape = slices[0].get_shape()
        return shape == slices[1].get_shape() and all(
            torch.equal(*(self.part(one, (slice(start, start + ROWS_AT_ONCE),)[: len(shape)]) for one in (name, other)))
            for start in range(0, shape[0] if shape else 1, ROWS_AT_ONCE)
        )


def files_of(path: str, arguments: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the safetensors files of a folder or a name on the Hub; empty if the weights are in another format.

    `arguments` are the arguments of `from_pretrained`.
    """
    if "gguf_file" in arguments:
        return ()
    find = partial(cached_file, path, revision=arguments.get("revision"), _raise_exceptions_for_missing_entries=False)
    if (single := find(SINGLE)) is not None:
        return (Path(single),)
    if (index := find(INDEX)) is None:
        return ()
    names = sorted({*json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()})
    found = [find(name) for name in names]
    return tuple(Path(one) for one in found if one is not None) if all(found) else ()


def names_in(paths: Collection[Path]) -> list[str]:
    """Return the names of the tensors in those files."""
    with ExitStack() as opened:
        files = [opened.enter_context(safe_open(path, framework="pt")) for path in paths]
        return [name for file in files for name in file.keys()]  # noqa: SIM118  not a dict


@dataclass(frozen=True)
class Unread:
    """What is needed to fill such a model."""

    files: Files
    device: torch.device
    """The device for its weights."""


_unread: WeakKeyDictionary[nn.Module, Unread] = WeakKeyDictionary()

Read = Callable[[bool], tuple[PreTrainedModel, list[str]]]
"""Takes whether to use the meta device; returns the model and the names of the weights that are in no file."""


def open_weights(
    source: ModelSource, device: torch.device, read: Read, *, in_parts: bool
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Return what `read` returns, and notes. With `in_parts`, the weights stay in their files if that is possible."""
    reason = ""
    if in_parts:
        paths = files_of(source.path, source.arguments)
        reason = "" if paths else "its weights are not in safetensors files"
        if paths:
            model, missing = read(True)
            reason = leave(model, paths, device, made_here=missing)
            if not reason:
                return model, missing, []
    model, missing = read(False)
    told = f"each device reads all of {source.path} before it keeps its part: {reason}"
    return model, missing, [told] if reason else []


def leave(model: PreTrainedModel, paths: tuple[Path, ...], device: torch.device, *, made_here: Collection[str]) -> str:
    """Record where the weights of a model on the meta device are, and give its buffers their values. `made_here` are
    weights that are in no file, such as a new head.

    Returns why they cannot be read in parts, in which case nothing is recorded; empty if they can.
    """
    recipes = recipes_for(model, names_in(paths))
    if isinstance(recipes, str):
        return recipes
    known = {*recipes, *made_here}
    for names in _names(model):
        if known.isdisjoint(names):
            return f"the files do not show where {names[0]} is stored"
    files = Files(paths, recipes)
    _tie(model, files)
    initialise_again(model)
    _unread[model] = Unread(files, device)
    return ""


def is_unread(model: nn.Module) -> bool:
    return model in _unread


def device_of(model: nn.Module) -> torch.device:
    """Return the device of its weights, also if they are not read yet."""
    plain = without_adapters(model)
    return _unread[plain].device if plain in _unread else next(model.parameters()).device


@contextmanager
def standing_in(model: nn.Module) -> Iterator[None]:
    """Let weights that were not read look inside as if they were on their device, each as a repeated zero without
    memory of its own. So modules added to them, such as adapters, are made on that device. A model that was read
    stays unchanged.
    """
    device, pairs = device_of(model), dict[int, tuple[nn.Parameter, nn.Parameter]]()
    for _, owner, leaf, empty in [*_on_meta(model)]:
        if id(empty) not in pairs:
            zeros = torch.zeros((), dtype=empty.dtype, device=device).expand(empty.shape)
            pairs[id(empty)] = (empty, nn.Parameter(zeros, empty.requires_grad))
        owner._parameters[leaf] = pairs[id(empty)][1]
    real = {id(stand_in): (empty, stand_in) for empty, stand_in in pairs.values()}
    try:
        yield
    finally:
        for owner in model.modules():
            for leaf, parameter in owner._parameters.items():
                if id(parameter) in real:
                    empty, stand_in = real[id(parameter)]
                    empty.requires_grad = stand_in.requires_grad
                    owner._parameters[leaf] = empty


@torch.no_grad()
def fill(model: nn.Module, device: torch.device | None = None) -> None:
    """Read this process's part of each weight, or all of a weight that is not sharded. Do nothing if they were read.
    `device`: where to keep them, if not on the device where the model computes.

    Earlier changes to the model count: adapters around its layers, another precision. Raises NonFiniteError for weights
    that are not finite, ModelError for files that can no longer be read, and DoesNotFit.
    """
    unread = _unread.pop(model, None)
    if unread is None:
        return
    try:
        _fill(model, unread, device or unread.device)
    except SafetensorError as error:
        raise ModelError(
            given=f"{unread.files.paths[0].parent} can no longer be read: {error}",
            allowed="files that do not change while a run starts",
            fix="Start the run again.",
        ) from error
    except torch.OutOfMemoryError as error:
        raise DoesNotFit(
            given=f"one device's part of the weights needs more memory than there is ({error})",
            fix="Use more devices (train.devices), or a smaller model.",
        ) from error


def _fill(model: nn.Module, unread: Unread, device: torch.device) -> None:
    made: dict[int, tuple[Tensor, nn.Parameter]] = {}
    for name, owner, leaf, empty in _on_meta(model):
        if id(empty) not in made:
            parameter = nn.Parameter(torch.empty_like(empty, device=device), empty.requires_grad)
            made[id(empty)] = (empty, parameter)  # keeping `empty` keeps its id unique
        _, parameter = made[id(empty)]
        owner._parameters[leaf] = parameter
        if name in unread.files.recipes:
            _read(name, parameter, unread.files)
    for name, buffer in model.named_buffers():
        if (key := plain_name(name)) in unread.files.recipes:
            buffer.copy_(unread.files.part(key))


def plain_name(name: str) -> str:
    """Return the name without the wrappers that adapters put around a layer."""
    return name.replace(".base_layer", "")


def _read(name: str, parameter: Tensor, files: Files) -> None:
    """Read one weight. A tied weight is read for each of its names in the files, which hold the same values."""
    part = local_part(parameter)
    if not part.numel():
        return
    part.copy_(files.part(name, box(parameter) if isinstance(parameter, DTensor) else ()))
    if not part.sum().isfinite() and (bad := int((~part.isfinite()).sum())):
        raise NonFiniteError(
            given=f"{bad} of the {parameter.numel()} numbers of {name} are not finite",
            allowed="finite weights",
            fix="Use a checkpoint from before the damage, or copy the model again.",
        )


def _on_meta(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield each weight without memory: its plain name, the module that has it, its name there, and itself."""
    for path, module in model.named_modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None and parameter.device.type == "meta":
                yield plain_name(f"{path}.{leaf}" if path else leaf), module, leaf, parameter


def _tie(model: PreTrainedModel, files: Files) -> None:
    """Tie weights that the config ties and the files hold twice, if both are equal, as transformers does when it reads
    them."""
    tied = tied_names(model)
    for name, other in [*tied.items()]:
        if name in files.recipes and other in files.recipes:
            if files.same(name, other):
                path, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(path), leaf, model.get_parameter(other))
            else:
                del tied[name]


def _names(model: nn.Module) -> Iterator[list[str]]:
    """Yield the names of each weight; a tied weight has several."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    yield from found.values()
