"""The claim of a process to write the run behind a URL. Kernel locks do not work there, so the writer sends heartbeats.

    .writers/000002.json   {"writer": a working folder, "by": "pid 4711 on HOST (12ab34cd)", "beat": 17}

`beat` is null once the writer has ended.

The file with the highest number names the process that may write. A claim creates the file with the next number, on the
condition that it does not exist yet. If several processes start or take over in the same instant, one succeeds and the
others are refused. Only its owner writes a file, so a process that was suspended cannot undo a later claim.

If a writer dies, its beat stops; after `WATCHED` seconds without a new beat, another process can take over. A writer
checks its claim before it writes or removes a file. If it has lost the claim, it changes nothing more. No clocks are
compared.

Some storage ignores the condition, and two processes can create the same number. Then the later content stays. Each
writer reads its file at each beat and before each change. If the file names another process, the writer has lost.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from contextlib import suppress
from typing import NamedTuple

import psutil

from posttrain.errors import ConfigError, StorageError
from posttrain.owner import pid_here, this_process
from posttrain.shown import shown
from posttrain.store.remote import Gone, RemoteFolder, Taken

FOLDER = ".writers"
BEAT = 15.0
"""Seconds between two heartbeats."""
WATCHED = 3 * BEAT
_ATTEMPTS = 3
"""Attempts to read the newest claim: a listed claim may be given back before it is read."""


class Writer(NamedTuple):
    """The content of a claim file."""

    number: int
    writer: str
    by: str
    beat: int | None

    @property
    def is_silent(self) -> bool:
        """Has the writer ended properly, or died on this machine?"""
        return self.beat is None or _has_died(self.by)


class Claim:
    """The right to write a run, as long as its heartbeats continue."""

    def __init__(self, remote: RemoteFolder, writer: str) -> None:
        """`writer` names the working folder. The next process with this folder takes the claim over immediately."""
        self.remote, self.writer = remote, writer
        self._number, self._beat, self._by = 0, 0, this_process()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Claim the URL for a new run. Raises ConfigError if it is not empty."""
        self._refuse_used()
        self.take()
        try:
            self._refuse_used()  # again: the previous writer may have written in between
        except BaseException:
            self.give_back()
            raise

    def take(self) -> None:
        """Claim the URL for a resumed run. Raises ConfigError if another process writes to it."""
        before = newest(self.remote)
        if before is not None and before.writer != self.writer:
            _await_end(self.remote, before)
        self._number = (0 if before is None else before.number) + 1
        with suppress(Taken):  # perhaps by a retry of our own client: `require` reads the file to find out
            self.remote.create(_name(self._number), self._content())
        self.require()
        self._thread = threading.Thread(target=self._beats, name="claim", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise ConfigError if another process has taken the claim."""
        found: Writer | None = read(self.remote, self._number)
        if found is not None and (found.writer, found.by) == (self.writer, self._by):
            last = max(_numbers(self.remote), default=0)
            if last <= self._number:
                return
            found = read(self.remote, last)
        raise ConfigError(
            given=f"{self.remote.url} is being written by another process ({'unknown' if found is None else found.by})",
            allowed="one process per run",
            fix=f"`posttrain resume {shown(self.remote.url)}` continues from there once that process has ended.",
        )

    def end(self, *, remove: bool = False) -> None:
        """Release the claim, so that the next writer need not wait. Earlier claims are removed; with `remove`, so is
        this one."""
        if not self._stop():
            return
        with suppress(StorageError, ConfigError):
            self.require()
            if not remove:
                self.remote.write(_name(self._number), self._content(ended=True))
            past = [number for number in _numbers(self.remote) if number < self._number + remove]
            self.remote.remove([_name(number) for number in past])

    def give_back(self) -> None:
        """Undo the claim: the previous writer is again the newest."""
        if not self._stop():
            return
        with suppress(StorageError, ConfigError):
            self.require()
            self.remote.remove([_name(self._number)])

    def abandon(self) -> None:
        """Stop the heartbeats without any request: others can then take over as from a dead process."""
        self._ended.set()

    def _stop(self) -> bool:
        """Stop the heartbeats. Returns false if one has been in flight for so long that others may take over: it could
        then arrive after anything that is written now."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=WATCHED)
        return self._thread is None or not self._thread.is_alive()

    def _beats(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(StorageError, ConfigError):
                self.require()
                self._beat += 1
                if not self._ended.is_set():
                    self.remote.write(_name(self._number), self._content())

    def _content(self, *, ended: bool = False) -> bytes:
        return json.dumps({"writer": self.writer, "by": self._by, "beat": None if ended else self._beat}).encode()

    def _refuse_used(self) -> None:
        found = [name for name in self.remote.sizes() if not is_of_claims(name)]
        if found:
            what = "a run" if "config.yaml" in found else "files"
            raise ConfigError(
                given=f"output = {self.remote.url}, which already holds {what}",
                allowed="a URL below which there is nothing yet",
                fix=f"`posttrain resume {shown(self.remote.url)}` continues a run; set output to another URL "
                "for a new one.",
            )


def is_of_claims(name: str) -> bool:
    """Is a file behind the URL a claim, and not a part of the run?"""
    return name.startswith(f"{FOLDER}/")


def newest(remote: RemoteFolder) -> Writer | None:
    """Return the current or last writer of the run; None if there never was one."""
    for _ in range(_ATTEMPTS):
        numbers = _numbers(remote)
        if not numbers:
            break
        if (found := read(remote, max(numbers))) is not None:
            return found
    return None


def read(remote: RemoteFolder, number: int) -> Writer | None:
    """Read the claim file of this number; None if it is missing. An invalid file counts as written by nobody."""
    try:
        found = json.loads(remote.read(_name(number)))
        return Writer(number, str(found["writer"]), str(found["by"]), found["beat"])
    except Gone:
        return None
    except (ValueError, LookupError, TypeError):
        return Writer(number, "", "unknown", None)


def _numbers(remote: RemoteFolder) -> list[int]:
    found = (re.fullmatch(r"(\d{6})\.json", name) for name in remote.sizes(FOLDER))
    return sorted(int(match[1]) for match in found if match)


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def _await_end(remote: RemoteFolder, before: Writer) -> None:
    """Wait until this writer is silent. Raises ConfigError if it sends a heartbeat or another process takes over."""
    until = time.monotonic() + WATCHED
    while not before.is_silent and time.monotonic() <= until:
        time.sleep(WATCHED / 30)
        now = newest(remote)
        if now is None:
            return
        if now.number > before.number or (now.number == before.number and now.beat not in (before.beat, None)):
            raise ConfigError(
                given=f"{remote.url} is being written by another process ({now.by})",
                allowed="one process per run",
                fix="Wait until it has ended, or end it. To run at the same time, set output to another URL.",
            )
        before = now  # a lower number: the claim was given back


def _has_died(by: str) -> bool:
    """Does `pid 4711 on HOST (12ab34cd)` name a process of this machine that has ended?"""
    pid = pid_here(by)
    return pid is not None and (pid == os.getpid() or not psutil.pid_exists(pid))
