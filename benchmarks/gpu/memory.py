"""GPU memory of a step: tensors of its process, memory kept by its allocator, and memory in use on the whole GPU."""

from __future__ import annotations

import threading

import torch
from benchmarks.gpu.card import used_bytes

PERIOD = 0.2
"""Time between two measurements of the whole GPU, in seconds. A server of the same run also has memory there."""


class OfCard:
    """Memory of a GPU. Implements `benchmarks.speed.gate.Memory`.

    nvidia-smi measures the whole GPU, because a CUDA call from another thread would break the capture of a graph.
    """

    def __init__(self) -> None:
        self._most = 0
        threading.Thread(target=self._look, daemon=True).start()

    def settle(self) -> None:
        torch.cuda.synchronize()

    def peaks(self) -> dict[str, int]:
        """Peaks in bytes: `peak_bytes` of tensors, `kept_bytes` of the allocator, `card_bytes` of the whole GPU."""
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "kept_bytes": torch.cuda.max_memory_reserved(),
            "card_bytes": max(self._most, used_bytes()),
        }

    def forget(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._most = 0

    def _look(self) -> None:
        pause = threading.Event()
        while not pause.wait(PERIOD):
            self._most = max(self._most, used_bytes())
