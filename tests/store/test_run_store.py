"""The run folder: one writer, complete lines, and no rows of abandoned steps after a resume."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from tests.disks import FILL, on_a_small_disk
from tests.processes import run_code

from posttrain.errors import ConfigError, RewardError
from posttrain.experience.assemble import assemble
from posttrain.experience.group import groups_of
from posttrain.experience.rollouts import rollout_table
from posttrain.owner import machine
from posttrain.rewards import Scores
from posttrain.store import run_store
from posttrain.store.run_store import RunLock, RunStore
from posttrain.types import Completion, Prompt

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def store(tmp_path: Path):
    with RunStore.create(tmp_path / "run", "seed: 0\n") as store:
        yield store


def lines(store: RunStore, name: str) -> list[dict]:
    return [json.loads(line) for line in (store.folder / name).read_text().splitlines()]


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_new_run_has_its_config_and_its_folders(store):
    assert (store.folder / "config.yaml").read_text() == "seed: 0\n"
    assert store.checkpoints.is_dir()
    assert (store.folder / "rollouts").is_dir()


def test_a_metrics_line_starts_with_its_step_and_is_json_whatever_the_numbers_are(store):
    values = {
        "reward": 0.5,
        "loss": NAN,
        "kl": INF,
        "tokens": np.int64(3),
        "norm": torch.tensor(2.0),
        "text": "a\u2028b",
    }
    store.metrics(1, values)
    store.metrics(2, {"reward": 1.0})
    text = (store.folder / "metrics.jsonl").read_text()
    assert len(text.splitlines()) == 2, "characters that some readers treat as the end of a line are escaped"
    first = json.loads(text.splitlines()[0], parse_constant=pytest.fail)
    assert first == {"step": 1, "reward": 0.5, "loss": None, "kl": None, "tokens": 3, "norm": 2.0, "text": "a\u2028b"}


def test_each_line_is_on_the_disk_by_one_write(store, monkeypatch):
    """So a kill can truncate only the last line, and a reader never sees two halves of different lines."""
    store.metrics(1, {"reward": 0.5})
    code = (
        "import sys, os; from pathlib import Path; from posttrain.store.run_store import RunStore\n"
        "store = RunStore.open(Path(sys.argv[1])); store.metrics(2, {'reward': 1.0}); os.kill(os.getpid(), 9)"
    )
    store.close()
    assert run_code(code, str(store.folder)).exit_code == -9
    assert [row["step"] for row in lines(store, "metrics.jsonl")] == [1, 2]


def test_an_event_has_a_time_in_utc_a_kind_and_details(store):
    store.event("checkpoint", "saved step 10", step=10, path=Path("checkpoints/step-000010"), seconds=0.5)
    (event,) = lines(store, "events.jsonl")
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "step": 10,
        "kind": "checkpoint",
        "message": "saved step 10",
        "path": "checkpoints/step-000010",
        "seconds": 0.5,
    }


def test_an_error_is_told_in_full_with_its_exit_code(store):
    store.metrics(7, {"loss": 0.5})
    try:
        raise RewardError(given="reward is nan", allowed="a number", fix="Return 0.0.")
    except RewardError as error:
        store.error(error)
    told = json.loads((store.folder / "error.json").read_text())
    assert (told["type"], told["exit_code"], told["step"]) == ("RewardError", 4, 7)
    assert told["message"] == "reward is nan; allowed: a number.\n  Return 0.0."
    assert "test_an_error_is_told" in told["traceback"]
    assert lines(store, "events.jsonl")[0]["kind"] == "error"


def test_an_error_that_is_not_ours_has_exit_code_1(store):
    store.error(ZeroDivisionError("division by zero"))
    told = json.loads((store.folder / "error.json").read_text())
    assert (told["exit_code"], told["step"]) == (1, None)


def test_evidence_keeps_the_numbers_that_are_not_finite(store):
    path = store.evidence(3, [{"prompt": 4711, "logprobs": [-0.5, -INF, NAN]}])
    assert json.loads(path.read_text()) == [{"prompt": 4711, "logprobs": [-0.5, "-inf", "nan"]}]
    assert path.relative_to(store.folder).as_posix() == "evidence/step-000003.json"


def test_an_evaluation_is_replaced_as_a_whole(store):
    store.record("evaluation.json", {"baseline": {"prompts": 3}})
    store.record("evaluation.json", {"baseline": {"prompts": 3}, "trained": {"score": {"mean": NAN}}})
    found = json.loads((store.folder / "evaluation.json").read_text())
    assert found == {"baseline": {"prompts": 3}, "trained": {"score": {"mean": None}}}
    assert not list(store.folder.glob(".*.tmp"))


# --- rollouts --------------------------------------------------------------------------------------------------------


def completion(ids: list[int], logprobs: list[float], text: str, finish_reason: str = "eos") -> Completion:
    return Completion(
        ids=tuple(ids), logprobs=tuple(logprobs), versions=(3,) * len(ids), finish_reason=finish_reason, text=text
    )


def test_a_rollout_row_holds_the_text_the_ids_and_each_number_behind_its_loss(store):
    prompts = [
        Prompt(index=4711, ids=(1, 2), text="1+1=", columns={"answer": "2"}),
        Prompt(index=5, ids=(3,), text="2+2="),
    ]
    groups = [
        [completion([7, 8], [-0.5, -0.25], "2"), completion([9], [-1.0], "3")],
        [completion([6, 6, 6], [-2.0, -2.0, -2.0], "444", "length"), completion([], [], "")],
    ]
    scores = Scores(
        rewards_PG=[[1.0, 0.0], [NAN, 0.5]],
        scored_PG=[[True, True], [False, True]],
        parts={"math": [[1.0, 0.0], [None, 0.5]], "brevity": [[None, None], [None, None]]},
        failures=(),
        seconds={},
    )
    advantages_BT = torch.tensor(
        [[0, 0, 1.5, 0.5, 0], [0, 0, -1.0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.float32
    )
    path = store.rollouts(10, rollout_table(10, groups_of(prompts, groups, scores), advantages_BT))
    assert path.relative_to(store.folder).as_posix() == "rollouts/step-000010.parquet"
    rows = parquet.read_table(path).to_pylist()
    assert rows[0] == {
        "step": 10,
        "prompt_index": 4711,
        "group": 0,
        "row": 0,
        "prompt": "1+1=",
        "answer": "2",
        "completion": "2",
        "prompt_ids": [1, 2],
        "completion_ids": [7, 8],
        "reward": 1.0,
        "scored": True,
        "discarded": False,
        "advantage": 1.0,
        "advantages": [1.5, 0.5],
        "logprobs": [-0.5, -0.25],
        "finish_reason": "eos",
        "version": 3,
        "versions": [3, 3],
        "reward/math": 1.0,
        "reward/brevity": None,
    }
    assert [(row["group"], row["row"], row["prompt_index"]) for row in rows] == [
        (0, 0, 4711),
        (0, 1, 4711),
        (1, 2, 5),
        (1, 3, 5),
    ]
    assert (rows[2]["reward"], rows[2]["scored"], rows[2]["finish_reason"]) == (None, False, "length")
    assert (rows[3]["advantage"], rows[3]["advantages"], rows[3]["version"]) == (None, [], None)


def test_the_advantage_of_a_row_is_a_mean_without_the_tokens_that_are_too_old():
    """Two of three rows have tokens of version 3, which version 5 no longer trains."""
    text = Completion(ids=(7, 8, 9), logprobs=(-1.0,) * 3, versions=(3, 3, 5), finish_reason="eos", text="?")
    fresh = replace(text, versions=(5, 5, 5))
    groups = groups_of([Prompt(index=0, ids=(1,), text="?")], [[text, fresh, replace(text, versions=(3,) * 3)]], None)
    experience = assemble(groups, pad_id=0, version=5, max_lag=1)
    advantages_BT = torch.tensor([[-1.5], [-1.5], [3.0]]) * experience.completion_mask_BT
    table = rollout_table(9, groups, advantages_BT, completion_mask_BT=experience.completion_mask_BT, version=5)
    assert table["advantage"].to_pylist() == [-1.5, -1.5, None]
    assert table["advantages"].to_pylist() == [[0.0, 0.0, -1.5], [-1.5] * 3, [0.0] * 3]


# --- one run per folder, one writer per run --------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["config.yaml", "metrics.jsonl", "events.jsonl", "checkpoints"])
def test_a_folder_that_holds_a_run_is_refused_with_the_two_ways_out(tmp_path, mark):
    (tmp_path / mark).mkdir()
    with pytest.raises(ConfigError) as caught:
        RunStore.create(tmp_path, "")
    assert caught.value.given == f"output = {tmp_path}, which already holds a run"
    assert f"`posttrain resume {tmp_path}` continues that run; set output to another folder" in caught.value.fix


def test_a_refused_folder_is_not_kept_locked(store):
    store.close()
    with pytest.raises(ConfigError, match="holds a run"):
        RunStore.create(store.folder, "")
    RunStore.open(store.folder).close()


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no run \(it has no config.yaml\)"):
        RunStore.open(tmp_path)


def test_a_second_writer_is_refused_and_told_who_the_first_is(store):
    with pytest.raises(ConfigError, match=rf"being written by another process \(pid {os.getpid()} on .*\)"):
        RunStore.open(store.folder)


def test_a_second_writer_may_wait_until_the_first_has_let_go(store, monkeypatch):
    """The first rank of a restarted job waits like this while its lost predecessor ends."""
    monkeypatch.setattr(run_store, "ASKED_EVERY", 0.02)
    with pytest.raises(ConfigError, match="being written by another process"):
        RunStore.open(store.folder, patience=0.1)
    threading.Timer(0.2, store.close).start()
    RunStore.open(store.folder, patience=60).close()


HOLD_THE_LOCK = """
import os, sys, time
from pathlib import Path
from posttrain.store.run_store import RunStore
store = RunStore.open(Path(sys.argv[1]))
if os.fork() == 0:  # a worker that outlives the trainer, and has inherited everything it had open
    sys.stdout.write(str(os.getpid())); sys.stdout.flush(); os.close(1)
    time.sleep(60)
