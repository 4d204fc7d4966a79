"""Post-train language models by reinforcement learning and preference optimisation, with a proof at every stage.

    import posttrain as pt
    run = pt.train("config.yaml")
    score = pt.evaluate(run.model_path, "gsm8k_test.jsonl", ["math"], k=8)
    print(pt.advise(data="verifier", size="7b").render())
    print(pt.plan("config.yaml", gpus="8xH100").render())

The parts can be used alone: `posttrain.algorithms`, `posttrain.functional`, `posttrain.rewards`, `posttrain.types`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from posttrain import sources
from posttrain.importing import uncollected, wait_passively
from posttrain.models import acceleration
from posttrain.train.before import BEFORE
from posttrain.train.hosts import CLUSTERS

if TYPE_CHECKING:  # type checkers and editors see the functions in place of the callable packages
    import inspect
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from os import PathLike
    from pathlib import Path

    from posttrain.config import RunConfig
    from posttrain.config.presets import presets as presets
    from posttrain.data.forms import Kind
    from posttrain.evaluate.api import evaluate as evaluate
    from posttrain.evaluate.evaluation import Evaluation
    from posttrain.evaluate.given import GivenEvaluation
    from posttrain.lab.advise.advisor import Advice
    from posttrain.lab.experiments.compare.api import Comparison
    from posttrain.lab.experiments.sweep.results import SweepResult
    from posttrain.lab.experiments.sweep.study import Pruner
    from posttrain.lab.plan.api import Plan
    from posttrain.pipeline.run import Pipeline
    from posttrain.pipeline.run import start as train
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore
    from posttrain.train.hosts import Hosts, RankHosts, Say
    from posttrain.train.job import FinishedRun
    from posttrain.train.replayed import Replay
    from posttrain.train.run import Run
else:
    from posttrain import evaluate, train


def _rows_of_task(name: str) -> sources.RowSource:
    from posttrain.tasks import find_task

    return find_task(name)


def _tiny_model(form: str) -> Callable[[str, int], Path]:
    def model(name: str, seed: int) -> Path:
        from posttrain.tasks.tiny import tiny_model_path

        return tiny_model_path(name, seed=seed, form=form)

    return model


class _RayCluster:
    """The cluster of Ray. Ray itself is imported only when a run asks for it. Implements `Cluster`."""

    def hosts(self, config: RunConfig, say: Say, warn: Say) -> AbstractContextManager[Hosts]:
        from posttrain.cluster.connect import connect

        return connect(config, say, warn)

    def ranks(self, config: RunConfig, size: int, output: int | None) -> AbstractContextManager[RankHosts]:
        from posttrain.cluster.ranks import reserve_ranks

        return reserve_ranks(config, size, output)


sources.ROWS["task"] = _rows_of_task
sources.MODELS |= {form: _tiny_model(form) for form in ("tiny", "tiny-moe", "tiny-wide")}
CLUSTERS["ray"] = _RayCluster()

__version__ = "0.1.0"
__all__ = ["advise", "compare", "evaluate", "evaluate_given", "plan", "presets", "replay", "resume", "sweep", "train"]


def __getattr__(name: str) -> Any:
    """Provide `presets`: settings that reproduce the algorithms of other libraries, such as `presets["trl-grpo"]`. See
    `posttrain.config.presets`."""
    if name != "presets":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from posttrain.config.presets import presets

    return presets


class _Train(ModuleType):
    """A callable package: the package and the function `train` share one name."""

    def __call__(self, config: Any, *, view: Any = None, **overrides: Any) -> Run | FinishedRun | Pipeline:
        """Train a model, or the stages of a pipeline; see `posttrain.train.api.train`."""
        with uncollected():
            from posttrain.pipeline.run import start

        return start(config, view=view, **overrides)


class _Evaluate(ModuleType):
    """A callable package: the package and the function `evaluate` share one name."""

    def __call__(
        self, model: Any, data: Any = None, rewards: Any = None, *, k: int | None = None, **how: Any
    ) -> Evaluation:
        """Answer each held-out prompt once greedily and `k` times by sampling, and score the answers. See
        `posttrain.evaluate.api`."""
        with uncollected():
            from posttrain.evaluate.api import evaluate

        return evaluate(model, data, rewards, k=k, **how)

    @property
    def __signature__(self) -> inspect.Signature:
        """All arguments, for `help` in notebooks and editors."""
        import inspect

        from posttrain.evaluate.api import evaluate

        return inspect.signature(evaluate)


sys.modules["posttrain.train"].__class__, sys.modules["posttrain.evaluate"].__class__ = _Train, _Evaluate


acceleration.register("posttrain.cpu")
acceleration.register("posttrain.gpu", "cuda")
wait_passively()


def evaluate_given(
    model: str | PathLike[str], data: str | None = None, *, kind: Kind | None = None, max_rows: int | None = None
) -> GivenEvaluation:
    """Measure a model on given answers: pair accuracy, AUC or loss; see `posttrain.evaluate.given.evaluate_given`."""
    with uncollected():
        from posttrain.evaluate.given import evaluate_given as measure

    return measure(model, data, kind=kind, max_rows=max_rows)


def resume(
    folder: str | PathLike[str],
    *,
    steps: int | None = None,
    devices: int | None = None,
    tensor: int | None = None,
    functions: Any = None,
    view: Any = None,
) -> Run | FinishedRun | Pipeline:
    """Continue a run, from its newest checkpoint that verifies, or a pipeline; see `posttrain.train.api.resume`."""
    with uncollected():
        from posttrain.pipeline.run import go_on

    return go_on(folder, steps=steps, devices=devices, tensor=tensor, functions=functions, view=view)


def replay(
    run: str | PathLike[str],
    *,
    first: int | None = None,
    last: int | None = None,
    output: str | PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
    **overrides: Any,
) -> Replay:
    """Train recorded steps of a run again and compare every bit; see `posttrain.train.replay.replay`."""
    with uncollected():
        from posttrain.train.replay import replay as train_again

    return train_again(run, first=first, last=last, output=output, say=say, **overrides)


def advise(facts: Any = None, **given: Any) -> Advice:
    """Rank the algorithms for a situation, with reasons and sources; see `posttrain.lab.advise.advisor.advise`.

    Facts, as a mapping or as keywords: data, reward, goal, turns, calls_tools, online, sft_done, model, size, moe,
    gpus, gpu_memory, priority, answer_length, rollout_bound, heterogeneous, dense_rewards, several_rewards,
    one_answer, teacher, attempts, base_score, base_pass_at_k, noisy_labels, evaluation, trouble.
    `posttrain.lab.advise.facts.Facts` explains each.
    """
    from posttrain.lab.advise.advisor import advise as rank

    return rank(facts, **given)


def plan(
    config: str | PathLike[str] | Mapping[str, Any] | RunConfig | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    model: str | None = None,
    algorithm: str | None = None,
    gpus: str | None = None,
    **how: Any,
) -> Plan:
    """Predict whether a run fits, how long it takes and what it costs; see `posttrain.lab.plan.api.make_plan`.

    Further keywords: engine, engine_ranks, engine_tensor, sharding, tensor, network, mean_completion_tokens,
    prompt_tokens, mean_turns, given_tokens, call_seconds, price, length_spread, main_memory.
    `posttrain.lab.plan.target.Target` explains each.
    """
    from posttrain.lab.plan.api import make_plan

    return make_plan(config, overrides, model=model, algorithm=algorithm, gpus=gpus, **how)


def compare(
    source: str | Path | Mapping[str, Any],
    *,
    algorithms: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    budget: Any = None,
    target: float | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Compare algorithms or configs on one task, with the same seeds and budget for each. See
    `posttrain.lab.experiments.compare.api`."""
    from posttrain.lab.experiments.compare.api import compare as compare_arms

    return compare_arms(
        source,
        algorithms=algorithms,
        seeds=seeds,
        budget=budget,
        target=target,
        out=out,
        workers=workers,
        overrides=overrides,
        tell=tell,
    )


