"""A hook that runs before a run begins, and before the first stage of a pipeline; empty unless somebody fills it.

`posttrain/__init__.py` fills it with the planner, which stands above training and which training never imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore


def ask_nothing(*asked: object) -> None:
    """Every run begins."""


def _chosen_by_nobody(config: RunConfig) -> Mapping[str, int]:
    return {}


@dataclass
class Before:
    """Each raises a `PosttrainError` for what must not begin."""

    run: Callable[[RunConfig, RunStore, TerminalView], None] = ask_nothing
    """Called for a run whose folder exists, before anything is loaded."""
    sizes: Callable[[RunConfig], Mapping[str, int]] = _chosen_by_nobody
    """Numbers for the settings that a config leaves to the run (sizes.py); empty where it has those of a CPU."""
    stages: Callable[[Mapping[str, RunConfig], Path], None] = ask_nothing
    """Called with the stages of a pipeline in their order, and the folder of all."""


BEFORE = Before()
