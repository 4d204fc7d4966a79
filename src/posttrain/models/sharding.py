"""A model whose weights are sharded over the ranks of a job: FSDP2, one block at a time (`fully_shard`).

    each rank       1/n of every parameter, of its gradient and of its optimizer's moments
    during a pass   the whole weights of one block, gathered before it and freed after it

Gradients are summed over the ranks and not averaged: a loss is divided by denominators over all rows (promise 1).

Every pass goes through one module, the root, because FSDP gathers weights in hooks of modules. Heads that read hidden
states are also part of it. The first rank may also pass alone, to score held-out rows or a probe. It then tells the
others, which pass through the same blocks with a row that counts nothing. It may request a single whole tensor, to
publish or save it. No rank ever holds the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from posttrain.errors import ModelError
from posttrain.models.beside import Beside
from posttrain.models.critic import Critic
from posttrain.models.entering import set_entry
from posttrain.models.forward_path import ForwardPath, body_path, forward_path, without_adapters
from posttrain.models.layout import Layout, whole_on
from posttrain.models.matrices import AtHand, divide
from posttrain.models.modes import ComputingWide
from posttrain.models.unread import device_of, fill
from posttrain.ranks.agreement import on_all

T = TypeVar("T")
PASS, WHOLE = "pass", "whole"
"""The operations that the first rank announces."""


class Root(nn.Module):
    """The root module for FSDP: a model, and heads on its hidden states."""

    def __init__(self, model: nn.Module, heads: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.model, self.heads = model, nn.ModuleList(heads)
        self.outside: AtHand | None = None
        """Weights outside of blocks, whole on every rank during a pass; None unless matrices are divided."""

    def forward(self, compute: Callable[[], Any]) -> Any:
        if self.outside is None:
            return compute()
        self.outside.bring()
        try:
            return compute()
        finally:
            self.outside.let_go()


class Sharded:
    """The entry into a sharded model. Implements `Entry`."""

    def __init__(
        self,
        name: str,
        root: Root,
        layout: Layout,
        device: torch.device,
        filler: Callable[[], Tensor],
        beside: Beside | None,
    ) -> None:
        """`filler` passes once through all blocks, only to accompany other ranks; call it inside `run`. `beside` is for
        neighbours that divide matrices."""
        self.name, self.root, self.layout, self.device, self.filler = name, root, layout, device, filler
        self.beside = beside
        self.parameters = list(root.parameters())
        self._number = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self.replaced: dict[int, nn.Parameter] = {}
        """The sharded parameter that replaces each original one, by the original's identity."""
        self._inside = False

    def run(self, compute: Callable[[], T]) -> T:
        """See `Entry`. A nested pass is part of the outer one."""
        if self._inside:
            return compute()
        with self.layout.ranks.together(PASS, self.name) as alone, self._telling(alone):
            self._inside = True
            try:
                return _run(self.root, compute)
            finally:
                self._inside = False

    @torch.no_grad()
    def accompany(self) -> None:
        """Accompany a pass that the first rank has announced."""
        is_neighbour = self.beside is not None and self.layout.ranks.rank < self.layout.tensor
        self.run(self.beside.follow if self.beside and is_neighbour else self.filler)

    def _telling(self, alone: bool) -> AbstractContextManager[object]:
        return self.beside.telling(alone) if self.beside else nullcontext()

    def holds(self, tensor: Tensor) -> bool:
        """See `Entry`."""
        return id(tensor) in self._number

    def whole(self, parameter: Tensor) -> Tensor:
        """See `Entry`."""
        number = self._number[id(parameter)]
        with self.layout.ranks.together(WHOLE, self.name, number):
            return self.bring(number)

    def bring(self, number: int) -> Tensor:
        """Return that whole parameter, on every rank."""
        with torch.inference_mode(False), torch.no_grad():  # writing to a sampler's copy happens in inference mode
            return whole_on(self.device, cast(DTensor, self.parameters[number].detach()))


def _run(root: Root, compute: Callable[[], T]) -> T:
    """Run `compute` inside the root. A dataclass goes through it as a dict: FSDP hooks tensors in dicts only."""
    kind: list[type[Any]] = []

    def as_dict() -> Any:
        found = compute()
        if is_dataclass(found) and not isinstance(found, type):
            kind.append(type(found))
            return {field.name: _own(getattr(found, field.name)) for field in fields(found)}
        return _own(found)

    found = root(as_dict)
    return kind[0](**found) if kind else found


def _own(x: Any) -> Any:
    """Return `x`, copied if it is a view. FSDP hooks what the root returns, and writing to a view drops the hook."""
    return x.clone() if isinstance(x, Tensor) and x._is_view() else x


