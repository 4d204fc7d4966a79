"""The files of a run behind its URL: as they are here, whole checkpoints alone, one writer, and nothing lost.

file:// stands for any storage here; tests/faults/test_s3.py has a server that speaks S3.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.disks import FILL, on_a_small_disk
from tests.store.urls import contents, take_step

from posttrain.config.urls import working_folder, wrong_url
from posttrain.errors import ConfigError, StorageError
from posttrain.store import carrier, claim
from posttrain.store.checkpoint import Checkpoint, Checkpoints, verify
from posttrain.store.fetching import folder_to_read, folder_to_resume
from posttrain.store.remote import RemoteFolder
from posttrain.store.run_store import RunStore


class Storage:
    """What is behind a URL, and a machine whose runs lie in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.place = folder / "bucket" / "run"
        self.url = f"file://{self.place}"
        self.said: list[str] = []

    def on(self, machine: str) -> Path:
        """The working folder there."""
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
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


# --- what is carried -------------------------------------------------------------------------------------------------


def test_behind_the_url_is_what_is_in_the_folder(storage):
    with storage.start() as store:
        for step in (1, 2, 3):
            take_step(store, step)
        store.record("evaluation.json", {"baseline": {"accuracy": 0.5}})
        store.carrier.finish()
        assert contents(storage.place) == contents(store.folder)
        assert storage.manifests() == ["step-000002", "step-000003"]
    assert json.loads((storage.place / claim.FILE).read_text())["beat"] is None


