"""Score the completions of one step while further completions are still being sampled.

    with rewards.open(prompts) as scoring:
        for place, number, completion in sampler.each(prompts, ..., group_size=8):
            scoring.add_one(place, number, completion, group_size=8)
        scores = scoring.result()

The scores equal those of `rewards.score(prompts, groups)`, in the same order, whatever the order of arrival: `score` is
this same code with groups that arrive in order. `Component.unit` decides when a component is called. A component whose
calls are cheaper than handing them over is called after sampling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from posttrain.rewards.call_batch import CallBatch, Read, check_scale, read_all
from posttrain.rewards.components import Component, Row
from posttrain.rewards.dispatch import Dispatcher, LastDispatcher, open_dispatcher
from posttrain.rewards.missing import columns_known
from posttrain.rewards.scores import ENVIRONMENT, Failure, Scores, behind_gate, weighted_sum

if TYPE_CHECKING:
    from posttrain.rewards.pool import WorkerPool
    from posttrain.types import Completion, Prompt


Part = tuple[Sequence[Row], CallBatch]
HANDOVER = 0.002
"""Seconds that the sampler loses for each call that is handed to another process while it computes, on two cores.
Shorter calls are made after sampling."""


class Scoring:
    """Takes the completions of P prompts as they arrive. Use as a context manager: if it is left early, it gives up all
    unfinished calls and kills the workers that make them."""

    def __init__(
        self, components: Sequence[Component], pool: WorkerPool, prompts: Sequence[Prompt], costs: dict[str, float]
    ) -> None:
        """`costs`: seconds per call by label, as known from earlier steps. This step enters its own. The costs decide
        when a completion is scored, and never its score."""
        self._components, self._pool, self._prompts, self._costs = components, pool, prompts, costs
        self._waves = in_waves(components)
        self._early = [c for c in self._waves[0] if c.unit != "all" and costs.get(c.label, HANDOVER) >= HANDOVER]
        self._names = columns_known(prompts)
        self._groups: dict[int, dict[int, Row]] = {}
        self._failed: dict[tuple[int, int], Failure] = {}
        """Completions whose environment failed, by (prompt, number): no component is asked about them."""
        self._sizes: dict[int, int] = {}
        """Number of completions that each prompt has or will have."""
        self._parts: dict[str, dict[tuple[int, int], tuple[Sequence[Row], CallBatch]]] = {
            c.label: {} for c in components
        }
        """By label and by the place of the first row: the rows and their batch of calls."""
        self._dispatchers: dict[str, Dispatcher] = {}
        self._finished = False

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            for dispatcher in self._dispatchers.values():
                dispatcher.abandon()

    def add(self, place: int, group: Sequence[Completion]) -> None:
        """Add all completions of prompt `place` and begin to score them. Raises the error that stopped a reward."""
        prompt = self._prompts[place] if 0 <= place < len(self._prompts) else None
        self._take(
            place, len(group), [_row(prompt, one, g, len(group), place) for g, one in enumerate(group) if prompt]
        )

    def add_one(self, place: int, number: int, completion: Completion, *, group_size: int) -> None:
        """Add completion `number` of prompt `place`, which will have `group_size` completions."""
        prompt = self._prompts[place] if 0 <= place < len(self._prompts) else None
        self._take(place, group_size, [_row(prompt, completion, number, group_size, place)] if prompt else [])

    def result(self) -> Scores:
        """Wait for the remaining outcomes and return the scores. Every prompt must have all its completions.

        RewardError when a component has broken its contract: it returned a value that is not a finite number, or a list
        of the wrong length.
        """
        missing = [place for place in range(len(self._prompts)) if not self._is_complete(place)]
        if missing:
            raise ValueError(f"the completions of {len(missing)} of {len(self._prompts)} prompts are missing")
        groups = [self._group(place) for place in range(len(self._prompts))]
        rows = [row for group in groups for row in group]
        read: dict[str, Read] = {}
        early = {component.label for component in self._early}
        for wave in self._waves if rows else ():
            for component in wave:
                if component.label not in early:
                    self._begin_late(component, groups, is_open(component, read))
            self._wait([component.label for component in wave])
            read |= {component.label: read_all(self._in_order(component.label)) for component in wave}
            for component in wave:
                check_scale(component.label, read[component.label].values, rows)
            self._note_costs(wave)
        scores = self._combine(rows, [len(group) for group in groups], read)
        scores = scores.with_unscored(dict(sorted(self._failed.items())))
        self._finished = True
        return scores

    def _take(self, place: int, size: int, rows: Sequence[Row]) -> None:
        known = self._groups.setdefault(place, {})
        there = {*known, *(number for one, number in self._failed if one == place)}
        if not 0 <= place < len(self._prompts) or any(r.number in there for r in rows) or self._is_complete(place):
            raise ValueError(f"a completion of prompt {place} of {len(self._prompts)} arrived twice, or is unknown")
        self._sizes[place] = size
        self._failed |= {(place, row.number): _failure_of(row) for row in rows if row.completion.failure}
        rows = [row for row in rows if not row.completion.failure]
        known.update((row.number, row) for row in rows)
        for component in self._early:
            if component.unit == "row":
                if rows:
                    self._begin(component, rows)
            elif self._is_complete(place) and known:
                self._begin(component, self._group(place))

    def _is_complete(self, place: int) -> bool:
        failed = sum(one == place for one, _ in self._failed)
        return len(self._groups.get(place, ())) + failed == self._sizes.get(place)

    def _group(self, place: int) -> list[Row]:
        return [row for _, row in sorted(self._groups[place].items(), key=lambda item: item[0])]

    def _begin(self, component: Component, rows: Sequence[Row], gates: Sequence[bool | None] = ()) -> None:
        columns = {name: [row.prompt.columns.get(name) for row in rows] for name in self._names}
        batch = CallBatch(component, component.calls(rows, columns, gates))
        self._parts[component.label][rows[0].group, rows[0].number] = rows, batch
        if batch.open:
            if component.label not in self._dispatchers:
                self._dispatchers[component.label] = open_dispatcher(component, self._pool)
            self._dispatchers[component.label].add(batch)

    def _begin_late(self, component: Component, groups: Sequence[Sequence[Row]], gates: Sequence[bool | None]) -> None:
        """Begin the calls that waited for all groups. All rows go together, unless a list function works by group."""
        if component.unit != "group":
            self._begin(component, [row for group in groups for row in group], gates)
            return
        for group, end in zip(groups, accumulate(map(len, groups)), strict=True):
            if group:
                self._begin(component, group, gates[end - len(group) : end])

    def _wait(self, labels: Sequence[str]) -> None:
        """Wait for these components. Those that compute in this thread do so while the others continue."""
        dispatchers = [self._dispatchers[label] for label in labels if label in self._dispatchers]
        for dispatcher in dispatchers:
            dispatcher.close()
        for dispatcher in sorted(dispatchers, key=lambda dispatcher: not isinstance(dispatcher, LastDispatcher)):
            dispatcher.wait()

    def _note_costs(self, components: Sequence[Component]) -> None:
        for component in components:
            asked = [outcome.seconds for _, batch in self._in_order(component.label) for outcome in batch.asked]
            if asked:
                self._costs[component.label] = math.fsum(asked) / len(asked)

    def _in_order(self, label: str) -> list[tuple[Sequence[Row], CallBatch]]:
        return [part for _, part in sorted(self._parts[label].items(), key=lambda item: item[0])]

    def _combine(self, rows: Sequence[Row], sizes: Sequence[int], read: Mapping[str, Read]) -> Scores:
        weights = {component.label: component.weight for component in self._components}
        failures = [found for part in read.values() for found in part.failures]
        failed: list[set[str]] = [set() for _ in rows]
        for row, failure in failures:
            failed[row] |= self._behind(failure.label)
        gated = {c.label: is_open(c, read) for c in self._components if rows and c.gate and not c.receives_gate}
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
            tokens={
                c.label: _grouped(read[c.label].tokens if rows else (), sizes)
                for c in self._components
                if c.signature.per_token
            },
            is_open={label: _grouped(gates, sizes) for label, gates in gated.items()},
            failures=tuple(failure for _, failure in sorted(failures, key=lambda found: found[0])),
            seconds={label: part.seconds for label, part in read.items()},
            judgements=tuple(judgement for part in read.values() for judgement in part.judgements),
        )

    def _behind(self, label: str) -> set[str]:
        """A component and all components whose gates depend on it, directly or not. They fail where it fails."""
        found = {label}
        for _ in self._components:
            found |= {c.label for c in self._components if c.gate and c.gate.label in found}
        return found


def _row(prompt: Prompt, completion: Completion, *place: int) -> Row:
    return Row(_as_played(prompt, completion), completion, *place)


def _failure_of(row: Row) -> Failure:
    episode = row.completion.episode
    assert episode is not None, "only a trajectory of an environment fails with it"
    return Failure(
        label=ENVIRONMENT,
        prompt=row.prompt.index,
        completion=row.number,
        kind=episode.failure,
        message=episode.detail,
        traceback=episode.traceback,
    )


def _as_played(prompt: Prompt, completion: Completion) -> Prompt:
    """Return the prompt that the policy saw: an environment may have replaced that of the row. If the row is text, all
    messages in its place are one text."""
    if completion.episode is None or completion.episode.opening is None:
        return prompt
    opening = tuple(dict(message) for message in completion.episode.opening)
    plain = "\n\n".join(str(message["content"]) for message in opening)
    return replace(prompt, messages=opening, plain=None if prompt.plain is None else plain)


def is_open(component: Component, read: Mapping[str, Read]) -> list[bool | None]:
    """For each row, whether the component's gate is open. Empty if it has no gate or the gate's reward is not known."""
    if component.gate is None or component.gate.label not in read:
        return []
    return [component.gate.opens(score) for score in read[component.gate.label].values]


def _grouped(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Split a flat list of rows into one list per prompt."""
    return [list(values[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def in_waves(components: Sequence[Component]) -> list[list[Component]]:
    """The components in waves. Those of one wave run concurrently; a later wave reads the scores of earlier ones."""
    by_label = {component.label: component for component in components}

    def depth(component: Component) -> int:
        return 1 + depth(by_label[component.gate.label]) if component.receives_gate and component.gate else 0

    depths = [depth(component) for component in components]
    return [
        [component for component, found in zip(components, depths, strict=True) if found == level]
        for level in sorted(set(depths))
    ]
