"""The plan of a pipeline: that of each of its stages, one after the other on the same hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from posttrain.config.pipeline import read_pipeline
from posttrain.lab.plan.api import Plan, plan_for, target_of, with_lengths
from posttrain.lab.plan.render import duration, money


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """What every stage needs, in their order."""

    stages: Mapping[str, Plan]

    @property
    def run_seconds(self) -> float:
        return sum(plan.run_seconds for plan in self.stages.values())

    @property
    def dollars(self) -> tuple[float, float] | None:
        """Of all stages; None where nothing is rented."""
        parts = [plan.dollars for plan in self.stages.values() if plan.dollars is not None]
        return (sum(low for low, _ in parts), sum(high for _, high in parts)) if parts else None

    @property
    def fits(self) -> bool:
        """All of them do, as estimated."""
        return all(plan.verdict.fits for plan in self.stages.values())

    def render(self) -> str:
        """A line for each stage and for all of them; then every stage by itself."""
        width = max(map(len, self.stages))
        lines = [f"{name:<{width}}  fits: {plan.verdict.answer}; {plan.line()}" for name, plan in self.stages.items()]
        total = f"all {len(self.stages)} stages: at most about {duration(self.run_seconds)}"
        total += f", {money(self.dollars)}" if self.dollars is not None else ""
        each = [f"--- stage {name}\n\n{plan.render()}" for name, plan in self.stages.items()]
        return "\n\n".join(["\n".join([*lines, total]), *each])

    def to_json(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "seconds": self.run_seconds,
            "dollars": None if self.dollars is None else list(self.dollars),
            "stages": [{"name": name, **plan.to_json()} for name, plan in self.stages.items()],
        }


def plan_pipeline(
    source: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    gpus: str | None = None,
    **how: Any,
) -> PipelinePlan:
    """As `make_plan`, for a file or mapping with `stages`."""
    configs = read_pipeline(source, overrides).with_start_models()
    return PipelinePlan(
        stages={
            name: plan_for(config, with_lengths(config, target_of(config, gpus, **how)))
            for name, config in configs.items()
        }
    )