os.kill(os.getpid(), 9)
"""


def test_the_lock_of_a_killed_process_is_taken_over_even_if_a_child_of_it_lives_on(store):
    store.close()
    worker = int(run_code(HOLD_THE_LOCK, str(store.folder)).printed)
    try:
        with RunStore.open(store.folder) as resumed:
            with pytest.raises(ConfigError, match="being written by another process"):
                RunStore.open(store.folder)
            resumed.metrics(1, {})
    finally:
        os.kill(worker, 9)


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@contextmanager
def held(folder: Path, owner: str) -> Iterator[int]:
    """The lock of the folder, signed by `owner` and held by somebody."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, owner.encode(), 0)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        ("pid {dead} on {machine}\n", None),
        ("pid {dead} on {host}\n", None),  # of an earlier version
        ("pid {alive} on {machine}\n", "pid {alive} on {host}"),
        ("pid {alive} on {host}", "pid {alive} on {host}"),
        ("pid {dead} on {host} (00000000)\n", "pid {dead} on {host}, in another container or machine of that name"),
        ("pid {alive} on {host} (unknown)\n", "pid {alive} on {host}, in another container or machine of that name"),
        ("pid {dead} on {host}2 (00000000)\n", "pid {dead} on {host}2"),
        ("pid {dead} on {host}2", "pid {dead} on {host}2"),
        ("", "unknown"),
        ("pid x on {host}", "pid x on {host}"),
    ],
)
def test_only_an_owner_that_is_known_to_be_dead_loses_its_lock(tmp_path, owner, told):
    names = {"dead": ended_process(), "alive": os.getpid(), "host": socket.gethostname(), "machine": machine()}
    with held(tmp_path, owner.format(**names)):
        if told is None:
            RunLock(tmp_path).release()
            return
        with pytest.raises(ConfigError) as caught:
            RunLock(tmp_path)
        assert caught.value.given == f"{tmp_path} is being written by another process ({told.format(**names)})"


