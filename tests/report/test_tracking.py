"""A run in TensorBoard, Trackio and Weights & Biases equals the run in its folder: every number is sent once."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.catalogue import few
from tests.processes import Command
from tests.report.synthetic_run import write_run
from tests.tiny import tiny_model, write_prompts
from trackio.sqlite_storage import SQLiteStorage
from wandb.proto.wandb_internal_pb2 import Record

import posttrain as pt
from posttrain.cli import run as command
from posttrain.config import RunConfig
from posttrain.errors import ConfigError, DataError
from posttrain.report.store import number, read_run
from posttrain.report.tracking.follow import Lines, Sent, follow
from posttrain.report.tracking.trackers import TRACKERS, Subject, TensorBoard, Tracker, require
from posttrain.train import tracking as followers

Series = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def own_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide everything of the user's: accounts, and databases of other runs."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")


# ---------------------------------------------------------------- the contents of a tracker, read by its own means


def in_tensorboard(folder: Path) -> tuple[Series, list[tuple[int, str]]]:
    """Return the scalars, and the texts of alarms, guards and errors."""
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    scalars = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    told = [tag for tag in found.Tags()["tensors"] if tag != "config"]
    return scalars, [(e.step, e.tensor_proto.string_val[0].decode()) for tag in told for e in found.Tensors(tag)]


def in_trackio(folder: Path) -> tuple[Series, list[tuple[int, str]]]:
    name = f"{folder.name}-{Sent.of(folder, 'trackio').id[:6]}"
    alerts = [(int(a["title"].rpartition(" ")[2]), a["text"]) for a in SQLiteStorage.get_alerts("posttrain", name)]
    return series_of(SQLiteStorage.get_logs("posttrain", name)), alerts


def in_wandb(folder: Path) -> tuple[Series, list[tuple[int, str]]]:
    records = [record for file in wandb_files(folder) for record in wandb_records(file)]
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    alerts = [record.alert for record in records if record.WhichOneof("record_type") == "alert"]
    return series_of(rows), [(int(alert.title.rpartition(" ")[2]), alert.text) for alert in alerts]


def wandb_files(folder: Path) -> list[Path]:
    return sorted((folder / "tracking" / "wandb").glob("offline-run-*/*.wandb"))


def wandb_records(file: Path) -> Iterator[Record]:
    """Read the format of LevelDB's log: blocks of 32 KiB, with chunks of (checksum, length, kind) and their bytes."""
    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the only chunk of a record, or its last
            yield Record.FromString(whole)
            whole = b""


def series_of(rows: Sequence[dict[str, Any]]) -> Series:
    found: Series = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("step", "timestamp") and not name.startswith("_"):
                found.setdefault(name, []).append((row["step"], value))
    return found


READ = {"tensorboard": in_tensorboard, "trackio": in_trackio, "wandb": in_wandb}


def in_the_folder(folder: Path) -> Series:
    rows = read_run(folder).metrics
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    return {
        name: found
        for name in names
        if (found := [(r["step"], v) for r in rows if (v := number(r.get(name))) is not None])
    }


def last_step(series: Series) -> int:
    return max((step for points in series.values() for step, _ in points), default=0)


def assert_complete(folder: Path, tracker: str, *, but: tuple[str, ...] = ()) -> None:
    """Check that every number of metrics.jsonl is there once, besides evaluations. Values of `but` may differ."""
    ours = in_the_folder(folder)
    assert ours
    wait_until(
        lambda: last_step(READ[tracker](folder)[0]) == last_step(ours)
    )  # the tracker writes in a separate process
    theirs, _ = READ[tracker](folder)
    assert {name for name in theirs if not name.startswith("eval/")} == ours.keys()
    for name, points in ours.items():
        assert [step for step, _ in theirs[name]] == [step for step, _ in points], name
        if not name.startswith(but):
            assert [v for _, v in theirs[name]] == pytest.approx([v for _, v in points], rel=1e-6), name  # float32


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} seconds"
        time.sleep(0.02)


def add_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


# ---------------------------------------------------------------- runs


def config_in(folder: Path, **settings: Any) -> dict[str, Any]:
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=16)
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "reinforce",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.25},
        "rewards": ["exact_match"],
        "sampling": {"group_size": 2, "max_completion_length": 4},
        "train": {"steps": 3, "prompts_per_step": 2},
        "evaluation": {"prompts": 4, "samples": 1, "every": 2},
        "guards": {"max_truncated": 1.0, "no_signal_steps": 100_000},
        "output": str(folder / "run"),
        "report": False,
        **settings,
    }


