"""The planner's results for a selection, computed like for a user: from a configuration and devices by name."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from posttrain.algorithms import ALGORITHMS
from posttrain.lab.explore.choices import Choice, choices, devices_of, settings_of
from posttrain.lab.explore.plan_numbers import PHASES
from posttrain.lab.plan.api import make_plan

GIB = 2**30


@dataclass(frozen=True)
class Planned:
    """A plan in the terms of the page."""

    parts: list[dict[tuple[str, str], int]]
    """By phase: (role, kind) -> bytes."""
    capacity: int
    answer: str

    @property
    def totals(self) -> list[int]:
        return [sum(parts.values()) for parts in self.parts]

    @property
    def table(self) -> dict[str, list[str]]:
        names = dict.fromkeys(name for parts in self.parts for name in parts)
        rows = {" ".join(name): [written(parts.get(name, 0)) for parts in self.parts] for name in names}
        return rows | {"together": [written(total) for total in self.totals]}


def written(bytes_: int) -> str:
    """Return GiB with one decimal. Halves are rounded up like in JavaScript, not to even like in Python."""
    if not bytes_:
        return "–"
    return f"{math.floor(10 * bytes_ / GIB + 0.5) / 10:.1f}" if bytes_ / GIB >= 0.05 else "<0.1"


def planned(key: str, chosen: Mapping[str, str]) -> Planned:
    plan = make_plan(model=chosen["model"], algorithm=key, gpus=devices_of(chosen), overrides=settings_of(key, chosen))
    parts: list[dict[tuple[str, str], int]] = [{} for _ in PHASES]
    for phase in plan.memory.phases:
        for part in phase.parts:
            of_phase = parts[PHASES.index(phase.name)]
            of_phase[part.role, part.what] = of_phase.get((part.role, part.what), 0) + part.bytes
    return Planned(parts, plan.hardware.memory, plan.verdict.answer)


def random_selection(rng: random.Random, offered: Mapping[str, Choice] | None = None) -> dict[str, str]:
    """Return a random value for every choice, and one or two algorithms."""
    offered = offered or choices()
    chosen = {name: rng.choice(list(choice.values)) for name, choice in offered.items()}
    keys = list(ALGORITHMS)
    return {"a": rng.choice(keys), "b": rng.choice(["", *keys]), **chosen}
