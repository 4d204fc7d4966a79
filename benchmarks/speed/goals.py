"""The ratios that the project wants to reach, and how to find them in the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.parts import OTHERS


def times(value: float) -> str:
    return f"{value:.2f}×"


def share(value: float) -> str:
    return f"{value:.0%}"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal: one figure and its bound."""

    what: str
    part: str
    model: str
    case: str = ""
    """Name of the case, if a model has several."""
    bound: float
    pair: str = ""
    """The compared sides; empty for the share of the matmul rate."""
    key: str = "speed"
    at_most: bool = False
    form: Callable[[float], str] = times

    @property
    def why_missed(self) -> str:
        return WHY_MISSED.get(self.what, "")


def reached(goal: Goal, result: dict[str, Any]) -> tuple[float, bool] | None:
    """The measured figure, and whether it meets the bound; None if it was not measured."""
    for case in _cases(goal, result):
        source = case["ratios"].get(goal.pair, {}) if goal.pair else case["share_of_matmul_rate"]
        if goal.key in source:
            value = source[goal.key]
            return value, (value <= goal.bound if goal.at_most else value >= goal.bound)
    return None


def failure(goal: Goal, result: dict[str, Any]) -> str:
    """The compared sides that failed before their figure was known, with the reasons; empty if there are none."""
    sides = [(name, case["sides"].get(name, {})) for case in _cases(goal, result) for name in goal.pair.split(" / ")]
    return "; ".join(f"{name}: {side['failed']}" for name, side in sides if "failed" in side)


def _cases(goal: Goal, result: dict[str, Any]) -> list[dict[str, Any]]:
    cases = [case for case in result.get(goal.part, []) if case["model"]["name"] == goal.model]
    return [case for case in cases if goal.case in ("", case["case"])]


IMPORTS_ALONE = "missed: the imports of torch and transformers take 0.33 GB, and the goal is 0.38 GB"
WHAT_A_STEP_HOLDS = (
    "missed: imports, weights, gradients, AdamW's moments and the sampler's copy take 2.3 GB, the goal is 2.5 GB, and "
    "activations come on top"
)
WHY_MISSED = {
    "GRPO step, 2.7M, memory against TRL's default: 8 rows at a time, activations recomputed": IMPORTS_ALONE,
    "GRPO step, 110M, memory against TRL's default: 8 rows at a time, activations recomputed": WHAT_A_STEP_HOLDS,
}
"""Goal -> explanation, for each goal that the results on file miss."""


def _steps(model: str, size: str, default: float, equal: float, best: float) -> list[Goal]:
    common = {"part": "grpo", "model": model}
    return [
        Goal(what=f"GRPO step, {size}, TRL's default", pair="posttrain / TRL", bound=default, **common),
        Goal(what=f"GRPO step, {size}, TRL's best settings", pair="posttrain / TRL best", bound=best, **common),
        Goal(what=f"GRPO step, {size}, both float32", pair="posttrain float32 / TRL float32", bound=equal, **common),
        Goal(what=f"GRPO step, {size}, both bfloat16", pair="posttrain bfloat16 / TRL", bound=equal, **common),
        Goal(
            what=f"GRPO step, {size}, both bfloat16, TRL's best settings",
            pair="posttrain bfloat16 / TRL best",
            bound=best,
            **common,
        ),
        Goal(
            what=f"GRPO step, {size}, memory against TRL's default: 8 rows at a time, activations recomputed",
            pair="posttrain / TRL",
            key="memory",
            bound=0.5,
            at_most=True,
            **common,
        ),
        *(
            Goal(
                what=f"GRPO step, {size}, both {precision}, memory against TRL, the step as one batch",
                part="one_batch",
                model=model,
                pair=f"posttrain {precision} / TRL one batch {precision}",
                key="memory",
                bound=0.5,
                at_most=True,
            )
            for precision in ("float32", "bfloat16")
        ),
    ]


def _sampling(model: str, size: str, bound: float) -> list[Goal]:
    common = {"part": "sampling", "model": model}
    return [
        Goal(
            what=f"sampling, {size}, transformers generate, {precision}",
            pair=f"posttrain {precision} / generate {precision}",
            bound=bound,
            **common,
        )
        for precision in ("float32", "bfloat16")
    ] + [
        Goal(
            what=f"sampling, {size}, vLLM, {precision}",
            pair=f"posttrain {precision} / vLLM {precision}",
            bound=1.0,
            **common,
        )
        for precision in ("float32", "bfloat16")
    ]


def _other(case: str, model: str) -> list[Goal]:
    """The goals of the small model's step, applied to other lengths and models, for which they were not set."""
    common = {"part": "others", "model": model, "case": case}
    return [
        Goal(what=f"GRPO step, {case}, TRL's default", pair="posttrain / TRL", bound=4, **common),
        Goal(what=f"GRPO step, {case}, both bfloat16", pair="posttrain bfloat16 / TRL", bound=3.5, **common),
        Goal(
            what=f"GRPO step, {case}, both bfloat16, TRL's best settings",
            pair="posttrain bfloat16 / TRL best",
            bound=3,
            **common,
        ),
    ]


GOALS = [
    *_steps("small", "2.7M", 4, 3.5, 3),
    *_steps("large", "110M", 8, 5.5, 5),
    *(goal for case in OTHERS for goal in _other(case.name, case.model)),
    Goal(
        what="GRPO step, 110M, sampled by a vLLM server, both float32",
        part="served",
        model="large",
        pair="posttrain with a server float32 / TRL float32",
        bound=1.5,
    ),
    *_sampling("small", "2.7M", 3),
    *_sampling("large", "110M", 6),
    Goal(what="DPO step, 2.7M, TRL's default", part="dpo", model="small", pair="posttrain / TRL", bound=2.5),
    Goal(what="DPO step, 110M, TRL's default", part="dpo", model="large", pair="posttrain / TRL", bound=2.5),
    Goal(what="SFT step, 2.7M, TRL padding-free", part="sft", model="small", pair="posttrain / TRL best", bound=1.5),
    Goal(
        what="SFT step, 2.7M, both float32, TRL padding-free",
        part="sft",
        model="small",
        pair="posttrain float32 / TRL best float32",
        bound=1.5,
    ),
    Goal(
        what="SFT step, 2.7M, both bfloat16, TRL padding-free",
        part="sft",
        model="small",
        pair="posttrain bfloat16 / TRL best",
        bound=1.5,
    ),
    Goal(what="SFT step, 110M, TRL padding-free", part="sft", model="large", pair="posttrain / TRL best", bound=1.5),
    Goal(
        what="training pass, 110M, bfloat16: share of the matmul rate",
        part="training_pass",
        model="large",
        key="bfloat16",
        bound=0.45,
        form=share,
    ),
]
