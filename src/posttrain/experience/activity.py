"""The activities of engines and trainer during a run, derived from the controller's state for the timeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from posttrain.controller.controller import Controller
from posttrain.controller.messages import Command, Dismiss, End, Event, GiveUp, Lost, Published, Restart
from posttrain.controller.parts import EngineState
from posttrain.store.timeline import Timeline

Doing = tuple[str, int | None]
"""A word for the activity, and the version of the weights if there is one."""


class Activity:
    """Sees every event, writes one track per engine to the timeline, and measures how long engines decode nothing."""

    def __init__(self, timeline: Timeline, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeline, self.clock = timeline, clock
        self._doing: dict[str, Doing] = {}
        self._down = set[str]()
        """Engines that are lost and not restarted yet."""
        self._looked, self._has_begun = clock(), False
        self._whole = self._drawing = 0.0

    def see(self, event: Event, commands: Iterable[Command], controller: Controller) -> None:
        """Record an event and the commands that followed from it."""
        timeline = self.timeline
        for command in commands:
            match command:
                case Restart(engine) if engine in self._down:
                    self._down.discard(engine)
                case Restart(engine) | Dismiss(engine) | End(engine):
                    again = not isinstance(command, Dismiss)
                    self._down |= {engine} if isinstance(command, End) else set()
                    self._now(engine, ("", None))
                    timeline.instant(engine, "lost" if again else "lost for good", cause=_cause(event))
                case GiveUp(group, cause):
                    timeline.instant("trainer", "group given up", group=group, cause=cause)
        if isinstance(event, Published):
            self._has_begun = True
            timeline.instant("trainer", "published", version=event.version)
            timeline.counter("newest version", event.version)
        self.look(controller)

    def look(self, controller: Controller) -> None:
        """Record what each engine does now."""
        self._add_up()
        engines = controller.engines
        for name in sorted(self._doing.keys() | engines.keys()):
            self._now(name, _doing(engines[name]) if name in engines else ("", None))
        self.timeline.counter("rows in flight", sum(len(engine.rows) for engine in engines.values()))
        self.timeline.counter("groups queued", controller.queued)

    def idle(self) -> float:
        """Return the share of the engines' time without decoding, since the last call or the first publication."""
        self._add_up()
        share = 1 - self._drawing / self._whole if self._whole > 0 else 0.0
        self._whole = self._drawing = 0.0
        return share

    def _now(self, name: str, doing: Doing) -> None:
        if doing != self._doing.get(name):
            self._doing[name] = doing
            word, version = doing
            self.timeline.switch(name, word, **({} if version is None else {"version": version}))

    def _add_up(self) -> None:
        seconds, self._looked = self.clock() - self._looked, self.clock()
        if not self._has_begun:
            return
        self._whole += seconds * len(self._doing)
        self._drawing += seconds * sum(word == "decoding" for word, _ in self._doing.values())


def _doing(engine: EngineState) -> Doing:
    if engine.down or engine.asleep or engine.falls_asleep:
        return "" if engine.down else "asleep", None
    if not engine.joined:
        return "starting", None
    if engine.loading is not None:
        return "loading", engine.loading
    return ("decoding", engine.version) if engine.rows else ("", None)


def _cause(event: Event) -> str:
    return event.cause if isinstance(event, Lost) else str(event)
