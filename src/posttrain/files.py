"""Reading and writing the files of a run: atomically, never through a link, and with retries while the disk is full.

A run folder may come from an untrusted source. A symbolic link in it would let a run truncate, delete or show a file
elsewhere. A pipe would block its reader, and an endless file would fill the memory. `open_inside` refuses all of them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePath
from typing import Any, TypeVar

from posttrain.errors import ConfigError, DoesNotFit

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of the system for a full disk, an exhausted quota and a file of the largest possible size."""
MAY_PASS = (errno.ENOSPC, errno.EDQUOT)
"""Those of them that may go away when another program frees space."""
MOST_BYTES = 128_000_000
"""Size of the largest file that is read whole from a folder that may come from anywhere, in bytes."""
ANY_SIZE = sys.maxsize - 1
"""Limit for the files of the run itself, whose answers may be long: there is none."""

T = TypeVar("T")


# --- writing ----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file by one rename. A reader finds the old content or the new, even if this process is killed.

    The folder is made if needed. Several processes and threads may write the same file: the last one wins. Raises
    `DoesNotFit` if the disk is full, and the system's OSError for any other reason; no draft is left behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with within_disk(path):
        _replace(path, draft, content, durable=False)


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file that has a single writer. Once this has returned, the new content survives a power failure.

    A killed writer may leave a draft behind; the next write removes it. If the disk is full, this waits for a while.
    """
    with within_disk(path):
        _durably(path, path, content)


def append(path: Path, content: bytes) -> None:
    """Append `content` to a file, all of it or nothing. If the disk is full, this waits for a while."""

    def write() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    PATIENCE.until_written(path, write)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Damaged(ValueError):
    """A sealed file differs from what was written. The message names the file and what is wrong with it."""


class Missing(Damaged):
    """A sealed file does not exist."""


def write_sealed(path: Path, content: str | bytes) -> None:
    """Write a file as `write_durably` does, and a seal next to it: no JSON parser notices a digit that changed on disk.

    The seal holds the hashes of the new content and of the old. So the file still fits its seal if this process is
    killed between the two writes.
    """
    content = content.encode() if isinstance(content, str) else content
    before = [hashlib.sha256(path.read_bytes()).hexdigest()] if path.is_file() else []
    with within_disk(path):
        _durably(_seal_of(path), path, "\n".join([hashlib.sha256(content).hexdigest(), *before]) + "\n")
        _durably(path, path, content)


@contextmanager
def open_sealed(folder: Path, name: str, most: int = ANY_SIZE) -> Iterator[BufferedReader]:
    """Open a sealed file that fits its seal, to read it line by line. Files of earlier versions have no seal.

    Raises `Missing` if there is no such file, and `Damaged` if it cannot be read, has more than `most` bytes or does
    not fit its seal.
    """
    try:
        with os.fdopen(open_inside(folder, name), "rb") as file:
            _require_size(file, most, folder / name)
            if not _fits_seal(file, folder, name):
                raise Damaged(f"{name} has changed since it was written (its sha256 differs)")
            yield file
    except FileNotFoundError:
        raise Missing(f"{name} is missing") from None
    except OSError as error:
        raise Damaged(f"{name} cannot be read ({error.strerror or error})") from error


def _fits_seal(file: BufferedReader, folder: Path, name: str) -> bool:
    """Whether a file has no seal, or a hash that its seal holds. Afterwards the file is at its beginning again."""
    seal = _seal_of(PurePath(name))
    if not os.path.lexists(folder / seal):
        return True
    sums = read_inside(folder, seal).decode("ascii", errors="replace").split()
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return found in sums


def read_sealed(folder: Path, name: str, most: int = ANY_SIZE) -> bytes:
    """The content of a sealed file, exactly as `write_sealed` received it. Raises as `open_sealed` does."""
    with open_sealed(folder, name, most) as file:
        return file.read()


def read_sealed_json(folder: Path, name: str, most: int = ANY_SIZE) -> Any:
    """The JSON value of a sealed file. NaN and infinity count as damage, because posttrain never writes them there."""
    content = read_sealed(folder, name, most)
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is not JSON ({error})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


AnyPath = TypeVar("AnyPath", bound=PurePath)


def _seal_of(path: AnyPath) -> AnyPath:
    return path.with_name(f".{path.name}.sha256")


class Patience:
    """How long to wait when a disk is full: another program may be about to free some space."""

    def __init__(self, seconds: float, interval: float = 1.0) -> None:
        self.seconds, self.interval = seconds, interval
        self._waited, self._said = 0.0, False

    def until_written(self, path: Path, write: Callable[[], T]) -> T:
        """Call `write` until it succeeds, and return its result. Raises its OSError when the patience has run out. Each
        success renews the patience."""
        while True:
            try:
                written = write()
            except OSError as error:
                if error.errno not in MAY_PASS or not self.lasts(path):
                    raise
            else:
                self.renew()
                return written

    def renew(self) -> None:
        """Start counting from 0 again, after a successful write."""
        self._waited, self._said = 0.0, False

    def lasts(self, path: Path) -> bool:
        """Wait for one interval, with a warning the first time. Return False if the wait has been long enough."""
        if self._waited >= self.seconds:
            return False
        if not self._said:
            words = f"no room to write {path}: waiting up to {self.seconds:.0f} s for space on that disk"
            print(f"warning: {words}", file=sys.stderr, flush=True)
            self._said = True
        time.sleep(self.interval)
        self._waited += self.interval
        return True


PATIENCE = Patience(seconds=float(os.environ.get("POSTTRAIN_DISK_PATIENCE", "300")))


@contextmanager
def within_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into `DoesNotFit`, which names the file; let other errors pass.

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
            fix="Free some space, then continue the run with `posttrain resume FOLDER`; or choose a folder on another "
            "disk.",
        ) from error


def errno_of(error: BaseException) -> int | None:
    """The error number of the system, or None. Libraries written in Rust (safetensors, tokenizers) raise their own
    exceptions, even a plain `Exception`, and give the number only in the message.

    >>> errno_of(Exception("No space left on device (os error 28)"))
    28
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    named = re.search(r"os error (\d+)", str(error))
    return int(named[1]) if named else None


