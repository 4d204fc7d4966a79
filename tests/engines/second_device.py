"""A second device for tests on machines without one: real numbers behind tensors that report another device.

It computes on the CPU and behaves like a GPU with a queue:

- an operation cannot combine a tensor of the host and one of the device; only copies move numbers between them;
- reading a number, a shape that depends on numbers, indexing with a list and a blocking copy stop the host: each is
  noted in `waits`;
- a non-blocking copy to the host holds nothing (-1, nan) until the host has waited for an event that was recorded after
  the copy;
- a copy from memory that is not pinned blocks, even if it was requested as non-blocking.

Its tensors have the device type `meta`, which PyTorch knows, but no library and no allocator.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import varlen as _registers_the_operator  # noqa: F401
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
DEVICE = torch.device("meta")
_MODULE = SimpleNamespace()
"""The stand-in for `torch.cuda`; PyTorch remembers the first one that it receives."""
_NOT_LAUNCHED = {
    aten.detach.default,
    aten.lift_fresh.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
}
_GATHERS = {aten.index.Tensor, aten.index_select.default, aten.embedding.default, aten.gather.default}
_READS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.nonzero.default}
_SHAPED_BY_NUMBERS = {aten.masked_select.default, aten.repeat_interleave.Tensor, aten._unique2.default}


class OnDevice(Tensor):
    """A tensor of the second device; `host` holds its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnDevice:
        return Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )

    def __init__(self, host: Tensor) -> None:
        self.host = host

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, OnDevice)
        torch._C.TensorBase.data.__set__(self, other)  # pyright: ignore[reportAttributeAccessIssue]
        self.host = other.host

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host.untyped_storage()

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.host!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} is called outside of the second device")


