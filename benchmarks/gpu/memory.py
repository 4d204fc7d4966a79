"""Memory of a card that a step takes: its process's tensors, what its allocator keeps, and the whole card."""

from __future__ import annotations

import threading

import torch
from benchmarks.gpu.card import used_bytes

PERIOD = 0.2
"""Seconds between two looks at the whole card, on which a server of the same run has its memory, too."""


class OfCard:
    """The memory of a gate (`benchmarks.speed.gate.Memory`).

    The whole card is asked of nvidia-smi: a call of CUDA from another thread would break the capture of a graph.
    """

    def __init__(self) -> None:
        self._most = 0
        threading.Thread(target=self._look, daemon=True).start()

    def settle(self) -> None:
        torch.cuda.synchronize()

    def peaks(self) -> dict[str, int]:
        """Bytes: `peak_bytes` of tensors, `kept_bytes` of the allocator, `card_bytes` of everything on the card."""
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
