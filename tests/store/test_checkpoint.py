"""Checkpoints: complete or absent after any kill, any flipped bit found, and a full disk costs no older checkpoint."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.disks import FILL, on_a_small_disk
from tests.processes import run_code
from tests.tiny import tiny_model

from posttrain.errors import CheckpointError
from posttrain.store import checkpoint
from posttrain.store.checkpoint import Checkpoint, Checkpoints, SavePolicy, load_state, save_state, size_of, verify


def write_small(folder: Path) -> None:
    """Write a checkpoint like a run's, of a few hundred bytes."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"hidden_size": 4}')
    (folder / "model" / "weights").write_bytes(bytes(range(64)))
    save_state(folder / "state", {"optimizer": {"0": {"step": torch.tensor(3.0)}}}, {"seed": 7})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=3)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_saved_checkpoint_comes_back_with_its_step_its_facts_and_the_versions_that_wrote_it(checkpoints):
    saved = checkpoints.save(10, write_small, {"tokens": 12345, "name": "a"})
    found = checkpoints.newest()
    assert found == saved
    assert (found.step, found.facts) == (10, {"tokens": 12345, "name": "a"})
    assert found.versions["torch"] == torch.__version__.split("+")[0] or found.versions["torch"] == torch.__version__
    assert load_state(found.state)[1] == {"seed": 7}


def test_no_folder_and_an_empty_folder_hold_no_checkpoint(checkpoints):
    assert checkpoints.newest() is None
    checkpoints.folder.mkdir()
    assert checkpoints.newest() is None


@pytest.mark.slow
def test_the_manifest_can_be_checked_with_coreutils(checkpoints):
    saved = checkpoints.save(10, write_small)
    subprocess.run(["sha256sum", "--check", "--status", "manifest.sha256"], cwd=saved.path, check=True)
    listed = json.loads((saved.path / "manifest.json").read_text())["files"]
    assert set(listed) == {"model/config.json", "model/weights", "state/tensors.safetensors", "state/plain.json"}


def test_only_the_newest_are_kept(checkpoints):
    for step in range(1, 7):
        checkpoints.save(step, write_small)
    assert names(checkpoints.folder) == ["step-000004", "step-000005", "step-000006"]


def test_saving_a_step_that_is_there_and_intact_changes_nothing(checkpoints):
    first = checkpoints.save(10, write_small)
    again = checkpoints.save(10, lambda folder: pytest.fail("written a second time"))
    assert first == again


def test_a_damaged_step_is_replaced_when_the_run_comes_by_again(checkpoints):
    checkpoints.save(5, write_small)
    damaged = checkpoints.save(10, write_small)
    (damaged.path / "model" / "weights").write_bytes(b"x")
    checkpoints.save(10, write_small)
    found = checkpoints.newest()
    assert (found.step, found.skipped) == (10, ())


def test_pruning_after_a_fallback_spares_the_checkpoint_just_written_and_not_the_damaged_later_one(tmp_path):
    for step in (10, 20, 30):
        Checkpoints(tmp_path, keep=3).save(step, write_small)
    (tmp_path / "step-000030" / "model" / "weights").unlink()
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(25, write_small)
    assert checkpoints.newest().step == 25
    checkpoints.save(30, write_small)
    assert names(tmp_path) == ["step-000030"]
    assert checkpoints.newest().skipped == ()


