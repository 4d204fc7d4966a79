"""A CUDA device without a card that runs real code: it finds operations that a card would wait for or refuse.

Tensors on the CPU are real. Those on "cuda" are fake: they have a shape, a dtype and a device, and no numbers. So the
training loop runs unchanged, from the packing of rows to the optimizer step, and every operation on the device is
recorded. A value that is read back from the device is 1, or True.

    wait       the host waits for the device: `.item()`, a copy to the host, a copy from memory that is not pinned, a
               result whose size depends on numbers
    mixed      an operation on tensors of both devices raises `WrongDevice`, as a card does
    unsafe     memory that is still being copied from was written to: a missing wait

Import this module before torch: `load` puts the stand-in (cuda_standin.cpp) where torch looks for CUDA.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any


def load(build: Path) -> None:
    """Compile the stand-in into `build`, once, and load it. Raises OSError if there is no compiler."""
    assert "torch" not in sys.modules, "the stand-in must be loaded before torch looks for CUDA"
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch_folder, library = Path(found.origin).parent, build / "cuda_standin.so"
    if not library.exists():
        flags = ["-O0", "-shared", "-fPIC", "-std=c++20", f"-I{torch_folder}/include", f"-L{torch_folder}/lib"]
        links = ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_folder}/lib"]
        source = Path(__file__).with_suffix(".cpp")
        subprocess.run(["g++", *flags, str(source), "-o", str(library), *links], check=True)
    ctypes.CDLL(str(library))


class WrongDevice(RuntimeError):
    """An operation on tensors of two devices."""


@dataclass(frozen=True)
class Wait:
    """The host waits for all earlier work of the device."""

    why: str
    place: str
    """The function of this library that waits; that of another library if none of ours is on the stack."""


@dataclass
class Account:
    """Counts of the events on the device."""

    waits: list[Wait] = field(default_factory=list)
    launches: int = 0
    """Operations that compute something, which excludes views."""
    moved: int = 0
    """Bytes that those operations read and write."""
    copies: Counter[str] = field(default_factory=Counter)
    """Bytes by direction, "to device" and "to host"."""
    operations: Counter[str] = field(default_factory=Counter)
    casts: Counter[str] = field(default_factory=Counter)
    """Number of cast elements, by the two dtypes."""
    cast_matrices: Counter[str] = field(default_factory=Counter)
    """Casts to bfloat16 of two-dimensional tensors such as weights, by their shape."""
    pinned: list[tuple[Any, int]] = field(default_factory=list)
    """Sources of asynchronous copies, with their version at that moment."""

    def places(self) -> Counter[str]:
        return Counter(f"{wait.why} in {wait.place}" for wait in self.waits)

    def unsafe(self) -> int:
        """Number of tensors that were written to after an asynchronous copy began to read them."""
        return sum(tensor._version != version for tensor, version in self.pinned)


def device_class() -> Any:
    """The mode in which tensors on "cuda" are fake; defined here because torch may be imported only after `load`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    aten = torch.ops.aten
    to_copies = {aten._to_copy.default, aten.copy_.default, aten.copy.default, aten._copy_from.default}
    uncomputed = {
        aten.detach.default,
        aten._reshape_alias.default,
        torch.ops.prim.device.default,
        *(op.default for op in (aten.empty_like, aten.new_empty, aten.new_empty_strided, aten.sym_size)),
    }
    sized_by_numbers = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default}

    class Device(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.fake = FakeTensorMode(allow_non_fake_inputs=True)
            self.account = Account()
            self._pinned: dict[int, torch.Tensor] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            leaves = tree_leaves((args, kwargs))
            if func is aten._pin_memory.default:
                pinned = args[0].clone()
                self._pinned[pinned.untyped_storage().data_ptr()] = pinned
                return pinned
            if func is aten.is_pinned.default:
                return self._is_pinned(args[0])
            here = [x for x in leaves if isinstance(x, FakeTensor)]
            if not here and not any(isinstance(x, torch.device) and x.type == "cuda" for x in leaves):
                return func(*args, **kwargs)
            real = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)]
            if func in to_copies:
                return self._copy(func, args, kwargs)
            if func is aten._local_scalar_dense.default:
                self._wait("a number is read")
                return torch.ones((), dtype=args[0].dtype).item()
            if any(x.dim() for x in real):
                shapes = [list(x.shape) for x in real]
                raise WrongDevice(f"{func} has tensors {shapes} on the CPU beside tensors on the GPU, in {_place()}")
            if (found := self._sized_by_numbers(func, args, kwargs)) is not None:
                return found
            return self._launch(func, args, kwargs)

        def _launch(self, func: Any, args: Any, kwargs: Any) -> Any:
            with self.fake:
                result = func(*args, **kwargs)
            if func.is_view or func in uncomputed:
                return result
            tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
            self.account.launches += 1
            self.account.operations[str(func)] += 1
            self.account.moved += sum(x.numel() * x.element_size() for x in {id(x): x for x in tensors}.values())
            return result

        def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
            source = args[0] if func is aten._to_copy.default else args[1]
            target = kwargs.get("device") if func is aten._to_copy.default else args[0].device
            to_device = (target is None and isinstance(source, FakeTensor)) or str(target).startswith("cuda")
            if not isinstance(source, FakeTensor):
                self.account.copies["to device"] += source.numel() * source.element_size()
                if source.dim() or func is aten._to_copy.default:
                    self._check_asynchronous(source, kwargs.get("non_blocking") or args[2:3] == (True,))
                with self.fake:
                    return func(*tree_map(self._as_fake, args), **kwargs)
            if to_device:
                dtype = kwargs.get("dtype", source.dtype) if func is aten._to_copy.default else args[0].dtype
                if dtype != source.dtype:
                    self.account.casts[f"{source.dtype} -> {dtype}"] += source.numel()
                    self.account.cast_matrices[str(list(source.shape))] += dtype == torch.bfloat16 and source.dim() == 2
                return self._launch(func, args, kwargs)
            self.account.copies["to host"] += source.numel() * source.element_size()
            self._wait("a copy to the host")
            if func is aten._to_copy.default:
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
            return args[0].fill_(1)

        def _as_fake(self, x: Any) -> Any:
            is_real = isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)
            return self.fake.from_tensor(x.detach()) if is_real else x

        def _check_asynchronous(self, source: torch.Tensor, non_blocking: Any) -> None:
            if not non_blocking:
                self._wait("a blocking copy to the device")
            elif not self._is_pinned(source):
                self._wait("a copy to the device from memory that is not pinned")
            else:
                self.account.pinned.append((source, source._version))

        def _is_pinned(self, x: torch.Tensor) -> bool:
            return not isinstance(x, FakeTensor) and x.untyped_storage().data_ptr() in self._pinned

        def _sized_by_numbers(self, func: Any, args: Any, kwargs: Any) -> Any:
            """A result of full size, for an operation whose result has one element for each non-zero number."""
            by_mask = func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)] if by_mask else []
            if func in sized_by_numbers or (
                func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
            ):
                self._wait("a size that depends on numbers")
                x = args[0]
                with self.fake:
                    if func is aten.nonzero.default:
                        return torch.empty(x.numel(), x.dim(), dtype=torch.long, device=x.device)
                    if func is aten.masked_select.default:
                        return x.new_empty(x.numel())
                raise NotImplementedError(f"{func} in {_place()}")
            if not masks or (func is not aten.index.Tensor and args[2].numel() == 1):
                return None
            self._wait("a size that depends on numbers")
            if func is not aten.index.Tensor:
                return args[0] if func is aten.index_put_.default else torch.empty_like(args[0])
            assert len(args[1]) == len(masks) == 1, "one mask over the first dimensions"
            rest = args[0].shape[masks[0].dim() :]
            with self.fake:
                return args[0].new_empty((masks[0].numel(), *rest))

        def _wait(self, why: str) -> None:
            self.account.waits.append(Wait(why, _place()))

        @contextmanager
        def counting(self) -> Iterator[Account]:
            """A separate account for the operations inside."""
            before, self.account = self.account, Account()
            try:
                yield self.account
            finally:
                self.account = before

    return Device


