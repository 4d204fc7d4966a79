"""The driver with engines that each fail in one way: it notices, says so, and every batch is complete and correct.

The engines are scripted: token t of row (n, g) is `token(n, g, t)`, so that lost, doubled and mixed-up tokens show.
tests/faults/test_engines.py tests real processes.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from posttrain.controller.messages import Limits
from posttrain.engines.port import (
    Answer,
    EngineGone,
    Examined,
    GivenBack,
    Piece,
    Ready,
    RowName,
    Task,
    Token,
    WeightsLoaded,
)
from posttrain.engines.sampler import Digest
from posttrain.errors import CheckpointError, ConfigError, EngineError, GuardStop, NonFiniteError
from posttrain.experience import driver as driver_module
from posttrain.experience.answers import Question
from posttrain.experience.driver import Driver
from posttrain.experience.group import Group
from posttrain.experience.schedule import Schedule
from posttrain.stopping import ask_to_stop
from posttrain.types import Prompt

PROMPTS = [Prompt(index=i, ids=(1, i + 2), text=str(i)) for i in range(40)]
P, G, LENGTH = 3, 2, 6
GOOD = Digest(torch.float32, "good")


def token(group: int, g: int, place: int) -> int:
    return 10_000 * group + 100 * g + place


class Scripted:
    """An engine that answers each request immediately; a subclass does one thing wrong."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, -1
        self._waiting: list[Answer | EngineGone] = []
        self._reads, self._rings = socket.socketpair()
        self.killed = False
        self.say(Ready(tensors={"weight": ("float32", (2,))}, merged=True))

    def say(self, answer: Answer | EngineGone) -> None:
        self._waiting.append(answer)
        self._rings.send(b"\0")

    def fileno(self) -> int:
        return self._reads.fileno()

    def answers(self) -> list[Answer]:
        self._reads.recv(4096)
        found, self._waiting = self._waiting, []
        gone = next((one for one in found if isinstance(one, EngineGone)), None)
        if gone is not None:
            raise gone
        return [one for one in found if not isinstance(one, EngineGone)]

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.decode(task)

    def decode(self, task: Task) -> None:
        """Send the first half of the remaining tokens, then the rest."""
        places = range(len(task.drawn_ids), LENGTH)
        assert task.drawn_ids == tuple(token(*task.row, place) for place in range(len(task.drawn_ids)))
        cut = len(places) // 2
        self.piece(task, places[:cut])
        self.piece(task, places[cut:], ends=True)

    def piece(self, task: Task, places: Sequence[int], *, ends: bool = False, version: int | None = None) -> None:
        ids = tuple(token(*task.row, place) for place in places)
        self.say(
            Piece(
                row=task.row,
                attempt=task.attempt,
                version=self.version if version is None else version,
                ids=ids,
                logprobs=(-1.0,) * len(ids),
                reason="eos" if ends else None,
                text="done" if ends else None,
            )
        )

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        for row, attempt in rows:
            self.say(GivenBack(row=row, attempt=attempt))

    def load(self, version: int) -> None:
        self.version = version
        self.say(WeightsLoaded(version=version, digests={"weight": GOOD}, probe=[[0.0]], seconds=0.0))

    def push(self) -> bool:
        return False

    def work(self) -> float:
        return time.monotonic()

    def kill(self) -> None:
        self.killed = True


class First(Scripted):
    """Only the first process of engine 0 is of the kind under test; its replacements work."""

    made = 0


def prove(loaded: WeightsLoaded) -> str:
    return "" if loaded.digests == {"weight": GOOD} else f"its tensors are not those of version {loaded.version}"


class LoadsLater(Scripted):
    def load(self, version: int) -> None:
        threading.Timer(0.1, super().load, [version]).start()


