"""Engines in separate processes: they change nothing in a synchronous run, and a run survives their death."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from tests.processes import Command, ForkedEngine
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.controller.controller import Controller
from posttrain.controller.messages import Lead
from posttrain.errors import ConfigError, EngineError
from posttrain.experience import pace
from posttrain.experience.answers import EngineAnswers
from posttrain.experience.deliveries import Deliveries
from posttrain.experience.driver import Driver
from posttrain.experience.feed import refuse_a_lead
from posttrain.store.checkpoint import load_state

SMALL = {"evaluation": {"prompts": 2, "samples": 1, "writing": 0}, "guards": {"max_truncated": 1.0}, "report": False}
AHEAD = {"rollout.engines": 2, "train.run_ahead": 2, "train.max_staleness": 8}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=600)
    return folder


def config(place: Path, name: str, **changes: object) -> dict[str, object]:
    return {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.02},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 12},
        "train": {"steps": 12, "prompts_per_step": 4, "learning_rate": 1e-3},
        "output": str(place / name),
        **SMALL,
        **changes,
    }


def weights(run: Path):
    return load_file(max((run / "checkpoints").glob("step-*")) / "model" / "model.safetensors")


def interrupted_after(run: Path, steps: int) -> None:
    """Send this process Ctrl-C as soon as the run has recorded so many steps."""

    def interrupt() -> None:
        while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < steps:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def groups_of(run: Path) -> list[tuple[int, int]]:
    """(step, prompt) of every trained group, in order."""
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=["step", "group", "prompt_index"]).to_pylist()]
    return [
        (step, prompt) for step, _, prompt in dict.fromkeys((r["step"], r["group"], r["prompt_index"]) for r in rows)
    ]


def messages(run: Path) -> list[str]:
    return [json.loads(line)["message"] for line in (run / "events.jsonl").read_text().splitlines()]


def engines() -> list[int]:
    """Ids of the engine processes that were started here, in order of their start."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "posttrain.engines.worker"], capture_output=True)
    return [int(number) for number in found.stdout.split()] + ForkedEngine.there()