def _place() -> str:
    """The place in this library or in another one; "a backward pass" if there is no Python on the stack."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(("posttrain.", "planted")):
            return f"{name.removeprefix('posttrain.')}.{frame.f_code.co_name}"
        if not name.startswith(("torch.", "cuda_standin", "contextlib", "functools")):
            names.append(f"{name}.{frame.f_code.co_name}")
        frame = frame.f_back
    return names[0] if names else "a backward pass"


@contextmanager
def a_device() -> Iterator[Any]:
    """A context in which this process has a GPU; the mode that it yields counts the operations."""
    import torch
    import torch.cuda.amp.common
    import transformers.masking_utils

    moved: dict[int, tuple[Any, Any]] = {}

    def apply(module: torch.nn.Module, change: Any, recurse: bool = True) -> torch.nn.Module:
        """`Module._apply` with new parameters, because fake storage cannot be replaced in place. Ties are kept."""
        for child in module.children() if recurse else ():
            apply(child, change)
        for values in (module._parameters, module._buffers):
            for name, old in values.items():
                if old is None:
                    continue
                if id(old) not in moved or moved[id(old)][0] is not old:
                    with torch.no_grad():
                        new = change(old)
                    if (new.device, new.dtype) == (old.device, old.dtype):
                        continue
                    if isinstance(old, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, old.requires_grad)
                    moved[id(old)] = old, new
                values[name] = moved[id(old)][1]
        return module

    answers = {
        (torch.nn.Module, "_apply"): apply,
        (torch.cuda, "is_available"): lambda: True,
        (torch.cuda, "is_bf16_supported"): lambda including_emulation=True: True,
        (torch.cuda, "_lazy_init"): lambda: None,
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda, "device_count"): lambda: 1,
        (torch.cuda, "get_rng_state"): lambda device=None: torch.zeros(16, dtype=torch.uint8),
        (torch.cuda, "set_rng_state"): lambda state, device=None: None,
        (torch.cuda, "get_device_capability"): lambda device=None: (9, 0),
        (torch.cuda.amp.common, "amp_definitely_not_available"): lambda: False,
        (transformers.masking_utils, "is_tracing"): lambda tensor=None: False,  # fake tensors are mistaken for tracing
    }
    before = {place: getattr(*place) for place in answers}
    for (module, name), answer in answers.items():
        setattr(module, name, answer)
    try:
        with device_class()() as device:
            yield device
    finally:
        for (module, name), answer in before.items():
            setattr(module, name, answer)
