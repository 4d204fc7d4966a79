"""The shell around the controller: it hears engines, rewards, the trainer and the clock, and does what is ordered.

    trainer's thread            driver's thread                       other processes
    batch(), publish(v)  ---->  controller.handle(event)  ---->       engines
                                       |    ^
                                       v    |
                                 thread of rewards

Nothing is decided here. Whoever raises an error in a thread of the driver's raises it in the trainer's.
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
from posttrain.store.timeline import Timeline
from posttrain.types import Completion, Prompt

TICK = 0.25
"""Seconds after which clocks are looked at though nothing came."""
SCORED_IN = 5.0
"""Seconds that the end of a run waits for a reward that is being computed."""
PLANNED = 4096
"""Groups whose prompts are kept at hand: rows that are streamed are tokenised when they are asked for."""
SOON = 0.002
"""Seconds after which an engine is sent the rest of a long message."""


T = TypeVar("T")


class Prove(Protocol):
    """Looks at what an engine says of weights that it has loaded; the text says what is wrong, empty if nothing is."""

    def __call__(self, loaded: WeightsLoaded) -> str: ...


@dataclass
class Drawn:
    """What has been delivered of a row."""

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
    """What a step is made of."""

    groups: Sequence[Group]
    """That are trained, the oldest first."""
    voided: Sequence[Group]
    """That were sampled since the last batch and are not trained."""
    greedy: Sequence[Group]
    """One greedy completion of each trained prompt, where they are drawn."""
    waited: float
    """Seconds for which the trainer stood still."""
    in_flight: int
    """Groups that are being sampled or scored."""
    queued: int
    """Groups that wait for a later step."""
    engines_idle: float
    """Share of the engines' time in which they drew no token, since the last batch."""
    gave_back: int = 0
    """Bytes of the trainer's device that engines gave back for this step, where they share it."""
    in_tools: float | None = None
    """Seconds that environments and tools have taken since the last batch, summed over trajectories; None without."""


