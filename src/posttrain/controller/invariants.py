"""The invariants of every asynchronous run, each with its name, and the observer that checks them.

The observer keeps its own books from events and commands only. It shares the messages and the admission formula with
the controller, but none of its other code and none of its state. If the two disagree, one of them has a bug.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from posttrain.controller import staleness
from posttrain.controller.admission import capacity
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
    Finished,
    GiveUp,
    Interrupt,
    Joined,
    Late,
    Lead,
    Limits,
    Load,
    Loaded,
    Lost,
    Open,
    Paused,
    Publish,
    Published,
    Restart,
    Resumed,
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
    Wait,
)

INVARIANTS = {
    "age": "No trained token is older than the bound, and none has a version that does not exist yet.",
    "synchronous": "With run_ahead 0, every token is sampled with the newest publication.",
    "once": "Every prompt is trained once, voided, or abandoned with a cause.",
    "order": "Finished groups are trained in the order of their creation.",
    "batch": "A trainer that asks gets P scored groups as soon as P are ready, and it gets one batch at a time.",
    "admission": "There are never more groups in flight than the limits admit.",
    "places": "While an engine is ready, no slot stays empty and no row that may begin waits.",
    "versions": "Versions within a row never decrease, and an engine that reports a wrong version is not believed.",
    "weights": "No row goes to an engine whose weights are older than the newest publication. All engines load it.",
    "buffers": "No publication overwrites a buffer that an engine reads. It is written as soon as no engine reads.",
    "memory": "While the trainer trains on its device, engines hold no memory there. They sleep for no other reason.",
    "holders": "Two engines never hold the same row.",
    "together": "All rows of a group go to the same engine, the one that holds the fewest rows.",
    "turns": "A row of several turns is with an engine or with its environment, which starts once. No other row waits.",
    "attempts": "Messages about an earlier attempt are ignored, and nothing is tried more often than allowed.",
    "tokens": "A row continues after its delivered tokens: no token is lost, and none is sampled twice.",
    "engines": "A lost engine is restarted or dismissed. No other engine is restarted or dismissed.",
    "rewards": "A group is scored after all its rows have ended, and again if its rewards were lost.",
    "evaluation": "Only weights of the evaluated version answer an evaluation. Its answers are not trained on.",
    "owners": "The run waits for every component that has something to do, and for no other component.",
    "state": "The saved state holds everything that waits or is in flight, with every token.",
    "ends": "The run always ends, and gives no command after its end.",
}


class Broken(NamedTuple):
    """A violation of an invariant."""

    name: str
    text: str


@dataclass
class SeenRow:
    engine: str | None = None
    attempt: int = 0
    failures: int = 0
    """How often the row was lost since its last token."""
    spans: list[list[int]] = field(default_factory=list)
    ended: bool = False
    away: Literal["", "unopened", "away"] = ""
    """Whether the row is with its environment, or its environment must still be opened."""

    @property
    def drawn(self) -> int:
        return sum(count for _, count in self.spans)


@dataclass
class SeenEngine:
    joined: bool = False
    version: int | None = None
    loading: int | None = None
    sleep: Literal["", "told", "asleep", "down"] = ""
    """`down`: the engine was ended and will be restarted later."""
    rows: set[Row] = field(default_factory=set)
    losses: int = 0


@dataclass
class Books:
    """The observer's knowledge of a run, apart from its engines."""

    version: int
    created: int
    """Number of groups created so far, counted from the first group of the data."""
    rows: dict[int, list[SeenRow]] = field(default_factory=dict)
    """Rows of the groups in flight, including those of an evaluation."""
    scoring: set[int] = field(default_factory=set)
    scorings: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    finished: set[int] = field(default_factory=set)
    training: tuple[int, ...] = ()
    spans: dict[int, list[list[list[int]]]] = field(default_factory=dict)
    """Spans of each row of finished groups."""
    trained: set[int] = field(default_factory=set)
    voided: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)

    @property
    def accepted(self) -> int:
        return len(self.trained) + len(self.training) + len(self.finished)

    @property
    def running(self) -> int:
        return self.created - self.accepted - len(self.voided) - len(self.given_up)


