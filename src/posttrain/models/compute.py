"""How matrix products run on this machine: chosen by a measurement of well under a second, saved with the run.

On a CPU the same product takes very different times by the way it is called, and which way is fast differs from
processor to processor. So the ways are timed at the model's own shapes, and what is chosen is kept for the whole run: a
run that is resumed computes as it did before, whatever a measurement would say now.

    dtype     bfloat16 or float32; `precision: auto` takes bfloat16 where the processor has it and it gains much
    matmul    float32 products of training: as PyTorch runs them, or through oneDNN
    sampler   decodes with the very modules of the policy, or with a copy whose weights are packed (onednn.py)
    kernels   of decoding, and of attention, norms and gates in training: operations of PyTorch, or compiled ones where
              the machine has a compiler (kernels.py)

A faster way is taken only if it is as exact as the config says: in float32, no more than `EXACT` times further from the
product in float64 than PyTorch's plain float32 is. Nothing is measured on a GPU, nor for models too small to gain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch import nn

from posttrain.errors import CheckpointError
from posttrain.files import write_durably
from posttrain.models import kernels, onednn
from posttrain.models.kernels import Kernels, training_by
from posttrain.models.measured_products import Decoder, Measured, linear_shapes, measure
from posttrain.models.processor import has_bfloat16, machine

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SMALL = 1_000_000
"""Parameters below which a model is not worth a measurement."""
FASTER = 1.2
"""Times by which another way has to be faster than the plain one to be taken."""
EXACT = 4.0
"""Times by which the error of a float32 product may exceed that of the plain one; bfloat16 is off by hundreds."""
COPY_SHARE = 0.25
"""Of the memory that is free once the model is loaded, what a packed copy for sampling may take."""


_WAYS = {"matmul": ("plain", "onednn"), "sampler": ("shared", "packed"), "kernels": ("torch", "compiled")}


@dataclass(frozen=True, kw_only=True)
class Compute:
    """What was chosen, and why."""

    dtype: torch.dtype = torch.float32
    """Of the computation; the weights that are trained stay float32."""
    matmul: Literal["plain", "onednn"] = "plain"
    sampler: Literal["shared", "packed"] = "shared"
    kernels: Literal["torch", "compiled"] = "torch"
    compiler: str = ""
    """That made the kernels; empty where there are none."""
    why: str = ""
    """In one sentence; empty where nothing was measured."""
    precision: str = "auto"
    """`model.precision` for which it was chosen."""
    machine: str = ""
    """On which it was measured; empty where nothing was."""

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around the passes of training, forward and backward. Sampling has a way of its own: it is slowed by this."""
        products = onednn.onednn_products() if self.matmul == "onednn" else nullcontext()
        with products, training_by(self.found_kernels()):
            yield

    def found_kernels(self) -> Kernels | None:
        """None where operations of PyTorch were chosen."""
        return kernels.kernels() if self.kernels == "compiled" else None

    def describe(self) -> str:
        """For the first lines on the screen."""
        products = ", matrix products through oneDNN" if self.matmul == "onednn" else ""
        copy = ", sampling from packed weights" if self.sampler == "packed" else ""
        compiled = ", compiled kernels" if self.kernels == "compiled" else ""
        return f"{dtype_name(self.dtype)}{products}{copy}{compiled}"

    def write(self, path: Path) -> None:
        saved = asdict(self) | {"dtype": dtype_name(self.dtype)}
        write_durably(path, json.dumps(saved, indent=1).encode())

    @staticmethod
    def read(path: Path) -> Compute | None:
        """What `write` wrote; None where nothing was written. Raises CheckpointError for anything else."""
        if not path.is_file():
            return None
        try:
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            saved["dtype"] = DTYPES[saved["dtype"]]
            found = Compute(**saved)
            for name, allowed in _WAYS.items():
                if getattr(found, name) not in allowed:
                    raise ValueError(f"{name} = {getattr(found, name)!r}")
        except (ValueError, TypeError, KeyError) as error:  # no text, no JSON, another record, other values
            raise CheckpointError(
                given=f"{path} is damaged ({type(error).__name__}: {error})",
                allowed="the choice how products run, as it was written when the run began",
                fix="Put the file back from a copy of the run folder. Without it the run goes on in plain products.",
            ) from error
        return found


