"""Post-train language models by reinforcement learning and preference optimisation, with a proof at every stage.

    import posttrain as pt
    run = pt.train("config.yaml")
    score = pt.evaluate(run.model_path, "gsm8k_test.jsonl", ["math"], k=8)
    print(pt.advise(data="verifier", size="7b").render())
    print(pt.plan("config.yaml", gpus="8xH100").render())

The parts can be used alone: `posttrain.algorithms`, `posttrain.functional`, `posttrain.rewards`, `posttrain.types`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posttrain import advise, evaluate, train
from posttrain.importing import uncollected

if TYPE_CHECKING:
    from os import PathLike

    from posttrain.advise.plan.api import Plan
    from posttrain.experiments.compare.api import Comparison
    from posttrain.experiments.sweep.results import SweepResult
    from posttrain.train.pipeline import Pipeline
    from posttrain.train.run import Run

__version__ = "0.1.0"
__all__ = ["advise", "compare", "evaluate", "plan", "resume", "sweep", "train"]


def resume(folder: str | PathLike[str], *, steps: int | None = None, view: Any = None) -> Run | Pipeline:
    """Continue a run from its newest checkpoint that verifies, or a pipeline; see `posttrain.train.api.resume`."""
    with uncollected():
        from posttrain.train.pipeline import go_on

    return go_on(folder, steps=steps, view=view)


def plan(config: Any = None, overrides: Any = (), **how: Any) -> Plan:
    """Whether a run fits, how long it takes and what it costs; see `posttrain.advise.plan.api.make_plan`."""
    from posttrain.advise.plan.api import make_plan

    return make_plan(config, overrides, **how)


def compare(source: Any, **options: Any) -> Comparison:
    """Algorithms or configs on one task, with equal seeds and budget; see `posttrain.experiments.compare.api`."""
    from posttrain.experiments.compare.api import compare as compare_arms

    return compare_arms(source, **options)


def sweep(source: Any, knobs: Any = (), **options: Any) -> SweepResult:
    """The best values of some settings, tried on fresh seeds; see `posttrain.experiments.sweep.api`."""
    from posttrain.experiments.sweep.api import sweep as search

    return search(source, knobs, **options)