@dataclass(kw_only=True)
class Driver:
    """Made in the trainer's thread; `start` begins a thread that ends with `close`."""

    limits: Limits
    engines: Mapping[str, Callable[[], EnginePort]]
    """How each is started, by its name."""
    schedule: Schedule
    max_new_tokens: int
    rewards: RewardSet | None
    trains: Callable[[Group], bool]
    """Whether a scored group is trained, or replaced by another."""
    no_signal: Callable[[Sequence[Group]], BaseException]
    """The error that ends the run when too many of these were voided."""
    prove: Prove
    deadline: float
    """Seconds in which an engine has to draw a token, to load weights, or to fall asleep."""
    start_deadline: float
    """Seconds in which it has to start."""
    say: Callable[[str], None]
    """Tells the user what was lost and mended."""
    timeline: Timeline = field(default_factory=Timeline)
    pace: Pace | None = None
    """The part that chooses the lead, if the run chooses it itself."""
    greedy: bool = False
    """Whether the last row of each group takes the likeliest tokens, for an algorithm that compares with them."""
    trajectories: Trajectories | None = None
    """The episodes of rows with several turns; None if each row is one answer."""

    def __post_init__(self) -> None:
        self.controller = Controller(self.limits, engines=self.engines)
        self.activity = Activity(self.timeline)
        self.ready: Ready | None = None
        """The tensors that engines decode with, known once the first engine is there."""
        self._planned = functools.lru_cache(maxsize=PLANNED)(self.schedule)
        self._ports: dict[str, EnginePort] = {}
        self._joined: set[str] = set()
        self._starting: dict[str, Starting] = {}
        self._rows: dict[Row, Drawn] = {}
        self._groups: dict[int, Group] = {}
        """Scored and not trained."""
        self._greedy: dict[int, Group] = {}
        """The greedy completions of the same prompts."""
        self._voided: list[Group] = []
        self._questions: dict[int, Question] = {}
        """The questions of an evaluation, by the number of their group, which is below 0."""
        self._answers: dict[int, list[Completion]] = {}
        self._examined: dict[str, Examined] = {}
        self._examination = 0
        """The number of the last one."""
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
        self._looked = time.monotonic()
        """At the clocks, for the last time."""
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._has_weights = self._launched = False
        self._gave_back = 0
        """Bytes of the trainer's device, by engines that have fallen asleep since the last batch."""
        self._restored = False

    # --- the trainer's thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads that look after engines."""
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
            thread.join(SCORED_IN)  # a reward that is being computed ends by its own limits
        for name in list(self._ports):
            self._end_engine(name)
        if self.trajectories is not None and self._error is None:
            self.trajectories.settle()
        self._selector.close()
        self._bell.close()
        self._woken.close()

    @property
    def has_weights(self) -> bool:
        """Was anything published yet?"""
        return self._has_weights

    def wait_for_weights(self) -> None:
        """Until something was published: groups of a checkpoint may be scored before that."""
        self._wait_until(lambda: self._has_weights)

    def wait_for_engine(self) -> Ready:
        """Until one is there: what it decodes with."""
        self._wait_until(lambda: self.ready is not None)
        assert self.ready is not None
        return self.ready

    def trained(self, version: int) -> None:
        """The trainer has made `version`. Raises what has ended the driver meanwhile."""
        if self._error is not None:
            raise self._error  # before the step counts: what trains on has no controller that knows of it
        if self._stopped is None:
            self.post(Trained(version))

    def may_publish(self, version: int) -> bool:
        """Wait until the weights of `version` may be written; False where they need not be."""
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
        """Engines may read the weights of `version`."""
        if not self._has_weights:
            self.call(lambda: self._begin_at(version))
        self._may_publish = None
        self.post(Published(version))
        self._has_weights = True

    def batch(self, version: int) -> Batch:
        """The groups of the step that version `version` learns from. Raises whatever keeps it from coming."""
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
        """(place of the question, number in its group, completion), in the order of the questions: answers by the
        weights that were published last, which have to be the present ones. Who scores may ask, too."""
        numbered = self.call(lambda: self._evaluate(questions))
        for place, number in enumerate(numbered):
            self._wait_until(functools.partial(self._answers.__contains__, number))
            for g, completion in enumerate(self._answers.pop(number)):
                yield place, g, completion

    def examine(self, tokens: Sequence[Token]) -> dict[str, Examined]:
        """What engines say of these tokens and of what they decode with, by name; those are left out that cannot be
        asked, or do not answer in time."""
        asked, until = self.call(lambda: self._examine(tokens)), time.monotonic() + self.deadline

        def there() -> bool:
            return asked & self._ports.keys() <= self._examined.keys() or time.monotonic() > until

        self._wait_until(there)
        return dict(sorted(self._examined.items()))

    def post(self, event: Event) -> None:
        self._events.put(event)
        self._ring()

    def call(self, function: Callable[[], T]) -> T:
        """Have a function called between two events; what it returns, or raises."""
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
        """The waiting and the running work, as plain JSON for a checkpoint."""
        return self.call(self._state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, before anything is published.

        Groups that are open begin anew where they have another size now. Raises ConfigError where their numbers stand
        for other prompts or other random numbers than they did.
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
        """What the trainer's thread raises."""
        return EngineError(
            given=cause,
            allowed="engines that draw tokens",
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
                return  # it was lost by what it said before
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
            return  # it drew with a version that it must not have
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
        """A whole row, or a turn of one that has several."""
        if self.trajectories is None or row not in self.trajectories:
            self._handle(Ended(name, row, attempt))
            return
        turn = self._rows.pop(row).completion()
        self._handle(Paused(name, row, attempt))
        self.trajectories.drew(row, turn)

    def _heard_from(self, name: str) -> None:
        """A row goes on in an engine that passes its tokens on later: whoever waits for one begins to wait anew."""
        for wait in self._since:
            if wait.kind == "draw" and wait.owner == name:
                self._since[wait] = time.monotonic()

    def _look_at_clocks(self) -> None:
        """Tell the controller of waits that took too long. The trainer's own are the watchdog's."""
        if not self._launched:
            return
        now, waits = time.monotonic(), self.controller.waits()
        deaf = max(0.0, now - self._looked - 2 * TICK)  # this thread was busy, such as with a host that it started anew
        self._since = {wait: min(self._since.get(wait, now) + deaf, now) for wait in waits}
        self._looked = now
        allowed = {"join": self.start_deadline, "load": self.deadline, "sleep": self.deadline, "draw": self.deadline}
        for wait, since in list(self._since.items()):
            if now - since > allowed.get(wait.kind, float("inf")):
                told = f"it has not been heard of for {now - since:.0f} s ({wait.kind})"
                self.say(f"{wait.owner} is late: {told}; rollout.deadline = {self.deadline:g} s")
                self._handle(Late(wait))
        for name, starting in list(self._starting.items()):
            if name in self._starting and starting.idle(self._ports[name].work) > self.deadline:
                self._lose(
                    name, f"it has done nothing in {time.monotonic() - starting.began:.0f} s since it was started"
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
        assert self.trajectories is not None, "rows have turns where there is something that answers them"
        how = self._how(row.group)
        self.trajectories.open(row, how.prompt, seed=how.seed, max_turn_length=self._length(how))

    def _how(self, group: int) -> Planned | Question:
        return self._questions[group] if group < 0 else self._planned(group)

    def _length(self, how: Planned | Question) -> int:
        """Tokens that a completion may have, or a turn of it."""
        return how.max_new_tokens if isinstance(how, Question) else self.max_new_tokens

    def _temperature(self, how: Planned | Question, row: Row) -> float | None:
        if isinstance(how, Question):
            return how.temperature
        return 0.0 if self.greedy and row.g == self.limits.group_size - 1 else None

    def _evaluate(self, questions: Sequence[Question]) -> list[int]:
        """The numbers of their groups."""
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
        """Groups that have ended while others were scored are scored together."""
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

    # --- what a checkpoint holds -------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        state = {
            "controller": self.controller.state(),
            "groups": {str(number): group.to_json() for number, group in self._groups.items()},
            "greedy": {str(number): group.to_json() for number, group in self._greedy.items()},
            "voided": [group.to_json() for group in self._voided],
            "rows": [{"row": row, **vars(drawn)} for row, drawn in self._rows.items() if row.group >= 0],
        }
        if self.trajectories is not None:  # a turn under way begins anew with its trajectory
            state |= {"rows": [], "trajectories": self.trajectories.state()}
        open_groups = [*state["controller"]["finished"], *(one["group"] for one in state["controller"]["in_flight"])]
        state |= {
            "group_size": self.limits.group_size,
            "ends_greedy": self.greedy,
            "planned": self._plan_of(open_groups),
        }
        return json.loads(json.dumps(state))  # now, as rows go on; and lists, as a checkpoint gives them back

    def _plan_of(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        """What these groups stand for: the prompt, and the seed of its random numbers."""
        planned = {number: self._planned(number) for number in numbers}
        return {str(number): [one.prompt.index, one.seed] for number, one in planned.items()}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        if self._plan_of(map(int, state["planned"])) != state["planned"]:
            raise ConfigError(
                given=f"{len(state['planned'])} groups wait in the checkpoint or were under way, and their numbers "
                "stand for other prompts now",
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
        """Of a run that has sampled by itself until now, nothing is waiting and nothing under way."""
        if self._restored and self.controller.version != version:
            raise CheckpointError(
                given=f"the checkpoint of step {version} holds the engines' state of step {self.controller.version}",
                fix="Resume from an earlier checkpoint: remove this one from the folder checkpoints/.",
            )
        if self.controller.version != version:
            self.controller = Controller(self.limits, version=version, engines=self.engines)
            self._greet()

    def _greet(self) -> None:
        """Tell a new controller which engines are there."""
        for name in sorted(self._joined):
            self._handle(Joined(name))

    # --- between threads ---------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._bell.send(b"\0")

    def _publishing(self) -> bool:
        return self.controller.phase in ("training", "blocked", "publishing")

    def _wait_until(self, there: Callable[[], bool], *, also_stopped: bool = False) -> None:
        """Raises what has ended the driver."""
        with self._changed:
            while not there():
                if self._error is not None and not also_stopped:
                    raise self._error
                if not self._threads[0].is_alive():
                    raise self._error or RuntimeError("the thread that drives the engines has ended")
                self._changed.wait(TICK)


def begun_anew(state: Mapping[str, Any], group_size: int) -> dict[str, Any]:
    """A driver's state in which every open group is one of so many rows without a token: no prompt is lost, what was
    drawn of them is.

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
