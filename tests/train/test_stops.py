"""Ctrl-C while a run trains: what it says, what it finishes, and where it stops."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.report.store import read_run
from posttrain.stopping import stop_is_asked
from posttrain.train import api


class Steps:
    """A run of 4 steps that only notes what it does. The signal comes during `at`."""

    def __init__(self, at: str, *, checkpoint_every: int, evaluation_every: int, number: int) -> None:
        self.config = SimpleNamespace(
            checkpoint=SimpleNamespace(every=checkpoint_every), evaluation=SimpleNamespace(every=evaluation_every)
        )
        self.at, self.number, self.step = at, number, 0
        self.done: list[str] = []
        self.said: list[str] = []
        self.folder = Path("-my run")
        self.view = SimpleNamespace(event=lambda kind, text: self.said.append(text))

    @property
    def reached(self) -> str:
        return "train.steps" if self.step == 4 else ""

    def do(self, what: str) -> None:
        self.done.append(what)
        if what == self.at:
            signal.raise_signal(self.number)

    def measure_model(self, name: str) -> None:
        self.do(f"measure {name}")

    def save(self, *, required: bool = False) -> bool:
        self.do(f"save {self.step}")
        return True


def one_step(run: Any) -> None:
    run.step += 1
    run.do(f"step {run.step}")


def baseline_and_steps(run: Any) -> None:
    with api.finishing_steps(run) as asked:
        with asked.only_after("the measurement of the baseline"):
            run.do("measure baseline")
        api.take_steps(run, asked)


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    def carry_out(at: str, *, number: int = signal.SIGINT, saves: int = 2, measures: int = 0) -> tuple[Any, str]:
        run: Any = Steps(at, checkpoint_every=saves, evaluation_every=measures, number=number)
        monkeypatch.setattr(api, "one_step", one_step)
        with pytest.raises(KeyboardInterrupt) as stop:
            baseline_and_steps(run)
        assert vars(stop.value)["exit_code"] == 128 + number
        assert not stop_is_asked()
        return run, str(stop.value)

    return carry_out


EVAL = "; `posttrain eval './-my run'` measures it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("at", "how", "said", "last", "told"),
    [
        ("measure baseline", {}, "after the measurement of the baseline", "measure baseline", "before the first step"),
        ("step 1", {}, "after this step, with a checkpoint", "save 1", "after step 1"),
        ("step 2", {}, "after this step, with a checkpoint", "save 2", "after step 2"),
        ("step 4", {}, "after this step, with a checkpoint", "save 4", "after step 4"),
        ("save 2", {}, "before the next step, with a checkpoint", "save 2", "after step 2"),
        ("step 2", {"measures": 2}, "after this step, with a checkpoint", "save 2", "after step 2"),
        (
            "measure step 2",
            {"measures": 1},
            "after the measurement of step 2, with a checkpoint",
            "measure step 2",
            "after step 2",
        ),
        (
            "measure step 1",
            {"measures": 1},
            "after the measurement of step 1 and one more step, with a checkpoint",
            "save 2",
            "after step 2",
        ),
    ],
)
def test_a_stop_is_announced_as_it_happens(stopped_at, at, how, said, last, told, number):
    run, message = stopped_at(at, number=number, **how)
    assert run.said == [f"Stopping {said}. Press Ctrl-C again to stop now."]
    assert run.done[-1] == last
    assert message == f"stopped {told}, with a checkpoint" + (EVAL if run.step else "")


def test_a_second_signal_ends_the_run_where_it_is():
    asked: list[bool] = []

    def two_signals() -> None:
        with api.finishing_steps(Steps("", checkpoint_every=1, evaluation_every=0, number=0)):  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGTERM)
            asked.append(stop_is_asked())
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stop:
        two_signals()
    assert asked == [True]
    assert vars(stop.value)["exit_code"] == 143


def test_a_run_that_is_stopped_during_its_baseline_takes_no_step_and_goes_on_from_there(tmp_path, monkeypatch):
    tiny_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "ab", "completion": "ba"}\n' * 4)
    measure = api.Run.measure_model

    def stop_during(run: Any, name: str) -> None:
        measure(run, name)
        if name == "baseline":
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(api.Run, "measure_model", stop_during)
    settings: dict[str, Any] = {
        "model": str(tmp_path / "model"),
        "algorithm": "sft",
        "data": {"train": str(tmp_path / "rows.jsonl"), "eval_fraction": 0.5},
        "train": {"steps": 2, "prompts_per_step": 2},
        "evaluation": {"writing": 0},
        "output": str(tmp_path / "run"),
    }
    with pytest.raises(KeyboardInterrupt, match="stopped before the first step, with a checkpoint") as stop:
        pt.train(settings)
    assert vars(stop.value)["exit_code"] == 143
    assert "continues it from its newest checkpoint" in stop.value.__notes__[0]
    assert not read_run(tmp_path / "run").metrics
    monkeypatch.undo()
    run = pt.resume(tmp_path / "run")
    assert run.step == 2
    assert "baseline" in run.evaluation
