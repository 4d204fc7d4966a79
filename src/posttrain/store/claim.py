"""Who writes the run behind a URL. No lock of the kernel reaches there, so whoever writes it says so again and again.

    .writers/000002.json   {"writer": a working folder, "by": "pid 4711 on HOST (12ab34cd)", "beat": 17}

beat: null once it has ended.

The file with the highest number says who may write. Each claim makes the next number, and only where there is no such
file yet: of several who begin or take over in the same instant one gets it, and the others are refused. Nobody else
writes into it, so a process that was stopped for a while cannot undo a claim that came after its own.

A writer that died leaves its beat where it was: after `WATCHED` seconds without another one it is taken over. It asks
before each file that it writes or removes, and then changes nothing more. No clocks are compared.

Storage that ignores the condition lets two make the same number. The later content stays, and whoever finds another
name in its file, which it reads with each beat and before each change, has lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from posttrain.errors import ConfigError, StorageError
from posttrain.store.remote import Gone, RemoteFolder, Taken

FOLDER = ".writers"
BEAT = 15.0
"""Seconds between two signs of life."""
WATCHED = 3 * BEAT
_ATTEMPTS = 3
"""At the newest claim: what was listed may be given back before it is read."""


class Writer(NamedTuple):
    """What a file says."""

    number: int
    writer: str
    by: str
    beat: int | None

    @property
    def is_silent(self) -> bool:
        """Has it ended properly, or died on this machine?"""
        return self.beat is None or _has_died(self.by)


class Claim:
    """The right to write a run, as long as its beats go on."""

    def __init__(self, remote: RemoteFolder, writer: str) -> None:
        """`writer` names the working folder; a process that goes on with it takes its own claim over at once."""
        self.remote, self.writer = remote, writer
        self._number, self._beat, self._by = 0, 0, f"pid {os.getpid()} on {_machine()}"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Claims the URL for a new run. Raises ConfigError if it is not empty."""
        self._refuse_used()
        self.take()
        try:
            self._refuse_used()  # by whoever had it until now
        except BaseException:
            self.give_back()
            raise

    def take(self) -> None:
        """Claims the URL for a resumed run. Raises ConfigError if another process writes to it."""
        before = newest(self.remote)
        if before is not None and before.writer != self.writer:
            _await_end(self.remote, before)
        self._number = (0 if before is None else before.number) + 1
        with suppress(Taken):  # which the client that tried again may have done itself: `require` looks into the file
            self.remote.create(_name(self._number), self._content())
        self.require()
        self._thread = threading.Thread(target=self._beats, name="claim", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise ConfigError where another process has taken it."""
        found: Writer | None = read(self.remote, self._number)
        if found is not None and (found.writer, found.by) == (self.writer, self._by):
            last = max(_numbers(self.remote), default=0)
            if last <= self._number:
                return
            found = read(self.remote, last)
        raise ConfigError(
            given=f"{self.remote.url} is being written by another process ({'unknown' if found is None else found.by})",
            allowed="one process per run",
            fix=f"`posttrain resume {self.remote.url}` continues from there once that process has ended.",
        )

    def end(self, *, remove: bool = False) -> None:
        """Let go of it: whoever goes on need not wait. Earlier claims are removed, and this one as well if `remove`."""
        if not self._stop():
            return
        with suppress(StorageError, ConfigError):
            self.require()
            if not remove:
                self.remote.write(_name(self._number), self._content(ended=True))
            past = [number for number in _numbers(self.remote) if number < self._number + remove]
            self.remote.remove([_name(number) for number in past])

    def give_back(self) -> None:
        """As if it had never been taken: whoever had written last still has."""
        if not self._stop():
            return
        with suppress(StorageError, ConfigError):
            self.require()
            self.remote.remove([_name(self._number)])

    def abandon(self) -> None:
        """Say nothing more, and ask nobody: it is taken over as that of a process that died."""
        self._ended.set()

    def _stop(self) -> bool:
        """No beat comes any more. False where one is under way for so long that the claim may be taken over as that of
        a process that died: it would come after whatever is said now."""
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
                fix=f"`posttrain resume {self.remote.url}` continues a run; set output to another URL for a new one.",
            )


def is_of_claims(name: str) -> bool:
    """Does a file behind the URL belong to those who write the run, and not to the run?"""
    return name.startswith(f"{FOLDER}/")


def newest(remote: RemoteFolder) -> Writer | None:
    """Who has the run, or had it last; None where nobody ever wrote."""
    for _ in range(_ATTEMPTS):
        numbers = _numbers(remote)
        if not numbers:
            break
        if (found := read(remote, max(numbers))) is not None:
            return found
    return None


def read(remote: RemoteFolder, number: int) -> Writer | None:
    """What the file of this number says; None where there is none. What cannot be understood was written by nobody."""
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
    """Return once this writer is silent. Raises ConfigError where a beat comes, or somebody else takes it over."""
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
                fix="Wait until it has ended, or end it; to run beside it, set output to another URL.",
            )
        before = now  # a lower number: the claim was given back


def _machine() -> str:
    """Its name, and what tells containers of one name apart: the kernel's start, and the name space of pids."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        known = hashlib.sha256((start + os.readlink("/proc/self/ns/pid")).encode()).hexdigest()[:8]
    except OSError:  # no Linux
        known = "unknown"
    return f"{socket.gethostname()} ({known})"


def _has_died(by: str) -> bool:
    """Whether `pid 4711 on HOST (12ab34cd)` names a process of this machine that has ended."""
    match = re.fullmatch(r"pid (\d+) on (.+)", by)
    if match is None or match[2] != _machine():
        return False
    return int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))
