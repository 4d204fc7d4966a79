"""What is asked of a card, and where it is found in the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One figure, and what it should be at least."""

    what: str
    part: str
    bound: float
    find: Callable[[Result, Result], float | None]
    """(part, everything) -> the figure; None where it was not measured."""
    form: Callable[[float], str]


def reached(goal: Goal, result: Result) -> float | None:
    """The figure; None where it was not measured."""
    part = result["parts"].get(goal.part)
    return None if part is None else goal.find(part, result)


def share(case: Result, side: Result, result: Result) -> float | None:
    """Of the card's matrix rate, in the training of a step: in the phase where it is timed apart, else in the step."""
    rates, alone = result["parts"].get("rates"), side.get("time/train")
    seconds = alone if case["task"] == "grpo" else side.get("seconds")
    if rates is None or not seconds:
        return None
    return case["flops"] / seconds / rates["bfloat16_flops"]


def fastest(case: Result, result: Result) -> float | None:
    """Our faster way beside TRL's default and TRL at its best, the smaller of the two ratios."""
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
            what=f"GRPO step, {size.upper()}, beside TRL with vLLM on the same card, its best settings included",
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
