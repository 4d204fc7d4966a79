"""Finds which tensors of a model a computation reads: by the memory that its operations get, not by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.engines.transfer import to_device
from posttrain.engines.weights import is_laid_out, named_tensors
from posttrain.errors import PublishError
from posttrain.models.modes import evaluating


class Reads(TorchDispatchMode):
    """Records the memory that tensor operations inside the `with` block take as input."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: set[int] = set()
        self._laid_out: list[Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._note(args)
        self._note(kwargs.values())
        return func(*args, **kwargs)

    def _note(self, inputs: Iterable[object]) -> None:
        """Record tensors, alone or in lists. Operators take no deeper nesting, and a general walk over nested inputs
        would take longer than small operators do."""
        for x in inputs:
            if isinstance(x, list | tuple):
                self._note(x)
            elif not isinstance(x, Tensor):
                continue
            elif is_laid_out(x):
                self._laid_out.append(x)  # it has no address, so the object itself is remembered
            else:
                self._memory.add(_memory(x))

    def __contains__(self, tensor: Tensor) -> bool:
        if is_laid_out(tensor):
            return any(tensor is one for one in self._laid_out)
        return _memory(tensor) in self._memory


_whole_reads: WeakKeyDictionary[nn.Module, tuple[Set[str], Set[str]]] = WeakKeyDictionary()
"""For models whose forward pass reads every parameter: the names of all tensors, and of the tensors that it reads."""


def read_by_forward(model: nn.Module, ids_T: Sequence[int], *, anew: bool = False) -> Set[str]:
    """Return the names of the parameters and buffers that a plain forward pass of these tokens reads.

    A pass that reads every parameter does so for almost any tokens, so it runs once, and again only if names have
    changed. There are exceptions: adapters may be switched off, and other tokens may leave out experts that are
    modules. So use `anew` to confirm before you report that something else has not read a tensor.
    """
    names = {name for name, _ in named_tensors(model)}
    known, read = _whole_reads.get(model, (None, None))
    if read is not None and known == names and not anew:
        return read
    _whole_reads.pop(model, None)
    with torch.no_grad(), evaluating(model), Reads() as forward, _layers_that_run(model) as ran:
        model(input_ids=to_device(ids_T, next(model.parameters()).device)[None])
    read = {name for name, tensor in named_tensors(model) if tensor.numel() and (tensor in forward or name in ran)}
    weights = [(name, x) for name, x in named_tensors(model) if isinstance(x, nn.Parameter) or is_laid_out(x)]
    needed = {name for name, x in weights if x.numel()}
    if needed <= read:
        _whole_reads[model] = names, read
    return read


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _layers_that_run(model: nn.Module) -> Iterator[set[str]]:
    """Yield the names of the packed weights of the layers that are called inside the `with` block."""
    ran: set[str] = set()
    layers = {name.rpartition(".")[0]: name for name, tensor in model.named_buffers() if is_laid_out(tensor)}

    def note(name: str) -> Callable[[nn.Module, object], None]:
        return lambda *_: ran.add(name)

    hooks = [model.get_submodule(path).register_forward_pre_hook(note(name)) for path, name in layers.items()]
    try:
        yield ran
    finally:
        for hook in hooks:
            hook.remove()


def check_reads(model: nn.Module, reads: Reads, ids_T: Sequence[int]) -> None:
    """Raise PublishError if a computation did not read all that a forward pass of these tokens reads.

    If it passes, the compared tensors are those in use, and not others that are kept next to them.
    """

    def unread_of(needed: Set[str]) -> list[str]:
        return [name for name, tensor in named_tensors(model) if name in needed and tensor not in reads]

    unread = unread_of(read_by_forward(model, ids_T))
    if unread and (unread := unread_of(read_by_forward(model, ids_T, anew=True))):
        raise PublishError(
            given=f"decoding does not read {unread[0]} ({len(unread)} tensors), but the model's forward pass does",
            allowed="a sampler that decodes with the tensors of its receipt",
            fix="It uses something that was computed from older weights; discard that when weights are delivered.",
        )
