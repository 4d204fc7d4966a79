"""Who writes the run behind a URL. No lock of the kernel reaches there, so whoever writes it says so again and again.

    .writer.json   {"writer": a working folder, "by": "pid 4711 on HOST (12ab34cd)", "beat": 17}

beat: null once it has ended.

The file is made only where there is none, so that of two runs that begin at once one is refused. A writer that died
leaves its beat where it was: after `WATCHED` seconds without another one it is taken over. It asks
before each file that it writes or removes, and then changes nothing more. No clocks are compared.
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
from typing import Any

import psutil

from posttrain.errors import ConfigError, StorageError
from posttrain.store.remote import Gone, RemoteFolder, Taken

FILE = ".writer.json"
BEAT = 15.0
"""Seconds between two signs of life."""
WATCHED = 3 * BEAT


class Claim:
    """The right to write a run, as long as its beats go on."""

    def __init__(self, remote: RemoteFolder, writer: str) -> None:
        """`writer` names the working folder; a process that goes on with it takes its own claim over at once."""
        self.remote, self.writer = remote, writer
        self._beat, self._by = 0, f"pid {os.getpid()} on {_machine()}"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Of a new run. Raises ConfigError where the URL holds something."""
        try:
            self.remote.create(FILE, self._content())
        except Taken:
            self._refuse_used(self.remote.sizes())
            _await_end(self.remote)
            self.remote.write(FILE, self._content())
        found = self.remote.sizes()
        if set(found) - {FILE}:
            with suppress(StorageError):
                self.remote.remove([FILE])
            self._refuse_used(found)
        self.require()
        self._live()

    def take(self) -> None:
        """Of a run that goes on. Raises ConfigError where another process writes it."""
        found = read(self.remote)
        if found.get("writer") != self.writer:
            _await_end(self.remote)
        self.remote.write(FILE, self._content())
        self.require()
        self._live()

    def require(self) -> None:
        """Raise ConfigError where another process has taken it."""
        found = read(self.remote)
        if found.get("writer") != self.writer:
            raise ConfigError(
                given=f"{self.remote.url} is being written by another process ({found.get('by', 'unknown')})",
                allowed="one process per run",
                fix=f"`posttrain resume {self.remote.url}` goes on from there, once that process has ended.",
            )

    def end(self, *, remove: bool = False) -> None:
        """Let go of it: whoever goes on need not wait."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1)
        with suppress(StorageError):
            if read(self.remote).get("writer") == self.writer:
                self.remote.remove([FILE]) if remove else self.remote.write(FILE, self._content(ended=True))

    def _live(self) -> None:
        self._thread = threading.Thread(target=self._beats, name="claim", daemon=True)
        self._thread.start()

    def _beats(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(StorageError, ConfigError):
                self.require()
                self._beat += 1
                if not self._ended.is_set():
                    self.remote.write(FILE, self._content())

    def _content(self, *, ended: bool = False) -> bytes:
        return json.dumps({"writer": self.writer, "by": self._by, "beat": None if ended else self._beat}).encode()

    def _refuse_used(self, found: dict[str, int]) -> None:
        if set(found) - {FILE}:
            what = "a run" if "config.yaml" in found else "files"
            raise ConfigError(
                given=f"output = {self.remote.url}, which holds {what} already",
                allowed="a URL below which there is nothing yet",
                fix=f"`posttrain resume {self.remote.url}` continues a run; set output to another URL for a new one.",
            )


def read(remote: RemoteFolder) -> dict[str, Any]:
    """What the file says; nothing where there is none, or none that can be understood."""
    try:
        found = json.loads(remote.read(FILE))
    except (Gone, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _await_end(remote: RemoteFolder) -> None:
    """Return once nobody writes. Raises ConfigError where a beat comes."""
    before = read(remote)
    until = time.monotonic() + WATCHED
    while before and before.get("beat") is not None and not _has_died(str(before.get("by"))):
        if time.monotonic() > until:
            return
        time.sleep(WATCHED / 30)
        now = read(remote)
        if now.get("beat") is not None and now != before:
            raise ConfigError(
                given=f"{remote.url} is being written by another process ({now.get('by', 'unknown')})",
                allowed="one process per run",
                fix="Wait until it has ended, or end it; set output to another URL for a run beside it.",
            )
        before = now


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
