"""Runs of two ranks as users start them: their files, and how they are killed, resumed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.processes import Command
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.config import check, load_config
from posttrain.errors import ConfigError, DoesNotFit, PosttrainError
from posttrain.train import launch, rank
from posttrain.train.job import FinishedRun, _machines, refuse_neighbours_apart
from posttrain.train.local_ranks import LocalRank, LocalRanks

CONFIG: dict[str, Any] = {
    "model": {"path": "tiny:sort", "precision": "float32"},
    "algorithm": "grpo",
    "data": {"train": "task:sort"},
    "rewards": ["exact_match"],
    "sampling": {"group_size": 4, "max_completion_length": 8},
    "evaluation": {"prompts": 8, "samples": 1, "writing": 0},
    "report": False,
}
TRAIN = {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-4}


def config(folder: Path, devices: int, **train: Any) -> dict[str, Any]:
    return {**CONFIG, "train": {**TRAIN, "devices": devices, **train}, "output": str(folder)}


def weights(folder: Path, step: int = 3) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors")


def test_functions_that_no_other_process_can_import_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="a function that no file defines, and train"):
        pt.train({**config(tmp_path / "run", 2), "rewards": [lambda completions, **_: [0.0] * len(completions)]})
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ([5, -9], "rank 1 was ended by signal 9 (SIGKILL)"),
        ([None, 7], "rank 1 ended with exit code 7"),
        ([5, "its actor is gone (ActorDiedError)"], "rank 1 was lost: its actor is gone (ActorDiedError)"),
        ([5, None], "rank 1 did not answer rank 0 within train.rank_deadline"),
    ],
)
def test_the_reason_for_a_restart_names_the_rank_that_ended_first(codes, reason):
    assert launch._reason(codes) == reason


@pytest.mark.parametrize(
    ("how", "room", "size"),
    [
        ({}, 3, 3),
        ({"shard": 2}, 3, 2),
        ({"shard": 2}, 7, 6),
        ({"shard": 3}, 5, 3),
        ({"tensor": 2}, 5, 4),
        ({"tensor": 2, "shard": 3}, 11, 6),
    ],
)
def test_of_the_ranks_that_have_room_as_many_go_on_as_the_settings_allow(tmp_path, how, room, size):
    assert launch.most_ranks(load_config(config(tmp_path, 12, **how)).config, room) == size


def test_room_that_the_settings_cannot_use_is_told_by_the_name_of_the_setting(tmp_path):
    told = r"room for 1 rank\(s\), but the settings do not allow that number: train.shard = 2 with train.devices = 1"
    with pytest.raises(DoesNotFit, match=told):
        launch.most_ranks(load_config(config(tmp_path, 4, shard=2)).config, 1)


def test_neighbours_on_two_machines_are_refused():
    """Machines may have different numbers of ranks."""
    machines = ["a"] * 6 + ["b"] * 2
    with pytest.raises(ConfigError) as raised:
        refuse_neighbours_apart(4, machines)
    assert "ranks 4 to 7 share matrices and some are on a, some on b (ranks: 6 on a, 2 on b)" in str(raised.value)
    assert "Set train.tensor = 2" in raised.value.fix
    refuse_neighbours_apart(2, machines)
    refuse_neighbours_apart(1, ["a", "b"])


def test_adapters_beside_divided_matrices_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"lora with train.tensor = 2; allowed: train.tensor = 1 with adapters"):
        check(load_config({**config(tmp_path, 2, tensor=2), "lora": {}}))


def test_a_rank_ends_with_its_exit_code_whatever_comes_while_the_interpreter_is_taken_apart():
    """A gloo thread, for example, may release a tensor then. Exit handlers still run."""
    code = (
        "import atexit, os, sys\nfrom posttrain.ranks.environment import leave\n"
        "atexit.register(print, 'registered')\nprint('said', end=' ')\n"
        "class Tensor:\n    def __del__(self, abort=os.abort): abort()\n"
        "left = Tensor()\n{}(3)\n"
    )
    ends = [
        subprocess.run([sys.executable, "-c", code.format(end)], capture_output=True, text=True, check=False)
        for end in ("sys.exit", "leave")
    ]
    assert [end.returncode for end in ends] == [-signal.SIGABRT, 3]
    assert ends[1].stdout == "said registered\n"


class ThreeAtMost(LocalRanks):
    """A machine that has room for three ranks."""

    def room(self, size: int) -> int:
        return min(size, 3)


class Stopped(LocalRanks):
    """A launcher that receives the signal while it looks for machines."""

    def __init__(self, output: int | None, number: int) -> None:
        super().__init__(output)
        self.number = number

    def room(self, size: int) -> int:
        os.kill(os.getpid(), self.number)
        time.sleep(5)
        raise AssertionError("the signal was dropped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_is_stopped_before_it_has_ranks_ends_with_the_code_of_the_signal(tmp_path, monkeypatch, number):
    monkeypatch.setattr("posttrain.train.job.LocalRanks", partial(Stopped, number=number))
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as stopped:
        pt.train(config(tmp_path / "run", 2))
    assert vars(stopped.value)["exit_code"] == 128 + number
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


class Waiting:
    """A rank that runs until it is killed. While it is watched, the launcher receives signals."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.got, self.closed = list(numbers), [], False

    def room(self, size: int) -> int:
        return size

    @contextmanager
    def start(self, file: Path, size: int) -> Iterator[list[Any]]:
        try:
            yield [self] * size
        finally:
            self.closed = True

    def end(self) -> int | None:
        if self.numbers:
            signal.raise_signal(self.numbers.pop(0))
        return 7 if self.closed or len(self.got) > 1 else None

    def signal(self, number: int) -> None:
        self.got.append(number)