def choose_compute(
    model: nn.Module,
    precision: str,
    *,
    saved: Compute | None = None,
    by_kernels: Callable[[nn.Module], bool] = lambda model: False,
    measure: Callable[..., Measured] = measure,
) -> Compute:
    """How this model computes here: as `saved` if that was chosen on this processor for this precision, else measured.

    `precision` is `model.precision`: float32 never computes in less, bfloat16 always in bfloat16. `by_kernels` says of
    a model whether compiled kernels would multiply by its float32 weights in decoding.
    """
    parameters = list(model.parameters())
    device, size = parameters[0].device, sum(p.numel() for p in parameters)
    shapes = linear_shapes(model)
    unmeasured = Compute(dtype=choose_compute_dtype(precision, device), precision=precision)
    if device.type != "cpu" or size < SMALL or not shapes or not onednn.available():
        return unmeasured
    if saved is not None and (saved.machine, saved.precision) == (machine(), precision):
        others = saved.kernels == "compiled" and saved.compiler != kernels.made_by()
        return with_kernels(saved) if others else saved
    compiled = kernels.kernels() if by_kernels(model) else None
    measured = measure(shapes, compiled=compiled)
    return with_kernels(decide(measured, precision, size=size, free_bytes=psutil.virtual_memory().available))


def with_kernels(chosen: Compute) -> Compute:
    """Decoding by compiled kernels, if there are some; else says why there are none."""
    reason = kernels.why_none()
    if not reason:
        return replace(chosen, kernels="compiled", compiler=kernels.made_by())
    return replace(chosen, kernels="torch", compiler="", why=f"{chosen.why}; no compiled kernels: {reason}")


def decide(measured: Measured, precision: str, *, size: int, free_bytes: int) -> Compute:
    """What follows from a measurement on a CPU, for a model of `size` parameters, where `free_bytes` of memory are."""
    training, reasons = measured.training, list[str]()

    def gains(what: str, before: float, after: float, inexact: float = 0.0) -> bool:
        """Is it fast and exact enough? Says so either way."""
        times = before / after
        exact = inexact <= EXACT
        verdict = "" if exact else f", which is not float32: errors are {inexact:.0f} times those of plain products"
        reasons.append(f"{what} {times:.1f} times as fast{verdict}")
        return exact and times >= FASTER

    matmul = gains("float32 through oneDNN", training["plain"], training["onednn"], measured.inexact["onednn"])
    float32_seconds = training["onednn" if matmul else "plain"]
    dtype = DTYPES.get(precision)
    if dtype is None:
        faster = has_bfloat16() and gains("bfloat16", float32_seconds, training["bfloat16"])
        dtype = torch.bfloat16 if faster else torch.float32
    shared, packed = (measured.decoding[Decoder(dtype, is_packed)] for is_packed in (False, True))
    inexact = measured.inexact["packed"] if dtype == torch.float32 else 0.0
    copy = gains(f"decoding from packed {dtype_name(dtype)} weights", shared, packed, inexact)
    copy |= dtype == torch.bfloat16  # shared weights are float32: they would be cast again with every few tokens
    if copy and (needed := size * dtype.itemsize) > COPY_SHARE * free_bytes:
        reasons.append(f"but a copy for sampling takes {needed / 2**30:.1f} GiB and {free_bytes / 2**30:.1f} are free")
        copy = False
    return Compute(
        dtype=dtype,
        matmul="onednn" if matmul else "plain",
        sampler="packed" if copy else "shared",
        why="; ".join(reasons),
        precision=precision,
        machine=machine(),
    )


def choose_compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Without a measurement: `auto` is bfloat16 on a GPU that has it, float32 elsewhere."""
    if precision == "auto":
        on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if on_gpu else torch.float32
    return DTYPES[precision]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
