"""Events in any order: hypothesis chooses among all possible next events. The invariants hold, and every run ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.controller.controller import Controller
from posttrain.controller.invariants import Observer
from posttrain.controller.messages import (
    Asked,
    Command,
    Deliver,
    Dismiss,
    Drew,
    End,
    Ended,
    Ending,
    Evaluate,
    Evaluated,
    Event,
    GiveUp,
    Interrupt,
    Joined,
    Late,
    Lead,
    Limits,
    Load,
    Loaded,
    Lost,
    Publish,
    Published,
    Restart,
    Returned,
    Row,
    Score,
    Scored,
    ScoringLost,
    Sleep,
    Slept,
    Stop,
    Submit,
    Trained,
)

ENGINES = ("a", "b", "c")


class Adversary:
    """The opponent of the controller. It answers commands in any order, and causes faults."""

    def __init__(self, limits: Limits, evaluates: int = 0) -> None:
        """Each version that is a multiple of `evaluates` is evaluated before the next batch. 0 means no evaluations."""
        self.evaluates, self.asks_after = evaluates, set[int]()
        self.limits, self.controller = limits, Controller(limits, engines=ENGINES)
        self.observer = Observer(limits, engines=ENGINES)
        self.books, self.state = self.observer.copied(), self.controller.state()
        self.trained: list[int] = []
        self.start(0)

    def start(self, version: int) -> None:
        self.observer.waits = self.controller.waits()
        self.stop: Stop | None = None
        self.asks_after.clear()
        self.version = version
        self.held: dict[str, dict[Row, int]] = {}
        """The rows of each engine, with their attempts."""
        self.weights: dict[str, int] = {}
        self.to_come: list[Event] = [Published(version), *(Joined(name) for name in ENGINES)]
        """Events that are on their way."""
        self.past: list[Event] = []
        """Events of engines that are gone, or of rows that were taken from them."""

    def tell(self, event: Event) -> None:
        if event in self.to_come:
            self.to_come.remove(event)
        self._happened(event)
        commands = self.controller.handle(event)
        self.observer.see(event, commands, self.controller.waits())
        if isinstance(event, Trained):
            self.state = json.loads(json.dumps(self.controller.state()))
            self.observer.saved(self.state)
            self.books = self.observer.copied()
        for command in commands:
            self._follow(command)

    def _happened(self, event: Event) -> None:
        match event:
            case Joined(engine):
                self.held[engine] = {}
            case Loaded(engine, version):
                self.weights[engine] = version
            case Slept(engine):
                self.weights.pop(engine, None)
            case Ended(engine, row, attempt) | Returned(engine, row, attempt):
                if self.held.get(engine, {}).get(row) == attempt:
                    del self.held[engine][row]
            case Published(version):
                due = self.evaluates and version % self.evaluates == 0
                self.to_come += [Evaluate(-1 - n, 2) for n in range(2)] if due else [Asked()]
                self.asks_after = {-1, -2} if due else set()
            case Trained(version):
                self.version = version
                if version % self.limits.publish_every:
                    self.to_come.append(Asked())
            case _:
                pass

    def _follow(self, command: Command) -> None:
        match command:
            case Submit(engine, row, attempt):
                assert row not in self.held[engine]
                self.held[engine][row] = attempt
            case Interrupt(engine, row, attempt):
                if row in self.held.get(engine, {}):
                    self.to_come.append(Returned(engine, row, attempt))
            case Load(engine, version):
                self.to_come.append(Loaded(engine, version))
            case Sleep(engine):
                self.to_come.append(Slept(engine))
            case Restart(engine) | Dismiss(engine) | End(engine):
                self._end_engine(engine, again=isinstance(command, Restart))
            case Score(group):
                self.to_come.append(Scored(group))
            case Publish(version):
                self.to_come.append(Published(version))
            case Deliver(version, groups):
                self.trained += groups
                self.to_come.append(Trained(version + 1))
            case Evaluated(group):
                self._answered(group)
            case GiveUp(group) if group < 0:
                self._answered(group)
            case GiveUp(group):
                self.to_come = [event for event in self.to_come if event != Scored(group)]
            case Stop():
                self.stop = command

    def _answered(self, group: int) -> None:
        self.asks_after.discard(group)
        if not self.asks_after:
            self.to_come.append(Asked())

    def _end_engine(self, name: str, *, again: bool) -> None:
        for row, attempt in self.held.pop(name, {}).items():
            self.past += [Drew(name, row, attempt, 0, 2), Ended(name, row, attempt), Returned(name, row, attempt)]
        self.weights.pop(name, None)
        self.to_come = [event for event in self.to_come if getattr(event, "engine", "") != name]
        if again:
            self.to_come.append(Joined(name))

    def progress(self) -> list[Event]:
        """Return all events that could happen next without a fault."""
        events = list(self.to_come)
        for name, rows in self.held.items():
            if name in self.weights and not any(isinstance(e, Loaded) and e.engine == name for e in self.to_come):
                for row, attempt in rows.items():
                    events += [Drew(name, row, attempt, self.weights[name], 3), Ended(name, row, attempt)]
        return events

    def faults(self) -> list[Event]:
        events: list[Event] = [*self.past, *(Late(wait) for wait in sorted(self.controller.waits()))]
        events += [Lost(name, "was killed") for name in self.held]
        events += [Returned(name, row, attempt) for name, rows in self.held.items() for row, attempt in rows.items()]
        for event in self.to_come:
            if isinstance(event, Scored):
                events += [ScoringLost(event.group, "was killed"), Scored(event.group, trains=False)]
            elif isinstance(event, Loaded):
                events.append(Loaded(event.engine, event.version + 1))
        if self.limits.run_ahead:
            events += [Lead(lead) for lead in (1, 2, 3)]
        return events

    def kill(self) -> None:
        """End everything, and continue from the last step."""
        self.controller = Controller.restored(self.limits, self.state, engines=ENGINES)
        self.observer.restored(self.books, self.state, ENGINES)
        del self.trained[self.state["version"] * self.limits.prompts_per_step :]
        self.start(self.state["version"])

    def finish(self) -> None:
        """Continue without further faults. A row ends after two pieces."""
        for turn in range(5000):
            if self.stop is not None:
                return
            events = self.progress()
            assert events, f"everybody waits for {self.controller.waits()}"
            self.tell(events[turn * 7 % len(events)])
        raise AssertionError("no end")


CHOICE = st.tuples(st.integers(0, 99), st.integers(0, 1 << 16))
"""The kind of the next event, and which one of that kind."""


def play(game: Adversary, choices: list[tuple[int, int]], user_ends: bool) -> None:
    for kind, which in choices:
        if game.stop is not None:
            return
        if kind < 3:
            game.kill()
            continue
        options: Callable[[], list[Event]] = game.faults if kind < 20 else game.progress
        events = options() or game.progress()
        game.tell(events[which % len(events)])
    if user_ends and game.stop is None:
        game.tell(Ending("stopped by the user"))
    game.finish()


def limits_of(*, in_turns: bool, **given: int) -> Limits:
    alone = in_turns and given["run_ahead"] == 0 and given["publish_every"] == 1
    return Limits(**given, in_turns=alone)


LIMITS = st.builds(
    limits_of,
    in_turns=st.booleans(),
    prompts_per_step=st.integers(1, 3),
    group_size=st.integers(1, 3),
    last_version=st.integers(1, 4),
    run_ahead=st.integers(0, 3),
    max_staleness=st.integers(0, 3),
    publish_every=st.integers(1, 3),
    max_groups=st.integers(1, 9),
    attempts=st.integers(1, 4),
)


def check(limits: Limits, choices: list[tuple[int, int]], user_ends: bool, evaluates: int) -> None:
    game = Adversary(limits, evaluates)
    play(game, choices, user_ends)
    game.observer.saved(game.controller.state())
    assert game.observer.broken == []
    assert len(set(game.trained)) == len(game.trained)
    if game.stop == Stop("done", failed=False):
        assert len(game.trained) == limits.last_version * limits.prompts_per_step


@given(LIMITS, st.lists(CHOICE, max_size=60), st.booleans(), st.integers(0, 2))
@examples(100, 300)
def test_the_invariants_hold_in_any_order_and_it_always_ends(limits, choices, user_ends, evaluates):
    check(limits, choices, user_ends, evaluates)


@pytest.mark.slow
@given(LIMITS, st.integers(0, 1 << 32), st.sampled_from((6, 12, 22)))
@examples(100, 300)
def test_they_hold_in_long_orders_with_few_or_many_faults(limits, seed, faults):
    rng = Random(seed)
    kinds = [rng.choice((0, *[10] * 9)) if rng.randrange(100) < faults else 50 for _ in range(rng.choice((100, 300)))]
    choices = [(kind, rng.randrange(1 << 16)) for kind in kinds]
    check(limits, choices, user_ends=rng.random() < 0.2, evaluates=rng.choice((0, 1, 2)))
