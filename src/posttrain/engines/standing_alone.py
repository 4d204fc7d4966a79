"""Tests whether a row gets the same bits whatever else is in the batch, by the operations that compute a few rows.

A matrix product of PyTorch sums in an order that depends on the shape of the batch, so a row's last bits may change
when others join it. A compiled kernel sums each row separately (docs/speed.md lists the models that kernels compute
fully). Operations that move numbers, or round each number once, such as a sum of two, give the same bits in every
batch. If a pass consists only of kernels and such operations, the clock may decide which rows are decoded together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.engines.call import Call
from posttrain.engines.engine import Arrival, Choose, Request, Row, Rows

_MOVES = (
    *(
        "alias",
        "arange",
        "cat",
        "clone",
        "copy_",
        "detach_",
        "embedding",
        "empty",
        "empty_like",
        "fill_",
        "index",
        "index_select",
    ),
    *(
        "lift_fresh",
        "new_empty",
        "new_ones",
        "new_zeros",
        "ones",
        "repeat_interleave",
        "scalar_tensor",
        "_to_copy",
        "zeros",
        "zeros_like",
    ),
)
_ROUNDS_ONCE = (
    *("add", "add_", "mul", "mul_", "neg", "sub", "eq", "ge", "gt", "le", "lt", "ne", "where", "masked_fill_"),
    *("bitwise_and", "bitwise_not", "bitwise_or"),
)
_OF_POSITIONS = ("cos", "sin")
"""Operations on whole positions, which use the same vector function for each. They read no value of a row."""
_KEEP_APART = frozenset(f"aten::{name}" for name in (*_MOVES, *_ROUNDS_ONCE, *_OF_POSITIONS))
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::scaled_dot_product_attention")
"""The attention of a prompt to itself."""
_PROMPTS = ((5, 6, 7), (4, 6))
"""The prompts of the test. Any ids will do."""


class _Watch(TorchDispatchMode):
    """Records the operations inside the `with` block that may give a row other bits in another batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name: str = func._schema.name
        of_one_prompt = name in _ATTENTION and len(args[0]) == 1
        if not (func.is_view or name in _KEEP_APART or of_one_prompt):
            self.mixing.add(name)
        return func(*args, **(kwargs or {}))


def stand_alone(call: Call, rows: Rows, choose: Choose, device: torch.device) -> bool:
    """Return the result of a test on two prompts that arrive and sample two tokens each.

    `rows` must be empty, and are empty again afterwards. Only for a CPU with a decoder registered as acceleration.
    """
    if device.type != "cpu" or call.path.decoder is None:
        return False
    requests = [Request(prompt_ids=ids, max_new_tokens=2, stream=(0, g)) for g, ids in enumerate(_PROMPTS)]
    drawing = [Row(number, request) for number, request in enumerate(requests)]
    with call.in_force(), _Watch() as watch:
        ids_B = torch.zeros(0, dtype=torch.long)
        for arrivals in ([Arrival(ids, 1, more=False) for ids in _PROMPTS], []):
            ids_B, _ = choose(rows.step(ids_B, arrivals), drawing)
        rows.select([])
    return not watch.mixing
