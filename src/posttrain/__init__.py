"""Post-train language models by reinforcement learning and preference optimisation, with a proof at every stage.

    import posttrain as pt
    run = pt.train("config.yaml")
    score = pt.evaluate(run.model_path, "gsm8k_test.jsonl", ["math"], k=8)
    print(pt.advise(data="verifier", size="7b").render())

The parts can be used alone: `posttrain.algorithms`, `posttrain.functional`, `posttrain.rewards`, `posttrain.types`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posttrain import advise, evaluate, train

if TYPE_CHECKING:
    from posttrain.train.pipeline import Pipeline
    from posttrain.train.run import Run

__version__ = "0.1.0"
__all__ = ["advise", "evaluate", "resume", "train"]


def resume(folder: Any, *, steps: int | None = None, view: Any = None) -> Run | Pipeline:
    """Continue a run from its newest checkpoint that verifies, or a pipeline; see `posttrain.train.api.resume`."""
    from posttrain.train.pipeline import go_on

    return go_on(folder, steps=steps, view=view)