VARIANTS = {
    "grpo": {},
    "ppo with a critic": {"algorithm": "ppo"},
    "lora": {"lora": {"rank": 4}},
    "experts": {"model.path": "tiny-moe:sort", "data.train": "task:sort"},
    "greedy completions": {"algorithm": "remax", "sampling.group_size": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_equal_the_process_itself_bit_for_bit(place, variant, own_engines):
    """12 steps, nothing sampled ahead, with engines that are started like a user's."""
    equal_with(place, variant, [0, 1, 2])


def test_two_engines_equal_the_process_itself_bit_for_bit(place):
    equal_with(place, "grpo", [0, 2], **{"train.steps": 3})


def equal_with(place: Path, variant: str, numbers: list[int], **changes: object) -> None:
    runs = [
        pt.train(
            config(place, f"{variant} {n} {len(numbers)}"), **{"rollout.engines": n}, **VARIANTS[variant], **changes
        ).folder
        for n in numbers
    ]
    assert engines() == []
    first = weights(runs[0])
    for run in runs[1:]:
        assert groups_of(run) == groups_of(runs[0])
        other = weights(run)
        assert all(first[name].equal(other[name]) for name in first)


@pytest.mark.slow
def test_engines_answer_evaluations_as_the_process_itself_does_while_they_sample_ahead(place, monkeypatch):
    asked = list[int]()
    evaluate = Driver.evaluate
    monkeypatch.setattr(Driver, "evaluate", lambda self, given: [*asked_of(asked, given), *evaluate(self, given)])
    changes = {"evaluation": {"prompts": 8, "samples": 2, "every": 4, "writing": 0}, "sampling.temperature": 0.9}
    synchronous = pt.train(config(place, "evaluated here"), **changes)
    assert asked == []
    by_engines = pt.train(config(place, "evaluated by engines"), **changes, **{"rollout.engines": 2})
    assert asked == [8, 8] * 4, "greedy and sampled answers: before, after 4 and 8 steps, and at the end"
    assert sorted(file.name for file in (by_engines.folder / "evaluations").glob("*.jsonl")) == [
        "baseline.jsonl", "step-4.jsonl", "step-8.jsonl", "trained.jsonl"
    ]  # fmt: skip
    for file in (synchronous.folder / "evaluations").glob("*.jsonl"):
        assert (by_engines.folder / "evaluations" / file.name).read_bytes() == file.read_bytes()
    ahead = pt.train(config(place, "evaluated ahead"), **changes, **AHEAD)
    before = "evaluations/baseline.jsonl"
    assert (ahead.folder / before).read_bytes() == (synchronous.folder / before).read_bytes(), "the same weights"
    begun = [row for row in groups_of(ahead.folder) if row[0] == 1]
    assert begun == [row for row in groups_of(synchronous.folder) if row[0] == 1]


@pytest.mark.slow
def test_a_lead_that_is_tried_is_said_and_obeyed(place, monkeypatch):
    monkeypatch.setattr(pace, "WINDOW", 3)
    monkeypatch.setattr(pace, "BUSY", -1.0)  # as if the trainer always waited
    obeyed = list[int]()
    handle = Controller.handle

    def handled(self, event):
        commands = handle(self, event)
        if isinstance(event, Lead):
            obeyed.append(self.limits.run_ahead)
        return commands

    monkeypatch.setattr(Controller, "handle", handled)
    changes = {"rollout.engines": 1, "train.run_ahead": "auto", "train.max_staleness": 3, "train.steps": 40}
    run = pt.train(config(place, "auto"), **changes)
    said = [int(re.findall("auto: ([0-9]+) step", text)[0]) for text in messages(run.folder) if "= auto" in text]
    assert said[0] == 2
    assert said == obeyed
    assert all(step["staleness/max"] <= 3 for step in run.metrics)


def asked_of(asked: list[int], questions) -> list[object]:
    asked.append(len(questions))
    return []


@pytest.mark.slow
def test_a_run_whose_engines_are_lost_after_its_last_step_has_that_step_on_file(place, monkeypatch):
    lost = EngineError(given="no engine is left", fix="Look into engines/*.log.")
    monkeypatch.setattr(Deliveries, "newest", lambda self: None if self._published is None else throw(lost))
    monkeypatch.setattr(EngineAnswers, "each", only_after_training(EngineAnswers.each))
    with pytest.raises(EngineError):
        pt.train(config(place, "lost at the end"), **{"rollout.engines": 1, "checkpoint.every": 0})
    assert load_state(place / "lost at the end" / "checkpoints" / "step-000012" / "state")
    monkeypatch.undo()
    assert "trained" in pt.resume(place / "lost at the end").evaluation


def throw(error):
    raise error


def only_after_training(each):
    """This process makes the evaluation before training."""

    def asked(self, prompts, sampling, **how):
        answers = each if self.driver().controller.version == 12 else lambda self, *a, **h: self.window.each(*a, **h)
        return answers(self, prompts, sampling, **how)

    return asked


@pytest.mark.slow
def test_a_prompt_of_an_evaluation_that_does_not_fit_is_refused_as_without_engines(place):
    long = {"evaluation": {"prompts": 4, "samples": 1, "writing": 0, "max_completion_length": 100_000}}
    said = list[str]()
    for engines in (0, 1):
        with pytest.raises(ConfigError) as raised:
            pt.train(config(place, f"too long {engines}"), **long, **{"rollout.engines": engines})
        said.append(raised.value.given)
    assert said[0] == said[1]


def test_a_killed_and_a_hung_engine_are_replaced_and_every_prompt_is_trained_once(place):
    run = place / "killed"

    sent = []

    def kill() -> None:
        for after, number, which in ((4, signal.SIGKILL, -1), (12, signal.SIGSTOP, 0)):  # the younger, then the older
            while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < after:
                time.sleep(0.01)
            while not engines():
                time.sleep(0.01)
            os.kill(engines()[which], number)
            sent.append(number)

    threading.Thread(target=kill, daemon=True).start()
    done = pt.train(
        config(place, "killed"), **AHEAD, **{"train.steps": 60, "rollout.deadline": 2, "checkpoint.every": 20}
    )
    told = [message for message in messages(run) if "engine" in message]
    assert any("is lost: killed by signal 9" in message for message in told)
    assert sent == [signal.SIGKILL, signal.SIGSTOP]
    assert any("engine 0 is late" in message for message in told)
    assert engines() == []
    counts = Counter(prompt for _, prompt in groups_of(run))
    assert len(counts) == 60 * 4
    assert set(counts.values()) == {1}
    for record in done.metrics:  # rows of a hung engine may come back too old, and then nothing is trained on them
        assert 0 <= record["staleness/min"] <= record["staleness/max"]
        assert record["staleness/max"] <= 8 or record["staleness/masked"] > 0


def test_a_resumed_run_goes_on_with_what_was_waiting_and_under_way(place):
    """The checkpoint holds finished groups, and unfinished rows with their tokens; nothing is trained twice or lost:
    in the end the run has trained the prompts of a run without engines.

    With engines a trainer computes with fewer threads; the process has all of them again afterwards.
    """
    threads = torch.get_num_threads()
    run = place / "resumed"
    interrupted_after(run, 3)
    with pytest.raises(KeyboardInterrupt):
        pt.train(config(place, "resumed"), **AHEAD, **{"train.steps": 60})
    _, state = load_state(max((run / "checkpoints").glob("step-*")) / "state")
    ahead = state["feed"]["engines"]["controller"]
    steps = ahead["version"]
    assert 3 <= steps < 60
    waiting = {*ahead["finished"], *(group["group"] for group in ahead["in_flight"])}
    assert waiting, "an interrupted run has sampled ahead"
    done = pt.resume(run, steps=steps + 5)
    counts = Counter(prompt for _, prompt in groups_of(done.folder))
    alone = pt.train(config(place, "alone"), **{"train.steps": steps + 5})
    assert counts == Counter(prompt for _, prompt in groups_of(alone.folder)), "nothing lost, nothing twice"
    assert len(counts) == (steps + 5) * 4
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_engines_join_a_run_that_has_sampled_by_itself_and_leave_it_when_nothing_was_ahead(place):
    """3 steps here, 3 by an engine and 3 here again equal 9 steps here, bit for bit."""
    whole = pt.train(config(place, "whole"), **{"train.steps": 9})
    parts = pt.train(config(place, "parts"), **{"train.steps": 3})
    written = parts.folder / "config.yaml"
    for steps, engines_now in ((6, 1), (9, 0)):
        text = re.sub(r"(?m)^  engines: \d+", f"  engines: {engines_now}", written.read_text())
        written.write_text(text)
        parts = pt.resume(parts.folder, steps=steps)
    assert groups_of(parts.folder) == groups_of(whole.folder)
    ours, others = weights(whole.folder), weights(parts.folder)
    assert all(ours[name].equal(others[name]) for name in ours)


def test_a_run_that_was_ahead_keeps_its_engines(place):
    """Its trained prompts are not the first ones of the data: without engines, prompts would be repeated or skipped."""
    state = {"version": 2, "next_group": 10, "finished": [9], "in_flight": [{"group": 7}]}
    with pytest.raises(
        ConfigError, match=r"rollout\.engines = 0, but 2 groups of the checkpoint were waiting or running"
    ):
        refuse_a_lead(state, prompts_per_step=4)
    refuse_a_lead({"version": 2, "next_group": 9, "finished": [], "in_flight": [{"group": 8}]}, prompts_per_step=4)


@pytest.mark.parametrize("flying", [0, 1, 4])
@pytest.mark.parametrize("replaced", [0, 1, 3])
@pytest.mark.parametrize("version", [0, 1, 5])
def test_a_run_whose_engines_replaced_groups_keeps_its_engines(version, replaced, flying):
    """Its data is further on than its steps: without engines, prompts would be trained again in the same pass."""
    begun = version * 4 + replaced
    in_flight = [{"group": begun + number} for number in range(flying)]
    state = {"version": version, "next_group": begun + flying, "finished": [], "in_flight": in_flight}
    told = f"engines have replaced {replaced} groups, without signal or given up, by later prompts"
    with pytest.raises(ConfigError, match=told) if replaced else nullcontext():
        refuse_a_lead(state, prompts_per_step=4)


def of_run(run: Path) -> list[int]:
    """Ids of the engines that write into the folder of this run, even if they have another parent now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            is_engine = "posttrain.engines.worker" in (process.info["cmdline"] or ())
            if is_engine and any(file.path.startswith(str(run)) for file in process.open_files()):
                found.append(process.pid)
    return found


@pytest.mark.parametrize(
    ("number", "code", "count"),
    [pytest.param(signal.SIGINT, 130, 1, marks=pytest.mark.slow), (signal.SIGKILL, -9, 2)],
    ids=["Ctrl-C", "kill -9"],
)
def test_no_engine_outlives_its_trainer(place, number, code, count):
    run = place / f"ended by {number}"
    settings = config(place, run.name, rollout={"engines": count}) | {
        "train": {"steps": 100_000, "prompts_per_step": 4}
    }
    settings["train"] |= {"run_ahead": 2, "max_staleness": 8}
    (place / "long.yaml").write_text(json.dumps(settings))
    process = Command("train", "long.yaml", cwd=place)
    while not (run / "metrics.jsonl").exists() and process.returncode is None:
        time.sleep(0.05)
    assert len(of_run(run)) == count
    if number == signal.SIGKILL:
        os.kill(of_run(run)[0], signal.SIGSTOP)  # a stopped process reads nothing, not even that its trainer has ended
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    until = time.monotonic() + 20
    while of_run(run) and time.monotonic() < until:
        time.sleep(0.05)
    assert of_run(run) == []


def test_engines_that_cannot_start_end_the_run_with_their_last_words(place, own_engines, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", "")
    broken = place / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("raise SystemExit('the disk of this machine is gone')")
    monkeypatch.syspath_prepend(str(broken))
    with pytest.raises(EngineError, match="no engine is left") as raised:
        pt.train(config(place, "no engines"), **AHEAD)
    assert raised.value.exit_code == 4
    assert engines() == []