class World:
    """A driver with two engines, and its messages."""

    def __init__(
        self,
        wrong: type[Scripted],
        other: type[Scripted] = Scripted,
        *,
        ahead: int = 2,
        forever: bool = False,
        seed: int = 0,
        group_size: int = G,
        voided: int = 7,
        deadline: float = 0.4,
        trains: Callable[[Group], bool] = lambda group: True,
    ) -> None:
        self.said: list[str] = []
        self.made: list[Scripted] = []

        def start(name: str) -> Callable[[], Scripted]:
            def make() -> Scripted:
                first = not any(one.name == name for one in self.made)
                kind = Scripted if name == "engine 0" else other
                if name == "engine 0" and (first or forever):
                    kind = wrong
                self.made.append(kind(name))
                return self.made[-1]

            return make

        names = ["engine 0"] if forever else ["engine 0", "engine 1"]
        self.driver = Driver(
            limits=Limits(
                prompts_per_step=P,
                group_size=group_size,
                last_version=6,
                run_ahead=ahead,
                max_staleness=8,
                max_voided=voided,
            ),
            engines={name: start(name) for name in names},
            schedule=Schedule(seed, PROMPTS, P),
            max_new_tokens=LENGTH,
            rewards=None,
            trains=trains,
            no_signal=lambda groups: GuardStop(given=f"{len(groups)} groups had no signal"),
            prove=prove,
            deadline=deadline,
            start_deadline=2.0,
            say=self.said.append,
        )

    def __enter__(self) -> World:
        self.driver.start()
        self.driver.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()

    def train(self, steps: int = 6, *, together: bool = False) -> list[int]:
        """Train `steps` steps and check each completion; return the prompts of all steps."""
        if together:
            while not all(self.driver.call(lambda: [e.joined for e in self.driver.controller.engines.values()])):
                time.sleep(0.01)
        self.driver.wait_for_engine()
        self.driver.published(0)
        trained = list[int]()
        for version in range(steps):
            if version % 2 == 0:
                self.evaluate(version)
            for group in self.driver.batch(version).groups:
                trained.append(group.prompt.index)
                for completion in group.completions:
                    number, g = completion.ids[0] // 10_000, completion.ids[0] // 100 % 100
                    assert completion.ids == tuple(token(number, g, place) for place in range(LENGTH))
                    assert self.driver.schedule(number).prompt == group.prompt
                    assert list(completion.versions) == sorted(completion.versions)
                    assert 0 <= version - completion.versions[0] <= 8
            self.driver.trained(version + 1)
            if self.driver.may_publish(version + 1):
                self.driver.published(version + 1)
        self.evaluate(steps)
        return trained

    def evaluate(self, version: int) -> None:
        """Check that every answer is complete, in its place and of this version."""
        questions = [Question(prompt, 7, 0.0, LENGTH, 3) for prompt in PROMPTS[:4]]
        first = -1 - self.driver._asked_so_far
        found = list(self.driver.evaluate(questions))
        assert [(place, g) for place, g, _ in found] == [(place, g) for place in range(4) for g in range(3)]
        for place, g, completion in found:
            assert completion.ids == tuple(token(first - place, g, at) for at in range(LENGTH))
            assert set(completion.versions) == {version}


def expected(steps: int = 6) -> set[int]:
    schedule = Schedule(0, PROMPTS, P)
    return {schedule(number).prompt.index for number in range(steps * P)}


class Dies(First):
    def decode(self, task: Task) -> None:
        self.piece(task, range(2))
        self.say(EngineGone("killed by signal 9 (Killed)"))


class HangsInTheMiddle(First):
    def decode(self, task: Task) -> None:
        self.piece(task, range(3))


class NeverStarts(First):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._waiting.clear()


class HangsWhileItStarts(NeverStarts):
    def work(self) -> float:
        return 3.0


class CannotStart(First):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._waiting = [EngineGone("exited with code 1")]


class NeverLoads(First):
    def load(self, version: int) -> None:
        """Send no reply."""


class LoadsOtherWeights(First):
    def load(self, version: int) -> None:
        self.version = version
        bad = {"weight": Digest(torch.float32, "stale")}
        self.say(WeightsLoaded(version=version, digests=bad, probe=[[0.0]], seconds=0.0))


class LoadsAnotherVersion(First):
    def load(self, version: int) -> None:
        super().load(version + 1)


class DrawsWithAVersionThatDoesNotExist(First):
    def decode(self, task: Task) -> None:
        self.piece(task, range(LENGTH), ends=True, version=self.version + 5)