class Observer:
    """Sees every event, command and wait, and records broken invariants."""

    def __init__(self, limits: Limits, *, version: int = 0, engines: Iterable[str] = ()) -> None:
        self.limits = self.configured = limits
        self.furthest = limits.run_ahead
        first = version * limits.prompts_per_step
        self.books = Books(version, first, trained=set(range(first)))
        self.broken: list[Broken] = []
        self.start(engines)

    def start(self, engines: Iterable[str]) -> None:
        """Begin a run, or continue one with new engines."""
        self.engines = {name: SeenEngine() for name in engines}
        self.dismissed: set[str] = set()
        self.published: int | None = None
        self.publishing: int | None = self.books.version
        self.due: int | None = None
        self.asked = False
        self.ending = self.stopped = False
        self.waits: frozenset[Wait] = frozenset()
        self.gone: str | None = None
        """The engine that the last event reports as lost."""
        self.unscored: int | None = None
        """The group whose rewards the last event reports as lost."""
        self.hopeless: int | None = None
        """The group whose environments gave no answer, by the last event."""

    # --- a run that is killed and resumed ----------------------------------------------------------------------------

    def saved(self, state: dict[str, Any]) -> None:
        """Check the state that the controller saves."""
        books = self.books
        in_flight = [
            {"group": number, "rows": [{"spans": row.spans, "ended": row.ended} for row in rows]}
            for number, rows in sorted(books.rows.items())
            if number >= 0
        ]
        known = {"version": books.version, "finished": sorted([*books.training, *books.finished])}
        said = {name: state[name] for name in known}
        self._check(said == known, "state", f"{said} is saved, but {known} is true")
        begun = [group for group in state["in_flight"] if any(row["spans"] for row in group["rows"])]
        drawn = [group for group in in_flight if any(row["spans"] for row in group["rows"])]
        self._check(begun == drawn, "state", f"rows {begun} are saved, but {drawn} are true")
        numbers = {group["group"] for group in state["in_flight"]} | set(state["finished"])
        over = books.trained | books.voided | books.given_up
        self._check(
            numbers.isdisjoint(over) and numbers | over == set(range(state["next_group"])),
            "state",
            f"groups {sorted(set(range(state['next_group'])) ^ (numbers | over))} of {state['next_group']} are missing",
        )

    def copied(self) -> Books:
        return deepcopy(self.books)

    def restored(self, books: Books, state: dict[str, Any], engines: Iterable[str]) -> None:
        """Continue the run from a saved state and its books, with the `run_ahead` that was configured."""
        self.limits = self.configured
        self.books = books = deepcopy(books)
        books.finished |= set(books.training)
        books.training = ()
        books.scoring.clear()
        books.scorings.clear()
        books.created = state["next_group"]
        for group in state["in_flight"]:
            books.rows.setdefault(group["group"], self._new_rows())
        for row in (row for rows in books.rows.values() for row in rows):
            row.engine, row.attempt, row.failures = None, 0, 0
            if self.limits.turns and not row.ended:
                row.spans, row.away = [], "unopened"
        self.start(engines)

    # --- every reaction ----------------------------------------------------------------------------------------------

    def see(self, event: Event, commands: Sequence[Command], waits: frozenset[Wait]) -> None:
        """Check an event, the commands that it caused, and the waits that result."""
        if self.stopped:
            self._check(not commands and not waits, "ends", f"after the end {event} leads to {commands}, {waits}")
            return
        self.gone = self.unscored = self.hopeless = None
        self._learn(event)
        for command in commands:
            self._follow(command, event)
        if not self.stopped:
            if self.gone is not None:
                name = "versions" if isinstance(event, Drew | Loaded) else "engines"
                self._break(name, f"after {event} {self.gone} is neither restarted nor dismissed")
            if not self.ending:
                self._nothing_is_left_undone()
        self.waits = waits
        expected = set() if self.stopped else set(self._owing())
        found = {(wait.kind, wait.owner, wait.progress if wait.kind in ("act", "score") else 0) for wait in waits}
        if found != expected:
            self._break("owners", f"after {event} the controller waits for {found}, but {expected} have to act")
        if not waits and not self.stopped:
            self._break("owners", f"after {event} the controller waits for nothing")

    def _learn(self, event: Event) -> None:
        match event:
            case Drew() | Ended() | Paused() | Returned():
                self._heard(event)
            case Resumed() | Finished():
                self._came_back(event)
            case Joined(engine):
                self._now_joined(engine)
            case Loaded():
                self._now_loaded(event)
            case Slept(engine):
                self._now_asleep(engine)
            case Lost(engine):
                self._lost(engine)
            case Late(wait) if wait in self.waits:
                self._late(wait)
            case Scored():
                self._scored(event)
            case ScoringLost(group):
                self._rewards_lost(group)
            case Asked():
                self.asked = True
            case Evaluate(group, rows, turns):
                self.books.rows[group] = [SeenRow(away="unopened" if turns else "") for _ in range(rows)]
            case Trained(version):
                self.books.trained |= set(self.books.training)
                self.books.version, self.books.training = version, ()
                self.due = version if version % self.limits.publish_every == 0 else None
            case Published(version):
                self.published, self.publishing = version, None
            case Lead(run_ahead):
                self.limits = replace(self.limits, run_ahead=run_ahead)
                self.furthest = max(self.furthest, run_ahead)
            case Ending():
                self.ending = True
            case _:
                pass

    def _heard(self, event: Drew | Ended | Paused | Returned) -> None:
        """Process an engine's message about a row. The books follow only the row's present attempt."""
        row = self._row(event.row)
        if row is None or row.ended or (row.engine, row.attempt) != (event.engine, event.attempt):
            return
        engine = self.engines[event.engine]
        if isinstance(event, Drew):
            last = row.spans[-1][0] if row.spans else -1
            if event.version < last or event.version not in (engine.version, engine.loading):
                self._lost(event.engine)
                return
            if last == event.version:
                row.spans[-1][1] += event.count
            else:
                row.spans.append([event.version, event.count])
            row.failures = 0
            return
        row.engine = None
        engine.rows.discard(event.row)
        if isinstance(event, Returned):
            row.failures += 1
            return
        row.ended, row.away = isinstance(event, Ended), "away" if isinstance(event, Paused) else ""
        engine.losses = engine.losses if self.limits.in_turns else 0

    def _came_back(self, event: Resumed | Finished) -> None:
        row = self._row(event.row)
        if row is None or row.away != "away":
            return
        row.away, row.ended = "", isinstance(event, Finished)
        if isinstance(event, Resumed) and event.anew:
            row.spans, row.failures = [], 0

    def _now_joined(self, name: str) -> None:
        if name in self.dismissed:
            return
        engine = self.engines.setdefault(name, SeenEngine())
        if engine.joined and (self.ending or engine.losses + 1 >= self.limits.attempts):
            self._lost(name)
        elif engine.joined:
            self._take_rows(name, joined=True)
        engine = self.engines[name]
        engine.joined = True

    def _now_loaded(self, event: Loaded) -> None:
        engine = self.engines.get(event.engine)
        if engine is None or not engine.joined or (engine.loading is None and engine.version == event.version):
            return
        if engine.loading == event.version:
            engine.version, engine.loading = event.version, None
        else:
            self._lost(event.engine)

    def _now_asleep(self, name: str) -> None:
        engine = self.engines.get(name, SeenEngine())
        if engine.sleep == "told":
            engine.sleep, engine.version, engine.losses = "asleep", None, 0

    def _lost(self, name: str) -> None:
        if name not in self.dismissed:
            self.gone = name

    def _late(self, wait: Wait) -> None:
        if wait.kind == "score":
            self._rewards_lost(wait.progress)
        elif wait.kind == "act":
            self.hopeless = wait.progress
        elif wait.owner in self.engines:
            self._lost(wait.owner)

    def _scored(self, event: Scored) -> None:
        books = self.books
        if event.group not in books.scoring:
            return
        books.scoring.discard(event.group)
        rows = books.rows.pop(event.group)
        if event.trains:
            books.finished.add(event.group)
            books.spans[event.group] = [row.spans for row in rows]
        else:
            books.voided.add(event.group)

    def _rewards_lost(self, number: int) -> None:
        if number in self.books.scoring:
            self.books.scoring.discard(number)
            self.unscored = number

    def _take_rows(self, name: str, *, joined: bool) -> None:
        engine = self.engines.pop(name, SeenEngine())
        for row in engine.rows:
            found = self._row(row)
            if found is not None:
                found.engine = None
                found.failures += 1
        self.engines[name] = SeenEngine(joined=joined, losses=engine.losses + 1)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _follow(self, command: Command, event: Event) -> None:
        if self.stopped:
            self._break("ends", f"{command} is ordered after the end")
        match command:
            case Open(row):
                self._opened(row)
            case Submit():
                self._submitted(command)
            case Interrupt(engine, row):
                self._interrupted(engine, row)
            case Load(engine, version):
                self._loads(engine, version)
            case Restart(engine) if self.engines.get(engine, SeenEngine()).sleep == "down":
                self._started_again(engine)
            case Restart(engine) | Dismiss(engine):
                self._ended_engine(engine, dismissed=isinstance(command, Dismiss))
            case End(engine):
                self._ended_engine(engine, waits=True)
            case Sleep(engine):
                self._sleeps(engine)
            case Score(group):
                self._scores(group)
            case Publish(version):
                self._publishes(version)
            case Deliver():
                self._delivered(command)
            case Evaluated(group):
                self._evaluated(group)
            case GiveUp(group, cause):
                self._gave_up(group, cause, event)
            case Stop():
                self._stops(command)

    def _opened(self, row: Row) -> None:
        self._begun(row, "it is opened")
        found = self._row(row)
        right = found is not None and found.away == "unopened"
        self._check(right, "turns", f"{row} is opened, but is {found}")
        if found is not None and right:
            found.away = "away"

    def _begun(self, row: Row, why: str) -> None:
        """Record that all groups up to this one are in flight."""
        books = self.books
        self._check(not self.ending, "ends", f"{row}: {why} although the run is to end")
        if row.group >= books.created:
            for number in range(books.created, row.group + 1):
                books.rows[number] = self._new_rows()
            books.created = row.group + 1
            free = self._free(self.furthest)  # groups begun under a larger lead may be placed after it has shrunk
            self._check(free >= 0, "admission", f"{row}: {-free} more groups than admitted are in flight")

    def _submitted(self, submit: Submit) -> None:
        row = submit.row
        self._begun(row, "it is submitted")
        found = self._row(row)
        if found is None:
            self._check(False, "once", f"{submit}, although the group is over")
            return
        engine = self.engines.get(submit.engine, SeenEngine())
        ready = engine.joined and engine.loading is None and engine.version == self.published is not None
        self._check(ready, "weights", f"{submit}: the engine has {engine.version}, {self.published} is published")
        self._check(not found.away, "turns", f"{submit}, although the row is {found.away}")
        self._check(found.engine is None, "holders", f"{submit}, although {found.engine} holds the row")
        self._check(not found.ended, "once", f"{submit}, although the row has ended")
        self._check(submit.drawn == found.drawn, "tokens", f"{submit}, but {found.drawn} tokens were delivered")
        right = submit.attempt == found.attempt + 1 and found.failures < self.limits.attempts
        self._check(right, "attempts", f"{submit} after attempt {found.attempt}; {found.failures} failed")
        self._goes_to_the_right_engine(submit)
        found.engine, found.attempt = submit.engine, submit.attempt
        engine.rows.add(row)

    def _goes_to_the_right_engine(self, submit: Submit) -> None:
        """Check that a group's first row goes to the ready engine with the fewest rows, and that the others follow."""
        others = [row.engine for row in self.books.rows[submit.row.group][: submit.row.g] if row.attempt and row.engine]
        first = submit.attempt == 1 and not self.limits.turns  # rows with several turns come back one by one
        if first and others and all(row.attempt == 1 for row in self.books.rows[submit.row.group][: submit.row.g]):
            self._check(submit.engine in others, "together", f"{submit}, but the group is at {sorted(set(others))}")
        elif first and submit.row.g == 0:
            fewest = min(len(engine.rows) for engine in self.engines.values() if engine.joined)
            mine = len(self.engines[submit.engine].rows) if submit.engine in self.engines else fewest
            loading = any(engine.loading is not None for engine in self.engines.values())
            self._check(loading or mine == fewest, "together", f"{submit}: it has {mine} rows, another {fewest}")

    def _interrupted(self, name: str, row: Row) -> None:
        found = self._row(row)
        holds = found is not None and found.engine == name
        self._check(holds, "holders", f"{row} is taken from {name}, which does not hold it")
        if found is not None and holds and not self.ending:
            found.engine = None
            self.engines[name].rows.discard(row)

    def _loads(self, name: str, version: int) -> None:
        engine = self.engines.get(name, SeenEngine())
        right = engine.joined and engine.loading is None and version == self.published
        self._check(right, "weights", f"{name} is to load {version}; it loads {engine.loading}, has {engine.version}")
        readable = version == self.published and self.publishing != version
        self._check(readable, "buffers", f"{name} is to load {version}, whose buffer is not readable")
        self._check(engine.sleep != "told", "memory", f"{name} is to load {version} before it sleeps")
        self._check(not self._trainer_needs_memory(), "memory", f"{name} is to load {version} while a step is trained")
        engine.loading, engine.sleep = version, ""

    def _sleeps(self, name: str) -> None:
        engine = self.engines.get(name, SeenEngine())
        right = engine.joined and engine.loading is None and not engine.rows and not engine.sleep
        self._check(right, "memory", f"{name} is to sleep; rows {engine.rows}, loads {engine.loading}, {engine.sleep}")
        self._check(self._trainer_needs_memory(), "memory", f"{name} is to sleep, but no step is due")
        engine.sleep = "told"

    def _ended_engine(self, name: str, *, dismissed: bool = False, waits: bool = False) -> None:
        """Check the end of an engine. It is restarted immediately, later (`waits`), or never (`dismissed`)."""
        self._check(self.gone == name, "engines", f"{name} is ended, although no event reported it lost")
        losses = self.engines[name].losses + 1 if name in self.engines else 1
        often = losses >= self.limits.attempts or self.ending
        self._check(dismissed == often, "engines", f"{name} was lost {losses} times in a row; dismissed: {dismissed}")
        self._check(not waits or self._trainer_needs_memory(), "memory", f"{name} is not started, but no step is due")
        memory_is_free = waits or dismissed or not self._trainer_needs_memory()
        self._check(memory_is_free, "memory", f"{name} is started while a step is trained")
        self.gone = None
        self._take_rows(name, joined=False)
        self.engines[name].sleep = "down" if waits else ""
        if dismissed:
            del self.engines[name]
            self.dismissed.add(name)

    def _started_again(self, name: str) -> None:
        self._check(not self._trainer_needs_memory(), "memory", f"{name} is started while a step is trained")
        self.engines[name].sleep = ""

    def _scores(self, number: int) -> None:
        rows = self.books.rows.get(number)
        ready = rows is not None and all(row.ended for row in rows) and number not in self.books.scoring
        late = [row for row in rows or () if not row.ended]
        name = "evaluation" if number < 0 else "attempts" if late else "rewards"
        right = ready and number >= 0
        self._check(right, name, f"group {number} is scored, but {len(late)} of its rows have not ended")
        if ready:
            self.unscored = None if self.unscored == number else self.unscored
            self.books.scoring.add(number)
            self.books.scorings[number] += 1
            often = self.books.scorings[number] > self.limits.attempts
            self._check(not often, "attempts", f"group {number} is scored {self.books.scorings[number]} times")

    def _evaluated(self, number: int) -> None:
        rows = self.books.rows.pop(number, [])
        ended = bool(rows) and all(row.ended for row in rows) and number < 0
        self._check(ended, "evaluation", f"group {number} with {len(rows)} rows is reported as answered")
        versions = {version for row in rows for version, _ in row.spans}
        own = versions <= {self.books.version}
        self._check(own, "evaluation", f"group {number} has tokens of {versions}, but measures {self.books.version}")

    def _publishes(self, version: int) -> None:
        self._check(self.due == version, "batch", f"version {version} is published, but {self.due} is due")
        readers = [name for name, engine in self.engines.items() if engine.loading not in (None, self.published)]
        self._check(not readers, "buffers", f"version {version} overwrites what {readers} read")
        self.publishing, self.due = version, None

    def _delivered(self, deliver: Deliver) -> None:
        books, groups = self.books, deliver.groups
        awake = [name for name, engine in self.engines.items() if engine.sleep not in ("asleep", "down")]
        self._check(not (self.limits.in_turns and awake), "memory", f"{deliver} while {awake} hold memory")
        self._check(self.asked, "batch", f"{deliver} for a trainer that has not asked")
        self._check(deliver.version == books.version, "batch", f"{deliver}, but the trainer has {books.version}")
        self._check(len(groups) == self.limits.prompts_per_step, "batch", f"{deliver} has {len(groups)} groups")
        over = books.trained | books.voided | books.given_up
        twice = [number for number in groups if number in over or groups.count(number) > 1]
        self._check(not twice, "once", f"{deliver}: {twice} were over already")
        unknown = [number for number in groups if number not in books.finished and number not in twice]
        self._check(not unknown, "rewards", f"{deliver}: {unknown} were not scored")
        oldest = tuple(sorted(books.finished))[: len(groups)]
        self._check(groups == oldest or bool(unknown or twice), "order", f"{deliver}, but {oldest} are the oldest")
        for number in groups:
            for spans in books.spans.pop(number, []):
                self._trained_row(deliver.version, number, spans)
        books.training = groups
        books.finished -= set(groups)
        self.asked = False

    def _trained_row(self, version: int, number: int, spans: list[list[int]]) -> None:
        """Check the age of those tokens of a row that the staleness rule keeps."""
        versions, every = [version for version, _ in spans], self.limits.publish_every
        self._check(versions == sorted(versions), "versions", f"group {number} has tokens of versions {versions}")
        newest = max(versions, default=0)
        self._check(newest <= version, "age", f"group {number} has tokens of {newest}, but trains {version}")
        if newest > version:
            return
        bound = self.limits.max_staleness + every - 1
        keep = staleness.kept(version, versions, self.limits.max_staleness, every)
        old = [u for u, kept in zip(versions, keep, strict=True) if kept and version - u > bound]
        self._check(not old, "age", f"group {number}: tokens of versions {old} train version {version}")
        lost = [u for u, kept in zip(versions, keep, strict=True) if not kept and version - u <= bound]
        self._check(not lost, "age", f"group {number}: tokens of versions {lost} are young enough for {version}")
        stale = [u for u in versions if u < version - version % every]
        synchronous = self.limits.run_ahead == 0 and stale
        self._check(not synchronous, "synchronous", f"group {number} has tokens of {stale} in step {version}")

    def _gave_up(self, number: int, cause: str, event: Event) -> None:
        books = self.books
        rows = books.rows.pop(number, None)
        self._check(rows is not None, "once", f"group {number} is given up, but is not in flight")
        self._check(bool(cause), "once", f"group {number} is given up without a cause")
        used = [row for row in rows or () if row.engine is None and row.failures >= self.limits.attempts]
        scored = books.scorings[number] >= self.limits.attempts and self.unscored == number
        self._check(
            bool(used) or scored or self.hopeless == number,
            "attempts",
            f"group {number} is given up after {event}: {cause}",
        )
        held = [row.engine for row in rows or () if row.engine]
        self._check(not held, "holders", f"group {number} is given up while {held} decode it")
        self.unscored = None if self.unscored == number else self.unscored
        books.scoring.discard(number)
        if number >= 0:
            books.given_up.add(number)

    def _stops(self, stop: Stop) -> None:
        self.stopped = True
        books = self.books
        self._check(bool(stop.cause), "ends", "the run ends without a cause")
        if stop.failed or self.ending:
            return
        want = self.limits.last_version * self.limits.prompts_per_step
        over = len(books.trained) + len(books.voided) + len(books.given_up)
        self._check(len(books.trained) == want, "once", f"{len(books.trained)} groups were trained instead of {want}")
        self._check(books.created == over, "once", f"{books.created - over} of {books.created} groups were for nothing")

    # --- after every reaction ----------------------------------------------------------------------------------------

    def _nothing_is_left_undone(self) -> None:
        books = self.books
        for name, engine in self.engines.items():
            idle = engine.joined and engine.loading is None and self.published is not None
            if self._trainer_needs_memory():
                self._check(not idle or bool(engine.sleep), "memory", f"{name} is not told to sleep")
            elif engine.sleep == "down":
                self._break("memory", f"{name} is not started again, though no step is due")
            elif idle and engine.sleep != "told" and engine.version != self.published:
                self._break("weights", f"{name} has {engine.version} and does not load {self.published}")
        readers = any(engine.loading not in (None, self.published) for engine in self.engines.values())
        if self.due is not None and not readers:
            self._break("buffers", f"version {self.due} is not published, though no engine reads")
        questions = any(number < 0 for number in books.rows)
        sampled = self.asked and len(books.finished) >= self.limits.prompts_per_step and not questions
        rests = all(engine.sleep in ("asleep", "down") for engine in self.engines.values())
        if sampled and (not self.limits.in_turns or (self._trainer_needs_memory() and rests)):
            self._break("batch", f"the trainer gets none of {sorted(books.finished)}")
        if self.unscored is not None:
            self._break("rewards", f"the rewards of group {self.unscored} are lost and forgotten")
        for number, rows in books.rows.items():
            if number not in books.scoring and all(row.ended for row in rows):
                name = "rewards" if number >= 0 else "evaluation"
                self._break(name, f"group {number} has ended and is not scored")
        self._no_place_is_empty()

    def _trainer_needs_memory(self) -> bool:
        """Does the trainer need the memory that engines share? Yes if a step is due, or is trained or published."""
        books = self.books
        if not self.limits.in_turns or self.published is None:
            return False
        sampling = any(not row.ended for rows in books.rows.values() for row in rows)
        due = self.asked and len(books.finished) >= self.limits.prompts_per_step and not sampling
        return due or bool(books.training) or self.due is not None or self.publishing is not None

    def _no_place_is_empty(self) -> None:
        joined = [engine for engine in self.engines.values() if engine.joined]
        if not joined or any(engine.loading is not None or engine.version is None for engine in joined):
            return
        if self._free() > 0:
            self._break("places", f"{self._free()} more groups could be in flight")
        for number, rows in self.books.rows.items():
            if any(not row.ended and row.engine is None and not row.away for row in rows):
                self._break("places", f"rows of group {number} have no engine")
            if any(row.away == "unopened" for row in rows):
                self._break("turns", f"rows of group {number} are not opened")

    def _free(self, run_ahead: int | None = None) -> int:
        """Number of groups that may still be begun. A version counts only once it is published."""
        unpublished = self.due is not None or self.publishing is not None
        version = self.books.version - 1 if unpublished else self.books.version
        limits = self.limits if run_ahead is None else replace(self.limits, run_ahead=run_ahead)
        return capacity(limits, version, self.books.accepted, self.books.running)

    def _owing(self) -> Iterator[tuple[str, str, int]]:
        """The components that have to act, as (kind, owner, group)."""
        for name, engine in self.engines.items():
            if engine.loading is not None and (engine.rows or not self.ending):
                yield ("load", name, 0)
            elif engine.rows:
                yield ("draw", name, 0)
            elif engine.sleep == "told" and not self.ending:
                yield ("sleep", name, 0)
            elif not engine.joined and engine.sleep != "down" and not self.ending:
                yield ("join", name, 0)
        if self.ending:
            return
        if not self.engines and not self.dismissed:
            yield ("join", "engines", 0)
        away = (number for number, rows in self.books.rows.items() if any(row.away == "away" for row in rows))
        yield from (("act", "environments", number) for number in away)
        yield from (("score", "rewards", number) for number in self.books.scoring)
        if self.books.training:
            yield ("train", "trainer", 0)
        elif self.publishing is not None:
            yield ("publish", "trainer", 0)
        elif not self.asked and self.due is None and all(number >= 0 for number in self.books.rows):
            yield ("ask", "trainer", 0)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _new_rows(self) -> list[SeenRow]:
        away: Literal["", "unopened"] = "unopened" if self.limits.turns else ""
        return [SeenRow(away=away) for _ in range(self.limits.group_size)]

    def _row(self, row: Row) -> SeenRow | None:
        rows = self.books.rows.get(row.group)
        return None if rows is None else rows[row.g]

    def _check(self, holds: bool, name: str, text: str) -> None:
        if not holds:
            self._break(name, text)

    def _break(self, name: str, text: str) -> None:
        self.broken.append(Broken(name, text))
