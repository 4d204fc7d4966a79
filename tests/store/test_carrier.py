"""The files of a run behind its URL: equal to the local ones, complete checkpoints only, one writer, nothing lost.

file:// stands for any storage here; tests/faults/test_s3.py has a server for the S3 protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.disks import FILL, on_a_small_disk
from tests.processes import run_code
from tests.store.urls import contents, one_of_two_takes_over, take_step

from posttrain import owner
from posttrain.config.urls import working_folder, wrong_url
from posttrain.errors import ConfigError, StorageError
from posttrain.store import carrier, claim
from posttrain.store.checkpoint import Checkpoint, Checkpoints, verify
from posttrain.store.claim import Claim
from posttrain.store.fetching import folder_to_read, folder_to_resume
from posttrain.store.remote import RemoteFolder
from posttrain.store.run_store import RunStore


class Storage:
    """The content of a URL, and machines, each of which keeps its runs in its own folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.place = folder / "bucket" / "run"
        self.url = f"file://{self.place}"
        self.said: list[str] = []

    def on(self, machine: str) -> Path:
        """The working folder on a machine."""
        self.monkeypatch.setenv("POSTTRAIN_RUNS", str(self.folder / machine))
        return working_folder(self.url)

    def start(self, machine: str = "a", config: str = "model: tiny\n") -> RunStore:
        store = RunStore.create(self.on(machine), config)
        store.carrier.open(self.url, self.said.append, keep=2, new=True)
        return store

    def go_on(self, machine: str) -> RunStore:
        self.on(machine)
        store = RunStore.open(folder_to_resume(self.url, self.said.append))
        store.carrier.open(self.url, self.said.append, keep=2, new=False)
        return store

    def move_on(self) -> RunStore:
        """Make a run of one step on machine a, and a second step on b. Return the store of machine a."""
        with self.start() as store:
            take_step(store, 1)
            store.carrier.finish()
        with self.go_on("b") as there:
            take_step(there, 2)
            there.carrier.finish()
        return store

    def manifests(self) -> list[str]:
        return sorted(path.parent.name for path in self.place.glob("checkpoints/*/manifest.json"))


@pytest.fixture
def storage(tmp_path, monkeypatch) -> Storage:
    monkeypatch.setattr(claim, "WATCHED", 30)
    monkeypatch.setattr(claim, "BEAT", 0.1)
    monkeypatch.setattr(carrier, "PATIENCE", 0.5)
    return Storage(tmp_path, monkeypatch)