@pytest.mark.slow
def test_a_run_tells_all_three_what_it_writes(tmp_path):
    run = pt.train(config_in(tmp_path, report_to=["tensorboard", "trackio", "wandb"]))
    for tracker in TRACKERS:
        assert_complete(run.folder, tracker)
        theirs, _ = READ[tracker](run.folder)
        baseline, trained = (run.evaluation[name]["greedy"]["score"]["mean"] for name in ("baseline", "trained"))
        points = theirs["eval/greedy/score"]
        assert [step for step, _ in points] == [0, 2, 3]
        assert (points[0][1], points[-1][1]) == pytest.approx((baseline, trained))
    records = [record for file in wandb_files(run.folder) for record in wandb_records(file)]
    told = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (told.display_name, told.run_group, told.project) == ("run", tmp_path.name, "posttrain")
    assert '"reinforce"' in str({update.key: update.value_json for update in told.config.update}["algorithm"])
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("tracker", few(TRACKERS, "tensorboard"))
def test_what_a_killed_run_has_sent_is_not_sent_again_when_it_is_resumed(tracker, tmp_path):
    train = {"steps": 10_000, "prompts_per_step": 2}
    config = config_in(tmp_path, report_to=[tracker], checkpoint={"every": 20}, train=train)
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    training = Command("train", "config.yaml", cwd=tmp_path)
    folder = tmp_path / "run"
    deadline = time.monotonic() + 120
    while Sent.of(folder, tracker).step < 3 and time.monotonic() < deadline:
        assert training.returncode is None, "the run ended before anything was sent"
        time.sleep(0.02)
    training.send_signal(signal.SIGKILL)
    training.communicate()
    known = Sent.of(folder, tracker)
    assert known.step >= 3
    run = pt.resume(folder, steps=known.step + 25)
    assert run.step == known.step + 25
    assert Sent.of(folder, tracker).id == known.id
    assert_complete(folder, tracker, but=("time/", "memory/"))  # repeated steps agree in everything else


@pytest.mark.slow
def test_a_tracker_that_fails_is_a_warning_and_the_run_goes_on(tmp_path, capfd):
    config = config_in(tmp_path, report_to=["tensorboard"])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "tensorboard").write_text("in the way")
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    assert command(["train", str(tmp_path / "config.yaml")]) == 0
    said = capfd.readouterr().out
    assert "warning: report_to tensorboard: it failed (" in said
    assert f"`posttrain track {folder} --to tensorboard` sends the rest" in said
    (folder / "tensorboard").unlink()
    assert command(["track", str(folder), "--to", "tensorboard"]) == 0
    assert_complete(folder, "tensorboard")


@pytest.mark.slow
def test_one_that_takes_too_long_is_left_to_it(tmp_path, monkeypatch, capfd):
    config = config_in(tmp_path, report_to=["tensorboard"], train={"steps": 1, "prompts_per_step": 2})
    monkeypatch.setattr(followers, "LAST_SECONDS", 0.0)
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    assert command(["train", str(tmp_path / "config.yaml")]) == 0
    assert "report_to tensorboard: is still sending after 0 seconds" in capfd.readouterr().out
    follow(tmp_path / "run", "tensorboard")  # waits for the follower that is still sending
    assert_complete(tmp_path / "run", "tensorboard")


