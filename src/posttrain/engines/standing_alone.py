"""Whether a row gets the same bits whatever is decoded beside it: seen by the operations that compute a few rows.

A product of PyTorch sums in an order that depends on the shape of the batch, so a row may change in its last bits when
others join it. A compiled kernel sums each row by itself (docs/speed.md says of which models kernels compute all). What
moves numbers, and what rounds each number once, as a sum of two does, cannot tell one batch from another. Where a pass
does nothing else outside of kernels, it is free to the clock who is decoded together.
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
"""Operations on whole positions, by the same vector function for each. They use no number of a row."""
_KEEP_APART = frozenset(f"aten::{name}" for name in (*_MOVES, *_ROUNDS_ONCE, *_OF_POSITIONS))
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::scaled_dot_product_attention")
"""The attention of a prompt to itself."""
_PROMPTS = ((5, 6, 7), (4, 6))
"""The prompts of the trial: any ids do."""


class _Watch(TorchDispatchMode):
    """Notes the operations inside of the `with` block that may give a row other bits beside other rows."""

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
    """Tried on two prompts that arrive and draw two tokens each; `rows` are empty, and are so again afterwards.

    On a CPU, where what is launched has been computed; with what is registered as acceleration alone.
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
