"""The shell around the controller: it passes on events of engines, rewards, trainer and clock, and executes commands.

    trainer's thread            driver's thread                       other processes
    batch(), publish(v)  ---->  controller.handle(event)  ---->       engines
                                       |    ^
                                       v    |
                                 thread of rewards

This module decides nothing. An error in one of the driver's threads is raised in the trainer's thread.
"""

from __future__ import annotations

import functools
import json
import math
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from posttrain.controller.controller import Controller
from posttrain.controller.messages import (
    Asked,
    Command,
    Deliver,
    Dismiss,
    Drew,
    End,
    Ended,
    Evaluate,
    Evaluated,
    Event,
    GiveUp,
    Interrupt,
    Joined,
    Late,
    Limits,
    Load,
    Loaded,
    Lost,
    Open,
    Paused,
    Publish,
    Published,
    Restart,
    Returned,
    Row,
    Score,
    Scored,
    Sleep,
    Slept,
    Stop,
    Submit,
    Trained,
    Wait,
)
from posttrain.engines.port import (
    Answer,
    Asleep,
    EngineGone,
    EnginePort,
    Examinable,
    Examined,
    GivenBack,
    Piece,
    Ready,
    SleepingPort,
    Task,
    Token,
    WeightsLoaded,
)
from posttrain.engines.starting import Starting
from posttrain.errors import CheckpointError, ConfigError, EngineError, NonFiniteError
from posttrain.experience.activity import Activity
from posttrain.experience.answers import Question
from posttrain.experience.group import Group, groups_of
from posttrain.experience.pace import Pace
from posttrain.experience.schedule import Planned, Schedule
from posttrain.experience.trajectories import Trajectories, Turn
from posttrain.heartbeat import beat
from posttrain.rewards import RewardSet
from posttrain.stopping import stop_is_asked
from posttrain.store.timeline import Timeline
from posttrain.types import Completion, Prompt

TICK = 0.25
SILENT = 5.0
"""Seconds without a sign of life after which a run that is asked to stop says what it waits for."""
"""Maximum seconds between two looks at the clocks, also if no event arrives."""
SCORED_IN = 5.0
"""Seconds that `close` waits at the end of a run for a reward that is being computed."""
PLANNED = 4096
"""Number of groups whose prompts are cached, because streamed rows are tokenised each time that they are read."""
SOON = 0.002
"""Seconds until an engine is sent the rest of a long message."""


T = TypeVar("T")


class Prove(Protocol):
    """Checks an engine's report on weights that it has loaded; returns what is wrong, or an empty text."""

    def __call__(self, loaded: WeightsLoaded) -> str: ...


@dataclass
class Drawn:
    """The tokens of a row that its engine has delivered so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reason: Any = None
    text: str = ""

    def take(self, piece: Piece) -> None:
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        self.versions += [piece.version] * len(piece.ids)
        self.reason, self.text = piece.reason, piece.text or ""

    def completion(self) -> Completion:
        return Completion(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish_reason=self.reason,
            text=self.text,
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The groups of one step."""

    groups: Sequence[Group]
    """Groups to be trained, the oldest first."""
    voided: Sequence[Group]
    """Groups that were sampled since the last batch and are not trained."""
    greedy: Sequence[Group]
    """One greedy completion of each trained prompt, if the algorithm needs them."""
    waited: float
    """Seconds for which the trainer waited for this batch."""
    in_flight: int
    """Groups that are being sampled or scored."""
    queued: int
    """Groups that wait for a later step."""
    engines_idle: float
    """Share of the engines' time since the last batch in which they sampled no token."""
    gave_back: int = 0
    """Bytes that engines on the trainer's device gave back for this step."""
    in_tools: float | None = None
    """Seconds of waiting for environments and tools since the last batch, summed over trajectories; None without
    any."""


