"""How a model computes on this machine: precision and kinds of products, with a record in the run folder.

    dtype     bfloat16 or float32; `precision: auto` takes bfloat16 if the processor has it and it is much faster
    matmul    float32 products of training: as PyTorch runs them, or through oneDNN
    sampler   decodes with the policy's own modules, or with a copy whose weights are packed
    kernels   attention and decoding with PyTorch's operations, or with compiled kernels

By default a model computes in plain PyTorch. A registered acceleration (acceleration.py) may choose otherwise on a CPU.
The choice holds for the whole run: a resumed run computes as before, whatever a new measurement would say.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from posttrain.errors import CheckpointError
from posttrain.files import write_durably
from posttrain.models.acceleration import acceleration

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FILE = "compute.json"
"""File name in a run folder."""
SMALL = 1_000_000
"""Number of parameters below which a model is not worth a measurement."""

_WAYS = {"matmul": ("plain", "onednn"), "sampler": ("shared", "packed"), "kernels": ("torch", "compiled")}


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The chosen ways to compute, and the reason."""

    dtype: torch.dtype = torch.float32
    """The precision of the computation; trained weights stay float32."""
    matmul: Literal["plain", "onednn"] = "plain"
    sampler: Literal["shared", "packed"] = "shared"
    kernels: Literal["torch", "compiled"] = "torch"
    compiler: str = ""
    """The compiler that made the kernels; empty without compiled kernels."""
    why: str = ""
    """The reason, in one sentence; empty if nothing was measured."""
    precision: str = "auto"
    """The value of `model.precision` for which it was chosen."""
    machine: str = ""
    """The machine on which it was measured; empty if nothing was."""

    def scope(self) -> AbstractContextManager[None]:
        """Context manager for forward and backward passes of training. Sampling must not use it: it would be slower."""
        return acceleration().training(self)

    def describe(self) -> str:
        """The choice in words, for the first lines on the screen."""
        products = ", matrix products through oneDNN" if self.matmul == "onednn" else ""
        copy = ", sampling from packed weights" if self.sampler == "packed" else ""
        compiled = ", compiled kernels" if self.kernels == "compiled" else ""
        return f"{dtype_name(self.dtype)}{products}{copy}{compiled}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"dtype": dtype_name(self.dtype)}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Compute:
        """Restore the output of `to_json`. Raises ValueError, TypeError or KeyError for anything else."""
        found = Compute(**{**saved, "dtype": DTYPES[saved["dtype"]]})
        for name, allowed in _WAYS.items():
            if getattr(found, name) not in allowed:
                raise ValueError(f"{name} = {getattr(found, name)!r}")
        return found

    def write(self, path: Path) -> None:
        write_durably(path, json.dumps(self.to_json(), indent=1).encode())

    @staticmethod
    def read(path: Path) -> Compute | None:
        """Read the file of `write`; None if there is none. Raises CheckpointError for anything else."""
        if not path.is_file():
            return None
        try:
            return Compute.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:  # not text, not JSON, another record, other values
            raise CheckpointError(
                given=f"{path} is damaged ({type(error).__name__}: {error})",
                allowed="the choice of how to compute products, as the run wrote it at its start",
                fix="Restore the file from a copy of the run folder. Without it the run continues with plain products.",
            ) from error


PLAIN = Compute()
"""The default, without any choice."""


def choose_compute(
    model: nn.Module,
    precision: str,
    *,
    saved: Compute | None = None,
    exact: bool = False,
    decodes: bool = False,
    device: torch.device | None = None,
) -> Compute:
    """Return how this model computes here: `saved` if chosen on this processor for this precision, else measured.

    `precision` is `model.precision`: float32 never computes in less, bfloat16 always in bfloat16. `decodes`: the model
    answers prompts, so that the speed of decoding counts, too. `device`: for a model whose weights are not loaded yet.
    `exact`: `auto` means float32 on a CPU. The same holds for a run that used float32 on another CPU. Nothing is
    measured on a GPU or for small models.
    """
    parameters = list(model.parameters())
    device = device or parameters[0].device
    plain = Compute(dtype=choose_compute_dtype(precision, device), precision=precision)
    if device.type != "cpu" or sum(parameter.numel() for parameter in parameters) < SMALL:
        return plain
    if precision == "auto" and (exact or (saved is not None and saved.dtype == torch.float32)):
        as_asked = replace(plain, precision="float32")
        before = None if saved is None else replace(saved, precision="float32")
        return replace(acceleration().choose(model, as_asked, before, decodes=decodes), precision="auto")
    return acceleration().choose(model, plain, saved, decodes=decodes)


def choose_compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the precision without a measurement: `auto` is bfloat16 on a GPU that has it, float32 elsewhere."""
    if precision == "auto":
        on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if on_gpu else torch.float32
    return DTYPES[precision]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def machine() -> str:
    """Return where a measurement holds: the processor, and the version of PyTorch, which contains the kernels.

    Processor names can be as vague as "AMD EPYC", so the result includes a hash of the supported instructions.
    """
    found = _capabilities()
    instructions = sorted(name for name, has in found.items() if has is True)
    digest = hashlib.sha256(" ".join(instructions).encode()).hexdigest()[:8]
    processor = found.get("cpu_name") or platform.processor() or platform.machine()
    return f"{processor} (instructions {digest}), PyTorch {torch.__version__}"


def computed_on(device: torch.device) -> dict[str, Any]:
    """Return what the last bit of a number may depend on, besides the code: processor, PyTorch, number of threads."""
    if device.type == "cuda":
        return {"machine": f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}"}
    return {"machine": machine(), "threads": torch.get_num_threads()}


def has_bfloat16() -> bool:
    """Return whether the processor has bfloat16 instructions. True if unknown: then only a measurement can tell."""
    found = _capabilities()
    return not found or any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def _capabilities() -> Mapping[str, Any]:
    """Return what the processor can do; empty if the version of PyTorch cannot tell."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