def test_a_process_that_has_just_got_the_lock_of_a_dead_one_keeps_it(tmp_path, monkeypatch):
    """It holds the lock, but has yet to sign it."""
    with held(tmp_path, f"pid {ended_process()} on {machine()}\n") as first:
        signs = f"pid {os.getppid()} on {machine()}\n".encode()
        monkeypatch.setattr(run_store.time, "sleep", lambda seconds: os.pwrite(first, signs, 0))
        with pytest.raises(ConfigError, match=rf"another process \(pid {os.getppid()} on"):
            RunLock(tmp_path)
        assert (tmp_path / ".lock").stat().st_ino == os.fstat(first).st_ino


def test_a_process_whose_lock_was_taken_over_before_it_signed_does_not_have_it(tmp_path, monkeypatch):
    lock, others = fcntl.flock, []

    def taken_over(descriptor: int, how: int) -> None:
        lock(descriptor, how)
        if not others:
            (tmp_path / ".lock").unlink()
            others.append(held(tmp_path, f"pid {os.getppid()} on {machine()}\n"))
            others[0].__enter__()

    monkeypatch.setattr(run_store.fcntl, "flock", taken_over)
    with pytest.raises(ConfigError, match=rf"another process \(pid {os.getppid()} on"):
        RunLock(tmp_path)
    others[0].__exit__(None, None, None)


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_folder_that_is_locked_as_a_whole_can_still_be_written_by_one_process(tmp_path, monkeypatch, how):
    """`flock FOLDER posttrain train …` in a cron table."""
    monkeypatch.setattr(run_store, "ALONE_WITHIN", 0.05)
    outer = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(outer, how)
    lock = RunLock(tmp_path)
    with pytest.raises(ConfigError, match="being written by another process"):
        RunLock(tmp_path)
    lock.release()
    with held(tmp_path, f"pid {ended_process()} on {machine()}\n"):
        RunLock(tmp_path).release()
    os.close(outer)


