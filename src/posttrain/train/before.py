"""A hook that is called before a run begins, and before the first stage of a pipeline. It is empty by default.

`posttrain/__init__.py` fills it with the planner: the planner imports training, so training must not import it.
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
    """Do nothing: every run may begin."""


def _chosen_by_nobody(config: RunConfig) -> Mapping[str, int]:
    return {}


@dataclass
class Before:
    """The hooks. Each raises a `PosttrainError` for a run that must not begin."""

    run: Callable[[RunConfig, RunStore, TerminalView], None] = ask_nothing
    """Called for a run whose folder exists, before anything is loaded."""
    sizes: Callable[[RunConfig], Mapping[str, int]] = _chosen_by_nobody
    """Numbers for the settings that a config leaves to the run (sizes.py); empty if the run uses the CPU's sizes."""
    stages: Callable[[Mapping[str, RunConfig], Path], None] = ask_nothing
    """Called with the stages of a pipeline in order, and the folder of the pipeline."""


BEFORE = Before()
