"""Virtual time, and the parts that answer the controller in it: engines, rewards, the trainer and deadlines."""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from posttrain.controller.controller import Controller
from posttrain.controller.invariants import Broken, Observer
from posttrain.controller.messages import (
    Asked,
    Command,
    Deliver,
    Dismiss,
    Drew,
    End,
    Evaluate,
    Evaluated,
    Event,
    Finished,
    GiveUp,
    Interrupt,
    Late,
    Lead,
    Limits,
    Load,
    Open,
    Paused,
    Publish,
    Published,
    Restart,
    Resumed,
    Row,
    Score,
    Scored,
    ScoringLost,
    Sleep,
    Stop,
    Submit,
    Trained,
    Wait,
)
from posttrain.controller.staleness import add_span, kept
from posttrain.controller.virtual import VirtualEngine
from posttrain.controller.workload import Workload

MOST_TURNS = 20_000
"""A watched run that needs more turns of the event loop counts as endless, because watched runs are tiny."""


@dataclass
class Step:
    """The tokens that a step was trained on."""

    lags: Counter[int]
    """Number of tokens in the loss, by age."""
    masked: int
    """Number of tokens too old for the loss."""
    rows: list[tuple[int, int]]
    """For each row, its length and its tokens in the loss."""


class World:
    """Carries out each command in virtual time, and sends the resulting events to the controller."""

    def __init__(
        self,
        limits: Limits,
        workload: Workload,
        seed: int,
        controller: type[Controller],
        *,
        watched: bool,
        history: bool,
    ) -> None:
        self.limits, self.workload, self.seed, self.kind = limits, workload, seed, controller
        self.rng = Random(seed)
        self.now, self.turns, self.number, self.life = 0.0, 0, 0, 0
        self.heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self.names = [f"engine-{number}" for number in range(workload.engines)]
        self.observer = Observer(limits, engines=self.names) if watched else None
        self.history: list[tuple[float, Event, list[Command]]] | None = [] if history else None
        self.groups: dict[int, tuple[list[int], bool]] = {}
        self.spans: dict[Row, list[list[int]]] = {}
        self.drawn: dict[Row, int] = {}
        self.steps: list[Step] = []
        self.trainer_busy = self.engines_busy = 0.0
        self.stop: Stop | None = None
        self.faults: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.unanswered: dict[Hashable, list[str]] = defaultdict(list)
        self.next_score = ""
        """The fault of the next rewards: "lost" or "hang"."""
        self.next_train = self.next_publish = 0.0
        """Extra seconds that the next step and the next publication take."""
        self.saving = False
        """Whether the state is saved at the end of each step."""
        self.saved: tuple[str, dict[Row, list[list[int]]], Any] | None = None
        self.evaluations = 0
        """Number of groups evaluated so far."""
        self.begin(controller(limits, engines=self.names))

    def begin(self, controller: Controller) -> None:
        """Start all parts, for a new run or for one that is resumed."""
        self.controller = controller
        self.armed: dict[Wait, float] = {}
        self.engines = {name: VirtualEngine(name, self) for name in self.names}
        for engine in self.engines.values():
            engine.start()
        self.version = controller.state()["version"]
        self.unanswered_groups: set[int] = set()
        """Groups of an evaluation that have no answer yet."""
        self._publish()
        waits = controller.waits()
        if self.observer:
            self.observer.waits = waits
        self.arm(waits)

    # --- time --------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], None], *, outlives: bool = False) -> None:
        """Do something later. `outlives`: also if the run is killed and resumed before."""
        self.number += 1
        heapq.heappush(self.heap, (self.now + seconds, self.number, -1 if outlives else self.life, action))

    def run(self) -> None:
        while self.heap and self.stop is None and not (self.observer and self.turns > MOST_TURNS):
            self.turns += 1
            self.now, _, life, action = heapq.heappop(self.heap)
            if life in (-1, self.life):
                action()
        self.engines_busy += sum(engine.busy for engine in self.engines.values())
        if self.observer:
            self.observer.saved(self.controller.state())
            if self.stop is None:
                self.observer.broken.append(Broken("ends", f"no end after {self.turns} turns"))

    def kill(self) -> None:
        """End everything immediately, and resume from the last saved state."""
        self.life += 1
        self.engines_busy += sum(engine.busy for engine in self.engines.values())
        self.next_score, self.next_train, self.next_publish = "", 0.0, 0.0
        self.unanswered.clear()
        if self.saved is None:
            controller, self.spans = self.kind(self.limits, engines=self.names), {}
            state, books = controller.state(), Observer(self.limits).books
        else:
            text, spans, books = self.saved
            state, self.spans = json.loads(text), deepcopy(spans)
            self._begin_turns_anew(state)
            controller = self.kind.restored(self.limits, state, engines=self.names)
        del self.steps[state["version"] :]
        if self.observer:
            self.observer.restored(books, state, self.names)
        self.begin(controller)

    def _begin_turns_anew(self, state: Any) -> None:
        """Drop the tokens of unfinished rows, because environments do not outlive a run."""
        for group in state["in_flight"] if self.limits.turns else ():
            for g, row in enumerate(group["rows"]):
                if not row["ended"]:
                    self.spans.pop(Row(group["group"], g), None)

    def save(self) -> None:
        books = self.observer.copied() if self.observer else None
        state = self.controller.state()
        if self.observer:
            self.observer.saved(state)
        self.saved = json.dumps(state), deepcopy(self.spans), books

    # --- events ------------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        if self.stop is not None:
            return
        held = self._holds(event)
        commands = self.controller.handle(event)
        if isinstance(event, Drew) and held and self._holds(event):  # still held: the version was accepted
            add_span(self.spans.setdefault(event.row, []), event.version, event.count)
        if isinstance(event, Paused) and held:
            self._act(event.row)
        waits = self.controller.waits()
        if self.history is not None:
            self.history.append((self.now, event, list(commands)))
        if self.observer:
            self.observer.see(event, commands, waits)
        if self.saving and isinstance(event, Trained):
            self.save()
        for command in commands:
            self.follow(command)
        self.arm(waits)

    def _holds(self, event: Event) -> bool:
        of_row = isinstance(event, Drew | Paused)
        return of_row and self.controller.holds(event.engine, event.row, event.attempt)

    def arm(self, waits: frozenset[Wait]) -> None:
        """Schedule a `Late` event for the deadline of each new wait."""
        for wait in self.armed.keys() - waits:
            del self.armed[wait]
        for wait in waits - self.armed.keys():
            self.armed[wait] = self.now
            if wait.kind in self.workload.deadlines:
                self.after(self.workload.deadlines[wait.kind], partial(self._late, wait, self.now))

    def _late(self, wait: Wait, since: float) -> None:
        if self.armed.get(wait) == since:
            self.tell(Late(wait))

    # --- commands ----------------------------------------------------------------------------------------------------

    def follow(self, command: Command) -> None:
        match command:
            case Open(row):
                self._act(row)
            case Submit(engine, row):
                if row.group >= 0:
                    self.drawn[row] = self.length(row)
                self.engines[engine].submit(command)
                self.settle(row)
            case Interrupt(engine):
                self.engines[engine].interrupt(command)
            case Load(engine):
                self.engines[engine].load(command)
            case Restart(engine):
                self.settle(engine)
                self.settle(("load", engine))
                self.engines_busy += self.engines[engine].busy
                self.engines[engine].busy = 0.0
                self.engines[engine].start()
            case Sleep(engine):
                self.engines[engine].sleep(command)
            case Dismiss(engine) | End(engine):
                self.settle(engine)
                self.settle(("load", engine))
                self.engines[engine].stop()
            case Score(group):
                self.settle(group)
                self._score(group)
            case Publish():
                self._publish()
            case Deliver(_, groups):
                self._train(groups)
            case Evaluated(group) | GiveUp(group):
                self.settle(group)
                self._forget(group)
                if group < 0:
                    self._answered(group)
            case Stop():
                self.stop = command
                self.settle("trainer")

    def _act(self, row: Row) -> None:
        """Let the environment of a row answer after a while, or fail and start over, or never answer."""
        workload = self.workload
        if self.rng.random() >= workload.act_hangs:
            self.after(self.rng.expovariate(1 / workload.act_seconds), lambda: self._acted(row))

    def _acted(self, row: Row) -> None:
        drawn = sum(count for _, count in self.spans.get(row, ()))
        anew = bool(drawn) and self.rng.random() < self.workload.act_fails
        if anew:
            self.spans.pop(row)
        self.tell(Finished(row) if drawn == self.length(row) and not anew else Resumed(row, anew))

    def turn_ends(self, row: Row, drawn: int) -> int:
        """Number of tokens of a row at the end of the turn that begins after `drawn` tokens."""
        length, each = self.length(row), -(-self.length(row) // self.workload.turns)
        return min(length, (drawn // each + 1) * each)

    def _score(self, group: int) -> None:
        trouble, self.next_score = self.next_score, ""
        if trouble:
            self.struck(f"rewards {trouble}", group)
        if trouble == "lost":
            self.after(self.workload.reward_seconds, lambda: self.tell(ScoringLost(group, "its worker was killed")))
        else:
            late = 2 * self.workload.deadlines.get("score", 0.0) if trouble else 0.0
            self.after(self.workload.reward_seconds + late, lambda: self._scored(group))

    def _scored(self, group: int) -> None:
        trains = self.group(group)[1]
        self.tell(Scored(group, trains))

    def _publish(self) -> None:
        seconds = self._work("publication slow", self.workload.publish_seconds, self.next_publish)
        self.next_publish = 0.0
        self.after(seconds, self._published)

    def _work(self, fault: str, seconds: float, more: float) -> float:
        """Seconds that the trainer is busy, including the delay of a fault."""
        if more:
            self.struck(fault, "trainer")
        self.trainer_busy += seconds + more
        return seconds + more

    def _published(self) -> None:
        self.settle("trainer")
        self.tell(Published(self.version))
        every = self.workload.evaluate_every
        if every and self.version % every == 0 and self.workload.evaluated:
            self._evaluate()
        else:
            self.tell(Asked())

    def _evaluate(self) -> None:
        first, self.evaluations = self.evaluations, self.evaluations + self.workload.evaluated
        self.unanswered_groups = {-number - 1 for number in range(first, self.evaluations)}
        for group in sorted(self.unanswered_groups):
            self.tell(Evaluate(group, self.limits.group_size, self.limits.turns))

    def _answered(self, group: int) -> None:
        self.unanswered_groups.discard(group)
        if not self.unanswered_groups:
            self.after(0.0, lambda: self.tell(Asked()))

    def _train(self, groups: tuple[int, ...]) -> None:
        self.steps.append(self._step(groups))
        seconds = self._work("trainer slow", self.workload.train_seconds, self.next_train)
        self.next_train = 0.0
        self.after(seconds, lambda: self._trained(groups))

    def _trained(self, groups: tuple[int, ...]) -> None:
        self.settle("trainer")
        self.version += 1
        for group in groups:
            self._forget(group)
        self.tell(Trained(self.version))
        changes = self.workload.lead_changes
        if changes and self.rng.random() < changes:
            self.tell(Lead(self.rng.randint(1, 4)))
        if self.version % self.limits.publish_every and self.stop is None:
            self.tell(Asked())

    def _step(self, groups: tuple[int, ...]) -> Step:
        """The counted tokens of a batch."""
        step = Step(Counter(), 0, [])
        for row in (Row(group, g) for group in groups for g in range(self.limits.group_size)):
            spans, inside = self.spans.get(row, []), 0
            versions = [version for version, _ in spans]
            keep = kept(self.version, versions, self.limits.max_staleness, self.limits.publish_every)
            for (version, count), kept_ in zip(spans, keep, strict=True):
                if kept_:
                    step.lags[self.version - version] += count
                    inside += count
                else:
                    step.masked += count
            step.rows.append((self.length(row), inside))
        return step

    # --- rows --------------------------------------------------------------------------------------------------------

    def group(self, number: int) -> tuple[list[int], bool]:
        if number not in self.groups:
            self.groups[number] = self.workload.group(self.limits, self.seed, number)
        return self.groups[number]

    def length(self, row: Row) -> int:
        return self.group(row.group)[0][row.g]

    def _forget(self, group: int) -> None:
        for g in range(self.limits.group_size):
            self.spans.pop(Row(group, g), None)

    # --- faults ------------------------------------------------------------------------------------------------------

    def struck(self, kind: str, whom: Hashable) -> None:
        """Record that a fault has hit a component, row or group."""
        self.faults[kind] += 1
        self.unanswered[whom].append(kind)

    def settle(self, whom: Hashable) -> None:
        """Record that the faults of a component, row or group were noticed or have passed."""
        for kind in self.unanswered.pop(whom, ()):
            self.answered[kind] += 1