def test_a_tracker_that_is_not_installed_is_said_before_anything_is_made(tmp_path, monkeypatch):
    config = config_in(tmp_path, report_to=["wandb"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"wandb cannot be imported here(?s:.*)pip install \"posttrain\[track\]\""):
        pt.train(config)
    assert not (tmp_path / "run").exists()


def test_a_mere_folder_of_a_trackers_name_is_no_tracker(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ConfigError, match="wandb cannot be imported here"):
        require(["wandb"])


@pytest.mark.slow
def test_a_tracker_that_is_named_twice_is_told_once(tmp_path, capfd):
    config = config_in(tmp_path, report_to=["tensorboard", "tensorboard"], train={"steps": 2, "prompts_per_step": 2})
    run = pt.train(config)
    assert_complete(run.folder, "tensorboard")
    assert len(list((run.folder / "tensorboard").iterdir())) == 1
    assert "report_to" not in capfd.readouterr().out


@pytest.mark.slow
def test_a_follower_that_is_killed_is_said_to_be(tmp_path):
    said = list[str]()
    view = SimpleNamespace(event=lambda kind, text: said.append(text))
    folder = write_run(tmp_path / "run")
    with followers.tracking(folder, ["tensorboard"], view):  # type: ignore[arg-type]
        lock = folder / "tracking" / "tensorboard.lock"
        wait_until(lambda: lock.exists() and lock.read_text() != "")
        os.kill(int(lock.read_text()), signal.SIGKILL)
    assert said == [
        f"report_to tensorboard: signal SIGKILL ended it; `posttrain track {folder} --to tensorboard` sends the rest"
    ]


@pytest.mark.slow
def test_an_attempt_that_never_began_is_another_run_to_a_tracker(tmp_path):
    config = config_in(tmp_path, report_to=["tensorboard"])
    prompts = tmp_path / "prompts.jsonl"
    whole = prompts.read_text()
    prompts.write_text("{}\n")
    with pytest.raises(DataError):
        pt.train(config)
    folder = tmp_path / "run"
    assert (folder / "error.json").exists()
    first = Sent.of(folder, "tensorboard")
    assert first.events
    prompts.write_text(whole)
    run = pt.train(config)
    assert Sent.of(folder, "tensorboard").id != first.id
    assert_complete(run.folder, "tensorboard")
    assert in_tensorboard(folder)[1] == []


def test_settings_and_trackers_have_the_same_names():
    (listed,) = get_args(RunConfig.model_fields["report_to"].annotation)
    assert get_args(listed) == tuple(TRACKERS)
    require(list(TRACKERS))


# ---------------------------------------------------------------- afterwards


@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_that_is_over_can_be_sent_and_only_what_is_new_is_sent_again(tracker, tmp_path):
    folder = write_run(tmp_path / "run")
    events = [
        {"kind": "alarm", "step": 2, "message": "answers grow longer"},
        {"kind": "checkpoint", "step": 2, "message": "saved step 2"},
    ]
    add_lines(folder / "events.jsonl", events)
    first = follow(folder, tracker)
    assert first.step == read_run(folder).metrics[-1]["step"]
    follow(folder, tracker)
    assert_complete(folder, tracker)
    last = read_run(folder).metrics[-1]
    add_lines(folder / "metrics.jsonl", [last | {"step": first.step + 1}])
    again = follow(folder, tracker)
    assert (again.id, again.step) == (first.id, first.step + 1)
    assert_complete(folder, tracker)
    _, told = READ[tracker](folder)
    assert told.count((2, "answers grow longer")) == 1
    assert all("saved" not in text for _, text in told)


@pytest.mark.slow
def test_the_command_says_where_to_look(tmp_path):
    folder = write_run(tmp_path / "run")
    asked = [sys.executable, "-m", "posttrain", "track", str(folder), "--to", "trackio", "--json"]
    answered = subprocess.run(
        asked, capture_output=True, text=True, check=True
    )  # a whole process, since the package prints a last message
    said = json.loads(answered.stdout)
    assert said["tracker"] == "trackio"
    assert said["step"] == read_run(folder).metrics[-1]["step"]
    assert said["where"] == "trackio show --project posttrain"


@pytest.mark.parametrize("runs", [0, 1, 2, 7])
@pytest.mark.parametrize("pipeline", [True, False])
def test_for_a_folder_of_runs_the_error_names_them(tmp_path, pipeline, runs):
    if pipeline:
        (tmp_path / "pipeline.json").touch()
    for n in range(runs):
        (tmp_path / f"{n}-sft").mkdir()
        (tmp_path / f"{n}-sft/config.yaml").touch()
    with pytest.raises(ConfigError) as caught:
        follow(tmp_path, "tensorboard")
    said = str(caught.value)
    assert ("is the folder of a pipeline" if pipeline else "holds no run") in said
    assert [str(tmp_path / f"{n}-sft") in said for n in range(7)] == [n < min(runs, 5) for n in range(7)]
    assert ("another run in it" in said) == (runs > 5)


def test_a_folder_without_a_run_and_an_unknown_tracker_are_refused(tmp_path, capsys):
    assert command(["track", str(tmp_path), "--to", "tensorboard"]) == 2
    assert "holds no run" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"no tracker 'abacus'; allowed: tensorboard, trackio, wandb"):
        follow(write_run(tmp_path / "run"), "abacus")


@pytest.mark.slow
def test_weights_and_biases_is_written_to_files_where_nobody_is_logged_in(tmp_path):
    folder = write_run(tmp_path / "run")
    sent = follow(folder, "wandb")
    assert len(wandb_files(folder)) == 1
    assert sent.where == f"wandb sync {wandb_files(folder)[0].parent}"