def test_nothing_is_pruned_before_the_new_checkpoint_is_in_place(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(10, write_small)

    def write(folder: Path) -> None:
        write_small(folder)
        assert checkpoints.newest().step == 10

    checkpoints.save(20, write)
    assert names(tmp_path) == ["step-000020"]


def test_what_a_killed_save_left_is_ignored_by_a_reader_and_removed_by_the_next_save(checkpoints):
    checkpoints.save(10, write_small)
    for left in ("step-000020.tmp-4711", "step-000010.tmp-4711-old"):
        write_to = checkpoints.folder / left
        write_to.mkdir()
        write_small(write_to)
    assert checkpoints.newest().step == 10
    assert len(names(checkpoints.folder)) == 3, "a reader removes nothing"
    checkpoints.save(20, write_small)
    assert names(checkpoints.folder) == ["step-000010", "step-000020"]


def test_an_error_of_the_writer_travels_and_leaves_nothing_behind(checkpoints):
    def write(folder: Path) -> None:
        write_small(folder)
        raise KeyboardInterrupt

    checkpoints.save(10, write_small)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(20, write)
    assert names(checkpoints.folder) == ["step-000010"]


# --- damage ----------------------------------------------------------------------------------------------------------


def test_100_single_flipped_bits_are_all_found_and_the_file_is_named(checkpoints):
    """Any file, including the manifest and its seal, in proportion to its size."""
    good = checkpoints.save(10, write_small)
    newer = checkpoints.save(20, write_small)
    files = sorted(path for path in newer.path.rglob("*") if path.is_file())
    bits = [(path, bit) for path in files for bit in range(8 * path.stat().st_size)]
    hit = set()
    for path, bit in random.Random(0).sample(bits, 100):
        intact = path.read_bytes()
        flipped = bytearray(intact)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found = checkpoints.newest()
        path.write_bytes(intact)
        assert found.step == good.step, f"bit {bit} of {path.name} was not found"
        named = {damage.file for damage in found.skipped}
        name = path.relative_to(newer.path).as_posix().replace("manifest.sha256", "manifest.json")
        assert named == {name}
        hit.add(name)
    assert {"manifest.json", "model/weights", "state/tensors.safetensors"} <= hit
    assert checkpoints.newest().step == 20


def shorten(path: Path) -> None:
    (path / "model" / "weights").write_bytes(bytes(range(63)))


def swap_two_files(path: Path) -> None:
    a, b = path / "model" / "config.json", path / "model" / "weights"
    content = a.read_bytes(), b.read_bytes()
    a.write_bytes(content[1])
    b.write_bytes(content[0])


def replace_by_a_link(path: Path) -> None:
    elsewhere = path.parent / "weights"
    (path / "model" / "weights").rename(elsewhere)
    (path / "model" / "weights").symlink_to(elsewhere)


def link_the_folder(path: Path) -> None:
    (path / "model").rename(path.parent / "model")
    (path / "model").symlink_to(path.parent / "model")


def rewrite_manifest(path: Path, change) -> None:
    """Change the manifest as a person who knows the format would: the seal is correct again."""
    import hashlib

    manifest = json.loads((path / "manifest.json").read_text())
    text = json.dumps(change(manifest)).encode()
    (path / "manifest.json").write_bytes(text)
    (path / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")


def list_a_file_outside(path: Path) -> None:
    (path.parent / "secret").write_text("x")
    entry = {"bytes": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    rewrite_manifest(path, lambda manifest: manifest | {"files": manifest["files"] | {"../secret": entry}})


@pytest.mark.parametrize(
    ("damage", "file", "what"),
    [
        (shorten, "model/weights", "has 63 bytes, but 64 were written"),
        (swap_two_files, "model/config.json", "has 64 bytes, but 18 were written"),
        (lambda path: (path / "state" / "plain.json").unlink(), "state/plain.json", "is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json", "is missing"),
        (lambda path: (path / "manifest.sha256").unlink(), "manifest.sha256", "is missing"),
        (lambda path: (path / "model" / "extra.py").write_text("1"), "model/extra.py", "was not written by the run"),
        (replace_by_a_link, "model/weights", "is a symbolic link"),
        (link_the_folder, "model", "is a symbolic link"),
        (lambda path: os.mkfifo(path / "model" / "pipe"), "model/pipe", "is not a regular file"),
        (list_a_file_outside, "../secret", "is missing"),
        (lambda path: rewrite_manifest(path, lambda _: ["other"]), "manifest.json", "is not a manifest"),
        (lambda path: rewrite_manifest(path, lambda m: m | {"step": 30}), "manifest.json", "belongs to step 30"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_damaged_checkpoint_is_passed_over_and_its_file_named(checkpoints, damage, file, what):
    checkpoints.save(10, write_small)
    damage(checkpoints.save(20, write_small).path)
    found = checkpoints.newest()
    assert found.step == 10
    assert (found.skipped[0].path.name, found.skipped[0].file) == ("step-000020", file)
    assert what in found.skipped[0].what


def test_two_files_of_equal_length_that_changed_places_are_both_named(checkpoints):
    def write(folder: Path) -> None:
        (folder / "a").write_bytes(b"1234")
        (folder / "b").write_bytes(b"5678")

    saved = checkpoints.save(10, write)
    (saved.path / "a").rename(saved.path / "c")
    (saved.path / "b").rename(saved.path / "a")
    (saved.path / "c").rename(saved.path / "b")
    assert [damage.file for damage in verify(saved.path)] == ["a", "b"]


def test_a_checkpoint_renamed_to_another_step_is_not_taken_for_it(checkpoints):
    saved = checkpoints.save(10, write_small)
    saved.path.rename(checkpoints.folder / "step-000020")
    with pytest.raises(CheckpointError, match="belongs to step 10: the folder was renamed"):
        checkpoints.newest()


@pytest.mark.parametrize("name", ["step-1e9999", "step-20", "step-0000020", "checkpoint-000020", "step-000020 "])
def test_a_folder_with_a_name_that_the_run_would_not_give_is_no_checkpoint(checkpoints, name):
    saved = checkpoints.save(10, write_small)
    shutil.copytree(saved.path, checkpoints.folder / name)
    assert checkpoints.newest() == saved


def test_a_link_to_a_checkpoint_elsewhere_is_refused(checkpoints, tmp_path):
    saved = checkpoints.save(10, write_small)
    saved.path.rename(tmp_path / "elsewhere")
    saved.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"step-000010/\. is not a real folder"):
        checkpoints.newest()


def test_when_all_are_damaged_each_is_named(checkpoints):
    for step in (10, 20):
        shorten(checkpoints.save(step, write_small).path)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.newest()
    for name in ("step-000010/model/weights", "step-000020/model/weights"):
        assert f"{name} has 63 bytes, but 64 were written" in str(caught.value)
    assert "Restore the named files from a copy" in caught.value.fix


# --- no space, no permission -----------------------------------------------------------------------------------------


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(checkpoints):
    checkpoints.save(10, write_small)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.save(20, lambda folder: pytest.fail("written all the same"), size=10**18)
    assert "step-000020 needs 1000000000.0 GB, but" in caught.value.given
    assert caught.value.allowed == "at least 1000000000.0 GB of free space"
    assert "checkpoint.keep" in caught.value.fix
    assert checkpoints.newest().step == 10


SAVE_UNTIL_FULL = """
import sys
from pathlib import Path
import torch
from posttrain.errors import CheckpointError
from posttrain.store.checkpoint import Checkpoints, save_state
checkpoints = Checkpoints(Path(sys.argv[1]) / "checkpoints", keep=9)
def save(step, numbers):
    def write(folder):
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        save_state(folder / "state", {"weights": torch.zeros(numbers)}, {})
    return checkpoints.save(step, write)
save(10, 1000)
if sys.argv[2] == "limit":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    save(20, 1 << 20)
except CheckpointError as error:
    print(error)
print("newest", checkpoints.newest().step, sorted(path.name for path in checkpoints.folder.iterdir()))
print("then", save(30, 1000).step)
"""


@pytest.mark.parametrize(
    ("kind", "reason"), [("limit", "File too large"), ("tmpfs", "No space left on device")], ids=["quota", "full disk"]
)
def test_space_that_runs_out_in_the_middle_costs_this_checkpoint_only(tmp_path, kind, reason):
    """4 MB of tensors into a limit of 1 MB per file, and into a real file system of 2 MB (a private mount)."""
    if kind == "tmpfs":
        result = on_a_small_disk(SAVE_UNTIL_FULL, tmp_path / "disk", kind)
    else:
        result = run_code(SAVE_UNTIL_FULL, str(tmp_path / "disk"), kind)
    assert result.exit_code == 0, result.errors
    assert f"step-000020 could not be written to {tmp_path}/disk/checkpoints" in result.printed
    assert reason in result.printed
    assert "older checkpoints are intact" in result.printed
    assert "newest 10 ['step-000010']\nthen 30" in result.printed


SAVE_AT_EVERY_SIZE = (
    FILL
    + """
import sys
from pathlib import Path
from posttrain.store.checkpoint import Checkpoints, DiskFull, save_state
from posttrain.models.load import load_model
from posttrain.models.save import save_model
from posttrain.config import ModelConfig
disk, loaded = Path(sys.argv[1]), load_model(ModelConfig(path=sys.argv[2], device="cpu"))
def write(folder):
    save_model(loaded.model, loaded.tokenizer, folder / "model", eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    save_state(folder / "state", {"weights": dict(loaded.model.state_dict())}, {})
checkpoints = Checkpoints(disk / "checkpoints", keep=1)
size = sum(path.stat().st_size for path in checkpoints.save(0, write).path.rglob("*"))
failed = 0
for step in range(1, 41):
    fill(disk, leave=size * step // 40)
    try:
        checkpoints.save(step, write)
    except DiskFull as error:
        assert "older checkpoints are intact" in error.given, error
        failed += 1
    assert not list(checkpoints.folder.glob("*.tmp*")), step
    assert checkpoints.newest().step in (0, step)
    os.remove(disk / "filler")
print("failed", failed)
"""
)


def test_wherever_in_a_model_the_disk_is_full_it_is_said_to_be_full(tmp_path):
    """safetensors writes the weights; a library that raises a plain `Exception` writes the tokenizer."""
    tiny_model(tmp_path / "model")
    result = on_a_small_disk(SAVE_AT_EVERY_SIZE, tmp_path / "disk", str(tmp_path / "model"), size="20m")
    assert result.exit_code == 0, result.errors
    assert int(result.printed.split()[-1]) > 30


LOWER_KEEP = """
import os, sys
from pathlib import Path
from posttrain.store.checkpoint import Checkpoints, DiskFull
folder, told, keep, pinned = Path(sys.argv[1]) / "checkpoints", *map(int, sys.argv[2:])
BYTES = 200_000
def write(path):
    (path / "weights").write_bytes(os.urandom(BYTES))
def save(keep, step):
    checkpoints = Checkpoints(folder, keep=keep)
    checkpoints.pinned = {10} if pinned else set()
    checkpoints.save(step, write, size=BYTES if told else 0)
step = 0
try:
    while step < 1000:
        step += 10
        save(50, step)
except DiskFull:
    pass
full = sorted(path.name for path in folder.iterdir())
try:
    save(keep, step)
    left = Checkpoints(folder, keep=keep)
    print(step, left.steps(), left.newest().step)
except DiskFull:
    assert sorted(path.name for path in folder.iterdir()) == full
    print("still full")
"""


@pytest.mark.parametrize("told", [1, 0], ids=["expected size", "in the middle"])
@pytest.mark.parametrize("pinned", [0, 1], ids=["", "pinned"])
@pytest.mark.parametrize("keep", [1, 2, 4, 50])
def test_a_lower_keep_makes_room_on_a_full_disk(tmp_path, told, pinned, keep):
    """As after `checkpoint.keep` was lowered and the run resumed: 50 checkpoints do not fit, fewer do."""
    result = on_a_small_disk(LOWER_KEEP, tmp_path / "disk", *map(str, (told, keep, pinned)))
    assert result.exit_code == 0, result.errors
    if keep == 50:
        assert result.printed.strip() == "still full"
        return
    step = int(result.printed.split()[0])
    newest = [step - 10 * number for number in range(keep)][::-1]
    assert result.printed.strip() == f"{step} {[10] * pinned + newest} {step}"


def test_a_damaged_checkpoint_does_not_count_when_room_is_made(checkpoints):
    """If the save fails after all, the newest intact checkpoint is still there."""
    checkpoints.keep = 9
    for step in (10, 20, 30, 40):
        checkpoints.save(step, write_small)
    shorten(checkpoints.folder / "step-000040")
    checkpoints.keep = 1
    with pytest.raises(CheckpointError, match="step-000050 needs"):
        checkpoints.save(50, write_small, size=10**18)
    assert checkpoints.steps() == [30, 40]
    assert checkpoints.newest().step == 30


def test_checkpoints_are_read_again_only_if_some_can_be_removed_and_once(checkpoints, monkeypatch):
    read: list[Path] = []
    checkpoints.keep = 9
    for step in (10, 20, 30, 40):
        checkpoints.save(step, write_small)
    monkeypatch.setattr(checkpoint, "verify", lambda path: (read.append(path), verify(path))[1])
    for keep, times in ((4, 0), (2, 2)):
        read.clear()
        checkpoints.keep = keep
        with pytest.raises(CheckpointError, match="step-000050 needs"):
            checkpoints.save(50, write_small, size=10**18)
        assert len([path for path in read if path.name != "step-000050"]) == times


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "checkpoints").write_text("a file, where the folder should be: root may write everywhere")
    with pytest.raises(
        CheckpointError, match=r"step-000010 could not be written to .*checkpoints .*; allowed: a folder"
    ):
        Checkpoints(tmp_path / "checkpoints", keep=1).save(10, write_small)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop the superuser")
def test_a_read_only_folder_is_named_and_still_readable(checkpoints):
    checkpoints.save(10, write_small)
    checkpoints.folder.chmod(0o555)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            checkpoints.save(20, write_small)
        assert checkpoints.newest().step == 10
    finally:
        checkpoints.folder.chmod(0o755)


def test_a_link_in_what_was_written_is_refused_at_once_and_not_at_the_resume(checkpoints, tmp_path):
    def write(folder: Path) -> None:
        (folder / "model").symlink_to(tmp_path)

    with pytest.raises(CheckpointError, match="model is a symbolic link"):
        checkpoints.save(10, write)


def test_a_run_outlives_two_misses_and_gives_up_at_the_third_in_a_row():
    policy, error = SavePolicy(), CheckpointError(given="disk full", allowed="a free GB", fix="Free it.")
    assert "1 of 3 failures in a row" in policy.missed(error)
    policy.saved()
    assert "1 of 3" in policy.missed(error)
    assert "2 of 3" in policy.missed(error)
    with pytest.raises(
        CheckpointError, match="3 checkpoints in a row could not be saved; the last one: disk full"
    ) as caught:
        policy.missed(error)
    assert (caught.value.allowed, caught.value.fix) == ("a free GB", "Free it.")


def test_a_run_does_not_outlive_the_miss_of_a_checkpoint_that_it_needs():
    error = CheckpointError(given="disk full")
    with pytest.raises(CheckpointError) as caught:
        SavePolicy().missed(error, required=True)
    assert caught.value is error


# --- kill -9 ---------------------------------------------------------------------------------------------------------

FORK_AND_KILL = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from posttrain.store.checkpoint import Checkpoints, load_state, save_state, verify

folder, how = Path(sys.argv[1]), sys.argv[2]
checkpoints = Checkpoints(folder, keep=2)

def write(step):
    def fill(path):
        (path / "model").mkdir()
        for part in range(2):
            (path / "model" / f"part-{part}").write_bytes(bytes([step % 251]) * 20_000)
        save_state(path / "state", {"step": torch.full((500,), step)}, {"step": step})
    return fill

def save_for_ever(step):
    while True:
        step += 1
        checkpoints.save(step, write(step))

def kill_at_call(number):
    calls = 0
    def counted(real):
        def call(*arguments, **keywords):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **keywords)
        return call
    for name in ("fsync", "rename", "mkdir", "rmdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))

def run(step, number):
    ready, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(begins, b"x")
        if how == "calls":
            kill_at_call(number)
        save_for_ever(step)
    os.close(begins)
    os.read(ready, 1)  # on a busy machine it begins late
    os.close(ready)
    if how == "random":
        time.sleep(random.Random(number).uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status

step = checkpoints.save(1, write(1)).step
interrupted = 0
for number in range(1, int(sys.argv[3]) + 1):
    run(step, number)
    interrupted += any(".tmp-" in path.name for path in folder.iterdir())
    for path in folder.iterdir():
        assert ".tmp-" in path.name or not isinstance(verify(path), list), verify(path)
    newest = checkpoints.newest()
    assert not newest.skipped, newest.skipped
    assert newest.step >= step, "a checkpoint that was in place is gone"
    tensors, plain = load_state(newest.state)
    assert plain == {"step": newest.step} and (tensors["step"] == newest.step).all()
    step = newest.step
print(interrupted)
"""


def kill_and_count(folder: Path, how: str, kills: int) -> int:
    result = run_code(FORK_AND_KILL, str(folder), how, str(kills))
    assert result.exit_code == 0, result.errors
    return int(result.printed)


@pytest.mark.slow
def test_killed_at_20_random_moments_of_saving_the_newest_is_always_complete(tmp_path):
    assert kill_and_count(tmp_path, "random", 20) >= 5, "hardly any kill hit a save: the test shows nothing"


def test_killed_at_each_step_of_saving_the_newest_is_always_complete(tmp_path):
    """At the first, second ... 40th fsync, rename, mkdir, rmdir or unlink: a save with its pruning takes about 30
    calls."""
    assert kill_and_count(tmp_path, "calls", 40) >= 20


def test_every_file_and_folder_is_on_the_disk_before_the_rename_and_the_rename_after_it(checkpoints, monkeypatch):
    """A power cut requires this, and no kill can test it."""
    log: list[tuple[str, int]] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (log.append(("fsync", os.fstat(descriptor).st_ino)), fsync(descriptor))
    )
    monkeypatch.setattr(os, "rename", lambda a, b: (log.append(("rename", os.stat(a).st_ino)), rename(a, b)))
    saved = checkpoints.save(10, write_small)
    renamed = log.index(("rename", saved.path.stat().st_ino))
    inside = {path.stat().st_ino for path in (saved.path, *saved.path.rglob("*"))}
    assert {number for _, number in log[:renamed]} == inside
    assert log[renamed + 1 :] == [("fsync", checkpoints.folder.stat().st_ino)]


# --- state -----------------------------------------------------------------------------------------------------------


def test_the_state_of_an_optimizer_comes_back_bit_for_bit(tmp_path):
    tensors = {
        "optimizer": {"0": {"step": torch.tensor(3.0), "exp_avg": torch.randn(3, 4)}, "1": {}},
        "rng": torch.arange(16, dtype=torch.uint8),
        "nothing": {},
        "half": torch.tensor([1e-8, float("nan"), -0.0], dtype=torch.bfloat16),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
        "strided": torch.arange(6.0).reshape(2, 3).T,
    }
    plain = {"learning_rate": 0.1 + 0.2, "big": 2**70, "none": None, "list": [1, [2.5, "ü"]], "inf": float("inf")}
    save_state(tmp_path, tensors, plain)
    back, back_plain = load_state(tmp_path)
    assert back_plain == plain
    assert back["nothing"] == {}
    assert back["optimizer"]["1"] == {}
    for name in ("rng", "half", "double", "empty", "flags", "strided"):
        assert back[name].dtype == tensors[name].dtype
        assert back[name].shape == tensors[name].shape
        assert back[name].view(torch.uint8).equal(tensors[name].contiguous().view(torch.uint8))
    assert back["optimizer"]["0"]["exp_avg"].equal(tensors["optimizer"]["0"]["exp_avg"])
    assert back["optimizer"]["0"]["step"].shape == ()


def test_tied_weights_and_views_are_saved_each_on_its_own(tmp_path):
    weight = torch.arange(6.0).reshape(2, 3)
    save_state(tmp_path, {"embedding": weight, "head": weight, "row": weight[1]}, None)
    back, _ = load_state(tmp_path)
    assert back["embedding"].equal(weight)
    assert back["head"].equal(weight)
    assert back["row"].tolist() == [3.0, 4.0, 5.0]


def test_loaded_tensors_are_aligned_like_those_that_torch_makes(tmp_path):
    """Mapped from the file, most would start at an odd multiple of 4 bytes: sums may then round differently."""
    save_state(tmp_path, {f"t{i}": torch.zeros(i + 1, 7) for i in range(20)}, None)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in load_state(tmp_path)[0].values())


@pytest.mark.parametrize(
    ("tensors", "plain", "message"),
    [
        ({}, {"betas": (0.9, 0.999)}, "plain.betas: a tuple would not be read back as the same value"),
        ({}, {"groups": [{0: "a"}]}, r"plain.groups\[0\]: the key 0 would come back as a string"),
        ({"step": 3}, None, "step: a int is not a tensor; put it into `plain`"),
        ({"a/b": torch.zeros(1)}, None, "'a/b': names of tensors are strings without '/'"),
    ],
)
def test_state_that_would_come_back_changed_is_refused(tmp_path, tensors, plain, message):
    with pytest.raises(TypeError, match=message):
        save_state(tmp_path, tensors, plain)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(plain=json_values)
def test_every_json_value_comes_back_as_it_was(tmp_path_factory, plain):
    folder = tmp_path_factory.mktemp("state")
    save_state(folder, {}, plain)
    assert load_state(folder) == ({}, plain)


def test_a_model_folder_without_state_cannot_be_resumed(tmp_path):
    with pytest.raises(CheckpointError, match="holds no training state that can be read"):
        load_state(tmp_path)


def test_size_counts_the_bytes_of_every_tensor():
    trees = {"a": torch.zeros(3, dtype=torch.float64), "b": {"c": torch.zeros(5, dtype=torch.bfloat16)}}, {"step": 3}
    assert size_of(*trees) == 34


def test_a_checkpoint_knows_where_its_model_and_its_state_are(checkpoints):
    saved = checkpoints.save(10, write_small)
    assert isinstance(saved, Checkpoint)
    assert (saved.model.name, saved.state.name) == ("model", "state")
    assert saved.model.is_dir()
    assert saved.state.is_dir()
