"""Decides which engine samples which rows, when and with which weights, and which groups are trained next.

`handle` takes an event and returns the commands that follow from it. Each event changes the controller's state
(`_drew`, `_ended`, ...). Then the controller does everything that has become possible (`_advance`): publish, load,
begin groups, place rows, score, deliver. The same events give the same commands.

The trainer goes through a cycle of phases:

    publishing -> between -> asked -> training -> blocked -> publishing
      Published     Asked    Deliver    Trained     Publish

It is `blocked` while an engine still reads the publication that the next one overwrites. After a version that is not
published it goes straight to `between`. Questions of an evaluation, or of a judge that scores groups, come while it is
`between` or `asked`. Engines get their rows before all others, and no batch is delivered until all of them have ended.

If trainer and engines share the memory of one device (`Limits.in_turns`), they take turns. When the groups of a step
are complete and no engine has a row, the controller tells the engines to sleep. It delivers the batch once all of them
sleep. They wake to load the next publication. An engine that is lost in between is ended, and restarted only then.

A group in flight has rows without an engine (`_unplaced`), or rows being decoded, or has ended and is to be scored
(`_unscored`), or is being scored (`_scoring`). Then it is in `_finished` until it is trained.

A row of several turns is away (`_away`) before its first turn and between turns. The driver of the environments says
when to decode it again (`Resumed`) and when it is over (`Finished`). It may come back to another engine and to newer
weights. Only its own group waits for it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

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
from posttrain.controller.parts import EngineState, GroupState, RowState

Phase = Literal["publishing", "between", "asked", "training", "blocked"]
LATE = {
    "join": "did not start",
    "load": "did not load its weights",
    "draw": "drew no token",
    "act": "gave no answer",
    "sleep": "did not fall asleep",
    "ask": "did not ask for a batch",
    "train": "did not finish its step",
    "publish": "did not publish its weights",
    "score": "gave no rewards",
}


class Controller:
    """The state of an asynchronous run, and the rules by which it changes."""

    def __init__(self, limits: Limits, *, version: int = 0, engines: Iterable[str] = ()) -> None:
        """`engines` are the names of the engines that are being started. Others may join as well."""
        self.limits = limits
        self._version = version
        self._phase: Phase = "publishing"
        self._published: int | None = None
        self._training: tuple[int, ...] = ()
        self._finished: list[int] = []
        self._groups: dict[int, GroupState] = {}
        self._unplaced: set[int] = set()
        self._unopened: set[int] = set()
        """Groups whose rows need an `Open` command."""
        self._away: set[Row] = set()
        self._unscored: set[int] = set()
        self._scoring: set[int] = set()
        self._next_group = version * limits.prompts_per_step
        self._engines = {name: EngineState() for name in sorted(engines)}
        self._dismissed: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._given_up = self._voided = 0
        self._ending: str | None = None
        self._stopped = False
        self._commands: list[Command] = []

    # --- public interface --------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Process an event and return the commands that follow from it."""
        self._commands = []
        if not self._stopped:
            self._learn(event)
            self._advance()
        return self._commands

    @property
    def version(self) -> int:
        """The newest version of the weights that the trainer has made."""
        return self._version

    @property
    def phase(self) -> Phase:
        """The trainer's phase in its cycle."""
        return self._phase

    @property
    def engines(self) -> Mapping[str, EngineState]:
        """The engines that have joined or are expected, for reading only."""
        return self._engines

    @property
    def in_flight(self) -> int:
        """Number of groups that are sampled or scored, without those of an evaluation."""
        return sum(number >= 0 for number in self._groups)

    @property
    def queued(self) -> int:
        """Number of scored groups that wait for a step."""
        return len(self._finished)

    def waits(self) -> frozenset[Wait]:
        """The components that must act now, each as a `Wait`."""
        return frozenset() if self._stopped else frozenset(self._all_waits())

    def holds(self, engine: str, row: Row, attempt: int) -> bool:
        """Does this engine decode the row in this attempt? If not, its messages about the row are ignored."""
        found = self._row(row)
        return found is not None and found.engine == engine and found.attempt == attempt

    def state(self) -> dict[str, Any]:
        """The state from which a run can continue elsewhere, as plain JSON. Groups being trained count as finished."""
        return {
            "version": self._version,
            "next_group": self._next_group,
            "finished": sorted([*self._training, *self._finished]),
            "in_flight": [self._groups[number].saved(number) for number in sorted(self._groups) if number >= 0],
            "counts": dict(self.counts),
            "voided": self._voided,
            "given_up": self._given_up,
        }

    @classmethod
    def restored(cls, limits: Limits, state: dict[str, Any], *, engines: Iterable[str] = ()) -> Controller:
        """A controller that continues from a saved state. Rows keep their tokens and go to engines again."""
        controller = cls(limits, version=state["version"], engines=engines)
        controller._next_group = state["next_group"]
        controller._finished = sorted(state["finished"])
        controller.counts = Counter(state["counts"])
        controller._voided, controller._given_up = state.get("voided", 0), state.get("given_up", 0)
        for saved in state["in_flight"]:
            group = GroupState.restored(saved["rows"])
            controller._enter(saved["group"], group, turns=limits.turns)
        return controller

    # --- events ------------------------------------------------------------------------------------------------------

    def _learn(self, event: Event) -> None:
        match event:
            case Drew():
                self._drew(event)
            case Ended():
                self._ended(event)
            case Paused():
                self._paused(event)
            case Resumed() | Finished():
                self._back(event)
            case Returned():
                self._returned(event)
            case Joined(engine):
                self._joined(engine)
            case Loaded():
                self._loaded(event)
            case Slept(engine):
                self._slept(engine)
            case Lost(engine, cause):
                self._lose(engine, cause)
            case Scored():
                self._scored(event)
            case ScoringLost(group, cause):
                self._scoring_lost(group, cause)
            case Asked():
                self._asked(event)
            case Evaluate():
                self._evaluate(event)
            case Trained():
                self._trained(event)
            case Published():
                self._now_published(event)
            case Late(wait):
                self._late(wait)
            case Lead(run_ahead):
                self.limits = replace(self.limits, run_ahead=run_ahead)
            case Ending(cause):
                self._end(cause)

    def _joined(self, name: str) -> None:
        if name in self._dismissed:
            self._ignore()
            return
        engine = self._engines.setdefault(name, EngineState())
        if engine.joined:
            self._lose(name, "was restarted", again=True)
        else:
            engine.joined = True

    def _loaded(self, event: Loaded) -> None:
        engine = self._engines.get(event.engine)
        if engine is None or not engine.joined or (engine.loading is None and engine.version == event.version):
            self._ignore()
        elif engine.loading == event.version:
            engine.version, engine.loading = event.version, None
            engine.progress += 1
        else:
            self._lose(event.engine, f"loaded version {event.version} instead of {engine.loading}")

    def _slept(self, name: str) -> None:
        engine = self._engines.get(name)
        if engine is None or not engine.falls_asleep:
            self._ignore()
            return
        engine.falls_asleep, engine.asleep, engine.version = False, True, None
        engine.progress += 1
        engine.losses = 0

    def _drew(self, event: Drew) -> None:
        row = self._held(event)
        if row is None:
            return
        engine = self._engines[event.engine]
        if event.version < row.version or event.version not in (engine.version, engine.loading):
            self._lose(event.engine, f"drew with version {event.version} instead of {engine.version}")
            return
        row.draw(event.version, event.count)
        engine.progress += event.count

    def _ended(self, event: Ended) -> None:
        if self._held(event) is None:
            return
        self._take_answer(event)
        self._row_is_over(event.row)

    def _paused(self, event: Paused) -> None:
        if self._held(event) is None:
            return
        self._take_answer(event)
        self._away.add(event.row)
        self._groups[event.row.group].moves += 1

    def _back(self, event: Resumed | Finished) -> None:
        """Continue or finish a row that was away."""
        row = self._row(event.row)
        if row is None or event.row not in self._away:
            self._ignore()
            return
        self._away.discard(event.row)
        self._groups[event.row.group].moves += 1
        if isinstance(event, Finished):
            self._row_is_over(event.row)
            return
        if event.anew:
            row.spans, row.failures = [], 0
        self._unplaced.add(event.row.group)

    def _take_answer(self, event: Ended | Paused) -> None:
        """Take a row from the engine that has decoded it to the end of its turn."""
        self._take_from(event.engine, event.row)
        if not self.limits.in_turns:
            self._engines[event.engine].losses = 0

    def _row_is_over(self, row: Row) -> None:
        group = self._groups[row.group]
        group.rows[row.g].ended = True
        if group.ended and row.group < 0:
            self._forget(row.group)
            self._order(Evaluated(row.group))
        elif group.ended:
            self._unscored.add(row.group)

    def _returned(self, event: Returned) -> None:
        if self._held(event) is None:
            return
        self._take_from(event.engine, event.row)
        self._place_again(event.row, f"{event.engine} returned it unfinished")

    def _scored(self, event: Scored) -> None:
        if event.group not in self._scoring:
            self._ignore()
            return
        self._forget(event.group)
        self._given_up = 0
        if event.trains:
            insort(self._finished, event.group)
        else:
            self._voided += 1
            self.counts["voided"] += 1
            if self._voided >= self.limits.max_voided:
                cause = f"{self._voided} groups were voided since the last batch: too few remain to train on"
                self._stop(cause, failed=True, voided=True)

    def _scoring_lost(self, number: int, cause: str) -> None:
        if number not in self._scoring:
            self._ignore()
            return
        self.counts["scorings_lost"] += 1
        self._scoring.discard(number)
        if self._groups[number].scorings >= self.limits.attempts:
            self._give_up(number, f"its rewards were asked for {_times(self.limits.attempts)}: {cause}")
        else:
            self._unscored.add(number)

    def _trained(self, event: Trained) -> None:
        self._trainer_was("training", event)
        if event.version != self._version + 1:
            raise ValueError(f"{event}, but the step makes version {self._version + 1}")
        self._version, self._training = event.version, ()
        self._phase = "between" if self._version % self.limits.publish_every else "blocked"

    def _now_published(self, event: Published) -> None:
        self._trainer_was("publishing", event)
        if event.version > self._version or (self._published is not None and event.version != self._version):
            raise ValueError(f"{event}, but the trainer has made version {self._version}")
        self._published = event.version
        self._phase = "between"

    def _asked(self, event: Asked) -> None:
        self._trainer_was("between", event)
        self._phase = "asked"

    def _evaluate(self, event: Evaluate) -> None:
        if self._phase != "asked":
            self._trainer_was("between", event)
        if self._published != self._version:
            raise ValueError(f"{event}, but version {self._published} is published and not {self._version}")
        if event.group >= 0 or event.group in self._groups:
            raise ValueError(f"{event}: the number must be below 0 and not in use")
        self._enter(event.group, GroupState([RowState() for _ in range(event.rows)]), turns=event.turns)

    def _late(self, wait: Wait) -> None:
        if wait not in self.waits():
            self._ignore()
        elif wait.kind == "score":
            self._scoring_lost(wait.progress, f"{wait.owner} {LATE['score']} within the deadline")
        elif wait.kind == "act":
            self._give_up(wait.progress, f"an environment {LATE['act']} within the deadline")
        elif wait.owner in self._engines:
            self._lose(wait.owner, f"{LATE[wait.kind]} within the deadline")
        else:
            whom = "the trainer waited for engines" if wait.owner == "engines" else "the engines waited for the trainer"
            self._stop(f"{whom}, which {LATE[wait.kind]} within the deadline (version {wait.progress})", failed=True)

    def _end(self, cause: str) -> None:
        if self._ending is not None:
            return
        self._ending = cause
        for name in sorted(self._engines):
            for row in sorted(self._engines[name].rows):
                self._order(Interrupt(name, row, self._groups[row.group].rows[row.g].attempt))

    def _trainer_was(self, phase: Phase, event: Event) -> None:
        if self._phase != phase:
            raise ValueError(f"{event} while the trainer is {self._phase}; it must be {phase}")

    # --- losses ------------------------------------------------------------------------------------------------------

    def _lose(self, name: str, cause: str, again: bool = False) -> None:
        """Take an engine's rows from it and restart it, unless it was lost too often. `again`: it has restarted."""
        if name in self._dismissed:
            self._ignore()
            return
        engine = self._engines.pop(name, EngineState())
        losses = engine.losses + 1
        self.counts["engines_lost"] += 1
        if losses < self.limits.attempts and self._ending is None:
            later = not again and not engine.rows and self._memory_is_the_trainers
            self._engines[name] = EngineState(joined=again, down=later, losses=losses, progress=engine.progress)
            if not again:
                self._order(End(name) if later else Restart(name))
        else:
            self._dismissed[name] = cause
            self._order(Dismiss(name))
        self._move(engine.rows, f"{name}, which {cause}")

    def _move(self, rows: Iterable[Row], cause: str) -> None:
        """Take rows from a lost engine and place them again."""
        taken = sorted(rows)
        for row in taken:
            self._groups[row.group].rows[row.g].engine = None
        for row in taken:
            self._place_again(row, cause)

    def _place_again(self, row: Row, cause: str) -> None:
        """Let another engine continue a row that has lost its engine, unless that was tried too often."""
        found = self._row(row)
        if found is None or self._stopped:
            return
        found.failures += 1
        if found.failures >= self.limits.attempts and self._ending is None:
            self._give_up(row.group, f"row {row.g} was lost {_times(found.failures)} since its last token: {cause}")
        else:
            self.counts["rows_moved"] += 1
            self._unplaced.add(row.group)

    def _give_up(self, number: int, cause: str) -> None:
        for g, row in enumerate(self._groups[number].rows):
            if row.engine is not None:
                self._order(Interrupt(row.engine, Row(number, g), row.attempt))
                self._take_from(row.engine, Row(number, g))
        self._forget(number)
        self._order(GiveUp(number, cause))
        self.counts["given_up"] += 1
        self._given_up += 1
        if self._given_up >= self.limits.max_given_up:
            self._stop(f"{self._given_up} groups in a row were abandoned; the last: {cause}", failed=True)

    # --- commands that have become possible --------------------------------------------------------------------------

    def _advance(self) -> None:
        if self._stopped:
            return
        if self._ending is not None:
            if not any(engine.rows for engine in self._engines.values()):
                self._stop(self._ending, failed=False)
            return
        self._publish()
        self._restart()
        self._load()
        self._begin()
        self._open()
        self._place()
        self._score()
        self._sleep()
        self._deliver()
        if not self._engines and self._dismissed and (self._published is None or self._only_environments_go_on):
            # an engine decides the layout of the first publication, so the trainer waits for one before it publishes
            name, cause = next(reversed(self._dismissed.items()))
            self._stop(f"no engine is left; the last, {name}, was lost: {cause}", failed=True)

    def _publish(self) -> None:
        """Overwrite the older of the two publications, once no engine reads it."""
        read = any(engine.loading not in (None, self._published) for engine in self._engines.values())
        if self._phase == "blocked" and not read:
            self._phase = "publishing"
            self._order(Publish(self._version))

    def _restart(self) -> None:
        for name, engine in self._engines.items():
            if engine.down and not self._memory_is_the_trainers:
                engine.down = False
                self._order(Restart(name))

    def _load(self) -> None:
        newest = self._published
        if newest is None or self._memory_is_the_trainers:
            return
        for name, engine in self._engines.items():
            if engine.joined and engine.loading is None and not engine.falls_asleep and engine.version != newest:
                engine.loading, engine.asleep = newest, False
                self._order(Load(name, newest))

    def _sleep(self) -> None:
        if not self._memory_is_the_trainers:
            return
        for name, engine in self._engines.items():
            if engine.joined and engine.loading is None and not (engine.asleep or engine.falls_asleep):
                engine.falls_asleep = True
                self._order(Sleep(name))

    def _begin(self) -> None:
        """Begin groups. A version counts only once it is published, so no group begins before the weights it needs."""
        if self._published is None:
            return
        version = self._version - 1 if self._phase in ("blocked", "publishing") else self._version
        free = capacity(self.limits, version, self._accepted, self.in_flight)
        for number in range(self._next_group, self._next_group + max(0, free)):
            rows = [RowState() for _ in range(self.limits.group_size)]
            self._enter(number, GroupState(rows), turns=self.limits.turns)
            self._next_group = number + 1

    def _enter(self, number: int, group: GroupState, *, turns: bool) -> None:
        """Put a group in flight. Rows of several turns start with their environment, and unfinished ones start over."""
        self._groups[number] = group
        if group.ended:
            self._unscored.add(number)
        elif not turns:
            self._unplaced.add(number)
        else:
            self._unopened.add(number)
            for g, row in enumerate(group.rows):
                if not row.ended:
                    row.spans = []
                    self._away.add(Row(number, g))

    def _open(self) -> None:
        """Open the environments of rows that have several turns."""
        for number in sorted(self._unopened):
            for g, row in enumerate(self._groups[number].rows):
                if not row.ended:
                    self._order(Open(Row(number, g)))
        self._unopened.clear()

    def _place(self) -> None:
        """Give the unplaced rows of each group to the engine with the fewest rows, as soon as that engine is ready."""
        load = {name: len(engine.rows) for name, engine in self._engines.items() if engine.joined}
        if not load:
            return
        for number in sorted(self._unplaced):
            rows = [row for row in self._rows_of(number) if self._may_be_placed(row)]
            name = min(load, key=lambda name: (load[name], name))
            load[name] += len(rows)
            if self._engines[name].ready(self._published):
                self._unplaced.discard(number)
                for row in rows:
                    self._submit(name, row)

    def _rows_of(self, number: int) -> list[Row]:
        return [Row(number, g) for g in range(len(self._groups[number].rows))]

    def _may_be_placed(self, row: Row) -> bool:
        found = self._groups[row.group].rows[row.g]
        return not found.ended and found.engine is None and row not in self._away

    def _submit(self, name: str, row: Row) -> None:
        found = self._groups[row.group].rows[row.g]
        found.engine = name
        found.attempt += 1
        self._engines[name].rows.add(row)
        self._order(Submit(name, row, found.attempt, found.drawn))

    def _score(self) -> None:
        for number in sorted(self._unscored):
            self._groups[number].scorings += 1
            self._scoring.add(number)
            self._order(Score(number))
        self._unscored.clear()

    def _deliver(self) -> None:
        batch = self.limits.prompts_per_step
        if self._phase == "asked" and self._version >= self.limits.last_version:
            self._stop("done", failed=False)
        elif self._phase == "asked" and len(self._finished) >= batch and self._has_room and not self._evaluating:
            self._training, self._finished = tuple(self._finished[:batch]), self._finished[batch:]
            self._phase = "training"
            self._voided = 0
            self._order(Deliver(self._version, self._training))

    # --- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _memory_is_the_trainers(self) -> bool:
        """Must engines sleep? Yes if the next step is due, or is being trained or published."""
        if not self.limits.in_turns or self._published is None:
            return False
        if self._phase == "asked":
            sampling = self._unplaced or self._away or any(engine.rows for engine in self._engines.values())
            return len(self._finished) >= self.limits.prompts_per_step and not sampling
        return self._phase != "between"

    @property
    def _has_room(self) -> bool:
        """Does the device have free memory for a training step?"""
        if not self.limits.in_turns:
            return True
        return self._memory_is_the_trainers and all(engine.rests for engine in self._engines.values())

    @property
    def _accepted(self) -> int:
        """Number of groups trained, being trained, or waiting to be trained."""
        return self._version * self.limits.prompts_per_step + len(self._training) + len(self._finished)

    def _all_waits(self) -> Iterator[Wait]:
        if not self._engines and not self._dismissed:
            yield Wait("join", "engines", 0)
        for name, engine in self._engines.items():
            if engine.rows and engine.loading is None:
                yield Wait("draw", name, engine.progress, engine.losses)
            elif self._ending is not None and not engine.rows:
                continue
            elif engine.loading is not None:
                yield Wait("load", name, engine.loading, engine.losses)
            elif engine.falls_asleep:
                yield Wait("sleep", name, engine.progress, engine.losses)
            elif not engine.joined and not engine.down:
                yield Wait("join", name, engine.progress, engine.losses)
        if self._ending is not None:
            return
        for number in {row.group for row in self._away}:
            yield Wait("act", "environments", number, self._groups[number].moves)
        for number in self._scoring:
            yield Wait("score", "rewards", number, self._groups[number].scorings)
        if self._phase == "training":
            yield Wait("train", "trainer", self._version + 1)
        elif self._phase == "publishing":
            yield Wait("publish", "trainer", self._version)
        elif self._phase == "between" and not self._evaluating:
            yield Wait("ask", "trainer", self._version)

    @property
    def _only_environments_go_on(self) -> bool:
        """Do only environments have something to do? Without an engine that leads nowhere: some environments are opened
        only when other rows, which need an engine, are over."""
        return all(wait.kind == "act" for wait in self.waits())

    @property
    def _evaluating(self) -> bool:
        """Does the trainer wait for the answers of an evaluation?"""
        return any(number < 0 for number in self._groups)

    def _row(self, row: Row) -> RowState | None:
        group = self._groups.get(row.group)
        return None if group is None else group.rows[row.g]

    def _held(self, event: Drew | Ended | Paused | Returned) -> RowState | None:
        """The row that an engine's message is about; None if the message is about an earlier attempt."""
        if not self.holds(event.engine, event.row, event.attempt):
            self._ignore()
            return None
        return self._row(event.row)

    def _take_from(self, name: str, row: Row) -> None:
        engine = self._engines[name]
        engine.rows.discard(row)
        engine.progress += 1
        self._groups[row.group].rows[row.g].engine = None

    def _forget(self, number: int) -> None:
        self._away.difference_update(self._rows_of(number))
        del self._groups[number]
        for numbers in (self._unplaced, self._unopened, self._unscored, self._scoring):
            numbers.discard(number)

    def _ignore(self) -> None:
        self.counts["ignored"] += 1

    def _order(self, command: Command) -> None:
        if not self._stopped:
            self._commands.append(command)

    def _stop(self, cause: str, *, failed: bool, voided: bool = False) -> None:
        self._order(Stop(cause, failed, voided))
        self._stopped = True


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
