"""The rewards of one step while its completions are still being sampled.

    with rewards.open(prompts) as scoring:
        for place, group in sampler.stream(prompts, ...):
            scoring.add(place, group)
        scores = scoring.result()

The scores are those of `rewards.score(prompts, groups)`, in the same order, whatever the order of arrival: that is this
very code with groups that arrive in order. What may be asked early is decided by `Component.by_group`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from posttrain.rewards.components import Component, Row
from posttrain.rewards.gates import in_waves
from posttrain.rewards.lanes import Lane, LastLane, open_lane
from posttrain.rewards.scores import Scores, behind_gate, weighted_sum
from posttrain.rewards.sheet import Read, Sheet, read_all

if TYPE_CHECKING:
    from posttrain.rewards.pool import WorkerPool
    from posttrain.types import Completion, Prompt


class Scoring:
    """Takes the groups of P prompts as they come. Use as a context manager: what is under way when it is left early is
    given up, and workers that were busy with it are killed."""

    def __init__(self, components: Sequence[Component], pool: WorkerPool, prompts: Sequence[Prompt]) -> None:
        self._components, self._pool, self._prompts = components, pool, prompts
        self._waves = in_waves(components)
        self._names = tuple(dict.fromkeys(name for prompt in prompts for name in prompt.columns))
        self._groups: dict[int, list[Row]] = {}
        self._parts: dict[str, dict[int, tuple[Sequence[Row], Sheet]]] = {c.label: {} for c in components}
        """By label and the place of the group: its rows, and what is asked about them. All rows together stand at 0."""
        self._lanes: dict[str, Lane] = {}
        self._finished = False

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            for lane in self._lanes.values():
                lane.abandon()

    def add(self, place: int, group: Sequence[Completion]) -> None:
        """The completions of prompt `place` are there: begin to score them. Raises what stopped a reward meanwhile."""
        if place in self._groups or not 0 <= place < len(self._prompts):
            raise ValueError(f"the completions of prompt {place} of {len(self._prompts)} came twice, or from nowhere")
        prompt = self._prompts[place]
        rows = [Row(prompt, completion, number, len(group), place) for number, completion in enumerate(group)]
        self._groups[place] = rows
        for component in self._waves[0] if rows else ():
            if component.by_group:
                self._begin(component, place, rows)

    def result(self) -> Scores:
        """Wait for what is not there yet. Every prompt must have its completions by now.

        RewardError when a component has broken its contract: a value that is not a finite number, or a list of the
        wrong length.
        """
        missing = [place for place in range(len(self._prompts)) if place not in self._groups]
        if missing:
            raise ValueError(f"the completions of {len(missing)} of {len(self._prompts)} prompts have not come")
        groups = [self._groups[place] for place in range(len(self._prompts))]
        rows = [row for group in groups for row in group]
        read: dict[str, Read] = {}
        for number, wave in enumerate(self._waves if rows else ()):
            for component in wave:
                if number > 0 or not component.by_group:
                    self._begin_late(component, groups, is_open(component, read))
            self._wait([component.label for component in wave])
            read |= {component.label: read_all(self._in_order(component.label)) for component in wave}
        scores = self._combine(rows, [len(group) for group in groups], read)
        self._finished = True
        return scores

    def _begin(self, component: Component, place: int, rows: Sequence[Row], gates: Sequence[bool | None] = ()) -> None:
        columns = {name: [row.prompt.columns.get(name) for row in rows] for name in self._names}
        sheet = Sheet(component, component.calls(rows, columns, gates))
        self._parts[component.label][place] = rows, sheet
        if sheet.open:
            if component.label not in self._lanes:
                self._lanes[component.label] = open_lane(component, self._pool)
            self._lanes[component.label].add(sheet)

    def _begin_late(self, component: Component, groups: Sequence[Sequence[Row]], gates: Sequence[bool | None]) -> None:
        """What had to wait for all groups: one call for all rows, unless the function wants one for each group."""
        if not (component.signature.batch and component.by_group):
            self._begin(component, 0, [row for group in groups for row in group], gates)
            return
        for place, (group, end) in enumerate(zip(groups, accumulate(map(len, groups)), strict=True)):
            if group:
                self._begin(component, place, group, gates[end - len(group) : end])

    def _wait(self, labels: Sequence[str]) -> None:
        """For these; what computes in this thread does so while the others go on."""
        lanes = [self._lanes[label] for label in labels if label in self._lanes]
        for lane in lanes:
            lane.close()
        for lane in sorted(lanes, key=lambda lane: not isinstance(lane, LastLane)):
            lane.wait()

    def _in_order(self, label: str) -> list[tuple[Sequence[Row], Sheet]]:
        return [part for _, part in sorted(self._parts[label].items(), key=lambda item: item[0])]

    def _combine(self, rows: Sequence[Row], sizes: Sequence[int], read: Mapping[str, Read]) -> Scores:
        weights = {component.label: component.weight for component in self._components}
        failures = [found for part in read.values() for found in part.failures]
        failed: list[set[str]] = [set() for _ in rows]
        for row, failure in failures:
            failed[row] |= self._behind(failure.label)
        gated = {c.label: is_open(c, read) for c in self._components if rows and c.gate and not c.is_told}
        counted = {label: part.values for label, part in read.items()}
        counted |= {label: list(map(behind_gate, counted[label], gates)) for label, gates in gated.items()}
        rewards = [
            weighted_sum({label: values[row] for label, values in counted.items()}, weights, failed[row])
            for row in range(len(rows))
        ]
        return Scores(
            rewards_PG=_grouped(rewards, sizes),
            scored_PG=_grouped([not math.isnan(reward) for reward in rewards], sizes),
            parts={c.label: _grouped(read[c.label].values if rows else (), sizes) for c in self._components},
            verdicts={label: _grouped(part.verdicts, sizes) for label, part in read.items() if part.has_reasons},
            is_open={label: _grouped(gates, sizes) for label, gates in gated.items()},
            failures=tuple(failure for _, failure in sorted(failures, key=lambda found: found[0])),
            seconds={label: part.seconds for label, part in read.items()},
            judgements=tuple(judgement for part in read.values() for judgement in part.judgements),
        )

    def _behind(self, label: str) -> set[str]:
        """A component and those whose gates, directly or through others, depend on it: they fail where it does."""
        found = {label}
        for _ in self._components:
            found |= {c.label for c in self._components if c.gate and c.gate.label in found}
        return found


def is_open(component: Component, read: Mapping[str, Read]) -> list[bool | None]:
    """For each row, whether the component's gate is open; empty without one, or before its reward is known."""
    if component.gate is None or component.gate.label not in read:
        return []
    return [component.gate.opens(score) for score in read[component.gate.label].values]


def _grouped(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """A flat list of rows as one list per prompt."""
    return [list(values[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]
