"""The planner's numbers for every selection, as lookup tables for the page.

Every combination is planned. Each part of a phase has a table of bytes over the choices that change it. These choices
are found by comparing the planned numbers. Algorithms with the same numbers share a shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from posttrain.algorithms import ALGORITHMS
from posttrain.lab.advise.guides import samples
from posttrain.lab.explore.choices import Choice, Selection, settings_of, workload
from posttrain.lab.plan.api import ERROR
from posttrain.lab.plan.hardware import find_hardware
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan, PhaseName
from posttrain.lab.plan.verdict import Verdict

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
AXES = ("model", "weights", "precision", "tokens", "group", "checkpointing", "gpus")
"""Choices that decide the bytes of a part. The cheapest ones to change come last."""
ROLES = {
    "policy": "policy",
    "critic": "critic",
    "reference": "reference",
    "reward model": "reward",
    "teacher": "teacher",
    "sampler": "sampler",
}
"""Role -> its CSS class, in stacking order."""
KINDS = {
    "weights": "tone0",
    "copy of the weights": "tone0",
    "adapters": "tone0 dots",
    "optimizer state": "tone1",
    "gradients": "tone2",
    "activations": "tone3 hatch",
    "logits": "tone3 dots",
    "temporaries": "tone3",
    "gathered layers": "tone2 hatch",
    "keys and values": "tone2 hatch",
}
"""Kind of memory -> its CSS classes, in stacking order. Other kinds come last, as OTHER_KIND."""
OTHER_KIND = "tone2 dots"
VARIANTS = ("kl", "reward")
"""Choices that decide which models exist."""
ANSWERS = ("yes", "probably", "hardly", "no")

PartName = tuple[str, str]
"""(role, kind of memory)."""


@dataclass
class Numbers:
    """The planned numbers: shapes (`[part, table]` for each phase) and their tables. Duplicates are stored once."""

    choices: Mapping[str, Choice]
    parts: dict[PartName, int] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[list[list[tuple[int, int]]]] = field(default_factory=list)
    _tables: dict[Any, int] = field(default_factory=dict)
    _shapes: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start: Selection = {name: choice.start for name, choice in self.choices.items()}
        self.axes = {name: list(self.choices[name].values) for name in AXES}
        self.variants = [
            dict(zip(VARIANTS, values, strict=True))
            for values in itertools.product(*(self.choices[name].values for name in VARIANTS))
        ]

    def shapes_of(self, key: str) -> list[int]:
        """Return the indices of an algorithm's shapes, one per variant. Variants with equal settings have one shape."""
        found: dict[str, int] = {}
        selections = [{**self.start, **variant} for variant in self.variants]
        for chosen in selections:
            settings = str(settings_of(key, chosen))
            if settings not in found:
                found[settings] = self._shape(key, chosen)
        return [found[str(settings_of(key, chosen))] for chosen in selections]

    def to_json(self) -> dict[str, Any]:
        """Return the parts in stacking order, and the shapes and tables that refer to them by index."""
        order = sorted(self.parts, key=_stacked)
        place = {self.parts[name]: order.index(name) for name in order}
        return {
            "axes": self.axes,
            "variants": self.variants,
            "phases": PHASES,
            "roles": ROLES,
            "parts": [{"role": r, "what": w, "style": f"{ROLES[r]} {KINDS.get(w, OTHER_KIND)}"} for r, w in order],
            "shapes": [[sorted([place[p], t] for p, t in phase) for phase in shape] for shape in self.shapes],
            "tables": self.tables,
        }

    def _shape(self, key: str, chosen: Selection) -> int:
        probe = str([_bytes(predict(workload(key, one))) for one in self._each_value(chosen)])
        if probe not in self._shapes:
            planned = self._planned(key, chosen)
            self._shapes[probe] = len(self.shapes)
            self.shapes.append([[(self._part(name), self._table(b)) for name, b in p.items()] for p in planned])
        return self._shapes[probe]

    def _each_value(self, chosen: Selection) -> Iterator[Selection]:
        """Yield different selections in which each value of each choice occurs."""
        yield chosen
        for name, values in self.axes.items():
            yield from ({**chosen, name: value} for value in values if value != chosen[name])

    def _planned(self, key: str, chosen: Selection) -> list[dict[PartName, np.ndarray]]:
        """Phase -> part -> bytes of every combination, `[len(axis) for axis in axes]`; one value is enough of a choice
        that has no meaning where nothing is sampled."""
        sampled = samples(ALGORITHMS[key])
        axes = {
            name: all_ if sampled or not self.choices[name].online else all_[:1] for name, all_ in self.axes.items()
        }
        size = [len(values) for values in axes.values()]
        found: list[dict[PartName, np.ndarray]] = [{} for _ in PHASES]
        for place, values in zip(np.ndindex(*size), itertools.product(*axes.values()), strict=True):
            selection = {**chosen, **dict(zip(axes, values, strict=True))}
            for phase, parts in _bytes(predict(workload(key, selection))).items():
                of_phase = found[PHASES.index(phase)]
                for name, number in parts.items():
                    of_phase.setdefault(name, np.zeros(size, np.int64))[place] = number
        return found

    def _part(self, name: PartName) -> int:
        return self.parts.setdefault(name, len(self.parts))

    def _table(self, numbers: np.ndarray) -> int:
        used = [i for i in range(numbers.ndim) if (numbers != numbers.take([0], axis=i)).any()]
        small = numbers[tuple(slice(None) if i in used else 0 for i in range(numbers.ndim))]
        key = (tuple(used), small.tobytes())
        if key not in self._tables:
            self._tables[key] = len(self.tables)
            self.tables.append({"axes": [AXES[i] for i in used], "bytes": small.ravel().tolist()})
        return self._tables[key]


def _stacked(name: PartName) -> tuple[int, int]:
    role, what = name
    return list(ROLES).index(role), [*KINDS, what].index(what)


def _bytes(plan: MemoryPlan) -> dict[PhaseName, dict[PartName, int]]:
    """Return phase -> part -> bytes, on the training devices."""
    found: dict[PhaseName, dict[PartName, int]] = {}
    for phase in plan.phases:
        of_phase = found.setdefault(phase.name, {})
        for part in phase.parts:
            name = (part.role, part.what)
            of_phase[name] = of_phase.get(name, 0) + part.bytes
    return found


def device_of(key: str) -> dict[str, Any]:
    """Return the usable bytes, and the most bytes for each of the planner's answers to "does it fit"."""
    memory = find_hardware(key).memory
    return {"key": key, "bytes": memory, "most": [_most(memory, answer) for answer in ANSWERS[:-1]]}


def _most(memory: int, answer: str) -> int:
    """Return the most bytes for which the planner gives this answer or a better one, by bisection."""
    low, high = 0, 8 * memory
    while low < high:
        middle = (low + high + 1) // 2
        said = Verdict(needed=middle, available=memory, error=ERROR["cuda"]).answer
        low, high = (middle, high) if ANSWERS.index(said) <= ANSWERS.index(answer) else (low, middle - 1)
    return low