class SaysEverythingTwice(First):
    def decode(self, task: Task) -> None:
        super().decode(task)
        self.piece(task, range(LENGTH), ends=True)


class GivesBackWhatNobodyAskedFor(First):
    def decode(self, task: Task) -> None:
        if task.attempt > 1:
            super().decode(task)
            return
        self.piece(task, range(2))
        self.say(GivenBack(row=task.row, attempt=task.attempt))


class IsBuiltFromAnotherModel(First):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._waiting = [Ready(tensors={"weight": ("float32", (3,))}, merged=True)]


SAYS = {
    Dies: "killed by signal 9",
    HangsInTheMiddle: "engine 0 is late",
    NeverStarts: None,
    HangsWhileItStarts: None,
    NeverLoads: "engine 0 is late",
    LoadsOtherWeights: "its tensors are not those of version 0",
    LoadsAnotherVersion: None,
    DrawsWithAVersionThatDoesNotExist: None,
    SaysEverythingTwice: None,
    GivesBackWhatNobodyAskedFor: None,
}


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("wrong", [Scripted, *SAYS], ids=lambda kind: kind.__name__)
def test_whatever_one_engine_does_each_prompt_is_trained_once_with_its_own_tokens(wrong, ahead):
    with World(wrong, ahead=ahead) as world:
        trained = world.train()
    assert len(trained) == len(set(trained)) == 6 * P
    if not ahead:
        assert set(trained) == expected()
    if SAYS.get(wrong):
        assert any(SAYS[wrong] in sentence for sentence in world.said)
    assert all(engine.killed for engine in world.made)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("wrong", [HangsInTheMiddle, NeverLoads, Scripted], ids=lambda kind: kind.__name__)
def test_a_run_that_is_asked_to_stop_says_which_engine_it_waits_for(monkeypatch, wrong, asked):
    monkeypatch.setattr(driver_module, "SILENT", 0.1)
    monkeypatch.setattr(driver_module, "TICK", 0.02)
    ask_to_stop(asked)
    try:
        with World(wrong, LoadsLater, deadline=2.0) as world:  # far more than SILENT, on a busy machine too
            world.train(2, together=True)  # as engine 1 could draw everything before engine 0 is there
    finally:
        ask_to_stop(False)
    told = [sentence for sentence in world.said if sentence.startswith("waiting for engine 0 before the run can stop")]
    assert len(told) == (asked and wrong is not Scripted)
    assert all("given up after 2 s" in sentence for sentence in told)


def test_an_engine_of_another_model_is_refused():
    with World(IsBuiltFromAnotherModel, ahead=2) as world:
        world.driver.wait_for_engine()
        world.driver.published(0)
        world.driver.batch(0)
    assert any("other tensors than the first engine" in sentence for sentence in world.said)


@pytest.mark.parametrize("wrong", [CannotStart, Dies, NeverLoads, LoadsOtherWeights], ids=lambda kind: kind.__name__)
def test_when_no_engine_is_left_the_run_ends_and_says_who_was_waited_for(wrong):
    with World(wrong, forever=True) as world, pytest.raises(EngineError, match="engine 0") as raised:
        world.train()
    assert raised.value.exit_code == 4
    assert len(world.made) == 3, "it was started three times"


def test_an_engine_that_does_nothing_while_it_starts_has_no_more_time_than_one_that_draws():
    with (
        World(HangsWhileItStarts, forever=True) as world,
        pytest.raises(EngineError, match=r"the last, engine 0, was lost: it has done nothing in . s"),
    ):
        world.train()
    assert len(world.made) == 3


class DrawsNaN(First):
    def piece(self, task: Task, places: Sequence[int], *, ends: bool = False, version: int | None = None) -> None:
        self.say(Piece(row=task.row, attempt=1, version=self.version, ids=(5,), logprobs=(float("nan"),)))


def test_numbers_that_are_not_finite_stop_the_run_and_not_the_engine():
    with World(DrawsNaN) as world, pytest.raises(NonFiniteError, match="logits for completion 0 of prompt"):
        world.train()