@pytest.mark.slow
@pytest.mark.parametrize("orphan", [False, True], ids=["free", "held by a child of the dead owner"])
def test_of_processes_that_start_in_the_same_instant_one_gets_the_lock_of_a_dead_one(tmp_path, orphan):
    context, dead = multiprocessing.get_context("fork"), f"pid {ended_process()} on {machine()}\n"
    for _ in range(40):
        (tmp_path / ".lock").write_text(dead)
        at, answers, asked = time.time() + 0.05, context.Queue(), context.Event()
        ones = [context.Process(target=take_the_lock, args=(tmp_path, at, answers, asked)) for _ in range(3)]
        with held(tmp_path, dead) if orphan else nullcontext():
            for one in ones:
                one.start()
            got = [answers.get() for _ in ones]
        asked.set()
        for one in ones:
            one.join()
        assert sorted(got) == ["got it", "refused", "refused"]


def take_the_lock(folder: Path, at: float, answers: Any, ends: Any) -> None:
    while time.time() < at:
        pass
    try:
        kept = RunLock(folder)
        answers.put("got it")
        ends.wait()
        kept.release()
    except ConfigError:
        answers.put("refused")


APART = ["unshare", "--pid", "--fork", "--mount-proc"]
"""Runs a program with pids of its own, as a container does."""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*APART, "true"], capture_output=True).returncode != 0,
    reason="no right to make a pid namespace",
)
def test_a_container_with_the_same_host_name_does_not_take_the_run(store):
    code = "import sys; from pathlib import Path; from posttrain.store.run_store import RunStore\n"
    code += "RunStore.open(Path(sys.argv[1]))"
    result = subprocess.run([*APART, sys.executable, "-c", code, store.folder], capture_output=True, text=True)
    assert f"(pid {os.getpid()} on {socket.gethostname()}, in another container" in result.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output = .*file/run, which cannot be written \(Not a directory\)"):
        RunStore.create(tmp_path / "file" / "run", "")