class Device(TorchDispatchMode):
    """The device: it runs the operations inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[Tensor] = []
        self.on_their_way: list[tuple[Tensor, Tensor]] = []
        self.weights: set[int] = set()
        """Addresses of the weights, whose casts are counted separately."""
        self.autocast: torch.dtype | None = None
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._depth = 0
        self.forget()

    def forget(self) -> None:
        """Reset all counts."""
        self.waits: list[str] = []
        """Operations that stop the host until the queue is empty."""
        self.launches = Counter[str]()
        self.copies = Counter[str]()
        """Non-blocking copies to the device and to the host."""
        self.bytes = Counter[str]()
        """Bytes that operations read and write."""
        self.events = 0
        """Number of waits for an event. Such a wait stops the host until the work queued before the event is done."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, OnDevice)]
        target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        assert all(isinstance(x, OnDevice) or x.device != DEVICE for x in tensors), f"{func}: of another device"
        if func in (aten.is_pinned.default, aten._pin_memory.default):
            return self._pin(func, *args)
        if func is aten._to_copy.default and target is not None and target != args[0].device:
            return self._move(args[0], kwargs)
        if func is aten.copy_.default and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
            return self._copy(*args, **kwargs)
        if not ours and target != DEVICE:
            return func(*args, **kwargs)
        self._check(func, tensors)
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        held = {id(x.host): x for x in _leaves((args, kwargs)) if isinstance(x, OnDevice)}
        plain = varlen if func is torch.ops.torch_attn._varlen_attn.default else func
        out = plain(*_each(_host, args), **_each(_host, kwargs))
        if plain is varlen:
            self.note("varlen_attn", _read_by_varlen(*_each(_host, args), **_each(_host, kwargs)))
        else:
            self._count(func, [x.host for x in held.values()], out)
        return _each(lambda x: held[id(x)] if id(x) in held else OnDevice(x) if isinstance(x, Tensor) else x, out)

    def _check(self, func: Any, tensors: Sequence[Tensor]) -> None:
        hosts = [x for x in tensors if not isinstance(x, OnDevice) and x.dim()]
        if hosts:
            raise AssertionError(f"{func}: tensors of the host and of the device")
        by_mask = func is aten.index.Tensor and any(x.dtype == torch.bool for x in tensors[1:])
        if func in _READS or func in _SHAPED_BY_NUMBERS or by_mask:
            self.waits.append(str(func))

    def _count(self, func: Any, inputs: Sequence[Tensor], out: Any) -> None:
        alias = func._schema.returns[0].alias_info if func._schema.returns else None
        if func in _NOT_LAUNCHED or (alias is not None and not alias.is_write):
            return
        outputs = [x for x in _leaves(out) if isinstance(x, Tensor)]
        moved = [*inputs, *(x for x in outputs if all(x is not y for y in inputs))]
        name = func._schema.name.partition("::")[2]
        if func in _GATHERS:
            moved = outputs * 2
        elif func is aten.index_put_.default:
            moved = [x for x in inputs if x.is_floating_point()][1:] * 2
        elif func is aten._to_copy.default and inputs[0].dtype != outputs[0].dtype:
            kind = "cast of a weight" if inputs[0].data_ptr() in self.weights else "cast"
            name = f"{kind} to {str(outputs[0].dtype).removeprefix('torch.')}"
        self.note(name, moved)

    def note(self, name: str, moved: Sequence[Tensor]) -> None:
        self.launches[name] += 1
        self.bytes[name] += sum(x.numel() * x.element_size() for x in moved)

    def _pin(self, func: Any, tensor: Tensor, *_: Any) -> Any:
        if func is aten.is_pinned.default:
            return False
        self.pinned.append(tensor.clone())
        return self.pinned[-1]

    def _move(self, source: Tensor, kwargs: dict[str, Any]) -> Tensor:
        dtype = kwargs.get("dtype") or source.dtype
        if isinstance(source, OnDevice):
            return self._to_host(torch.empty_like(source.host), source.host, kwargs.get("non_blocking", False)).to(
                dtype
            )
        self._to_device(source, kwargs.get("non_blocking", False))
        return OnDevice(source.to(dtype, copy=True))

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if isinstance(target, OnDevice):
            self._to_device(source, non_blocking)
            target.host.copy_(source)
            return target
        assert isinstance(source, OnDevice)
        return self._to_host(target, source.host, non_blocking)

    def _to_device(self, source: Tensor, non_blocking: bool) -> None:
        if not non_blocking or not any(x is source for x in self.pinned):
            self.waits.append("copy to the device")
        self.pinned = []
        self.copies["to the device"] += 1

    def _to_host(self, target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        if not non_blocking:
            self.waits.append("copy to the host")
            return target.copy_(source)
        self.copies["to the host"] += 1
        self.on_their_way.append((target, source.clone()))
        return target.fill_(torch.nan if target.is_floating_point() else -1)

    @contextmanager
    def autocasting(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Cast as autocast does: casts of trained weights are kept until the outermost context ends."""
        before, self.autocast, self._depth = self.autocast, dtype, self._depth + 1
        try:
            yield
        finally:
            self.autocast, self._depth = before, self._depth - 1
            if not self._depth:
                self._casts.clear()

    def cast(self, x: Tensor) -> Tensor:
        """The tensor cast for a matrix product under autocast."""
        if x.dtype != torch.float32:
            return x
        _, cast = self._casts.get(id(x), (x, None))
        if cast is None:
            cast = x.detach().to(self.autocast)
            if x.requires_grad and x.is_leaf:
                self._casts[id(x)] = x, cast
        return cast

    def event(self) -> Event:
        return Event(self)


class Event:
    """An event of the only queue."""

    def __init__(self, device: Device) -> None:
        self.device, self.before = device, list[tuple[Tensor, Tensor]]()

    def record(self) -> None:
        self.before = list(self.device.on_their_way)

    def synchronize(self) -> None:
        self.device.events += 1
        for target, source in self.before:
            target.copy_(source)
        arrived = {id(target) for target, _ in self.before}
        self.device.on_their_way = [one for one in self.device.on_their_way if id(one[0]) not in arrived]


class _Functions(TorchFunctionMode):
    """The work of PyTorch before it dispatches an operation: tensors from lists, autocast; attention is one launch."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None and torch.device(kwargs["device"]) == DEVICE:
            return torch.tensor(*args, **(kwargs | {"device": "cpu"})).to(DEVICE)
        ours = bool(args) and isinstance(args[0], OnDevice)
        if func is Tensor.tolist and ours:
            return args[0].to("cpu").tolist()
        if func is Tensor.__getitem__ and ours and isinstance(args[1], list):
            return args[0][torch.tensor(args[1]).to(DEVICE)]
        if func in (F.linear, F.scaled_dot_product_attention) and ours and self.device.autocast is not None:
            args = tuple(self.device.cast(x) if isinstance(x, Tensor) else x for x in args)
            kwargs = {name: self.device.cast(x) if isinstance(x, Tensor) else x for name, x in kwargs.items()}
        if func is F.scaled_dot_product_attention and ours:
            inputs = [x for x in _leaves((args, kwargs)) if isinstance(x, Tensor)]
            self.device._check(func, inputs)
            out = func(*_each(_host, args), **_each(_host, kwargs))
            self.device.note("scaled_dot_product_attention", [*map(_host, inputs), out])
            return OnDevice(out)
        return func(*args, **kwargs)


@contextmanager
def second_device() -> Iterator[Device]:
    """A context in which operations may run on the second device."""
    device, autocast, is_enabled, dtype_of = (
        Device(),
        torch.autocast,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
    )

    def autocast_there(kind: str, dtype: torch.dtype | None = None, enabled: bool = True) -> Any:
        return device.autocasting(dtype if enabled else None) if kind == DEVICE.type else autocast(kind, dtype, enabled)

    def enabled_there(kind: str | None = None) -> bool:
        return (
            device.autocast is not None if kind == DEVICE.type else is_enabled() if kind is None else is_enabled(kind)
        )

    def dtype_there(kind: str) -> torch.dtype | None:
        return device.autocast if kind == DEVICE.type else dtype_of(kind)

    _MODULE.Event = device.event
    with (
        mock.patch.object(torch, DEVICE.type, _MODULE, create=True),
        mock.patch.object(torch, "autocast", autocast_there),
        mock.patch.object(torch, "is_autocast_enabled", enabled_there),
        mock.patch.object(torch, "get_autocast_dtype", dtype_there),
        _Functions(device),
        device,
    ):
        yield device


def moved(model: nn.Module) -> nn.Module:
    """A copy of the model on the second device; call it inside the context."""
    memo = {id(x): x for x in (*model.parameters(), *model.buffers())}
    there = copy.deepcopy(model, memo)
    new: dict[int, Tensor] = {}
    for module in there.modules():
        for tensors in (module._parameters, module._buffers):
            for name, x in tensors.items():
                if x is not None:
                    tensors[name] = new.setdefault(id(x), _moved(x))  # pyright: ignore[reportArgumentType]
    return there


def _moved(x: Tensor) -> Tensor:
    there = OnDevice(x.detach().clone())
    return nn.Parameter(there, requires_grad=x.requires_grad) if isinstance(x, nn.Parameter) else there


def _leaves(x: Any) -> list[Any]:
    """What lists, tuples and dicts hold, at any depth. PyTorch's own trees take longer than the operations."""
    if isinstance(x, dict):
        x = x.values()
    elif not isinstance(x, list | tuple):
        return [x]
    return [leaf for one in x for leaf in _leaves(one)]


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    """The same lists, tuples and dicts with the results of the function."""
    if isinstance(x, dict):
        return {name: _each(function, one) for name, one in x.items()}
    if isinstance(x, list | tuple):
        return type(x)([_each(function, one) for one in x])
    return function(x)


def _host(x: Any) -> Any:
    return x.host if isinstance(x, OnDevice) else x


def _read_by_varlen(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, seqused_k: Tensor | None = None, **_: Any
) -> list[Tensor]:
    """The columns of keys and values that the rows have."""
    used = next((x for x in args[4:] if isinstance(x, Tensor)), seqused_k)
    columns = len(key) if used is None else int(used.sum())
    return [query, query, key[:columns], value[:columns]]


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.nn.attention.varlen.varlen_attn` as PyTorch 2.13 specifies it, computed one sequence at a time.

    It makes the checks of the kernel (flash_api.cpp, `mha_varlen_fwd`), except the precision: any precision works here.
    """
    numbers = [cu_seq_q, cu_seq_k, *([] if seqused_k is None else [seqused_k])]
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in numbers)
    assert all(x.stride(-1) == 1 and x.dim() == 3 for x in (query, key, value))
    assert query.dtype == key.dtype == value.dtype
    assert query.shape[-1] % 8 == 0
    assert query.shape[-1] <= 256
    assert query.shape[1] % key.shape[1] == 0
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert len(cu_seq_q) == len(cu_seq_k)
    assert seqused_k is None or len(seqused_k) == len(cu_seq_q) - 1
    assert list(window_size) in ([-1, -1], [-1, 0])
    assert is_causal == (list(window_size) == [-1, 0])
    out = torch.full_like(query, torch.nan)
    for i, (start, end) in enumerate(zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True)):
        first = int(cu_seq_k[i])
        length = int(cu_seq_k[i + 1]) - first if seqused_k is None else int(seqused_k[i])
        assert 0 < end - start <= max_q
        assert 0 < length <= max_k
        assert first + length <= len(key)
        q, k, v = (x.transpose(0, 1) for x in (query[start:end], key[first:][:length], value[first:][:length]))
        k, v = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=0) for x in (k, v))
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = (
            (q @ k.transpose(1, 2)).float() * factor if q.dtype != torch.float64 else q @ k.transpose(1, 2) * factor
        )
        if is_causal:
            behind = torch.arange(length) > torch.arange(end - start)[:, None] + length - (end - start)
            scores = scores.masked_fill(behind, -torch.inf)
        out[start:end] = (scores.softmax(-1).to(v.dtype) @ v).transpose(0, 1)
    return out, torch.empty(0), torch.empty(0)