@pytest.mark.slow
def test_of_several_times_every_folder_is_named_in_order(tmp_path):
    folder = write_run(tmp_path / "run")
    follow(folder, "wandb")
    add_lines(folder / "metrics.jsonl", [{"step": 1000, "reward/mean": 0.5}])
    time.sleep(1.1)  # folder names have a resolution of one second
    second = follow(folder, "wandb")
    folders = [file.parent for file in wandb_files(folder)]
    assert len(folders) == 2
    assert second.where == "; ".join(f"wandb sync {each}" for each in folders)


@pytest.mark.slow
def test_where_there_is_nothing_new_no_tracker_is_opened(tmp_path):
    folder = write_run(tmp_path / "run")
    first = follow(folder, "wandb")
    again = follow(folder, "wandb")
    assert len(wandb_files(folder)) == 1
    assert (again.id, again.where) == (first.id, first.where)


class Breaks(TensorBoard):
    """A tracker that accepts two steps and fails at the third."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step >= 3:
            raise RuntimeError("no more")
        super().log(step, values)


def test_after_a_crash_amid_the_rows_nothing_is_sent_twice(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setitem(TRACKERS, "tensorboard", Breaks)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="no more"):
            follow(folder, "tensorboard")
    broken = Sent.of(folder, "tensorboard")
    assert broken.step == 2
    assert follow(folder, "tensorboard").id == broken.id
    assert_complete(folder, "tensorboard")


def test_one_that_cannot_be_opened_has_its_name_nevertheless(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")

    def refuse(run: Subject) -> Tracker:
        raise RuntimeError(run.id)

    with monkeypatch.context() as patched:
        patched.setitem(TRACKERS, "tensorboard", refuse)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError) as refused:
            follow(folder, "tensorboard")
    assert follow(folder, "tensorboard").id == str(refused.value)


def test_who_waits_for_another_follower_says_for_whom(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    (folder / "tracking").mkdir()
    lock = folder / "tracking" / "tensorboard.lock"
    with lock.open("w") as held:
        held.write("4711")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        waits = threading.Thread(target=follow, args=(folder, "tensorboard"))
        waits.start()
        said = ""

        def asked() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return bool(said)

        wait_until(asked)
        assert waits.is_alive()
    waits.join()
    assert said == "waiting for process 4711, which is still sending to tensorboard; `kill 4711` ends it\n"
    assert lock.read_text() == str(os.getpid())
    assert_complete(folder, "tensorboard")


def test_an_error_is_told_as_often_as_it_ended_the_run_at_the_step_it_came_to(tmp_path):
    folder = write_run(tmp_path / "run")
    last = read_run(folder).metrics[-1]["step"]
    same = {"kind": "error", "message": "the disk is full"}
    add_lines(
        folder / "events.jsonl", [same | {"time": "2026-01-01T00:00:00Z"}, same | {"time": "2026-01-01T01:00:00Z"}]
    )
    follow(folder, "tensorboard")
    follow(folder, "tensorboard")
    told = [found for found in in_tensorboard(folder)[1] if found[1] == "the disk is full"]
    assert told == [(last, "the disk is full")] * 2


@pytest.mark.parametrize(("mode", "message"), [("disabled", "WANDB_MODE = disabled"), ("online", "(?s:.*)wandb login")])
def test_a_mode_of_weights_and_biases_that_cannot_be_is_refused(mode, message, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", mode)
    with pytest.raises(ConfigError, match=message):
        follow(write_run(tmp_path / "run"), "wandb")


# ---------------------------------------------------------------- files that change while they are read


def test_lines_come_once_each_and_only_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = Lines(path.parent, path.name)
    assert list(lines.new()) == []
    path.write_text('{"step": 1}\nno json\n[2]\n{"st')
    assert list(lines.new()) == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert list(lines.new()) == [{"step": 2}]
    assert list(lines.new()) == []


def test_a_file_that_a_resume_has_put_in_place_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    lines = Lines(path.parent, path.name)
    assert len(list(lines.new())) == 2
    other = tmp_path / "other"
    other.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    other.replace(path)
    assert [row["step"] for row in lines.new()] == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": 1}', '{"id": "a", "step": "x", "events": []}'])
def test_a_damaged_record_of_what_was_sent_counts_for_none(content, tmp_path):
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "wandb.json").write_text(content)
    assert Sent.of(tmp_path, "wandb").step == -1
