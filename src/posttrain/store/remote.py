"""A folder behind a URL, opened with fsspec. It only writes, reads and removes whole files.

Object stores write a file atomically and have no rename. With real folders (file://), a file is written under a
temporary name next to its place and then renamed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from posttrain.config.text import redact
from posttrain.config.urls import PACKAGES
from posttrain.errors import ConfigError, StorageError

T = TypeVar("T")
PART = ".part-"
"""Part of the temporary name of an incomplete file (file:// only)."""


class Gone(StorageError):
    """The file does not exist, or no longer exists."""


class Taken(StorageError):
    """The file exists already."""


class RemoteFolder:
    """A folder behind a URL. Every method raises `StorageError` with the cause, without secrets."""

    def __init__(self, url: str) -> None:
        """Does not connect yet. Raises ConfigError if the package for the protocol is not installed."""
        self.url = url.rstrip("/")
        self.protocol = url.partition("://")[0]
        self.has_folders = self.protocol == "file"
        try:
            from fsspec.core import url_to_fs

            own = {"auto_mkdir": True} if self.has_folders else {}
            self._files, self._root = url_to_fs(self.url, use_listings_cache=False, **own)
        except ImportError as error:
            package = PACKAGES[self.protocol]
            raise ConfigError(
                given=f"{self.url}, but {package} is not installed ({error})",
                allowed=f"{package}, which opens {self.protocol}:// for fsspec",
                fix="pip install 'posttrain[s3]'" if self.protocol == "s3" else f"pip install {package}",
            ) from error

    def put(self, file: Path, name: str) -> None:
        """Upload a local file, replacing the remote one. Raises FileNotFoundError if the local file is gone."""
        self._do(
            name, lambda: self._at_once(name, lambda path: self._files.put_file(str(file), path), os.replace), file
        )

    def write(self, name: str, content: bytes) -> None:
        self._do(name, lambda: self._at_once(name, lambda path: self._files.pipe_file(path, content), os.replace))

    def create(self, name: str, content: bytes) -> None:
        """Create a file. Raises `Taken` if it exists. If several processes try at the same time, one succeeds."""
        how = {} if self.has_folders else {"mode": "create"}
        self._do(name, lambda: self._at_once(name, lambda path: self._files.pipe_file(path, content, **how), os.link))

    def _at_once(self, name: str, write: Callable[[str], None], settle: Callable[[str, str], None]) -> None:
        """Write atomically. Object stores do so themselves; with folders, write a temporary file, then `settle` it."""
        if not self.has_folders:
            write(self._path(name))
            return
        beside = f"{self._path(name)}{PART}{os.getpid()}-{threading.get_ident()}"
        try:
            write(beside)
            settle(beside, self._path(name))
        finally:
            with suppress(OSError):
                os.unlink(beside)

    def read(self, name: str) -> bytes:
        return self._do(name, lambda: self._files.cat_file(self._path(name)))

    def get(self, name: str, file: Path) -> None:
        """Download a file into a new local file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._do(name, lambda: self._files.get_file(self._path(name), str(file)))

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the size in bytes of each file in the folder `below`, by its name there; empty if there are none."""
        place = self._path(below)
        found = self._do("", lambda: self._files.find(place, detail=True))
        start = self._files._strip_protocol(place).rstrip("/") + "/"
        sizes = {path.removeprefix(start): int(info["size"]) for path, info in found.items() if info["type"] == "file"}
        return {name: size for name, size in sizes.items() if name}

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and the folders that become empty. A missing file is ignored."""
        for name in names:
            try:
                self._do(name, lambda name=name: self._files.rm_file(self._path(name)))
            except Gone:
                continue
            for above in list(PurePosixPath(name).parents)[:-1] if self.has_folders else ():
                try:
                    self._files.rmdir(self._path(str(above)))
                except OSError:  # the folder is not empty
                    break

    def _path(self, name: str) -> str:
        assert ".." not in PurePosixPath(name).parts, "names lead downwards"
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _do(self, name: str, call: Callable[[], T], file: Path | None = None) -> T:
        """Call, and turn every exception into StorageError: packages for fsspec raise the errors of their clients."""
        try:
            return call()
        except Exception as error:
            if file is not None and isinstance(error, FileNotFoundError) and not file.exists():
                raise
            kind = StorageError
            if isinstance(error, FileExistsError) or "PreconditionFailed" in f"{error!r}{error.__cause__!r}":
                kind = Taken
            elif isinstance(error, FileNotFoundError):
                kind = Gone
            raise kind(
                given=f"{self.url}{'/' if name else ''}{name}: {cause_of(error)}",
                allowed="storage that responds and has room, and credentials to list, read, write and delete there",
            ) from None


@contextmanager
def at_the_start(what: str = "") -> Iterator[None]:
    """Turn a StorageError into a ConfigError: if the first requests fail, the URL or the credentials are wrong. `what`
    is the beginning of its message."""
    try:
        yield
    except StorageError as error:
        raise ConfigError(
            given=f"{what}{error.given}",
            allowed=error.allowed,
            fix="Check the URL, the credentials in the environment, and the address of the storage (AWS_ENDPOINT_URL).",
        ) from None


def cause_of(error: BaseException) -> str:
    """Return the message of an error in one line, without secrets, with its type if the message does not name it."""
    words: Any = " ".join(str(error).split()) or type(error).__name__
    named = words if type(error).__name__ in words else f"{words} ({type(error).__name__})"
    return str(redact(named))[:400]
