"""The device of a test: the processor in `make test` or `make test-slow`, and a card in `make test-gpu`.

Every test of this folder takes its device as a parameter, so that each line of it also runs without a card.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

NO_CARD = f"PyTorch {torch.__version__} sees no CUDA device here"
ON_CARD = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_CARD))
CARD = pytest.param("cuda", marks=ON_CARD)
DEVICES = ["cpu", CARD]
SLOW_OFF_CARD = [pytest.param("cpu", marks=pytest.mark.slow), CARD]
"""For what other tests show on the processor in `make test`."""
PRECISIONS = ["float32", "bfloat16"]


def on_card(members: Iterable[Any], *quick: Any, later: Iterable[Any] = ()) -> list[Any]:
    """(device, member) pairs: `quick` members on the processor, the others there in `make test-slow`, and all on a
    card."""
    slow = (pytest.param("cpu", member, marks=pytest.mark.slow) for member in later if member not in quick)
    card = (pytest.param("cuda", member, marks=ON_CARD) for member in members)
    return [*(("cpu", member) for member in quick), *slow, *card]


def in_precisions(members: Iterable[Any]) -> list[Any]:
    """The members, devices or (device, member) pairs, in each precision. On the processor, float32 is slow: most
    of these tests compare with float32 there."""
    found = []
    for one in members:
        known = one if isinstance(one, type(CARD)) else pytest.param(*([one] if isinstance(one, str) else one))
        for precision in PRECISIONS:
            later = [pytest.mark.slow] if known.values[0] == "cpu" and precision == "float32" else []
            found.append(pytest.param(*known.values, precision, marks=[*known.marks, *later]))
    return found


def held_bytes(device: str) -> int:
    """Bytes of living tensors: counted by the card's allocator, or over all tensors that Python can reach."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = [
        one.untyped_storage() for one in gc.get_objects() if isinstance(one, Tensor) and one.layout == torch.strided
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
