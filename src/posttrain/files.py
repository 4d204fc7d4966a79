"""Writing a file so that it is there as a whole or not at all, and saying what to do where there is no room for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from posttrain.errors import DoesNotFit

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a disk, a quota or the largest size of a file is reached."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file by one rename: a reader, or a kill at any moment, meets the old content or the new.

    Its folder is made. Several processes and threads may write the same file: the last one wins. Raises `DoesNotFit`
    where the disk is full and the system's OSError for all else, with nothing left behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with within_disk(path):
        _replace(path, draft, content, durable=False)


def write_durably(path: Path, content: str | bytes) -> None:
    """The same for a file of one writer; the new content survives a loss of power once this has returned.

    What a kill leaves behind has one name, and the next writing takes it away.
    """
    with within_disk(path):
        _replace(path, path.with_name(f".{path.name}.tmp"), content, durable=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def within_disk(path: Path) -> Iterator[None]:
    """A disk that is full becomes `DoesNotFit`, which names what was written; other errors pass.

    >>> with within_disk(Path("runs/demo/report.html")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    posttrain.errors.DoesNotFit: ...
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DoesNotFit(
            given=f"{path} cannot be written: {error.strerror}",
            allowed="a disk with room for it",
            fix="Free some space and go on: `posttrain resume FOLDER` continues a run; or choose a folder on another "
            "disk.",
        ) from error


def _replace(path: Path, draft: Path, content: str | bytes, *, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename == str(draft):
            error.filename = str(path)  # nobody knows the name of the draft
        raise
