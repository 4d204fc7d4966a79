"""The faults of a simulated run: a function of the simulated world for each kind, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from posttrain.controller.messages import Drew, Ended, Ending, Event, Lost, Returned, Row, Scored

if TYPE_CHECKING:
    from posttrain.controller.virtual import VirtualEngine
    from posttrain.controller.world import World


def running(world: World) -> VirtualEngine | None:
    """A random engine that a fault can hit; None if there is none."""
    found = [engine for engine in world.engines.values() if engine.joined and not engine.hung]
    return world.rng.choice(found) if found else None


def noticed_after(world: World) -> float:
    return world.rng.choice((0.0, 0.1, 0.5)) * world.workload.train_seconds


def killed(world: World) -> None:
    engine = running(world)
    if engine is not None:
        _kill(world, engine, "engine killed")


def _kill(world: World, engine: VirtualEngine, kind: str) -> None:
    world.struck(kind, engine.name)
    engine.stop()
    engine.later(noticed_after(world), lambda: world.tell(Lost(engine.name, "was killed")))


def hung(world: World) -> None:
    engine = running(world)
    if engine is not None:
        world.struck("engine hung", engine.name)
        engine.hang()


def slow(world: World) -> None:
    """An engine becomes slow, and recovers if it is not ended before."""
    engine = running(world)
    if engine is None:
        return
    world.struck("engine slow", engine.name)
    engine.slow_down(world.rng.choice((3.0, 30.0, 1000.0)))

    def recover() -> None:
        engine.slow_down(1.0)
        world.settle(engine.name)

    engine.later(world.rng.uniform(1, 20) * world.workload.train_seconds, recover)


def load(world: World, wrong: str) -> None:
    """The next load of weights "fails", "hangs", "lies" about their version, or takes long ("slow")."""
    engine = running(world)
    if engine is not None:
        engine.next_load = wrong


def sleep(world: World, wrong: str) -> None:
    """An engine keeps its memory at the next `Sleep` ("fails"), or never answers ("hangs")."""
    engine = running(world)
    if engine is not None:
        engine.next_sleep = wrong


def label(world: World, by: int) -> None:
    """An engine draws with other weights than those that it was given."""
    engine = running(world)
    if engine is not None and not engine.label:
        engine.label, engine.lied = by, False


def speaks_of_the_past(world: World) -> None:
    """An engine is killed, and messages about its rows arrive long after."""
    engine = running(world)
    if engine is None:
        return
    past = [(decoding.row, decoding.attempt) for decoding in engine.held()]
    version = engine.version or 0
    _kill(world, engine, "engine killed")
    for row, attempt in past:
        said = (engine.name, row, attempt)
        events = [Drew(*said, version, world.rng.randint(1, 5)), Ended(*said), Returned(*said)]
        delay = world.rng.uniform(0.6, 6) * world.workload.train_seconds
        world.after(delay, partial(_tell_past, world, world.rng.sample(events, 2)))


def _tell_past(world: World, events: list[Event]) -> None:
    for event in events:
        _tell_ignored(world, event, "late message")


def says_twice(world: World) -> None:
    """A message arrives for a second time."""
    group = world.rng.randint(0, 3)
    row = Row(group, world.rng.randrange(world.limits.group_size))
    name = world.rng.choice(world.names)
    for event in (Scored(group), Ended(name, row, world.rng.randint(0, 1))):
        _tell_ignored(world, event, "message twice")


def _tell_ignored(world: World, event: Event, kind: str) -> None:
    """Send a message that the controller must ignore. A message that is true at present is not sent."""
    if isinstance(event, Drew | Ended | Returned) and world.controller.holds(event.engine, event.row, event.attempt):
        return
    if isinstance(event, Scored) and any(wait.kind == "score" and wait.progress == event.group for wait in world.armed):
        return
    before = world.controller.counts["ignored"]
    world.faults[kind] += 1
    world.tell(event)
    world.answered[kind] += world.controller.counts["ignored"] - before


def starts_anew(world: World) -> None:
    """An engine is restarted from outside, and joins without weights and rows."""
    engine = running(world)
    if engine is not None:
        world.struck("engine anew", engine.name)
        engine.stop()
        engine.alive = True

        def join() -> None:
            engine.join()
            world.settle(engine.name)

        engine.later(world.workload.join_seconds, join)


def never_joins(world: World) -> None:
    engine = running(world)
    if engine is not None:
        engine.next_start_fails = True
        _kill(world, engine, "engine killed")


def rows_returned(world: World) -> None:
    """An engine returns up to three rows unfinished, without being asked."""
    engine = running(world)
    rows = [decoding.row for decoding in engine.held()] if engine else []
    for row in world.rng.sample(rows, min(len(rows), 3)):
        assert engine is not None
        world.struck("row returned", row)
        engine.give_back(row)


def row_forgotten(world: World) -> None:
    """An engine loses a row and continues with the others."""
    engine = running(world)
    rows = [decoding.row for decoding in engine.held()] if engine else []
    if engine is not None and rows:
        world.struck("row forgotten", engine.name)
        engine.drop(world.rng.choice(rows))


def rewards(world: World, trouble: str) -> None:
    world.next_score = trouble


def trainer_slow(world: World) -> None:
    world.next_train = world.rng.choice((0.5, 3.0)) * world.workload.deadlines["train"]


def publication_slow(world: World) -> None:
    world.next_publish = world.rng.choice((0.5, 3.0)) * world.workload.deadlines["publish"]


def user_ends(world: World) -> None:
    world.struck("user ends", "trainer")
    world.tell(Ending("stopped by the user"))


def run_killed(world: World) -> None:
    world.faults["run killed"] += 1
    world.kill()
    world.answered["run killed"] += 1


FAULTS: dict[str, Callable[[World], None]] = {
    "engine killed": killed,
    "engine hung": hung,
    "engine slow": slow,
    "engine anew": starts_anew,
    "never joins": never_joins,
    "load fails": partial(load, wrong="fails"),
    "load hangs": partial(load, wrong="hangs"),
    "load slow": partial(load, wrong="slow"),
    "load lies": partial(load, wrong="lies"),
    "sleep fails": partial(sleep, wrong="fails"),
    "sleep hangs": partial(sleep, wrong="hangs"),
    "version ahead": partial(label, by=1000),
    "version behind": partial(label, by=-1),
    "late message": speaks_of_the_past,
    "message twice": says_twice,
    "row returned": rows_returned,
    "row forgotten": row_forgotten,
    "rewards lost": partial(rewards, trouble="lost"),
    "rewards hang": partial(rewards, trouble="hang"),
    "trainer slow": trainer_slow,
    "publication slow": publication_slow,
    "user ends": user_ends,
    "run killed": run_killed,
}


@dataclass(frozen=True)
class Faults:
    """A number of faults. The seed decides their kinds and times."""

    number: int
    within: float
    """All faults happen within this many seconds from the start."""
    kinds: tuple[str, ...] = tuple(FAULTS)

    def drawn(self, rng: Random) -> Iterator[tuple[float, str]]:
        for _ in range(self.number):
            yield rng.uniform(0, self.within), rng.choice(self.kinds)


def strike(world: World, faults: Faults) -> None:
    """Schedule the faults."""
    drawn = list(faults.drawn(world.rng))
    world.saving = any(kind == "run killed" for _, kind in drawn)
    for at, kind in drawn:
        world.after(at, partial(FAULTS[kind], world), outlives=True)
