"""posttrain: post-train language models by reinforcement learning and preference optimisation, with a proof at every stage.

    import posttrain as pt
    run = pt.train("config.yaml")
    score = pt.evaluate(run.model_path, "gsm8k_test.jsonl", ["math"], k=8)

The parts can be used alone: `posttrain.algorithms`, `posttrain.functional`, `posttrain.rewards`, `posttrain.types`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.evaluate.api import evaluate
    from posttrain.train.api import resume, train

__version__ = "0.1.0"
__all__ = ["evaluate", "resume", "train"]

_HOMES = {"train": "posttrain.train.api", "resume": "posttrain.train.api", "evaluate": "posttrain.evaluate.api"}


def __getattr__(name: str) -> Any:
    """`train` and the others are imported when they are first used: `import posttrain` needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'posttrain' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
