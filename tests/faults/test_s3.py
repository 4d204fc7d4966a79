"""Runs on S3 storage: a real server, and s3fs as its client."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.faults import s3_server
from tests.faults.test_run_behind_a_url import STEPS, drive_on, folder, write_config
from tests.processes import Ended, run_alone
from tests.store.test_carrier import until
from tests.store.urls import contents, one_of_two_takes_over, rows, take_step

from posttrain.config.urls import working_folder
from posttrain.errors import ConfigError
from posttrain.store import carrier
from posttrain.store.checkpoint import Checkpoints
from posttrain.store.fetching import folder_to_read, folder_to_resume
from posttrain.store.remote import RemoteFolder
from posttrain.store.run_store import RunStore

__all__ = ["folder"]  # a fixture


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s3_server.require_s3()
    with s3_server.serving(tmp_path_factory.mktemp("s3") / "server.log") as port:
        yield port


@pytest.fixture
def wire(server, monkeypatch, tmp_path) -> s3_server.Wire:
    """A connection to an existing bucket."""
    wire = s3_server.Wire(server)
    for name, value in s3_server.environment(wire.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "a"))
    make_bucket()
    return wire


def make_bucket() -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    if not files.exists("bucket"):
        files.mkdir("bucket")


def drive_s3(port: str, *told: str) -> None:
    """Call it in a separate process."""
    os.environ.update(s3_server.environment(int(port)))
    drive_on(*told)


def drive(port: int, folder: Path, machine: str, verb: str, target: str, *killed: str) -> Ended:
    return run_alone(drive_s3, str(port), str(folder / machine), "0.05", verb, target, *killed)


def test_killed_on_one_machine_a_run_ends_on_another_bit_for_bit(wire, folder):
    url = "s3://bucket/runs/killed"
    whole = drive(wire.port, folder, "whole", "train", str(write_config(folder, str(folder / "whole-s3"))))
    assert whole.exit_code == 0, whole.errors
    killed = drive(wire.port, folder, "s3-a", "train", str(write_config(folder, url)), "killed")
    assert killed.exit_code == -signal.SIGKILL, killed.errors
    resumed = drive(wire.port, folder, "s3-b", "resume", url)
    assert resumed.exit_code == 0, resumed.errors
    [local] = (folder / "s3-b").iterdir()
    last = f"checkpoints/step-{STEPS:06d}"
    assert contents(local / last) == contents(folder / "whole-s3" / last)
    assert re.search("resumed after step [24]", (local / "events.jsonl").read_text())
    there = folder_to_read(url, checkpoints=True)
    assert rows(there) == rows(folder / "whole-s3")
    assert contents(there / last) == contents(local / last)
    for written in (killed.errors, resumed.errors, *map(str, contents(local).values())):
        assert "canary" not in written


def test_a_server_that_is_away_for_a_while_gets_everything_afterwards(wire, tmp_path, monkeypatch):
    monkeypatch.setattr(carrier, "EVERY", 0.05)
    url, said = "s3://bucket/runs/away", []
    with RunStore.create(working_folder(url), "model: tiny\n") as store:
        store.carrier.open(url, said.append, keep=2, new=True)
        take_step(store, 1)
        store.carrier.finish()
        wire.cut()
        take_step(store, 2)
        store.carrier.wake()
        until(lambda: said)
        time.sleep(1)
        wire.join()
        take_step(store, 3)
        store.carrier.finish()
        monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "reader"))
        there = folder_to_read(url, checkpoints=True)
        expected = {name: content for name, content in contents(store.folder).items() if "step-000002" not in name}
        assert contents(there) == expected
    assert "sending to s3://bucket/runs/away is suspended" in said[0]
    assert len([text for text in said if "is suspended" in text]) == 1


def test_a_damaged_object_is_passed_over_by_name(wire, tmp_path, monkeypatch):
    url, said = "s3://bucket/runs/damaged", []
    with RunStore.create(working_folder(url), "model: tiny\n") as store:
        store.carrier.open(url, said.append, keep=2, new=True)
        take_step(store, 1)
        take_step(store, 2)
        store.carrier.finish()
    RemoteFolder(url).write("checkpoints/step-000002/state/weights", bytes(64))
    monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "b"))
    found = Checkpoints(folder_to_resume(url, said.append) / "checkpoints", 2).newest()
    assert found.step == 1
    assert "step-000002/state/weights has different content than was written" in said[-1]


def test_of_two_runs_for_one_url_the_second_is_refused(wire, tmp_path, monkeypatch):
    url = "s3://bucket/runs/twice"
    with RunStore.create(working_folder(url), "model: tiny\n") as store:
        store.carrier.open(url, print, keep=2, new=True)
        take_step(store, 1)
        store.carrier.finish()
        second = RunStore.create(tmp_path / "b", "model: tiny\n")
        with pytest.raises(ConfigError, match="which already holds a run"), second:
            second.carrier.open(url, print, keep=2, new=True)


def test_of_two_that_take_a_url_over_in_the_same_instant_one_is_refused(wire, monkeypatch):
    remote = RemoteFolder("s3://bucket/runs/raced")
    one_of_two_takes_over(remote, monkeypatch)
    assert list(remote.sizes()) == [".writers/000002.json"]


def test_a_bucket_that_is_missing_is_refused_at_the_start(wire):
    url = "s3://no-such-bucket/run"
    with RunStore.create(working_folder(url), "model: tiny\n") as store, pytest.raises(ConfigError) as raised:
        store.carrier.open(url, print, keep=2, new=True)
    assert "does not exist" in str(raised.value)


def test_refused_credentials_end_the_run_before_it_begins_and_are_not_repeated(server, tmp_path, monkeypatch):
    import s3fs

    with s3_server.serving(tmp_path / "strict.log", INITIAL_NO_AUTH_ACTION_COUNT="0") as port:
        for name, value in s3_server.environment(port).items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        with RunStore.create(tmp_path / "run", "model: tiny\n") as store, pytest.raises(ConfigError) as raised:
            store.carrier.open("s3://bucket/run", print, keep=2, new=True)
    assert raised.value.exit_code == 2
    assert "PermissionError" in str(raised.value)
    assert "canary" not in f"{raised.value}{raised.value.__cause__!r}"