def test_a_step_is_carried_while_the_run_goes_on(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.wake()
        until(lambda: storage.manifests() == ["step-000001"])
        assert isinstance(verify(storage.place / "checkpoints" / "step-000001"), Checkpoint)
        assert (storage.place / "metrics.jsonl").read_bytes() == (store.folder / "metrics.jsonl").read_bytes()


def test_what_a_checkpoint_relies_on_comes_before_its_manifest(storage, monkeypatch):
    """Storage that stops at the manifest of step 2: then step 1 is the newest, with all files of the run around it."""
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
        with pytest.raises(StorageError, match="not everything could be carried"):
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


# --- going on --------------------------------------------------------------------------------------------------------


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
    assert storage.manifests() == ["step-000003", "step-000004"], "of those that were never here the newest stay"


def test_the_machine_that_has_written_last_goes_on_with_its_own_folder(storage):
    with storage.start() as store:
        take_step(store, 1)
    (store.folder / "here").write_text("not carried yet")
    with storage.go_on("a") as again:
        assert again.folder == store.folder
        again.carrier.finish()
    assert (storage.place / "here").exists()


def test_a_folder_whose_run_went_on_elsewhere_is_set_aside_and_says_so(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
    with storage.go_on("b") as there:
        take_step(there, 2)
        there.carrier.finish()
    stale = RunStore.open(storage.on("a"))
    with pytest.raises(ConfigError, match="not the newest state of its run"), stale:
        stale.carrier.open(storage.url, storage.said.append, keep=2, new=False)
    with storage.go_on("a") as again:
        assert Checkpoints(again.checkpoints, 2).newest().step == 2
    assert Checkpoints(Path(f"{store.folder}.before-1") / "checkpoints", 2).newest().step == 1
    assert any("is older than" in text for text in storage.said)


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
            "step-000002/state/weights has other content than was written (sha256 differs)"
        ]
    assert any("passed over a damaged checkpoint: step-000002/state/weights" in text for text in storage.said)


def test_a_checkpoint_without_its_manifest_is_none(storage):
    with storage.start() as store:
        take_step(store, 1)
        take_step(store, 2)
        store.carrier.finish()
    (storage.place / "checkpoints" / "step-000002" / "manifest.json").unlink()
    with storage.go_on("b") as there:
        assert [path.name for path in there.checkpoints.iterdir()] == ["step-000001"]
        there.carrier.finish()
    assert not (storage.place / "checkpoints" / "step-000002").exists(), "what is left of it is removed"


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
    with pytest.raises(ConfigError, match="which holds a run already"), storage.start("b"):
        pass
    assert contents(storage.place) == before


def test_files_of_somebody_else_are_never_touched(storage):
    storage.place.mkdir(parents=True)
    (storage.place / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="which holds files already"), storage.start():
        pass
    assert contents(storage.place) == {"thesis.tex": b"years of work"}


def test_a_run_that_is_written_elsewhere_is_not_taken_over(storage, monkeypatch):
    monkeypatch.setattr(claim.socket, "gethostname", lambda: "elsewhere")
    with storage.start() as store:
        monkeypatch.setattr(claim.socket, "gethostname", lambda: "here")
        take_step(store, 1)
        store.carrier.finish()
        with pytest.raises(ConfigError, match="is being written by another process"):
            storage.go_on("b")
        assert not storage.on("b").exists()


def test_a_writer_that_is_silent_is_taken_over_and_then_writes_nothing_more(storage, monkeypatch):
    monkeypatch.setattr(claim, "WATCHED", 0.5)
    monkeypatch.setattr(claim.socket, "gethostname", lambda: "elsewhere")
    with storage.start() as store:
        monkeypatch.setattr(claim.socket, "gethostname", lambda: "here")
        take_step(store, 1)
        store.carrier.finish()
        store.carrier._claim._ended.set()  # as on a machine that was cut off
        with storage.go_on("b") as there:
            take_step(there, 2)
            there.carrier.finish()
            before = contents(storage.place)
            (store.folder / "of_the_first.txt").write_text("x")
            with suppress(ConfigError):  # where the thread has met it before
                take_step(store, 2)
            with pytest.raises(ConfigError, match="is being written by another process"):
                store.carrier.finish()
            assert contents(storage.place) == before


def test_a_step_ends_a_run_that_was_taken_over(storage):
    with storage.start() as store:
        take_step(store, 1)
        store.carrier.finish()
        storage.place.joinpath(claim.FILE).write_text('{"writer": "another", "by": "pid 1 on there", "beat": 0}')
        store.event("note", "something to carry")
        store.carrier.wake()
        until(lambda: store.carrier._lost is not None)
        with pytest.raises(ConfigError, match="is being written by another process"):
            store.metrics(2, {"loss": 1.0})


def test_a_patience_that_is_no_number_is_told(storage, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_STORAGE_PATIENCE", "5m")
    with pytest.raises(ConfigError, match="'5m'"), storage.start():
        pass


def test_of_two_runs_that_begin_at_once_one_is_refused(tmp_path):
    code = (
        "import sys, time\n"
        "from posttrain.store import claim; claim.BEAT = 0.1\n"
        "from posttrain.store.claim import Claim\nfrom posttrain.store.remote import RemoteFolder\n"
        "from posttrain.errors import ConfigError\n"
        f"mine = Claim(RemoteFolder('file://{tmp_path}/bucket/run'), sys.argv[1])\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n    mine.begin(); mine.remote.write('config.yaml', b'x'); print('wrote')\n"
        "except ConfigError: print('refused')\n"
        "sys.stdin.readline()\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in "ab"
    ]
    for one in both:
        assert one.stdout.readline() == "ready\n"
    for one in both:
        one.stdin.write("go\n")
    said = [one.stdout.readline() for one in both[:1]]
    said += [one.stdout.readline() for one in both[1:]]
    for one in both:
        one.communicate("end\n")
    assert sorted(said) == ["refused\n", "wrote\n"]


def test_a_run_that_never_began_leaves_nothing_there(storage):
    with storage.start() as store:
        store.carrier.wake()
        until(lambda: (storage.place / "config.yaml").exists())
    assert contents(storage.place) == {}
    assert not (storage.place / claim.FILE).exists()


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
    assert "nothing is carried to file://" in storage.said[0]
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
        assert f"all of it is in {store.folder}" in raised.value.fix
        assert raised.value.exit_code == 1
        assert Checkpoints(store.checkpoints, 2).newest().step == 2


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


def test_a_full_disk_there_leaves_the_older_checkpoint_whole_and_is_made_up_for(tmp_path):
    ended = on_a_small_disk(FULL, tmp_path / "bucket", str(tmp_path / "run"))
    assert ended.exit_code == 0, ended.errors


# --- which URLs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://run", "memory:// is no storage that holds a run"),
        ("https://host/run", "https:// is no storage that holds a run"),
        ("s3://bucket", "which names no folder"),
        ("file://runs/first", "which names no folder"),
        ("s3://bucket/../run", "which names no folder"),
        ("s3://bucket/run?versionId=1", "which holds more than a place"),
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
