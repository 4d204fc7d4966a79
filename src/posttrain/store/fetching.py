"""Downloads the run behind a URL to this machine, to resume it or to read it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path, PurePosixPath

import psutil

from posttrain.config.urls import is_url, working_folder, wrong_url
from posttrain.errors import ConfigError, StorageError
from posttrain.files import within_disk
from posttrain.store import claim
from posttrain.store.checkpoint import MANIFEST, Checkpoint, verify
from posttrain.store.claim import Claim
from posttrain.store.ledger import keep_ledger, read_ledger, stamp_of
from posttrain.store.remote import Gone, RemoteFolder, at_the_start
from posttrain.store.run_store import holds_run, require_run

_OF_CHECKPOINT = re.compile(r"(checkpoints/step-(\d{6,}))/.+")
ATTEMPTS = 3
"""Attempts to download a live run: a listed file may be pruned before it is read."""
Say = Callable[[str], None]


def folder_to_resume(run: str | PathLike[str], say: Say = lambda text: None) -> Path:
    """Return the folder in which a run can be resumed. For a URL, this is its working folder. Unless this machine wrote
    last, the folder is filled from the URL, with the newest intact checkpoint.

    Raises ConfigError if the URL cannot be used, if nothing can be resumed or if another process writes the run, and
    StorageError if the storage fails later.
    """
    if not is_url(run):
        return Path(run)
    remote, folder, is_newest = _open(run)
    if is_newest and holds_run(folder):
        return folder
    names = remote.sizes()
    _require_run(remote, names)
    writer = secrets.token_hex(8)
    mine = Claim(remote, writer)
    with at_the_start():
        mine.take()  # before reading, so that nobody else writes in the meantime
    try:
        say(f"fetching {remote.url} into {folder}")
        with _filled(remote, folder, say, checkpoints=True) as part:
            keep_ledger(part, remote.url, writer, {name: stamp_of(part / name) for name in _names(part)})
            if folder.exists():
                aside = _free(folder, "before")
                os.rename(folder, aside)
                say(f"{folder} is older than {remote.url}, and was renamed to {aside}")
    except BaseException:
        mine.give_back()
        raise
    mine.end()
    return folder


def folder_to_read(run: str | PathLike[str], *, checkpoints: bool = False) -> Path:
    """Return a folder with the files of a run. For a URL, this is its working folder if this machine wrote last, else a
    fresh copy, because the run may still train. With `checkpoints`, the copy has the newest intact checkpoint."""
    if not is_url(run):
        return Path(run)
    remote, folder, is_newest = _open(run)
    if is_newest:
        return folder
    _require_run(remote, remote.sizes())
    place = folder.with_name(f"{folder.name}.copy")
    with _filled(remote, place, lambda text: None, checkpoints=checkpoints):
        shutil.rmtree(place, ignore_errors=True)
    return place


def _open(run: str | PathLike[str]) -> tuple[RemoteFolder, Path, bool]:
    """Return the URL, its working folder, and whether this folder was the last to write the run."""
    url = os.fspath(run)
    if (error := wrong_url("RUN", url)) is not None:
        raise error
    remote, folder = RemoteFolder(url), working_folder(url)
    with at_the_start():
        kept, last = read_ledger(folder), claim.newest(remote)
    return remote, folder, kept is not None and last is not None and last.writer == kept.writer


def _require_run(remote: RemoteFolder, names: Iterable[str]) -> None:
    if "config.yaml" not in names:
        raise ConfigError(
            given=f"{remote.url} holds no run (it has no config.yaml)",
            allowed="the URL of a run that was started before",
            fix="Use the URL in the run's `output`, or start a run with `posttrain train CONFIG`.",
        )


@contextmanager
def _filled(remote: RemoteFolder, folder: Path, say: Say, *, checkpoints: bool) -> Iterator[Path]:
    """Download the URL into a temporary folder, and rename it to `folder` at the end: all or nothing."""
    for left in folder.parent.glob(f".{folder.name}.part-*"):
        if not psutil.pid_exists(int(left.name.rpartition("-")[2])):  # its process was killed
            shutil.rmtree(left, ignore_errors=True)
    part = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    try:
        with within_disk(folder):
            for attempt in range(ATTEMPTS):
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                try:
                    _fetch(remote, part, say, checkpoints=checkpoints)
                    break
                except Gone as error:
                    if attempt == ATTEMPTS - 1:
                        raise StorageError(
                            given=error.given,
                            allowed="a run whose files stay until they are read",
                            fix="Try again when nothing else changes the files there.",
                        ) from None
            require_run(part)
            yield part
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fetch(remote: RemoteFolder, folder: Path, say: Say, *, checkpoints: bool) -> None:
    names = [name for name in remote.sizes() if not claim.is_of_claims(name) and _is_plain(name)]
    for name in names:
        if _OF_CHECKPOINT.fullmatch(name) is None:
            remote.get(name, folder / name)
    whole = [
        name.rpartition("/")[0] for name in names if name.endswith(f"/{MANIFEST}") and _OF_CHECKPOINT.fullmatch(name)
    ]
    for checkpoint in sorted(whole, key=lambda one: int(one.rpartition("-")[2]), reverse=True) if checkpoints else ():
        for name in (name for name in names if name.startswith(f"{checkpoint}/")):
            remote.get(name, folder / name)
        found = verify(folder / checkpoint)
        if isinstance(found, Checkpoint):
            return
        say(f"{remote.url}: skipped a damaged checkpoint: " + "; ".join(map(str, found)))


def _is_plain(name: str) -> bool:
    """Is the name a relative path inside the folder? Anyone may have chosen the names behind a URL."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def _names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _free(folder: Path, word: str) -> Path:
    names = (folder.with_name(f"{folder.name}.{word}-{number}") for number in range(1, 10_000))
    return next(name for name in names if not name.exists())
