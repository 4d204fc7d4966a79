"""A file is written whole or not at all. A full disk is reported as such, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.disks import FILL, on_a_small_disk

from posttrain.files import (
    MOST_BYTES,
    Damaged,
    open_sealed,
    read_sealed,
    write_atomically,
    write_durably,
    write_sealed,
)


@pytest.fixture(params=[write_durably, write_atomically, write_sealed], ids=lambda writer: writer.__name__)
def write(request):
    return request.param


def visible(folder: Path) -> list[Path]:
    """Return the files in a folder, except their seals."""
    return [path for path in folder.iterdir() if path.suffix != ".sha256"]


def test_the_content_is_there_and_nothing_else(write, tmp_path):
    path = tmp_path / "new" / "folder" / "a.json"
    for content in ("ä", b"\xff"):
        write(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert visible(path.parent) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


ON_A_FULL_DISK = (
    FILL
    + """
import sys
from pathlib import Path
from posttrain import files
from posttrain.errors import DoesNotFit
path = Path(sys.argv[1]) / "a.json"
for write in (files.write_durably, files.write_atomically, files.write_sealed, files.append):
    for file in path.parent.iterdir():
        file.unlink()
    write(path, b"old")
    fill(path.parent)
    try:
        with files.within_disk(path):
            write(path, b"new" * 10_000)
    except DoesNotFit as error:
        assert error.exit_code == 3 and "a.json cannot be written: No space left on device" in str(error), error
    else:
        sys.exit("written to a full disk")
    assert path.read_bytes() == b"old" and not list(path.parent.glob("*.tmp")), list(path.parent.iterdir())
"""
)


def test_a_full_disk_leaves_the_old_content_and_no_draft_and_exits_with_3(tmp_path):
    found = on_a_small_disk(ON_A_FULL_DISK, tmp_path)
    assert found.exit_code == 0, found.errors


FREED = (
    FILL
    + """
import os, sys, threading
from pathlib import Path
from posttrain import files
path = Path(sys.argv[1]) / "metrics.jsonl"
files.PATIENCE.interval = 0.05
for write in (files.write_durably, files.append):
    fill(path.parent)
    threading.Timer(0.5, os.remove, [path.parent / "filler"]).start()
    write(path, b"x" * 10_000)
assert path.stat().st_size == 20_000
"""
)


def test_a_disk_that_is_full_for_a_moment_costs_a_warning_and_no_byte(tmp_path):
    found = on_a_small_disk(FREED, tmp_path, patience=60)
    assert found.exit_code == 0, found.errors
    warnings = found.errors.splitlines()
    assert len(warnings) == 2, "one warning each time that the disk was full"
    assert all("metrics.jsonl: waiting up to 60 s for space on that disk" in warning for warning in warnings)


def test_other_errors_stay_what_they_are(write, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        write(tmp_path / "file" / "a.json", "")


KILLED = """
import os, sys
from pathlib import Path
from posttrain import files
os.replace = lambda *_: os._exit(9)
getattr(files, sys.argv[1])(Path(sys.argv[2]), "new" * 10**6)
"""


def test_a_kill_before_the_rename_leaves_the_old_content(write, tmp_path):
    path = tmp_path / "a.json"
    write(path, "old")
    killed = subprocess.run([sys.executable, "-c", KILLED, write.__name__, str(path)], check=False)
    assert killed.returncode == 9
    assert path.read_text() == "old"


def test_what_a_kill_left_of_a_durable_file_goes_with_the_next_writing(tmp_path):
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", KILLED, "write_durably", str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write_durably(path, "new")
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_write_the_same_file_do_not_meet(tmp_path: Path):
    path, errors = tmp_path / "a.json", []

    def work(text: str) -> None:
        try:
            for _ in range(50):
                write_atomically(path, text)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(letter * 10_000,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(path.read_text())) == 1
    assert len(path.read_text()) == 10_000


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_sealed_file_of_any_size_is_read_and_still_compared_with_its_seal(tmp_path):
    """Long answers make a file larger than what is read whole from a folder that may come from anywhere."""
    size = MOST_BYTES + 2
    write_sealed(tmp_path / "a.jsonl", b"x" * (size - 2) + b"\ny")
    assert len(read_sealed(tmp_path, "a.jsonl")) == size
    with open_sealed(tmp_path, "a.jsonl") as lines:
        assert [len(line) for line in lines] == [size - 1, 1]
    with pytest.raises(Damaged, match="more than 128,000,000"):
        read_sealed(tmp_path, "a.jsonl", MOST_BYTES)
    with open(tmp_path / "a.jsonl", "r+b") as file:
        file.write(b"y")
    with pytest.raises(Damaged, match="has changed since it was written"), open_sealed(tmp_path, "a.jsonl"):
        pass
