"""Uploads the files of a run folder to the URL of the run during the run, and the rest at its end.

    a checkpoint   its files first, then all other files of the run, then its manifest
    a pruned one   its manifest is removed first
    other files    in their current state, every few seconds

So a checkpoint with a manifest is complete behind the URL, too, and a run that resumes from it finds everything that
the run wrote before it. A thread uploads, so no step waits. A failure is reported once and retried; the files stay on
this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from posttrain.errors import ConfigError, PosttrainError, StorageError
from posttrain.shown import shown
from posttrain.store import claim
from posttrain.store.checkpoint import MANIFEST
from posttrain.store.claim import Claim
from posttrain.store.ledger import LEDGER, Stamp, keep_ledger, read_ledger, stamp_of
from posttrain.store.remote import RemoteFolder, at_the_start, cause_of

EVERY = 5.0
"""Seconds between two looks at the folder."""
LONGEST = 60.0
"""Maximum seconds between two attempts while the storage does not answer."""
PATIENCE = 300.0
"""Seconds that the end of a run waits for storage that does not answer; POSTTRAIN_STORAGE_PATIENCE overrides it."""
RATE = 1e6
"""Maximum rate, in bytes per second, at which a growing file is uploaded again and again."""
SENDS = 3
"""Attempts to send a file that changes during the upload, before it waits for the next round."""

_CHECKPOINT = re.compile(r"(?P<folder>(?:.+/)?checkpoints)/step-(?P<step>\d{6,})/(?P<file>.+)")
_OWN = re.compile(
    r"\.lock|\.launcher|.*\.tmp|\.carried\.json|tracking/wandb/.*|\.job-.*|\.writers/.*|(.*/)?step-\d+\.tmp-.*|(.*/)?\.lock"
)
"""Files that belong to this machine or are not complete yet; they are never uploaded."""


class Changing(StorageError):
    """A file changed during every attempt to send it: the copy behind the URL may be neither the old nor the new."""


class Carrier:
    """The uploader of a run folder. It does nothing until `open` is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._claim: Claim | None = None

    def open(self, url: str, say: Callable[[str], None], *, keep: int, new: bool) -> None:
        """Claim the URL and start to upload. `say` shows a warning. `keep` is the number of checkpoints to keep behind
        the URL. `new`: the URL must be empty.

        Raises ConfigError if the URL cannot be written, or if another folder has written it since.
        """
        self.remote, self._say, self.keep, self._patience = RemoteFolder(url), say, keep, _patience()
        kept = read_ledger(self.folder)
        writer = kept.writer if kept is not None and kept.url == self.remote.url else secrets.token_hex(8)
        wanted = Claim(self.remote, writer)
        with at_the_start(f"output = {url} cannot be used: "):
            if new or not self.remote.sizes():  # empty if the run was killed before it uploaded anything
                wanted.begin()
            else:
                self._require_newest(writer)
                wanted.take()
            try:
                there = self.remote.sizes()
            except StorageError:
                wanted.give_back()
                raise
        self.url, self._claim, self._new = self.remote.url, wanted, new
        known = {} if kept is None or kept.url != self.url else kept.files
        self._there: dict[str, Stamp | None] = {name: known.get(name) for name in there if not claim.is_of_claims(name)}
        """Files behind the URL -> their local stamp when sent; None if the remote file may differ."""
        self._sent: dict[str, float] = {}
        self._num_put = 0
        self._carrying: int | None = None
        self._wake, self._lock, self._ended = threading.Event(), threading.RLock(), False
        self._lost: PosttrainError | None = None
        self._abandoned = False
        self._keep_ledger()
        self._thread = threading.Thread(target=self._work, name="carrier", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._claim is not None

    def wake(self) -> None:
        """Start a round of uploads now. Raises ConfigError if another process has taken the run over."""
        self.require()
        if self.is_open:
            self._wake.set()

    def require(self) -> None:
        """Raise ConfigError if the thread found that another process has taken the run over. Makes no request."""
        if self.is_open and self._lost is not None:
            raise self._lost

    def needs(self) -> set[int]:
        """Return the steps of the checkpoints that are being uploaded."""
        return {self._carrying} if self.is_open and self._carrying is not None else set()

    def finish(self, *, interrupted: bool = False) -> None:
        """Upload everything, then return. Raises StorageError with the cause if the storage does not answer for too
        long, and immediately if Ctrl-C has ended an earlier wait. `interrupted`: Ctrl-C has ended the run, so say what
        another Ctrl-C would do.
        """
        if not self.is_open:
            return
        if interrupted and not self._abandoned:
            self._say(f"sending the remaining files to {self.url}; Ctrl-C leaves them in {self.folder}")
        try:
            self._finish()
        except KeyboardInterrupt:
            self._abandoned = True
            raise

    def _finish(self) -> None:
        since, done, pause = time.monotonic(), self._num_put, 0.2
        while True:
            if self._abandoned:
                raise self.incomplete()
            try:
                self._carry(all_of_it=True)
                return
            except StorageError as error:
                if pause == 0.2:
                    self._say(
                        f"waiting up to {self._patience:.0f} s for {self.url} (Ctrl-C ends the wait, and leaves "
                        f"everything in {self.folder}): {error.given}"
                    )
                if self._num_put > done:
                    since, done = time.monotonic(), self._num_put
                if time.monotonic() - since > self._patience:
                    raise self.incomplete(error.given, error.allowed) from None
            time.sleep(pause)
            pause = min(2 * pause, EVERY)

    def incomplete(
        self, cause: str = "Ctrl-C ended the wait", allowed: str = "a wait until everything is there"
    ) -> StorageError:
        """Return the error that `finish` raises if not everything could be sent."""
        return StorageError(
            given=f"not everything could be sent to {self.url}: {cause}",
            allowed=allowed,
            fix=f"Nothing is lost: everything is in {self.folder}, and `posttrain resume {shown(self.folder)}` sends "
            "the rest.",
        )

    def close(self, *, begun: bool) -> None:
        """Stop uploading and release the URL. If a new run has not `begun`, remove its files there.

        If Ctrl-C has ended the wait for the storage, make no more requests.
        """
        if not self.is_open:
            return
        assert self._claim is not None
        self._ended, empty = True, self._new and not begun
        self._wake.set()
        if self._abandoned:
            self._claim.abandon()
            self._claim = None
            return
        with self._lock:  # wait for the upload in progress
            if empty and self._lost is None:
                with suppress(StorageError, ConfigError):
                    self._remove(list(self._there))
                (self.folder / LEDGER).unlink(missing_ok=True)
            self._claim.end(remove=empty)
            self._claim = None

    # --- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        failed, pause = "", EVERY
        while not self._ended:
            self._wake.wait(pause)
            self._wake.clear()
            if self._ended:
                return
            try:
                self._carry()
            except ConfigError as error:
                self._lost = error
                self._say(str(error))
                return
            except (PosttrainError, OSError) as error:  # from the storage or the local disk
                pause = min(2 * pause, LONGEST)
                cause = error.given if isinstance(error, PosttrainError) else cause_of(error)
                if not failed:
                    self._say(f"sending to {self.url} is suspended and will be tried again: {cause}")
                failed = cause
            else:
                if failed:
                    self._say(f"{self.url} answers again, and has everything")
                failed, pause = "", EVERY

    def _carry(self, *, all_of_it: bool = False) -> None:
        """Do one round of uploads. Raises StorageError, or ConfigError if the claim is lost."""
        with self._lock:
            self.require()
            files = dict(self._files())
            whole = {name.removesuffix(f"/{MANIFEST}") for name in files if name.endswith(f"/{MANIFEST}")}
            whole = {one for one in whole if _CHECKPOINT.fullmatch(f"{one}/{MANIFEST}")}
            for checkpoint in reversed(_by_step(whole)):
                self._carry_checkpoint(checkpoint, files)
            changing = self._carry_records(all_of_it=all_of_it)
            self._remove_pruned()
            if all_of_it:
                if changing is not None:
                    raise changing
                self._claim_is_ours()
                self._keep_ledger()

    def _carry_checkpoint(self, checkpoint: str, files: dict[str, Stamp]) -> None:
        """Upload a whole checkpoint, its manifest last, unless it is there already."""
        manifest = f"{checkpoint}/{MANIFEST}"
        if self._there.get(manifest) == files[manifest]:
            return
        self._carrying = int(checkpoint.rpartition("-")[2]) if checkpoint.startswith("checkpoints/") else None
        try:
            self._remove(name for name in (manifest,) if name in self._there)
            for name in (name for name in files if name.startswith(f"{checkpoint}/") and name != manifest):
                if self._there.get(name) != files[name]:
                    self._put(name, files[name])
            self._carry_records(all_of_it=True)
            self._put(manifest, files[manifest])
        except FileNotFoundError:  # it was pruned during the upload: a newer one comes next
            return
        finally:
            self._carrying = None
        self._keep_ledger()

    def _carry_records(self, *, all_of_it: bool) -> Changing | None:
        """Upload all other files that have changed. A large growing file waits for its turn, unless `all_of_it`. A file
        that changes during every attempt is sent again in the next round; returns the error for it, or None."""
        changing: Changing | None = None
        for name, stamp in self._files():
            if _CHECKPOINT.fullmatch(name) or self._there.get(name) == stamp or _is_seal(name):
                continue
            if not all_of_it and time.monotonic() - self._sent.get(name, -1e9) < stamp[0] / RATE:
                continue
            try:
                self._put_sealed(name, stamp) if self._seal(name).exists() else self._put(name, stamp)
            except FileNotFoundError:
                continue
            except Changing as error:
                changing = error
            self._sent[name] = time.monotonic()
        return changing

    def _put_sealed(self, name: str, stamp: Stamp) -> None:
        """Upload a sealed file after its seal, which holds the checksums of the previous and the new content."""
        seal = self._seal(name).relative_to(self.folder).as_posix()
        content, sums = (self.folder / name).read_bytes(), (self.folder / seal).read_bytes()
        if hashlib.sha256(content).hexdigest().encode() not in sums:
            return  # the run is writing it now: the next round sends it
        self._claim_is_ours()
        self.remote.write(seal, sums)
        self._claim_is_ours()
        self.remote.write(name, content)
        self._there[seal] = self._there[name] = stamp

    def _put(self, name: str, stamp: Stamp) -> None:
        """Upload a file, again if it changed meanwhile. Raises Changing if it changes during every attempt."""
        self._there[name] = None
        for _ in range(SENDS):
            self._claim_is_ours()
            self.remote.put(self.folder / name, name)
            before, stamp = stamp, stamp_of(self.folder / name)
            if stamp == before:
                self._there[name] = stamp
                self._num_put += 1
                return
        raise Changing(
            given=f"{self.folder / name} changed during each of {SENDS} attempts to send it to {self.url}",
            allowed="files that do not change while they are sent",
        )

    def _remove_pruned(self) -> None:
        """Remove remote files that no longer exist locally, except the newest checkpoints behind the URL."""
        here = {name for name, _ in self._files()}
        held = {name.rpartition("/")[0] for name in self._there if name.endswith(f"/{MANIFEST}")}
        newest = set[str]()
        for folder in {name.rpartition("/")[0] for name in held}:
            newest |= set(_by_step(name for name in held if name.rpartition("/")[0] == folder)[-self.keep :])
        gone = list[str]()
        for name in self._there:
            if name in here:
                continue
            match = _CHECKPOINT.fullmatch(name)
            if match is None or f"{match['folder']}/step-{match['step']}" not in newest:
                gone.append(name)
        self._remove(sorted(gone, key=lambda name: (not name.endswith(f"/{MANIFEST}"), name)))

    def _remove(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._claim_is_ours()
            self.remote.remove([name])
            self._there.pop(name, None)

    # --- the folder --------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[tuple[str, Stamp]]:
        """Yield the regular files to upload and their stamps. Links are not followed."""
        for parent, folders, names in os.walk(self.folder):
            folders.sort()
            for name in sorted(names):
                path = Path(parent, name)
                relative = path.relative_to(self.folder).as_posix()
                with suppress(FileNotFoundError):
                    if stat.S_ISREG(path.lstat().st_mode) and not _OWN.fullmatch(relative):
                        yield relative, stamp_of(path)

    def _seal(self, name: str) -> Path:
        path = self.folder / name
        return path.with_name(f".{path.name}.sha256")

    def _claim_is_ours(self) -> None:
        """Check the claim before each change: a process that was suspended for a while may have lost it."""
        assert self._claim is not None
        self._claim.require()

    def _require_newest(self, writer: str) -> None:
        """Raise ConfigError if another folder has continued the run."""
        last = claim.newest(self.remote)
        if last is None or last.writer != writer:
            by = "something else" if last is None else last.by
            raise ConfigError(
                given=f"{self.folder} is not the newest state of its run: {self.remote.url} has been written by "
                f"{by} since",
                allowed="the folder that wrote last, or the URL",
                fix=f"`posttrain resume {shown(self.remote.url)}`",
            )

    def _keep_ledger(self) -> None:
        assert self._claim is not None
        keep_ledger(self.folder, self.url, self._claim.writer, {n: s for n, s in self._there.items() if s is not None})


def _patience() -> float:
    name = "POSTTRAIN_STORAGE_PATIENCE"
    given = os.environ.get(name, str(PATIENCE))
    try:
        return float(given)
    except ValueError:
        raise ConfigError(
            given=f"the environment variable {name} is {given!r}", allowed="a number of seconds", fix=f"{name}=300"
        ) from None


def _by_step(checkpoints: Iterable[str]) -> list[str]:
    return sorted(checkpoints, key=lambda one: (int(one.rpartition("-")[2]), one))


def _is_seal(name: str) -> bool:
    last = PurePosixPath(name).name
    return last.startswith(".") and last.endswith(".sha256")
