"""Several runs at a time: the next begins when there is room, a failure stops no other run, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.control_groups import cores
from posttrain.lab.experiments import pool
from posttrain.lab.experiments.children import Child, ChildResult
from posttrain.lab.experiments.pool import share_of_processor, threads_of, work


class Program:
    """A task that runs a shell command instead of training."""

    def __init__(self, folder: Path, line: str, log: list[str]) -> None:
        self.folder, self.line, self.log, self.looks = folder, line, log, 0

    def start(self) -> Child | None:
        if not self.line:
            return None
        process = subprocess.Popen(["sh", "-c", self.line], start_new_session=True)
        self.log.append(f"start {self.line}")
        return Child(self.folder / "run", process, self.folder / "answer.json")

    def look(self, child: Child) -> None:
        self.looks += 1

    def ended(self, result: ChildResult) -> None:
        self.log.append(f"end {self.line}: {result.exit_code}")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOOKED_AFTER_EVERY", 0.01)


@pytest.mark.usefixtures("quick")
def test_tasks_follow_each_other_and_a_failure_stops_none(tmp_path: Path):
    log: list[str] = []
    lines = ["exit 3", "", "true", "kill -9 $$", "true"]
    work((Program(tmp_path, line, log) for line in lines), 1)
    assert log == [
        "start exit 3", "end exit 3: 3", "start true", "end true: 0", "start kill -9 $$", "end kill -9 $$: -9",
        "start true", "end true: 0",
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_no_more_at_a_time_than_asked_and_the_next_is_asked_for_late(tmp_path: Path):
    log: list[str] = []
    asked: list[int] = []

    def tasks() -> Iterator[Program]:
        for _number in range(5):
            asked.append(len([line for line in log if line.startswith("end")]))
            yield Program(tmp_path, "sleep 0.05", log)

    work(tasks(), 2)
    at_once = [log[: n + 1].count("start sleep 0.05") - sum("end" in line for line in log[: n + 1]) for n in range(10)]
    assert max(at_once) == 2
    assert asked[:2] == [0, 0]
    assert all(ended >= number - 1 for number, ended in enumerate(asked)), (
        "a sweep learns from the trials that have ended"
    )


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT like in a terminal, because a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("quick", "interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_the_runs_save_and_is_raised_again(tmp_path: Path, number: int):
    saving = f"trap 'touch {tmp_path}/saved$$; exit 1' TERM; touch {tmp_path}/ready$$; while :; do sleep 0.02; done"
    log: list[str] = []
    tasks = [Program(tmp_path, line, log) for line in [saving, saving, "true"]]

    def interrupt() -> None:
        while len(list(tmp_path.glob("ready*"))) < 2 or not all(task.looks for task in tasks[:2]):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as stop:
        work(iter(tasks), 2)
    assert getattr(stop.value, "exit_code", 130) == 128 + number
    assert len(list(tmp_path.glob("saved*"))) == 2
    assert len(log) == 2, "no task may begin after the interrupt"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_task_that_cannot_be_started_ends_the_others(tmp_path: Path):
    log: list[str] = []

    def tasks() -> Iterator[Program]:
        yield Program(tmp_path, "sleep 60", log)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        work(tasks(), 2)
    assert log == ["start sleep 60"]


def test_cores_are_shared_out_unless_somebody_said_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert share_of_processor(1) == {}
    assert share_of_processor(2) == {"OMP_NUM_THREADS": str(max(1, cores() // 2))}
    assert share_of_processor(10_000) == {"OMP_NUM_THREADS": "1"}
    assert threads_of({}) == cores() <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert share_of_processor(2) == {}
    assert threads_of({}) == 3
