"""What this machine's processor can do, as far as PyTorch knows."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch


@cache
def machine() -> str:
    """Where a measurement holds: the processor, and the version of PyTorch, which brings the kernels.

    Names of processors are as general as "AMD EPYC": what tells one from another is what each can do.
    """
    found = _capabilities()
    instructions = sorted(name for name, has in found.items() if has is True)
    digest = hashlib.sha256(" ".join(instructions).encode()).hexdigest()[:8]
    processor = found.get("cpu_name") or platform.processor() or platform.machine()
    return f"{processor} (instructions {digest}), PyTorch {torch.__version__}"


def has_bfloat16() -> bool:
    """The processor multiplies bfloat16 by instructions of its own. Where that is not known, only the clock tells."""
    found = _capabilities()
    return not found or any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def _capabilities() -> Mapping[str, Any]:
    """What the processor can do; empty in versions of PyTorch that cannot say."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
