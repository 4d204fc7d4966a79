"""Which tensors of a model a computation reads: by the memory that its operations are given, not by their names."""

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
    """Records the memory that the tensor operations inside of the `with` block take as input."""

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
        """Tensors, alone or in lists: an operator takes no deeper ones, and a walk of trees takes longer than small
        operators do."""
        for x in inputs:
            if isinstance(x, list | tuple):
                self._note(x)
            elif not isinstance(x, Tensor):
                continue
            elif is_laid_out(x):
                self._laid_out.append(x)  # it has no address to ask for: the object itself is known again
            else:
                self._memory.add(_memory(x))

    def __contains__(self, tensor: Tensor) -> bool:
        if is_laid_out(tensor):
            return any(tensor is one for one in self._laid_out)
        return _memory(tensor) in self._memory


_whole_reads: WeakKeyDictionary[nn.Module, tuple[Set[str], Set[str]]] = WeakKeyDictionary()
"""For models whose forward pass was seen to read every parameter: the names of all tensors, and of those it read."""


def read_by_forward(model: nn.Module, ids_T: Sequence[int], *, anew: bool = False) -> Set[str]:
    """The names of the parameters and buffers that a plain forward pass of these tokens reads.

    A pass that reads every parameter mostly does so for any tokens: it is run once, and again if names have changed.
    Not for all: adapters may be switched off, and experts that are modules may be left out by other tokens. So whoever
    is about to complain of what something else has not read asks `anew`.
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
    """The names of weights that are laid out for products, of layers that are called inside of the `with` block."""
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
    """Raises PublishError if a computation did not read all that a forward pass of these tokens reads.

    Tensors that were compared are then those that were used, and not others kept beside them.
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
