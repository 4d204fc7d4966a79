"""The goals for a GPU, and how to find their figures in the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal: one figure and its lower bound."""

    what: str
    part: str
    bound: float
    find: Callable[[Result, Result], float | None]
    """A function (result of the part, all results) -> the figure; None if it was not measured."""
    form: Callable[[float], str]


def reached(goal: Goal, result: Result) -> float | None:
    """The figure of a goal; None if it was not measured."""
    part = result["parts"].get(goal.part)
    return None if part is None else goal.find(part, result)


def share(case: Result, side: Result, result: Result) -> float | None:
    """Share of the GPU's matrix rate in the training of a step, from the time of the training phase, or of the whole
    step if the phase is not timed separately."""
    rates, alone = result["parts"].get("rates"), side.get("time/train")
    seconds = alone if case["task"] == "grpo" else side.get("seconds")
    if rates is None or not seconds:
        return None
    return case["flops"] / seconds / rates["bfloat16_flops"]


def fastest(case: Result, result: Result) -> float | None:
    """The speed of our faster variant relative to TRL's default and to TRL at its best: the smaller ratio."""
    of_ours: dict[str, list[float]] = {}
    for pair, one in case["ratios"].items():
        of_ours.setdefault(pair.split(" / ")[0], []).append(one["speed"])
    return max((min(speeds) for speeds in of_ours.values()), default=None)


def best_share(case: Result, result: Result) -> float | None:
    shares = [share(case, side, result) for name, side in case["sides"].items() if name.startswith("posttrain")]
    return max((one for one in shares if one is not None), default=None)


def _times(value: float) -> str:
    return f"{value:.2f}×"


def _percent(value: float) -> str:
    return f"{value:.0%}"


GOALS = [
    *(
        Goal(
            what=f"GRPO step, {size.upper()}, against TRL with vLLM on the same card, also with its best settings",
            part=f"grpo {size}",
            bound=2.0,
            find=fastest,
            form=_times,
        )
        for size in ("0.5b", "1.5b", "3b")
    ),
    Goal(
        what="SFT step, 1.5B: share of the card's matrix rate",
        part="sft 1.5b",
        bound=0.45,
        find=best_share,
        form=_percent,
    ),
]