def _durably(path: Path, named: Path, content: str | bytes) -> None:
    """Write `path` durably. `named` is the file that the warning about a full disk names."""
    draft = path.with_name(f".{path.name}.tmp")
    PATIENCE.until_written(named, lambda: _replace(path, draft, content, durable=True))
    sync(path.parent)


def _replace(path: Path, draft: Path, content: str | bytes, *, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        draft.unlink(missing_ok=True)  # left by a killed writer, or a link that somebody put there
        with open(draft, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename == str(draft):
            error.filename = str(path)  # the user does not know the name of the draft
        raise


# --- reading a folder that may come from anywhere ---------------------------------------------------------------------


def open_inside(folder: Path, name: str | PurePath, flags: int = os.O_RDONLY) -> int:
    """Open the regular file `name` below `folder` without following links, and return its descriptor.

    Raises OSError if any part of the path is a link, or if the file is a pipe, a socket or a device. Never blocks.
    """
    *above, last = PurePath(name).parts
    assert ".." not in above, "names of files in a run folder lead downwards"
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in above:
            inner = _open_at(place, part, os.O_RDONLY | os.O_DIRECTORY, folder / name)
            os.close(place)
            place = inner
        found = _open_at(place, last, flags | os.O_NONBLOCK, folder / name)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "is not a regular file", str(folder / name))
    return found


def read_inside(folder: Path, name: str | PurePath, most: int = MOST_BYTES) -> bytes:
    """The content of a file, opened by `open_inside`. Also raises OSError if the file has more than `most` bytes."""
    with os.fdopen(open_inside(folder, name), "rb") as file:
        return file.read(_require_size(file, most, folder / name))


def _require_size(file: BufferedReader, most: int, path: Path) -> int:
    """The size of an open file in bytes. Raises OSError above `most`."""
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise OSError(errno.EFBIG, f"has {size:,} bytes, more than {most:,}", str(path))
    return size


def names_inside(folder: Path, name: str) -> list[str]:
    """The names in a folder below `folder`, sorted; empty if it is missing, a link or a file."""
    try:
        place = os.open(folder / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        return sorted(os.listdir(place))
    finally:
        os.close(place)


def is_inside(folder: Path, name: str | PurePath) -> bool:
    """Whether `open_inside` can open a regular file of this name."""
    try:
        os.close(open_inside(folder, name))
    except (OSError, ValueError):
        return False
    return True


def require_plain(folder: Path, but: tuple[str, ...] = ("tracking/wandb",)) -> None:
    """Raise ConfigError if anything below a run's folder is neither a file nor a folder. Call it before opening files.

    `but` names folders to skip: other programs fill them with links, and posttrain opens no file in them.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                kind = "a symbolic link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
                raise ConfigError(
                    given=f"{path} is {kind}",
                    allowed="plain files and folders: the target of a link is never read, changed or shown",
                    fix="Remove it, or replace it by a copy of its target.",
                )
        folders[:] = [name for name in folders if Path(parent, name).relative_to(folder).as_posix() not in but]


def _open_at(place: int, name: str, flags: int, path: Path) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=place)
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(place, name)
        words = "is a symbolic link, or is reached through one" if is_link else error.strerror
        raise OSError(errno.ELOOP if is_link else error.errno, words, str(path)) from None


def _is_link(place: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=place).st_mode)
    except OSError:
        return False
