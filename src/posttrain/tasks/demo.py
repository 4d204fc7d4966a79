"""The demonstration: a tiny model that has seen 40 sorted words learns to sort from a reward alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.config import (
    CheckConfig,
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from posttrain.errors import GuardStop
from posttrain.functional.intervals import Interval
from posttrain.tasks.catalogue import TASKS

TASK = TASKS["sort"]


def demo_config(
    *, seed: int = 0, output: Path | str | None = None, steps: int = 300, engine: str = "local"
) -> RunConfig:
    """The config of the demonstration: GRPO on `task:sort`, with held-out words and a check that is never a reward.

    `engine` is `rollout.engine`. With a vLLM server, the model has wider heads.
    """
    form = "tiny-wide" if engine == "vllm" else "tiny"
    return RunConfig(
        model=ModelConfig(path=f"{form}:{TASK.name}", device="cpu"),
        algorithm={"name": "grpo"},  # pyright: ignore[reportArgumentType]
        data=DataConfig(train=f"task:{TASK.name}"),
        rewards=[RewardConfig(name="exact_match")],
        check=[CheckConfig(function="posttrain.tasks.checks.letters_in_order")],
        sampling=SamplingConfig(group_size=8, max_completion_length=TASK.max_completion_length, max_batch_rows=512),
        train=TrainConfig(
            steps=steps,
            prompts_per_step=64,
            learning_rate=5e-4,
            schedule="linear",
            warmup_steps=min(20, steps),
        ),
        evaluation=EvaluationConfig(prompts=256, samples=4),
        checkpoint=CheckpointConfig(every=100),
        rollout=RolloutConfig(engine=engine),
        output=None if output is None else str(output),
        seed=seed,
    )


def verdict(evaluation: Mapping[str, Any]) -> str:
    """The result of the demonstration in two lines. `evaluation` is the content of evaluation.json."""
    baseline, trained = (_accuracy(evaluation[name]) for name in ("baseline", "trained"))
    lines = [
        f"Held-out words sorted correctly: {_show(baseline)} before, {_show(trained)} after.",
        f"{trained.n} words that training never saw; 95% intervals in brackets.",
    ]
    lines[1] += " They do not overlap." if not baseline.overlaps(trained) else " They overlap: nothing is shown."
    return "\n".join(lines)


def require_improvement(evaluation: Mapping[str, Any]) -> None:
    """Raise `GuardStop` unless the accuracy has risen significantly. Exit code 0 then means that the run worked."""
    baseline, trained = (_accuracy(evaluation[name]) for name in ("baseline", "trained"))
    if trained.low <= baseline.high:
        raise GuardStop(
            given=f"the demonstration shows no improvement: {_show(baseline)} before, {_show(trained)} after",
            allowed="an interval after training that lies above the one before",
            fix="Try another --seed; if that fails too, run `posttrain check`.",
        )


def _accuracy(measured: Mapping[str, Any]) -> Interval:
    return Interval(**measured["greedy"]["accuracy"])


def _show(interval: Interval) -> str:
    return f"{interval.mean:.1%} [{interval.low:.1%}, {interval.high:.1%}]"