FULL = (
    FILL
    + """
import sys
from pathlib import Path
from posttrain.store.run_store import RunStore
store = RunStore.create(Path(sys.argv[1]) / "run", "seed: 0\\n")
fill(sys.argv[1])
for _ in range(100):  # until its last block is full
    store.metrics(1, {"text": "x" * 500})
"""
)


def test_a_full_disk_says_what_to_do(tmp_path):
    found = on_a_small_disk(FULL, tmp_path)
    assert "No space left on device" in found.errors
    assert f"Free some space, then `posttrain resume {tmp_path}/run`" in found.errors
    assert "DoesNotFit" in found.errors


# --- resume ----------------------------------------------------------------------------------------------------------


def fill(store: RunStore, steps: int) -> None:
    table = rollout_table(0, [], torch.zeros(0, 0))
    store.event("start", "started")
    for step in range(1, steps + 1):
        store.metrics(step, {"reward": step / 10})
        store.rollouts(step, table)
        store.event("warning", "truncated", step=step)


def test_a_resume_leaves_nothing_of_later_steps_and_says_so(store):
    fill(store, 5)
    store.evidence(5, [])
    store.error(ValueError("boom"))
    store.truncate_after(3)
    assert [row["step"] for row in lines(store, "metrics.jsonl")] == [1, 2, 3]
    assert sorted(path.stem for path in (store.folder / "rollouts").iterdir()) == [f"step-00000{n}" for n in (1, 2, 3)]
    assert not list((store.folder / "evidence").iterdir())
    assert not (store.folder / "error.json").exists()
    events = lines(store, "events.jsonl")
    assert [(event["kind"], event.get("step")) for event in events] == [
        ("start", None),
        ("warning", 1),
        ("warning", 2),
        ("warning", 3),
        ("error", 5),
        ("resume", 3),
    ]
    assert events[-1]["dropped"] == {"metrics": 2, "events": 2, "files": 3, "cut_lines": 0}
    assert events[-1]["message"] == "resumed after step 3; removed of later steps: 2 metrics, 2 events, 3 files"


def test_a_line_cut_by_a_kill_is_dropped_and_the_next_line_is_whole(store):
    fill(store, 3)
    with (store.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
    store.truncate_after(3)
    store.metrics(4, {"reward": 0.5})
    assert [row["step"] for row in lines(store, "metrics.jsonl")] == [1, 2, 3, 4]
    assert lines(store, "events.jsonl")[-1]["dropped"]["cut_lines"] == 1


@pytest.mark.parametrize("cut", ['{"step": 2}', '{"step"', "nonsense", '{"step": 2, "a": "\\u00'])
def test_a_last_line_without_its_end_is_not_trusted_even_if_it_reads_well(store, cut):
    store.metrics(1, {})
    with (store.folder / "metrics.jsonl").open("a") as file:
        file.write(cut)
    store.truncate_after(2)
    assert [row["step"] for row in lines(store, "metrics.jsonl")] == [1]


def test_a_resume_with_nothing_to_remove_changes_no_line(store):
    fill(store, 3)
    before = (store.folder / "metrics.jsonl").read_bytes()
    store.truncate_after(3)
    assert (store.folder / "metrics.jsonl").read_bytes() == before
    assert lines(store, "events.jsonl")[-1]["message"] == "resumed after step 3"


def test_what_was_written_can_be_read_back_while_the_run_goes_on(store):
    assert (store.read_metrics(), store.read_evaluation()) == ([], ({}, ""))
    fill(store, 2)
    store.record("evaluation.json", {"baseline": {"prompts": 3}})
    with (store.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    assert store.read_metrics() == [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]
    assert store.read_evaluation() == ({"baseline": {"prompts": 3}}, "")


def test_a_run_killed_before_its_first_line_can_be_resumed(store):
    store.truncate_after(0)
    assert [event["kind"] for event in lines(store, "events.jsonl")] == ["resume"]