def shard(
    name: str, model: nn.Module, layout: Layout, dtype: torch.dtype, *, heads: Iterable[nn.Module] = ()
) -> Sharded:
    """Keep only this rank's part of every parameter of the model and the heads; from now on `enter` leads into it.

    All ranks must have opened the same model. Weights that are still in their files are read now. `dtype` is the
    precision of the computation. Raises ModelError for a model that takes only padded rows: it passes once for each
    length, which other ranks cannot know.
    """
    plain = without_adapters(model)
    device = device_of(plain)
    root, how, blocks = Root(model, heads), layout.for_fsdp(device), blocks_of(plain)
    before = {id(parameter): key for key, parameter in root.named_parameters()}
    if layout.tensor > 1:
        assert isinstance(plain, PreTrainedModel)
        root.outside = divide(name, root, plain, blocks, layout.among_neighbours(device))
    for block in blocks:
        fully_shard(block, **how)
    fully_shard(root, **how)
    for module in root.modules():
        if isinstance(module, FSDPModule):  # both, on each module: set on the root alone, blocks would be averaged
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    on_all(layout.ranks, partial(fill, plain, layout.kept_on(device)))
    path = _path_in(root, plain)
    after = dict(root.named_parameters())
    beside = Beside(layout.ranks.beside(layout.tensor), path.body, device) if layout.tensor > 1 else None
    entry = Sharded(name, root, layout, device, partial(_pass_through, path.body, device, dtype), beside)
    entry.replaced = {number: after[key] for number, key in before.items()}
    with torch.no_grad():  # at its first gathering, FSDP notes what is trained: no adapter may be off then
        _run(root, entry.filler)
    for entered in {id(model): model, id(plain): plain}.values():
        set_entry(entered, entry)
    _sharded[name] = entry
    return entry


def shard_policy(model: nn.Module, critic: Critic | None, layout: Layout, dtype: torch.dtype) -> Critic | None:
    """Shard the policy and the critic, separately if the critic has its own model. Return the critic."""
    if critic is None:
        shard("policy", model, layout, dtype)
        return None
    if critic.trunk is not model:
        shard("policy", model, layout, dtype)
        entry = shard("critic", critic.trunk, layout, dtype)
    else:
        entry = shard("policy", model, layout, dtype, heads=[critic.head])
    return replace(critic, parameters={name: entry.replaced[id(one)] for name, one in critic.parameters.items()})


def _path_in(root: Root, plain: nn.Module) -> ForwardPath:
    """Return the forward path, found in one pass through the root. ModelError if the model takes only padded rows."""
    found: list[ForwardPath] = []
    with torch.no_grad(), ComputingWide():
        _run(root, lambda: found.append(_path_of(plain)))
    if found[0].attention == "padded":
        raise ModelError(
            given=f"{type(plain).__name__} takes padded rows only ({found[0].note or 'found by trying it'})",
            allowed="with train.devices above 1: a model whose rows can be packed",
            fix="Set train.devices = 1.",
        )
    return found[0]


def _path_of(plain: nn.Module) -> ForwardPath:
    has_head = plain.get_output_embeddings() is not None  # type: ignore[operator]
    return forward_path(plain) if has_head else body_path(plain, plain.base_model)  # type: ignore[arg-type]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers: the modules of the `ModuleList` with the most parameters, the outermost of equals."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        return []
    return list(max(lists, key=lambda found: sum(parameter.numel() for parameter in found.parameters())))


def _pass_through(body: nn.Module, device: torch.device, dtype: torch.dtype) -> Tensor:
    ids_12 = torch.zeros(1, 2, dtype=torch.long, device=device)
    places_12 = torch.arange(2, device=device)[None]
    mask = torch.ones_like(ids_12)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        return body(input_ids=ids_12, position_ids=places_12, attention_mask=mask, use_cache=False).last_hidden_state


# --- for ranks that follow -------------------------------------------------------------------------------------------

_sharded: dict[str, Sharded] = {}
"""The sharded models of this process, by the name that all ranks use."""


def accompany(name: str) -> None:
    """Accompany a pass of the first rank through the model of that name."""
    _sharded[name].accompany()


def bring(name: str, number: int) -> None:
    """Take part in gathering a parameter of that model for the first rank."""
    _sharded[name].bring(number)


def layout_of(model: nn.Module) -> Layout | None:
    """Return how this model is sharded; None if it is not."""
    return next((one.layout for one in _sharded.values() if one.root.model is model), None)
