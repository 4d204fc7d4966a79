"""AdamW with moments in 8 bits, by torchao (arXiv:2110.02861). It is imported only if `train.optimizer` asks for it.

A moment has one byte (a code) per number, a float32 scale per block of 256 numbers, and a table that maps codes to
numbers (models/footprint.py has the sizes). Small tensors, and tensors that blocks do not divide, keep float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torchao.optim import AdamW8bit
from torchao.optim.subclass_8bit import OptimState8bit

PARTS = ("codes", "scale", "qmap")
"""The parts of a moment in 8 bits; `exp_avg.codes` and so on in a checkpoint."""


class EightBitAdamW(AdamW8bit):
    """torchao's AdamW8bit with a state of plain tensors, which safetensors can hold.

    On a GPU a step is one compiled kernel per shape. On a CPU it runs eagerly: it needs no compiler, but temporarily 53
    bytes for each number of the largest tensor.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        on_cpu = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
        with torch.compiler.set_stance("force_eager") if on_cpu else nullcontext():
            return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        return found | {"state": {number: _taken_apart(state) for number, state in found["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        states = {number: _put_together(state) for number, state in state_dict["state"].items()}
        super().load_state_dict(state_dict | {"state": states})


def _taken_apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        if isinstance(value, OptimState8bit):
            plain |= {f"{name}.{part}": getattr(value, part) for part in PARTS}
        else:
            plain[name] = value
    return plain


def _put_together(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rebuild 8-bit moments from their parts. The saved table gives the codes the meaning that they had when saved."""
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        moment, dot, part = name.partition(".")
        if not dot:
            state[name] = value
        elif part == "codes":
            scale, qmap = (tensors[f"{moment}.{other}"] for other in PARTS[1:])
            signed = bool((qmap < 0).any())
            state[moment] = OptimState8bit(value, scale, qmap, signed=signed, dtype=torch.float32)
    return state
