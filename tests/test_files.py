"""A file is there as a whole or not at all; a full disk is said to be one, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from posttrain.errors import DoesNotFit
from posttrain.files import write_atomically, write_durably

WRITERS = {
    write_durably: lambda path: path.with_name(f".{path.name}.tmp"),
    write_atomically: lambda path: path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp"),
}


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.__name__)
def write(request):
    return request.param


def test_the_content_is_there_and_nothing_else(write, tmp_path):
    path = tmp_path / "new" / "folder" / "a.json"
    for content in ("ä", b"\xff"):
        write(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_full_disk_leaves_the_old_content_and_no_draft_and_exits_with_3(write, tmp_path):
    """/dev/full is a disk that is always full."""
    path = tmp_path / "a.json"
    write(path, "old")
    WRITERS[write](path).symlink_to("/dev/full")
    with pytest.raises(DoesNotFit, match=r"a\.json cannot be written: No space left on device") as caught:
        write(path, "new")
    assert caught.value.exit_code == 3
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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