def sweep(
    source: str | Path | Mapping[str, Any] | RunConfig,
    knobs: Sequence[str] | Mapping[str, str] = (),
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    trials: int | None = None,
    workers: int = 1,
    pruner: Pruner | None = None,
    seeds: int | None = None,
    folder: str | Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> SweepResult:
    """Search the best values of some settings and confirm them on fresh seeds. See
    `posttrain.lab.experiments.sweep.api`."""
    from posttrain.lab.experiments.sweep.api import sweep as search

    return search(
        source,
        knobs,
        overrides=overrides,
        trials=trials,
        workers=workers,
        pruner=pruner,
        seeds=seeds,
        folder=folder,
        tell=tell,
    )


def _before_run(config: RunConfig, store: RunStore, view: TerminalView) -> None:
    from posttrain.lab.plan.before_run import before_run

    before_run(config, store, view)


def _sizes_here(config: RunConfig) -> Mapping[str, int]:
    from posttrain.lab.plan.before_run import sizes_here

    return sizes_here(config)


def _before_stages(configs: Mapping[str, RunConfig], folder: Path) -> None:
    from posttrain.lab.plan.before_run import plan_stages

    plan_stages(configs, folder)


BEFORE.run, BEFORE.sizes, BEFORE.stages = _before_run, _sizes_here, _before_stages