def job_of(tmp_path: Path, ranks: Any, said: list[str]) -> launch.Job:
    view: Any = SimpleNamespace(
        quiet=False, show_samples=False, part="stage dpo", event=lambda kind, text: said.append(text)
    )
    settings = load_config(config(tmp_path / "run", 2)).config
    return launch.Job(settings, tmp_path, tmp_path / "run", 2, ranks, 0, view, None)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_while_ranks_start_the_first_signal_is_answered_and_the_second_ends_them(tmp_path, first, second):
    said: list[str] = []
    ranks = Waiting([first, second])
    with pytest.raises(KeyboardInterrupt, match="stopped before anything was trained") as stopped:
        job_of(tmp_path, ranks, said).run()
    assert vars(stopped.value)["exit_code"] == 128 + first
    assert said == ["Stopping once the ranks have started. Press Ctrl-C again to stop now."]
    assert ranks.closed


def test_ranks_that_have_started_get_every_signal_and_answer_themselves(tmp_path, monkeypatch):
    said: list[str] = []
    ranks = Waiting([signal.SIGINT, signal.SIGTERM])
    monkeypatch.setattr(launch, "STARTED", "job.json")
    with pytest.raises(PosttrainError):
        job_of(tmp_path, ranks, said).run()
    assert ranks.got == [signal.SIGINT, signal.SIGTERM]
    assert not said


@pytest.mark.parametrize("number", [0, 1])
def test_the_first_rank_tells_that_it_has_started(tmp_path, monkeypatch, number):
    monkeypatch.setenv("RANK", str(number))
    told = {
        "quiet": True,
        "show_samples": False,
        "part": "",
        "resumed": None,
        "config": str(tmp_path / "none"),
        "overrides": [],
    }
    assert rank._run(str(tmp_path / "job.json"), told) == ConfigError.exit_code
    assert (tmp_path / launch.STARTED).exists() == (number == 0)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([], "stopped before anything was trained; you can use {} again"),
        (["config.yaml", "error.json"], "stopped before anything was trained; you can use {} again"),
        (["config.yaml"], "stopped before the first checkpoint; `posttrain resume {}` begins again"),
        (["config.yaml", "evaluation.json"], "stopped before the first checkpoint; `posttrain resume {}` begins again"),
        (
            ["config.yaml", "error.json", "evaluation.json", "checkpoints/.step-000000.tmp"],
            "stopped before the first checkpoint; `posttrain resume {}` begins again",
        ),
        (
            ["config.yaml", "error.json", "checkpoints/step-000000/manifest.json"],
            "stopped; `posttrain resume {}` continues the run from its newest checkpoint",
        ),
    ],
)
def test_a_stopped_job_names_a_checkpoint_only_if_there_is_one(tmp_path, files, told):
    for file in files:
        (tmp_path / "run" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / file).touch()
    stop = launch._error_of(tmp_path / "run", 143, tmp_path)
    assert (str(stop), vars(stop)["exit_code"]) == (told.format(tmp_path / "run"), 143)


def test_a_rank_starts_with_both_signals_blocked_and_its_launcher_goes_on_hearing_them(tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.train.local_ranks.PROGRAM", "json.tool")  # waits for stdin, and dies of a signal
    rank = LocalRank(tmp_path / "none", dict(os.environ), None)
    try:
        status = Path(f"/proc/{rank.process.pid}/status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        assert all(blocked >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM))
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM}
    finally:
        rank.close()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0, 2])
