"""Numbers on disk that seal themselves: float32 values, then their SHA-256, in one file.

A file is written under a name that nobody else has and renamed when it is complete, so whatever stands under the final
name is of one writer, whole, and can be checked without a second file. It is never changed afterwards: a name that is
written again gets another file, and those who have the old one open, or another link to it, keep it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from posttrain.errors import DoesNotFit

SEAL = hashlib.sha256().digest_size
ABANDONED_AFTER = 3600.0
"""Seconds without a write after which a draft that nobody has locked is that of a process that was killed."""


def read_values(file: Path, count: int) -> np.ndarray | None:
    """The numbers in the file, mapped and not read into memory; None for a file that is missing or damaged."""
    try:
        with file.open("rb") as content:
            if os.fstat(content.fileno()).st_size != 4 * count + SEAL or not _is_whole(content, 4 * count):
                return None
            return _mapped(content, count)
    except OSError:
        return None


def write_values(file: Path, parts: Iterator[np.ndarray], count: int) -> np.ndarray:
    """Write the numbers and return them, mapped. Raises DoesNotFit where there is no room."""
    draft = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(file)
        if shutil.disk_usage(file.parent).free < 4 * count + SEAL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with draft.open("w+b") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # as long as this process writes
            digest = hashlib.sha256()
            for part in parts:
                content = np.ascontiguousarray(part, dtype=np.float32).tobytes()
                digest.update(content)
                out.write(content)
            out.write(digest.digest())
            out.flush()
            os.fsync(out.fileno())
            draft.replace(file)
            return _mapped(out, count)
    except OSError as error:
        raise _no_room(file, count, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def share(file: Path, other: Path, count: int) -> None:
    """Let `other` be the same file, or a copy of it where the two are on different disks; nothing without a file."""
    if not file.exists():
        return
    draft = other.with_name(f"{other.stem}.{uuid.uuid4().hex}.part")
    try:
        other.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(other)
        try:
            os.link(file, draft)
        except OSError:
            shutil.copyfile(file, draft)
        draft.replace(other)
    except OSError as error:
        raise _no_room(other, count, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()  # the rename of a link onto a link of the same file leaves both


def _is_whole(content, size: int) -> bool:  # type: ignore[no-untyped-def]
    """Whether the first `size` bytes have the hash that follows them."""
    digest = hashlib.sha256()
    while size and (part := content.read(min(size, 1 << 20))):
        digest.update(part)
        size -= len(part)
    return not size and content.read() == digest.digest()


def _mapped(content, count: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.memmap(content, np.float32, mode="r", shape=(count,)) if count else np.zeros(0, np.float32)


def _remove_abandoned(file: Path) -> None:
    """Drafts of this file whose writer does not live any more: they are old, and their lock can be had."""
    for draft in file.parent.glob(f"{file.stem}.*.part"):
        with suppress(OSError), draft.open("r+b") as content:
            fcntl.flock(content, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(content.fileno()).st_mtime > ABANDONED_AFTER:
                draft.unlink()


def _no_room(file: Path, count: int, error: OSError) -> DoesNotFit:
    return DoesNotFit(
        given=f"the reference log-probabilities of {count:,} tokens cannot be written to {file.parent} ({error})",
        allowed=f"a folder that can be written, with {4 * count / 1e6:,.0f} MB of room",
        fix="Make room, or name another folder for what is kept in the environment variable POSTTRAIN_CACHE.",
    )