def under_way(version: int = 1) -> dict[str, Any]:
    """The state of a driver after its first step: groups wait, and rows are unfinished."""
    with World(HangsInTheMiddle, ahead=2) as world:
        world.driver.wait_for_engine()
        world.driver.published(0)
        world.driver.batch(0)
        world.driver.trained(version)
        assert world.driver.may_publish(version)
        state = world.driver.state()
    assert state["planned"]
    return state


def test_what_is_under_way_is_in_the_state_and_another_driver_goes_on_from_it():
    with World(Scripted, ahead=2) as again:
        again.driver.load_state(under_way())
        again.driver.wait_for_engine()
        again.driver.published(1)
        trained = [group.prompt.index for group in again.driver.batch(1).groups]
    assert len(set(trained)) == P


def test_open_groups_are_not_given_to_the_prompts_of_another_seed():
    with (
        World(Scripted, seed=1) as again,
        pytest.raises(ConfigError, match="their numbers now stand for other prompts"),
    ):
        again.driver.load_state(under_way())


def test_open_groups_begin_anew_when_groups_have_another_size():
    """The messages about missing signal advise a larger group."""
    state = under_way()
    with World(Scripted, group_size=G + 2) as again:
        again.driver.load_state(state)
        again.driver.wait_for_engine()
        again.driver.published(1)
        groups = again.driver.batch(1).groups
    assert {len(group.completions) for group in groups} == {G + 2}
    planned = {index for index, _ in state["planned"].values()}
    assert {group.prompt.index for group in groups} <= planned


def test_a_state_of_another_step_is_refused():
    with World(Scripted) as again:
        again.driver.load_state(under_way())
        again.driver.wait_for_engine()
        with pytest.raises(CheckpointError, match="step 4 holds the engines' state of step 1"):
            again.driver.published(4)


def test_too_many_groups_without_signal_end_the_run_and_no_engine_is_blamed():
    with World(Scripted, trains=lambda group: False) as world, pytest.raises(GuardStop, match="7 groups had no signal"):
        world.train()


def test_a_step_does_not_count_when_the_run_has_failed_meanwhile():
    """Otherwise a checkpoint would be written of a step that the controller does not know."""
    few = iter([True] * P)
    with World(Scripted, voided=300, trains=lambda group: next(few, False)) as world:  # so many take a moment
        world.driver.wait_for_engine()
        world.driver.published(0)
        world.driver.batch(0)
        until = time.monotonic() + 20
        while world.driver._error is None and time.monotonic() < until:
            time.sleep(0.01)  # sampling continues while the trainer trains
        with pytest.raises(GuardStop, match="no signal"):
            world.driver.trained(1)


def test_what_a_call_raises_reaches_the_caller():
    def broken() -> None:
        raise LookupError("inside")

    with World(Scripted) as world, pytest.raises(LookupError, match="inside"):
        world.driver.call(broken)


def test_nothing_of_a_driver_is_left_after_its_end():
    gc.collect()  # sockets of the worlds of other tests
    before, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with World(Scripted) as world:
        world.train()
        world.driver._to_score.put(0)
    assert set(threading.enumerate()) <= before
    for engine in world.made:
        engine._reads.close()
        engine._rings.close()
    assert len(os.listdir("/proc/self/fd")) == files


class AnswersOneExaminationLate(Scripted):
    """Answers the first examination only during the second one, and the third one immediately."""

    def examine(self, number: int, tokens: Sequence[Token]) -> None:
        if number > 1:
            answered = 1 if number == 2 else number
            said = (float(answered),) * len(tokens)
            self.say(Examined(number=answered, version=0, digests={"weight": GOOD}, fresh=said, cached=said))


def test_a_late_answer_is_not_taken_for_one_of_the_next_examination():
    tokens = [((1, 2), 3)]
    with World(AnswersOneExaminationLate) as world:
        world.driver.wait_for_engine()
        world.driver.published(0)
        world.driver.batch(0)
        found = [world.driver.examine(tokens) for _ in range(3)]
    said = [{name: one.fresh for name, one in examined.items()} for examined in found]
    assert said == [{}, {}, {"engine 0": (3.0,)}]