@dataclass(kw_only=True)
class Driver:
    """Runs the engines of a run. Made in the trainer's thread; `start` begins threads that end with `close`."""

    limits: Limits
    engines: Mapping[str, Callable[[], EnginePort]]
    """The function that starts each engine, by the engine's name."""
    schedule: Schedule
    max_new_tokens: int
    rewards: RewardSet | None
    trains: Callable[[Group], bool]
    """Whether a scored group is trained; if not, another group replaces it."""
    no_signal: Callable[[Sequence[Group]], BaseException]
    """Makes the error that ends the run if too many groups, which it is given, were voided."""
    prove: Prove
    deadline: float
    """Seconds in which an engine has to sample a token, load weights, or fall asleep."""
    start_deadline: float
    """Seconds in which an engine has to start."""
    say: Callable[[str], None]
    """Tells the user about losses and recoveries."""
    timeline: Timeline = field(default_factory=Timeline)
    pace: Pace | None = None
    """Chooses the lead; None if the config sets it."""
    greedy: bool = False
    """Whether the last row of each group is decoded greedily, for an algorithm that needs a greedy baseline."""
    trajectories: Trajectories | None = None
    """The episodes of rows with several turns; None if each row is one answer."""

    def __post_init__(self) -> None:
        self.controller = Controller(self.limits, engines=self.engines)
        self.activity = Activity(self.timeline)
        self.ready: Ready | None = None
        """Facts about the tensors that engines decode with; None until the first engine is ready."""
        self._planned = functools.lru_cache(maxsize=PLANNED)(self.schedule)
        self._ports: dict[str, EnginePort] = {}
        self._joined: set[str] = set()
        self._starting: dict[str, Starting] = {}
        self._rows: dict[Row, Drawn] = {}
        self._groups: dict[int, Group] = {}
        """Scored groups that are not trained yet."""
        self._greedy: dict[int, Group] = {}
        """The greedy completions of the same prompts."""
        self._voided: list[Group] = []
        self._questions: dict[int, Question] = {}
        """The questions of evaluations, by their group number, which is negative."""
        self._answers: dict[int, list[Completion]] = {}
        self._examined: dict[str, Examined] = {}
        self._examination = 0
        """The number of the last examination."""
        self._asked_so_far = 0
        self._delivered: Deliver | None = None
        self._may_publish: int | None = None
        self._stopped: Stop | None = None
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[Event | Callable[[], None]] = queue.SimpleQueue()
        if self.trajectories is not None:
            self.trajectories.tell = self._events.put
        self._to_score: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._bell, self._woken = socket.socketpair()
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._since: dict[Wait, float] = {}
        self._told: set[Wait] = set()
        """The silent waits that the user has been told of."""
        self._looked = time.monotonic()
        """Time of the last look at the clocks."""
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._has_weights = self._launched = False
        self._gave_back = 0
        """Bytes of the trainer's device that engines gave back by falling asleep since the last batch."""
        self._restored = False

    # --- the trainer's thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads that run the engines and the rewards."""
        for target, name in ((self._drive, "engines"), (self._score, "rewards of engines")):
            thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def launch(self) -> None:
        """Start the engines, if they are not started yet."""
        if not self._launched:
            self._launched = True
            self.call(self._launch_all)

    def close(self) -> None:
        """End all engines and threads."""
        self._closing = True
        self._to_score.put(None)
        self._ring()
        for thread in self._threads[:1]:
            thread.join()
        for thread in self._threads[1:]:
            thread.join(SCORED_IN)  # a reward that is being computed ends at its own limits
        for name in list(self._ports):
            self._end_engine(name)
        if self.trajectories is not None and self._error is None:
            self.trajectories.settle()
        self._selector.close()
        self._bell.close()
        self._woken.close()

    @property
    def has_weights(self) -> bool:
        """Whether any weights were published yet."""
        return self._has_weights

    def wait_for_weights(self) -> None:
        """Wait until weights were published. Groups of a checkpoint may be scored before that."""
        self._wait_until(lambda: self._has_weights)

    def wait_for_engine(self) -> Ready:
        """Wait until an engine is ready, and return the facts about its tensors."""
        self._wait_until(lambda: self.ready is not None)
        assert self.ready is not None
        return self.ready

    def trained(self, version: int) -> None:
        """Report that the trainer has made `version`. Raises the error that has ended the driver, if any."""
        if self._error is not None:
            raise self._error  # before the step counts, because the controller would not know about it
        if self._stopped is None:
            self.post(Trained(version))

    def may_publish(self, version: int) -> bool:
        """Wait until the weights of `version` may be written. Return False if they need not be."""
        if self._stopped is not None:
            return False
        with self.timeline.span("trainer", "wait for engines to load"):
            self._wait_until(
                lambda: self._may_publish is not None or self._stopped is not None or not self._publishing()
            )
        if self._error is not None:
            raise self._error
        return self._may_publish == version

    def published(self, version: int) -> None:
        """Report that engines may read the weights of `version`."""
        if not self._has_weights:
            self.call(lambda: self._begin_at(version))
        self._may_publish = None
        self.post(Published(version))
        self._has_weights = True

    def batch(self, version: int) -> Batch:
        """Return the groups from which version `version` learns. Raises the error that has ended the driver, if any."""
        began = time.monotonic()
        self._delivered = None
        self.post(Asked())
        with self.timeline.span("trainer", "wait for groups", step=version + 1):
            self._wait_until(lambda: self._delivered is not None)
        delivered = self._delivered
        assert delivered is not None
        assert delivered.version == version, "the trainer and the controller count the same versions"
        return self.call(lambda: self._batch(delivered, time.monotonic() - began))

    def evaluate(self, questions: Sequence[Question]) -> Iterator[tuple[int, int, Completion]]:
        """Yield (index of the question, index in its group, completion) in the order of the questions.

        The answers come from the weights that were published last, which must be the present ones. The thread of
        rewards may call this, too."""
        numbered = self.call(lambda: self._evaluate(questions))
        for place, number in enumerate(numbered):
            self._wait_until(functools.partial(self._answers.__contains__, number))
            for g, completion in enumerate(self._answers.pop(number)):
                yield place, g, completion

    def examine(self, tokens: Sequence[Token]) -> dict[str, Examined]:
        """Return each engine's report on these tokens and on its tensors, by name. Engines that cannot be asked, or do
        not answer in time, are left out."""
        asked, until = self.call(lambda: self._examine(tokens)), time.monotonic() + self.deadline

        def there() -> bool:
            return asked & self._ports.keys() <= self._examined.keys() or time.monotonic() > until

        self._wait_until(there)
        return dict(sorted(self._examined.items()))

    def post(self, event: Event) -> None:
        self._events.put(event)
        self._ring()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the driver's thread, between two events. Return its result, or raise its error."""
        called: Future[T] = Future()

        def call() -> None:
            try:
                called.set_result(function())
            except BaseException as error:
                called.set_exception(error)

        self._events.put(call)
        self._ring()
        self._wait_until(called.done, also_stopped=True)
        return called.result()

    def state(self) -> dict[str, Any]:
        """Return the waiting and the running work, as plain JSON for a checkpoint."""
        return self.call(self._state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the output of `state`, before anything is published.

        Open groups begin again if the group size has changed. Raises ConfigError if their numbers now stand for other
        prompts or other seeds.
        """
        self.call(lambda: self._load_state(state))

    # --- the driver's thread -----------------------------------------------------------------------------------------

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            with self._changed:
                self._changed.notify_all()

    def _drive(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ)
        if self.trajectories is not None:
            self._selector.register(self.trajectories.fileno(), selectors.EVENT_READ, self.trajectories)
        self.activity.look(self.controller)
        while not self._closing:
            unsent = [port.push() for port in self._ports.values()]
            for key, _ in self._selector.select(SOON if any(unsent) else TICK):
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.data is not self.trajectories:
                    self._hear(key.data)
            if self.trajectories is not None:
                self.trajectories.poll()
            self._take_events()
            self._look_at_clocks()

    def _take_events(self) -> None:
        with suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                event() if callable(event) else self._handle(event)
        with self._changed:
            self._changed.notify_all()

    def _handle(self, event: Event) -> None:
        submitted: dict[str, list[Submit]] = {}
        commands = self.controller.handle(event)
        self.activity.see(event, commands, self.controller)
        if self.pace is not None:
            self.pace.see(event, commands)
        for command in commands:
            if isinstance(command, Submit):
                submitted.setdefault(command.engine, []).append(command)
            else:
                self._obey(command)
        for name, rows in submitted.items():
            self._ports[name].submit([self._task(command) for command in rows])

    def _obey(self, command: Command) -> None:
        match command:
            case Open(row):
                self._open(row)
            case Interrupt(engine, row, attempt):
                if engine in self._ports:
                    self._ports[engine].interrupt([(row, attempt)])
            case Load(engine, version):
                self._ports[engine].load(version)
            case Restart(engine):
                self._end_engine(engine)
                self._launch(engine)
            case Sleep(engine):
                port = self._ports[engine]
                assert isinstance(port, SleepingPort), "only such engines share the trainer's device"
                port.sleep()
            case Dismiss(engine) | End(engine):
                self._end_engine(engine)
            case Score(group):
                self._to_score.put(group)
            case Publish(version):
                self._may_publish = version
            case Deliver():
                self._delivered = command
            case Evaluated(group):
                self._answers[group] = self._completions(group)
                self._forget(group)
            case GiveUp(group, cause) if group < 0:
                raise self._failure(f"prompt {self._questions[group].prompt.index} of an evaluation: {cause}")
            case GiveUp(group, cause):
                self._forget(group)
                self.say(f"group {group} (prompt {self._planned(group).prompt.index}) is abandoned: {cause}")
            case Stop(cause, failed):
                self._stopped = command
                for name in list(self._ports):
                    self._end_engine(name)
                if failed:
                    self._error = self.no_signal(self._voided) if command.voided else self._failure(cause)

    def _failure(self, cause: str) -> EngineError:
        """Return the error to be raised in the trainer's thread."""
        return EngineError(
            given=cause,
            allowed="engines that sample tokens",
            fix="Look into the files engines/*.log of the run. An engine that is only slow needs a larger "
            f"rollout.deadline (now {self.deadline:g} s). `posttrain resume` continues from the newest "
            "checkpoint.",
        )

    def _launch_all(self) -> None:
        for name in self.engines:
            self._launch(name)

    def _launch(self, name: str) -> None:
        port = self.engines[name]()
        self._ports[name], self._starting[name] = port, Starting()
        self._selector.register(port.fileno(), selectors.EVENT_READ, name)

    def _end_engine(self, name: str) -> None:
        port = self._ports.pop(name, None)
        self._joined.discard(name)
        self._starting.pop(name, None)
        if port is not None:
            self._selector.unregister(port.fileno())
            port.kill()

    def _lose(self, name: str, cause: str) -> None:
        self.say(f"{name} is lost: {cause}; its rows continue from the tokens that it delivered")
        self._handle(Lost(name, cause))

    def _hear(self, name: str) -> None:
        port = self._ports.get(name)
        if port is None:
            return
        try:
            answers = port.answers()
        except EngineGone as gone:
            self._lose(name, str(gone))
            return
        for answer in answers:
            if self._ports.get(name) is not port:
                return  # the engine was lost over an earlier answer
            self._take(name, answer)

    def _take(self, name: str, answer: Answer) -> None:
        match answer:
            case Piece():
                self._take_piece(name, answer)
            case WeightsLoaded():
                wrong = self.prove(answer)
                self._lose(name, wrong) if wrong else self._handle(Loaded(name, answer.version))
            case Ready():
                if self.ready is not None and answer.tensors != self.ready.tensors:
                    self._lose(name, "it decodes with other tensors than the first engine")
                    return
                if answer.note and self.ready is None:
                    self.say(answer.note)
                self.ready = answer
                self._joined.add(name)
                del self._starting[name]
                self._handle(Joined(name))
            case Asleep(gave=gave):
                self._gave_back += gave
                self._handle(Slept(name))
            case GivenBack(row=row, attempt=attempt):
                self._handle(Returned(name, Row(*row), attempt))
            case Examined():
                if answer.number == self._examination:
                    self._examined[name] = answer

    def _take_piece(self, name: str, piece: Piece) -> None:
        beat("an engine drew tokens")
        row = Row(*piece.row)
        if not self.controller.holds(name, row, piece.attempt):
            return
        if not piece.ids and piece.reason is None:
            self._heard_from(name)
            return
        if piece.ids:
            self._handle(Drew(name, row, piece.attempt, piece.version, len(piece.ids)))
        if not self.controller.holds(name, row, piece.attempt):
            return  # the row was sampled with a version that it must not have
        if not all(map(math.isfinite, piece.logprobs)):
            index = self._prompt(row.group).index
            raise NonFiniteError(
                given=f"the policy's logits for completion {row.g} of prompt {index} are not finite in {name}",
                fix="The weights or the precision overflowed: lower train.learning_rate, or sample in float32.",
            )
        self._rows.setdefault(row, Drawn()).take(piece)
        if piece.reason is not None:
            self._row_ended(name, row, piece.attempt)

    def _row_ended(self, name: str, row: Row, attempt: int) -> None:
        """Take the end of a row, or of one turn of a row that has several."""
        if self.trajectories is None or row not in self.trajectories:
            self._handle(Ended(name, row, attempt))
            return
        turn = self._rows.pop(row).completion()
        self._handle(Paused(name, row, attempt))
        self.trajectories.drew(row, turn)

    def _heard_from(self, name: str) -> None:
        """Restart the waiting time of an engine that is working on a row but delivers its tokens later."""
        for wait in self._since:
            if wait.kind == "draw" and wait.owner == name:
                self._since[wait] = time.monotonic()

    def _look_at_clocks(self) -> None:
        """Report waits that took too long to the controller. The watchdog covers the trainer's own waits."""
        if not self._launched:
            return
        now, waits = time.monotonic(), self.controller.waits()
        deaf = max(0.0, now - self._looked - 2 * TICK)  # this thread was busy, for example with restarting a host
        self._since = {wait: min(self._since.get(wait, now) + deaf, now) for wait in waits}
        self._looked = now
        allowed = {"join": self.start_deadline, "load": self.deadline, "sleep": self.deadline, "draw": self.deadline}
        for wait, since in list(self._since.items()):
            self._tell_of_silence(wait, now - since, allowed)
            if now - since > allowed.get(wait.kind, float("inf")):
                told = f"no sign of life for {now - since:.0f} s ({wait.kind})"
                self.say(f"{wait.owner} is late: {told}; rollout.deadline = {self.deadline:g} s")
                self._handle(Late(wait))
        for name, starting in list(self._starting.items()):
            if name in self._starting and starting.idle(self._ports[name].work) > self.deadline:
                self._lose(
                    name, f"it has done nothing in {time.monotonic() - starting.began:.0f} s since it was started"
                )

    def _tell_of_silence(self, wait: Wait, seconds: float, allowed: Mapping[str, float]) -> None:
        """Say once what a run still waits for after Ctrl-C, if that gives no sign of life."""
        if stop_is_asked() and wait.kind in allowed and seconds > SILENT and wait not in self._told:
            self._told.add(wait)
            self.say(
                f"waiting for {wait.owner} before the run can stop: silent for {seconds:.0f} s, and given up after "
                f"{allowed[wait.kind]:g} s. Press Ctrl-C again to stop now"
            )

    def _task(self, command: Submit) -> Task:
        group = command.row.group
        how = self._how(group)
        drawn = self._rows[command.row].ids if command.row in self._rows else []
        turn = Turn(how.prompt.ids, self._length(how), 0)
        if self.trajectories is not None and command.row in self.trajectories:
            turn = self.trajectories.next_turn(command.row)
        assert turn.drawn + len(drawn) == command.drawn, "controller and driver count the same tokens"
        return Task(
            row=command.row,
            attempt=command.attempt,
            prompt_ids=turn.context,
            drawn_ids=tuple(drawn),
            seed=how.seed,
            stream=(how.prompt.index, command.row.g),
            used=turn.drawn,
            max_new_tokens=turn.room,
            temperature=self._temperature(how, command.row),
            top_p=how.top_p if isinstance(how, Question) else None,
            stops=how.stops if isinstance(how, Question) else True,
        )

    def _open(self, row: Row) -> None:
        assert self.trajectories is not None, "only trajectories have turns"
        how = self._how(row.group)
        self.trajectories.open(row, how.prompt, seed=how.seed, max_turn_length=self._length(how))

    def _how(self, group: int) -> Planned | Question:
        return self._questions[group] if group < 0 else self._planned(group)

    def _length(self, how: Planned | Question) -> int:
        """Return the maximum tokens of a completion, or of one turn."""
        return how.max_new_tokens if isinstance(how, Question) else self.max_new_tokens

    def _temperature(self, how: Planned | Question, row: Row) -> float | None:
        if isinstance(how, Question):
            return how.temperature
        return 0.0 if self.greedy and row.g == self.limits.group_size - 1 else None

    def _evaluate(self, questions: Sequence[Question]) -> list[int]:
        """Queue the questions, and return the numbers of their groups."""
        first = self._asked_so_far
        self._asked_so_far += len(questions)
        numbered = {-1 - first - place: question for place, question in enumerate(questions)}
        self._questions |= numbered
        for number, question in numbered.items():
            turns = self.trajectories is not None and question.turns
            self._handle(Evaluate(number, question.group_size, turns))
        return list(numbered)

    def _prompt(self, number: int) -> Prompt:
        return self._questions[number].prompt if number < 0 else self._planned(number).prompt

    def _size(self, number: int) -> int:
        return self._questions[number].group_size if number < 0 else self.limits.group_size

    def _examine(self, tokens: Sequence[Token]) -> set[str]:
        self._examined = {}
        self._examination += 1
        there = self.controller.engines
        awake = {name for name in self._joined if name in there and there[name].version is not None}
        ports = {name: port for name, port in self._ports.items() if name in awake}
        for port in ports.values():
            if isinstance(port, Examinable):
                port.examine(self._examination, tokens)
        return {name for name, port in ports.items() if isinstance(port, Examinable)}

    def _completions(self, number: int) -> list[Completion]:
        return [self._completion(Row(number, g)) for g in range(self._size(number))]

    def _completion(self, row: Row) -> Completion:
        if self.trajectories is not None and row in self.trajectories:
            return self.trajectories.completion(row)
        return self._rows[row].completion()

    def _forget(self, number: int) -> None:
        for g in range(self._size(number)):
            self._rows.pop(Row(number, g), None)
            if self.trajectories is not None:
                self.trajectories.forget(Row(number, g))
        self._questions.pop(number, None)

    def _batch(self, deliver: Deliver, waited: float) -> Batch:
        voided, self._voided = self._voided, []
        gave_back, self._gave_back = self._gave_back, 0
        groups = [self._groups.pop(number) for number in deliver.groups]
        return Batch(
            groups=groups,
            voided=voided,
            greedy=[self._greedy.pop(number) for number in deliver.groups] if self.greedy else [],
            waited=waited,
            in_flight=self.controller.in_flight,
            queued=self.controller.queued,
            engines_idle=self.activity.idle(),
            gave_back=gave_back,
            in_tools=None if self.trajectories is None else self.trajectories.take_waited(),
        )

    # --- the thread of rewards ---------------------------------------------------------------------------------------

    def _score(self) -> None:
        """Score groups as they end. Groups that ended while others were scored are scored together."""
        while (number := self._to_score.get()) is not None and not self._closing:
            numbers = [number]
            for _ in range(self._to_score.qsize()):
                if (more := self._to_score.get()) is None:
                    return
                numbers.append(more)
            prompts = [self._planned(one).prompt for one in numbers]
            completions = [self._completions(one) for one in numbers]
            end = -1 if self.greedy else None
            with self.timeline.span("rewards", "score", groups=numbers):
                groups = self._groups_of(prompts, [own[:end] for own in completions])
                greedy = self._groups_of(prompts, [own[-1:] for own in completions]) if self.greedy else groups
            for scored in zip(numbers, groups, greedy, strict=True):
                self._events.put(functools.partial(self._scored, *scored))
            self._ring()

    def _groups_of(self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]]) -> list[Group]:
        scores = None if self.rewards is None else self.rewards.score(prompts, completions)
        return groups_of(prompts, completions, scores)

    def _scored(self, number: int, group: Group, greedy: Group) -> None:
        trains = self.trains(group)
        if trains:
            self._groups[number] = group
            if self.greedy:
                self._greedy[number] = greedy
        else:
            self._voided.append(group)
        self._forget(number)
        self._handle(Scored(number, trains))

    # --- the state in a checkpoint -----------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        state = {
            "controller": self.controller.state(),
            "groups": {str(number): group.to_json() for number, group in self._groups.items()},
            "greedy": {str(number): group.to_json() for number, group in self._greedy.items()},
            "voided": [group.to_json() for group in self._voided],
            "rows": [{"row": row, **vars(drawn)} for row, drawn in self._rows.items() if row.group >= 0],
        }
        if self.trajectories is not None:  # an unfinished turn begins again with its trajectory
            state |= {"rows": [], "trajectories": self.trajectories.state()}
        open_groups = [*state["controller"]["finished"], *(one["group"] for one in state["controller"]["in_flight"])]
        state |= {
            "group_size": self.limits.group_size,
            "ends_greedy": self.greedy,
            "planned": self._plan_of(open_groups),
        }
        return json.loads(json.dumps(state))  # a copy, because rows go on; with lists, as a checkpoint restores them

    def _plan_of(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        """Return what each group stands for: the index of its prompt, and its seed."""
        planned = {number: self._planned(number) for number in numbers}
        return {str(number): [one.prompt.index, one.seed] for number, one in planned.items()}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        if self._plan_of(map(int, state["planned"])) != state["planned"]:
            raise ConfigError(
                given=f"{len(state['planned'])} groups of the checkpoint were waiting or running, and their "
                "numbers now stand for other prompts",
                allowed="the seed, the data and the train.prompts_per_step that they were sampled with",
                fix="Set seed, data and train.prompts_per_step to their values in settings.json of the run.",
            )
        if state["group_size"] != self.limits.group_size or state.get("ends_greedy", False) != self.greedy:
            state = begun_anew(state, self.limits.group_size)
        self._restored = True
        self.controller = Controller.restored(self.limits, dict(state["controller"]), engines=self.engines)
        self._groups, self._greedy = (
            {
                int(number): Group.from_json(saved, self._planned(int(number)).prompt)
                for number, saved in state.get(kind, {}).items()
            }
            for kind in ("groups", "greedy")
        )
        waiting = {saved["prompt"] for saved in state["voided"]}
        prompts = {prompt.index: prompt for prompt in self.schedule.prompts} if waiting else {}
        self._voided = [Group.from_json(saved, prompts[saved["prompt"]]) for saved in state["voided"]]
        self._rows = {
            Row(*saved["row"]): Drawn(**{name: saved[name] for name in saved if name != "row"})
            for saved in state["rows"]
        }
        if self.trajectories is not None:
            self.trajectories.load_state(state.get("trajectories", ()))
        self._greet()

    def _begin_at(self, version: int) -> None:
        """Begin at a version. A run that has sampled in its own process so far has no waiting or running groups."""
        if self._restored and self.controller.version != version:
            raise CheckpointError(
                given=f"the checkpoint of step {version} holds the engines' state of step {self.controller.version}",
                fix="Resume from an earlier checkpoint: remove this one from the folder checkpoints/.",
            )
        if self.controller.version != version:
            self.controller = Controller(self.limits, version=version, engines=self.engines)
            self._greet()

    def _greet(self) -> None:
        """Tell a new controller which engines have joined."""
        for name in sorted(self._joined):
            self._handle(Joined(name))

    # --- between threads ---------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._bell.send(b"\0")

    def _publishing(self) -> bool:
        return self.controller.phase in ("training", "blocked", "publishing")

    def _wait_until(self, there: Callable[[], bool], *, also_stopped: bool = False) -> None:
        """Wait for a condition. Raises the error that has ended the driver."""
        with self._changed:
            while not there():
                if self._error is not None and not also_stopped:
                    raise self._error
                if not self._threads[0].is_alive():
                    raise self._error or RuntimeError("the thread that drives the engines has ended")
                self._changed.wait(TICK)


def begun_anew(state: Mapping[str, Any], group_size: int) -> dict[str, Any]:
    """Return a driver's state in which every open group has `group_size` rows without tokens. No prompt is lost, but
    the tokens sampled so far are.

    >>> old = {"version": 1, "finished": [3], "in_flight": [{"group": 4, "rows": []}]}
    >>> begun_anew({"controller": old, "groups": {"3": {}}, "voided": [], "rows": []}, 2)["controller"]["in_flight"][0]
    {'group': 3, 'rows': [{'spans': [], 'ended': False}, {'spans': [], 'ended': False}]}
    """
    controller = state["controller"]
    numbers = sorted([*controller["finished"], *(group["group"] for group in controller["in_flight"])])
    rows = [{"spans": [], "ended": False} for _ in range(group_size)]
    anew = {"finished": [], "in_flight": [{"group": number, "rows": rows} for number in numbers]}
    nothing = {"groups": {}, "greedy": {}, "rows": [], "trajectories": []}
    return {**state, "controller": {**controller, **anew}, **nothing}