@pytest.mark.parametrize("times", [1, 2])
def test_a_job_that_is_stopped_while_its_ranks_start_says_that_nothing_is_there(tmp_path, sent, seconds, times):
    (tmp_path / "run.yaml").write_text(json.dumps(config(tmp_path / "run", 2, steps=1000)))
    process = Command("train", "run.yaml", "--quiet", cwd=tmp_path)
    while not list((tmp_path / "run").glob(".job-*/life-*/job.json")):
        assert process.returncode is None, process.communicate()
        time.sleep(0.02)
    for _ in range(times):
        time.sleep(seconds)
        process.send_signal(sent)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + sent
    assert "Traceback" not in err
    assert "stopped before anything was trained; you can use" in err


def test_the_folder_of_a_job_is_in_the_folder_of_its_run_where_a_resume_removes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = load_config(config(Path("run"), 2)).config
    with _machines(settings, Path("run"), None) as (_, place):
        assert place.parent == tmp_path / "run", "ranks get an absolute path"
        assert place.name.startswith(".job-")
    assert not place.exists()


@pytest.mark.slow
def test_where_three_of_four_ranks_have_room_two_train_a_copy_that_two_share(tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.train.job.LocalRanks", ThreeAtMost)
    run = pt.train(config(tmp_path / "run", 4, shard=2, steps=1))
    assert run.step == 1
    assert "  devices: 2  #" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.slow
def test_a_run_of_two_ranks_ends_as_that_of_one_and_goes_on_with_any_number(tmp_path):
    one = pt.train(config(tmp_path / "one", 1, steps=6))
    run = pt.train(config(tmp_path / "two", 2))
    assert isinstance(run, FinishedRun)
    assert run.step == 3
    assert run.evaluation["baseline"] == one.evaluation["baseline"]
    assert [m["reward"] for m in run.metrics] == [m["reward"] for m in one.metrics[:3]]
    pt.resume(tmp_path / "two", steps=5, devices=1)
    pt.resume(tmp_path / "two", steps=6, devices=2)
    ours, theirs = weights(tmp_path / "one", 6), weights(tmp_path / "two", 6)
    moved = max(float((ours[n] - weights(tmp_path / "one", 0)[n]).abs().max()) for n in ours)
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 1e-3 * moved


@pytest.mark.slow
def test_a_run_with_two_copies_of_the_weights_goes_on_with_one_and_with_two_again(tmp_path):
    """Of four ranks, two share a copy; of two ranks, both do."""
    one = pt.train(config(tmp_path / "one", 1, steps=6))
    run = pt.train(config(tmp_path / "two", 4, shard=2))
    state = json.loads((tmp_path / "two" / "checkpoints" / "step-000003" / "state" / "shards.json").read_text())
    files = {file for tensor in state["tensors"].values() for file, _ in tensor["parts"]}
    assert files == {"rank-00000.safetensors", "rank-00001.safetensors"}, "each part once, from the first copy"
    assert [m["reward"] for m in run.metrics] == [m["reward"] for m in one.metrics[:3]]
    pt.resume(tmp_path / "two", steps=5, devices=2)
    pt.resume(tmp_path / "two", steps=6, devices=4)
    ours, theirs = weights(tmp_path / "one", 6), weights(tmp_path / "two", 6)
    moved = max(float((ours[n] - weights(tmp_path / "one", 0)[n]).abs().max()) for n in ours)
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 5e-3 * moved, (
        "float32 sums in another order, through AdamW"
    )


@pytest.mark.slow
def test_a_run_whose_matrices_are_divided_goes_on_with_one_rank_and_with_two_again(tmp_path):
    """Held-out rows and probes pass through the first rank and its neighbour; its state is divided by columns, too."""
    one = pt.train(config(tmp_path / "one", 1, steps=6))
    run = pt.train(config(tmp_path / "two", 2, tensor=2))
    state = json.loads((tmp_path / "two" / "checkpoints" / "step-000003" / "state" / "shards.json").read_text())
    corners = [corner for name, tensor in state["tensors"].items() if "o_proj" in name for _, corner in tensor["parts"]]
    assert {tuple(corner) for corner in corners} == {(0, 0), (0, 32)}, "the left and the right columns"
    assert run.evaluation["baseline"] == one.evaluation["baseline"]
    assert [m["reward"] for m in run.metrics] == [m["reward"] for m in one.metrics[:3]]
    pt.resume(tmp_path / "two", steps=5, devices=1, tensor=1)
    pt.resume(tmp_path / "two", steps=6, devices=2, tensor=2)
    assert "  tensor: 2  # command line of resume" in (tmp_path / "two" / "config.yaml").read_text()
    ours, theirs = weights(tmp_path / "one", 6), weights(tmp_path / "two", 6)
    moved = max(float((ours[n] - weights(tmp_path / "one", 0)[n]).abs().max()) for n in ours)
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 2e-2 * moved, (
        "float32 products in another order, through AdamW, which magnifies gradients near 0"
    )


@pytest.mark.slow
def test_a_resumed_run_whose_matrices_are_divided_ends_with_the_bits_of_one_that_never_stopped(tmp_path):
    pt.train(config(tmp_path / "whole", 2, tensor=2, steps=4))
    pt.train(config(tmp_path / "parts", 2, tensor=2, steps=2))
    pt.resume(tmp_path / "parts", steps=4)
    ours, theirs = weights(tmp_path / "whole", 4), weights(tmp_path / "parts", 4)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_a_job_is_not_resumed_beside_another_reference(tmp_path):
    reference = tiny_model(tmp_path / "reference", seed=3)
    model = tiny_model(tmp_path / "model")
    how = {"model": str(model), "reference": str(reference), "algorithm": {"name": "grpo", "kl_coef": 0.1}}
    settings = {**config(tmp_path / "run", 2, steps=1), **how}
    pt.train(settings)
    pt.resume(tmp_path / "run", steps=2)
    pt.resume(tmp_path / "run", steps=3, devices=1)
    tiny_model(reference, seed=5)
    with pytest.raises(PosttrainError, match=r"reference\.path = .* holds another model than the run started with"):
        pt.resume(tmp_path / "run", steps=4, devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_starts_the_job_again_and_the_run_ends_as_if_nothing_had_been(tmp_path, victim):
    settings = {"steps": 8, "restarts": 2}
    pt.train({**config(tmp_path / "whole", 2, **settings), "checkpoint": {"every": 2}})
    started = launched({**config(tmp_path / "killed", 2, **settings), "checkpoint": {"every": 2}})
    wait_for(tmp_path / "killed" / "checkpoints" / "step-000002")
    os.kill(ranks_of(started)[victim], signal.SIGKILL)
    assert started.wait(timeout=600) == 0
    ours, theirs = weights(tmp_path / "whole", 8), weights(tmp_path / "killed", 8)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    events = (tmp_path / "killed" / "events.jsonl").read_text()
    assert f"rank {victim} was ended by signal 9 (SIGKILL); the job continues from its newest checkpoint" in events
    assert [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").open()] == list(range(1, 9))


@pytest.mark.slow
def test_a_rank_that_hangs_is_lost_after_its_deadline(tmp_path):
    started = launched(config(tmp_path / "run", 2, steps=50, restarts=0, rank_deadline=15))
    wait_for(tmp_path / "run" / "metrics.jsonl")
    ranks = ranks_of(started)
    os.kill(ranks[1], signal.SIGSTOP)
    began = time.monotonic()
    assert started.wait(timeout=300) == 5
    assert time.monotonic() - began < 90
    assert len(ranks) == 2
    assert not left_of(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_stopped_leaves_nobody_behind(tmp_path, kind):
    started = launched(config(tmp_path / "run", 2, steps=1000))
    wait_for(tmp_path / "run" / "metrics.jsonl")
    ranks = ranks_of(started)
    assert len(ranks) == 2
    started.send_signal(kind)
    assert started.wait(timeout=300) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[kind]
    until = time.monotonic() + 30
    while left_of(ranks) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left_of(ranks)
    if kind != signal.SIGKILL:
        done = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open()]
        assert (tmp_path / "run" / "checkpoints" / f"step-{done[-1]:06d}").is_dir()


def launched(settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    path = Path(settings["output"]).with_suffix(".yaml")
    path.write_text(json.dumps(settings))
    return subprocess.Popen([sys.executable, "-m", "posttrain", "train", str(path), "--quiet"])


def wait_for(path: Path, seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.05)


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    children = psutil.Process(launcher.pid).children()
    return sorted(child.pid for child in children if "posttrain.train.rank" in child.cmdline())


def left_of(ranks: list[int]) -> list[int]:
    """The processes of the job that still run."""
    return [pid for pid in ranks if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
