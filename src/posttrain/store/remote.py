"""A folder behind a URL, as fsspec opens it: whole files that are put, read and removed, and nothing else.

Object stores put a file at once, and have no rename. Where there are folders (file://), a file is put beside its place
and renamed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from posttrain.config.text import redact
from posttrain.config.urls import PACKAGES
from posttrain.errors import ConfigError, StorageError

T = TypeVar("T")
PART = ".part-"
"""In the names of files that are not whole yet, where there are folders."""


class Gone(StorageError):
    """It is not there, or not there any more."""


class Taken(StorageError):
    """It is there already."""


class RemoteFolder:
    """Every method raises `StorageError` with the cause, without secrets."""

    def __init__(self, url: str) -> None:
        """Connects with nothing yet. Raises ConfigError where the package for the protocol is not installed."""
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
        """A file of this machine, in place of what is there. Raises FileNotFoundError where the file has gone."""
        self._do(
            name, lambda: self._at_once(name, lambda path: self._files.put_file(str(file), path), os.replace), file
        )

    def write(self, name: str, content: bytes) -> None:
        self._do(name, lambda: self._at_once(name, lambda path: self._files.pipe_file(path, content), os.replace))

    def create(self, name: str, content: bytes) -> None:
        """Only where there is no file of this name; of several who try at once, one succeeds. Raises `Taken`."""
        how = {} if self.has_folders else {"mode": "create"}
        self._do(name, lambda: self._at_once(name, lambda path: self._files.pipe_file(path, content, **how), os.link))

    def _at_once(self, name: str, write: Callable[[str], None], settle: Callable[[str, str], None]) -> None:
        """An object store does so by itself; where there are folders, beside its place, which it takes by `settle`."""
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
        """Copy it into a new file of this machine."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._do(name, lambda: self._files.get_file(self._path(name), str(file)))

    def sizes(self, below: str = "") -> dict[str, int]:
        """Bytes of each file in the folder `below`, by its name there; empty where nothing is."""
        place = self._path(below)
        found = self._do(below, lambda: self._files.find(place, detail=True))
        start = self._files._strip_protocol(place).rstrip("/") + "/"
        sizes = {path.removeprefix(start): int(info["size"]) for path, info in found.items() if info["type"] == "file"}
        return {name: size for name, size in sizes.items() if name}

    def remove(self, names: Iterable[str]) -> None:
        """Files; one that is not there is removed already. Folders that become empty go with them."""
        for name in names:
            try:
                self._do(name, lambda name=name: self._files.rm_file(self._path(name)))
            except Gone:
                continue
            for above in list(PurePosixPath(name).parents)[:-1] if self.has_folders else ():
                try:
                    self._files.rmdir(self._path(str(above)))
                except OSError:  # it holds something else
                    break

    def _path(self, name: str) -> str:
        assert ".." not in PurePosixPath(name).parts, "names lead downwards"
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _do(self, name: str, call: Callable[[], T], file: Path | None = None) -> T:
        """Packages for fsspec raise whatever their clients raise: here it becomes one kind of error."""
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


def cause_of(error: BaseException) -> str:
    """In one line, without secrets. An error of the system alone has a number, and one of a client its own words."""
    words: Any = " ".join(str(error).split()) or type(error).__name__
    named = words if type(error).__name__ in words else f"{words} ({type(error).__name__})"
    return str(redact(named))[:400]