def until(true, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not arrive"
        time.sleep(0.02)


# --- copied files ----------------------------------------------------------------------------------------------------


def test_behind_the_url_is_what_is_in_the_folder(storage):
    with storage.start() as store:
        for step in (1, 2, 3):
            take_step(store, step)
        store.record("evaluation.json", {"baseline": {"accuracy": 0.5}})
        store.carrier.finish()
        assert contents(storage.place) == contents(store.folder)
        assert storage.manifests() == ["step-000002", "step-000003"]
    assert [path.name for path in storage.place.glob(".writers/*")] == ["000001.json"]
    assert json.loads((storage.place / ".writers/000001.json").read_text())["beat"] is None


def test_a_step_is_carried_while_the_run_goes_on(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.wake()
        until(lambda: storage.manifests() == ["step-000001"])
        assert isinstance(verify(storage.place / "checkpoints" / "step-000001"), Checkpoint)
        assert (storage.place / "metrics.jsonl").read_bytes() == (store.folder / "metrics.jsonl").read_bytes()


def test_what_a_checkpoint_relies_on_comes_before_its_manifest(storage, monkeypatch):
    """The storage fails at the manifest of step 2: step 1 is then the newest checkpoint, with all files of its run."""
    put, asked = RemoteFolder.put, []

    def stopping(self, file, name):
        asked.append(name)
        if name == "checkpoints/step-000002/manifest.json":
            raise StorageError(given="down")
        put(self, file, name)

    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
        monkeypatch.setattr(RemoteFolder, "put", stopping)
        take_step(store, 2)
        with pytest.raises(StorageError, match="not everything could be sent"):
            store.carrier.finish()
        assert storage.manifests() == ["step-000001"]
        assert b'"step": 2' in (storage.place / "metrics.jsonl").read_bytes()
        assert asked.index("metrics.jsonl") < asked.index("checkpoints/step-000002/manifest.json")


def test_pruning_takes_the_manifest_first(storage, monkeypatch):
    removed, remove = [], RemoteFolder.remove

    def noting(self, names):
        names = list(names)
        removed.extend(names)
        remove(self, names)

    monkeypatch.setattr(RemoteFolder, "remove", noting)
    with storage.start() as store:
        for step in (1, 2, 3):
            take_step(store, step)
            store.carrier.finish()
    assert removed[0] == "checkpoints/step-000001/manifest.json"
    assert {name.split("/")[1] for name in removed} == {"step-000001"}
    assert storage.manifests() == ["step-000002", "step-000003"]


def test_a_file_that_goes_here_goes_there(storage):
    with storage.start() as store:
        take_step(store, 1)
        (store.folder / "error.json").write_text("{}")
        store.carrier.finish()
        assert (storage.place / "error.json").exists()
        (store.folder / "error.json").unlink()
        store.carrier.finish()
        assert not (storage.place / "error.json").exists()


def test_links_and_drafts_stay_here(storage, tmp_path):
    (tmp_path / "secret").write_text("canary")
    with storage.start() as store:
        take_step(store, 1)
        (store.folder / "link").symlink_to(tmp_path / "secret")
        (store.folder / "checkpoints" / "step-000002.tmp-1").mkdir()
        (store.folder / "checkpoints" / "step-000002.tmp-1" / "half").write_text("half")
        store.carrier.finish()
        there = contents(storage.place)
        assert "link" not in there
        assert not [name for name in there if "tmp" in name]


def test_a_file_that_is_written_while_it_is_sent_goes_again(storage, monkeypatch):
    put, touched = RemoteFolder.put, []

    def writing(self, file, name):
        put(self, file, name)
        if name == "metrics.jsonl" and not touched:
            touched.append(name)
            with file.open("a") as out:
                out.write('{"step": 2}\n')

    with storage.start() as store:
        take_step(store, 1)
        monkeypatch.setattr(RemoteFolder, "put", writing)
        store.carrier.finish()
        assert touched
        assert contents(storage.place) == contents(store.folder)


def test_a_checkpoint_whose_file_is_written_each_time_it_is_sent_gets_no_manifest(storage, monkeypatch):
    put = RemoteFolder.put

    def writing(self, file, name):
        put(self, file, name)
        if name.endswith("state/weights"):
            file.write_bytes(file.read_bytes() + b"x")

    with storage.start() as store:
        take_step(store, 1)
        monkeypatch.setattr(RemoteFolder, "put", writing)
        with pytest.raises(StorageError, match="state/weights changed during each of 3 attempts to send it"):
            store.carrier.finish()
        assert storage.manifests() == []


def test_the_end_of_a_run_waits_for_a_file_that_is_written_all_the_time(storage, monkeypatch):
    put, times = RemoteFolder.put, []

    def writing(self, file, name):
        put(self, file, name)
        if name == "engines.log" and len(times) < 4:
            times.append(name)
            file.write_text("x" * len(times))

    with storage.start() as store:
        take_step(store, 1)
        (store.folder / "engines.log").write_text("")
        monkeypatch.setattr(RemoteFolder, "put", writing)
        store.carrier.finish()
        assert storage.manifests() == ["step-000001"]
        assert contents(storage.place) == contents(store.folder)
    assert len(times) == 4


# --- continuing a run ------------------------------------------------------------------------------------------------


def test_another_machine_gets_all_files_and_the_newest_checkpoint(storage):
    with storage.start() as store:
        for step in (1, 2, 3):
            take_step(store, step)
        store.carrier.finish()
        before = contents(store.folder)
    with storage.go_on("b") as there:
        assert there.folder != store.folder
        expected = {name: content for name, content in before.items() if "step-000002" not in name}
        assert contents(there.folder) == expected
        take_step(there, 4)
        there.carrier.finish()
    assert storage.manifests() == ["step-000003", "step-000004"], "the newest of those that were never local are kept"


def test_the_machine_that_has_written_last_goes_on_with_its_own_folder(storage):
    with storage.start() as store:
        take_step(store, 1)
    (store.folder / "here").write_text("not carried yet")
    with storage.go_on("a") as again:
        assert again.folder == store.folder
        again.carrier.finish()
    assert (storage.place / "here").exists()


def test_a_folder_whose_run_went_on_elsewhere_is_set_aside_and_says_so(storage):
    store = storage.move_on()
    stale = RunStore.open(storage.on("a"))
    with pytest.raises(ConfigError, match="not the newest state of its run"), stale:
        stale.carrier.open(storage.url, storage.said.append, keep=2, new=False)
    with storage.go_on("a") as again:
        assert Checkpoints(again.checkpoints, 2).newest().step == 2
    assert Checkpoints(Path(f"{store.folder}.before-1") / "checkpoints", 2).newest().step == 1
    assert any("is older than" in text for text in storage.said)


def test_a_fetch_that_fails_changes_nothing(storage, monkeypatch):
    """This holds on both sides: the last writer keeps its claim, and continues in its own folder."""
    storage.move_on()
    before = claim.newest(RemoteFolder(storage.url))
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "get", lambda self, name, file: fail("no answer"))
        with pytest.raises(StorageError, match="no answer"):
            storage.go_on("a")
        with pytest.raises(StorageError, match="no answer"):
            storage.go_on("c")
    assert claim.newest(RemoteFolder(storage.url)) == before
    assert (storage.on("a") / "config.yaml").exists()
    assert [path.name for path in storage.on("a").parent.iterdir()] == [storage.on("a").name]
    with storage.go_on("b") as again:
        assert again.folder == storage.on("b")
    assert not any("older than" in text for text in storage.said)


def fail(given: str) -> None:
    raise StorageError(given=given)


@pytest.mark.parametrize("of_run", [folder_to_resume, folder_to_read])
def test_a_url_that_cannot_be_used_is_refused_before_anything_is_fetched(storage, monkeypatch, of_run):
    """file:// lists nothing where nothing is, but s3:// refuses a bucket that does not exist."""
    no_bucket = FileNotFoundError("The specified bucket does not exist")
    monkeypatch.setattr(LocalFileSystem, "find", lambda *_, **__: raised(no_bucket))
    with pytest.raises(ConfigError) as error:
        of_run(storage.url)
    assert error.value.given == f"{storage.url}: The specified bucket does not exist (FileNotFoundError)"
    assert "Check the URL, the credentials in the environment" in error.value.fix


def test_a_url_that_may_be_read_but_not_written_is_refused_before_anything_is_fetched(storage, monkeypatch):
    storage.move_on()
    monkeypatch.setattr(LocalFileSystem, "pipe_file", lambda *_, **__: raised(PermissionError("read only")))
    folder = storage.on("c")
    with pytest.raises(ConfigError, match=r"read only.*\n  Check the URL, the credentials in the environment"):
        folder_to_resume(storage.url)
    assert not folder.exists()


def test_a_file_that_goes_while_a_run_is_fetched_is_an_error_of_the_storage(storage, monkeypatch):
    storage.move_on()
    monkeypatch.setattr(LocalFileSystem, "get_file", lambda *_, **__: raised(FileNotFoundError("gone")))
    storage.on("c")
    with pytest.raises(StorageError, match=r"Try again") as error:
        folder_to_read(storage.url)
    assert type(error.value) is StorageError


def raised(error: Exception) -> None:
    raise error


def test_a_damaged_checkpoint_is_passed_over_by_name(storage):
    with storage.start() as store:
        take_step(store, 1)
        take_step(store, 2)
        store.carrier.finish()
    weights = storage.place / "checkpoints" / "step-000002" / "state" / "weights"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with storage.go_on("b") as there:
        found = Checkpoints(there.checkpoints, 2).newest()
        assert found.step == 1
        assert [str(damage) for damage in found.skipped] == [
            "step-000002/state/weights has different content than was written (sha256 differs)"
        ]
    assert any("skipped a damaged checkpoint: step-000002/state/weights" in text for text in storage.said)


def test_a_checkpoint_without_its_manifest_is_none(storage):
    with storage.start() as store:
        take_step(store, 1)
        take_step(store, 2)
        store.carrier.finish()
    (storage.place / "checkpoints" / "step-000002" / "manifest.json").unlink()
    with storage.go_on("b") as there:
        assert [path.name for path in there.checkpoints.iterdir()] == ["step-000001"]
        there.carrier.finish()
    assert not (storage.place / "checkpoints" / "step-000002").exists(), "its remains are removed"


def test_a_copy_to_read_has_no_checkpoint_and_leaves_the_claim_alone(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
        storage.on("reader")
        copy = folder_to_read(storage.url)
        assert "metrics.jsonl" in contents(copy)
        assert not list(copy.glob("checkpoints/*"))
        assert isinstance(verify(folder_to_read(storage.url, checkpoints=True) / "checkpoints/step-000001"), Checkpoint)
        store.carrier.finish()


# --- one writer ------------------------------------------------------------------------------------------------------


def test_a_used_url_is_refused_as_a_used_folder_is(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
    before = contents(storage.place)
    with pytest.raises(ConfigError, match="which already holds a run"), storage.start("b"):
        pass
    assert contents(storage.place) == before


def test_files_of_somebody_else_are_never_touched(storage):
    storage.place.mkdir(parents=True)
    (storage.place / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="which already holds files"), storage.start():
        pass
    assert contents(storage.place) == {"thesis.tex": b"years of work"}


def test_a_run_that_is_written_elsewhere_is_not_taken_over(storage, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with storage.start() as store:
        monkeypatch.setattr(socket, "gethostname", lambda: "here")
        take_step(store, 1)
        store.carrier.finish()
        with pytest.raises(ConfigError, match="is being written by another process"):
            storage.go_on("b")
        assert not storage.on("b").exists()


def test_a_writer_that_is_silent_is_taken_over_and_then_writes_nothing_more(storage, monkeypatch):
    monkeypatch.setattr(claim, "WATCHED", 0.5)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with storage.start() as store:
        monkeypatch.setattr(socket, "gethostname", lambda: "here")
        take_step(store, 1)
        store.carrier.finish()
        store.carrier._claim._ended.set()  # as on a machine that lost its network
        with storage.go_on("b") as there:
            take_step(there, 2)
            there.carrier.finish()
            before = contents(storage.place)
            (store.folder / "of_the_first.txt").write_text("x")
            with suppress(ConfigError):  # the thread may have raised it before
                take_step(store, 2)
            with pytest.raises(ConfigError, match="is being written by another process"):
                store.carrier.finish()
            assert contents(storage.place) == before


def test_of_two_that_take_over_in_the_same_instant_one_is_refused(storage, monkeypatch):
    one_of_two_takes_over(RemoteFolder(storage.url), monkeypatch)


@pytest.mark.slow
def test_of_several_processes_that_take_over_at_once_one_does(storage):
    code = (
        "import sys\n"
        "from posttrain.store import claim\n"
        "from posttrain.errors import ConfigError\nfrom posttrain.store.remote import RemoteFolder\n"
        "def together(remote, before):\n    print('ready', flush=True); sys.stdin.readline()\n"
        "claim._await_end = together\n"
        f"mine = claim.Claim(RemoteFolder({storage.url!r}), sys.argv[1])\n"
        "try:\n    mine.take(); print('took', flush=True)\n"
        "except ConfigError: print('refused', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n    mine.require(); print('has it')\n"
        "except ConfigError: print('has not')\n"
    )
    Claim(RemoteFolder(storage.url), "dead").take()
    several = Together(code, "abc")
    assert several.hear() == ["ready"] * 3
    several.tell()
    assert sorted(several.hear()) == ["refused", "refused", "took"]
    several.tell()
    assert sorted(several.hear()) == ["has it", "has not", "has not"]


def test_a_beat_that_comes_late_does_not_undo_a_take_over(storage, monkeypatch):
    """The old writer was suspended between its request and its answer."""
    monkeypatch.setattr(claim, "_await_end", lambda remote, before: None)
    monkeypatch.setattr(claim, "BEAT", 1000)
    remote = RemoteFolder(storage.url)
    old, new = Claim(remote, "old"), Claim(remote, "new")
    old.take()
    new.take()
    remote.write(".writers/000001.json", old._content())
    new.require()
    with pytest.raises(ConfigError, match="is being written by another process"):
        old.require()
    old.end()
    assert claim.newest(remote) == (2, "new", new._by, 0)
    new.end()
    assert sorted(remote.sizes()) == [".writers/000002.json"], "earlier claims are removed"


def test_a_beat_that_is_under_way_is_waited_for_before_the_claim_is_given_back(storage, monkeypatch):
    """The storage is slow: a write after the removal of the claim would create it again."""
    remote, write = RemoteFolder(storage.url), RemoteFolder.write
    begun, goes_on = threading.Event(), threading.Event()

    def slow(self: RemoteFolder, name: str, content: bytes) -> None:
        begun.set()
        assert goes_on.wait(20)
        write(self, name, content)

    monkeypatch.setattr(RemoteFolder, "write", slow)
    mine = Claim(remote, "mine")
    mine.take()
    assert begun.wait(20)
    giving = threading.Thread(target=mine.give_back)
    giving.start()
    giving.join(timeout=1.5)
    assert giving.is_alive()
    goes_on.set()
    giving.join(timeout=20)
    assert not giving.is_alive()
    assert remote.sizes() == {}


def test_storage_without_conditions_leaves_one_writer(storage, monkeypatch):
    """Both create the same number: the later content remains, and the other writer notices before its next change."""
    monkeypatch.setattr(RemoteFolder, "create", RemoteFolder.write)
    remote = RemoteFolder(storage.url)
    dead, slower, faster = (Claim(remote, name) for name in ("dead", "slower", "faster"))
    dead.take()
    overtake = iter([faster.take])
    monkeypatch.setattr(claim, "_await_end", lambda remote, before: next(overtake, lambda: None)())
    slower.take()
    slower.require()
    with pytest.raises(ConfigError, match="is being written by another process"):
        faster.require()
    for one in (dead, slower, faster):
        one.end()


def test_a_step_ends_a_run_that_was_taken_over(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
        (storage.place / ".writers/000002.json").write_text('{"writer": "another", "by": "pid 1 on there", "beat": 0}')
        store.event("note", "something to carry")
        store.carrier.wake()
        until(lambda: store.carrier._lost is not None)
        with pytest.raises(ConfigError, match="is being written by another process"):
            store.metrics(2, {"loss": 1.0})


def test_a_patience_that_is_no_number_is_told(storage, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_STORAGE_PATIENCE", "5m")
    with pytest.raises(ConfigError, match="'5m'"), storage.start():
        pass


def test_of_two_runs_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "BEAT", 0.1)
    monkeypatch.setattr(claim, "WATCHED", 30.0)
    ready, over = threading.Barrier(2), threading.Barrier(2)

    def begin(name: str) -> str:
        mine = Claim(RemoteFolder(f"file://{tmp_path}/bucket/run"), name)
        # Each is another process that lives: a claim of this process itself would count as that of an ended run.
        mine._by = f"pid {os.getppid() if name == 'a' else 1} on {owner.machine()}"
        ready.wait()
        try:
            mine.begin()
            mine.remote.write("config.yaml", b"x")
            return "wrote"
        except ConfigError:
            return "refused"
        finally:
            over.wait()
            mine.end()

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(begin, "ab")) == ["refused", "wrote"]


class Together:
    """Named processes that run the same code, and wait for a line before they continue."""

    def __init__(self, code: str, names: str) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            for name in names
        ]

    def hear(self) -> list[str]:
        return [one.stdout.readline().strip() for one in self.processes]

    def tell(self) -> None:
        for one in self.processes:
            one.stdin.write("go\n")


def test_a_run_that_never_began_leaves_nothing_there(storage):
    with storage.start() as store:
        store.carrier.wake()
        until(lambda: (storage.place / "config.yaml").exists())
    assert contents(storage.place) == {}
    assert not (storage.place / claim.FOLDER).exists()


def test_a_run_that_never_began_and_was_taken_over_removes_nothing(storage):
    with storage.start() as store:
        store.carrier.wake()
        until(lambda: (storage.place / "config.yaml").exists())
        (storage.place / ".writers/000002.json").write_text('{"writer": "another", "by": "pid 1 on there", "beat": 0}')
        before = contents(storage.place)
    assert contents(storage.place) == before != {}


# --- storage that fails ----------------------------------------------------------------------------------------------


def test_storage_that_is_away_for_a_while_is_said_once_and_loses_nothing(storage, monkeypatch):
    monkeypatch.setattr(carrier, "EVERY", 0.02)
    with storage.start() as store:
        take_step(store, 1)
        shutil.move(storage.folder / "bucket", storage.folder / "away")
        (storage.folder / "bucket").write_text("no folder")
        store.carrier.wake()
        until(lambda: storage.said)
        take_step(store, 2)
        (storage.folder / "bucket").unlink()
        shutil.move(storage.folder / "away", storage.folder / "bucket")
        until(lambda: len(storage.said) == 2)
        store.carrier.finish()
        assert contents(storage.place) == contents(store.folder)
    assert "sending to file://" in storage.said[0]
    assert "NotADirectoryError" in storage.said[0] or "Not a directory" in storage.said[0]
    assert "answers again" in storage.said[1]


def test_at_the_end_an_error_names_the_folder_that_has_everything(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
        take_step(store, 2)
        shutil.rmtree(storage.folder / "bucket")
        (storage.folder / "bucket").write_text("no folder")
        with pytest.raises(StorageError) as raised:
            store.carrier.finish()
        assert f"everything is in {store.folder}" in raised.value.fix
        assert raised.value.exit_code == 1
        assert Checkpoints(store.checkpoints, 2).newest().step == 2


INTERRUPTED = """
import os, shutil, signal, sys, threading
from pathlib import Path
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.api import recording
from tests.store.urls import take_step

folder = Path(sys.argv[1])
store = RunStore.create(folder / "run", "model: tiny")

def say(text):
    print(text)
    if text.startswith("waiting"):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

try:
    with recording(store, TerminalView(quiet=True)):
        store.carrier.open(f"file://{folder}/bucket/run", say, keep=2, new=True)
        take_step(store, 1)
        shutil.rmtree(folder / "bucket")
        (folder / "bucket").write_text("no folder")
        if sys.argv[2] == "stopped":
            raise KeyboardInterrupt("stopped after step 1")
        store.carrier.finish()
except KeyboardInterrupt as stop:
    print("ended by", repr(stop), *stop.__notes__, sep="\\n")
"""


@pytest.mark.parametrize("when", ["stopped", "finished"])
def test_ctrl_c_ends_the_wait_for_storage_and_says_where_everything_is(tmp_path, when):
    ended = run_code(INTERRUPTED, str(tmp_path), when)
    assert ended.exit_code == 0, ended.errors
    said, _, last = ended.printed.partition("ended by")
    assert ("sending the remaining files" in said) == (when == "stopped")
    assert said.count("(Ctrl-C ends the wait, and leaves everything in ") == 1
    assert ("stopped after step 1" in last) == (when == "stopped")
    assert f"everything is in {tmp_path}/run, and `posttrain resume" in last


FULL = (
    FILL
    + """
import sys
from pathlib import Path
from posttrain.errors import StorageError
from posttrain.store import carrier
from posttrain.store.checkpoint import Checkpoint, verify
from posttrain.store.run_store import RunStore
from tests.store.urls import contents, take_step

carrier.PATIENCE = 0.3
bucket, here, said = Path(sys.argv[1]), Path(sys.argv[2]), []
with RunStore.create(here, "model: tiny") as store:
    store.carrier.open(f"file://{bucket}/run", said.append, keep=2, new=True)
    take_step(store, 1)
    store.carrier.finish()
    fill(bucket)
    take_step(store, 2)
    (store.folder / "large").write_bytes(bytes(100_000))
    try:
        store.carrier.finish()
    except StorageError as error:
        assert "No space left on device" in str(error), error
    else:
        raise AssertionError("everything was carried to a full disk")
    assert isinstance(verify(bucket / "run/checkpoints/step-000001"), Checkpoint)
    assert not (bucket / "run/checkpoints/step-000002/manifest.json").exists()
    (bucket / "filler").unlink()
    store.carrier.finish()
    assert contents(bucket / "run") == contents(here)
"""
)


@pytest.mark.slow
def test_a_full_disk_there_leaves_the_older_checkpoint_whole_and_is_made_up_for(tmp_path):
    ended = on_a_small_disk(FULL, tmp_path / "bucket", str(tmp_path / "run"))
    assert ended.exit_code == 0, ended.errors


# --- valid URLs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://run", "memory:// is not a storage for runs"),
        ("https://host/run", "https:// is not a storage for runs"),
        ("s3://bucket", "which names no folder"),
        ("file://runs/first", "which names no folder"),
        ("s3://bucket/../run", "which names no folder"),
        ("s3://bucket/run?versionId=1", "which is more than the address of a folder"),
    ],
)
def test_what_is_no_place_for_a_run_is_refused(url, said):
    assert said in str(wrong_url("output", url))


def test_credentials_in_a_url_are_refused_and_not_repeated():
    error = wrong_url("output", "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@bucket/run")
    assert "wJalrXUtnFEMI" not in str(error)
    assert "AKIAIOSFODNN7EXAMPLE" not in str(error)


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://bucket/a/run/", "az://box/run", "file:///data/run"])
def test_a_place_for_a_run(url):
    assert wrong_url("output", url) is None


def test_the_working_folder_differs_for_urls_that_end_alike():
    assert working_folder("s3://a/run") != working_folder("s3://b/run")
    assert working_folder("s3://a/run/") == working_folder("s3://a/run")


@pytest.mark.skipif("gcsfs" in sys.modules, reason="gcsfs is installed")
def test_a_package_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="gcsfs"):
        RemoteFolder("gs://bucket/run")
