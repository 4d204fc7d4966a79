"""The budget of a judge and its cost so far, in this process and in the run before it was resumed.

    <run>/judgements/spent-rewards-judge.jsonl     {"calls": 1, "tokens": 0} before a request is sent,
                                                   {"calls": 0, "tokens": 812} when its reply has arrived

A killed process has therefore recorded all of its requests. A resumed run drops steps, but never this record.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

from posttrain.files import within_disk


class Budget:
    """The calls and tokens of one judge. Safe to use from several threads."""

    def __init__(self, max_calls: int | None = None, max_tokens: int | None = None) -> None:
        self.max_calls, self.max_tokens = max_calls, max_tokens
        self.calls = self.tokens = 0
        self._lock = threading.Lock()
        self._ledger: Path | None = None
        self._cut = False
        """Does the ledger end with an incomplete line?"""
        self._failure: OSError | None = None

    def allow(self) -> str:
        """Count one more call and return "", or return the reason why no call is allowed."""
        with self._lock:
            if self.max_calls is not None and self.calls >= self.max_calls:
                return f"the budget of {self.max_calls} calls (judge.max_calls) is spent"
            if self.max_tokens is not None and self.tokens >= self.max_tokens:
                return f"the budget of {self.max_tokens} tokens (judge.max_total_tokens) is spent"
            if not self._note(calls=1):
                return f"the judge's cost cannot be saved: {self._failure}"
            self.calls += 1
            return ""

    def add_tokens(self, tokens: int) -> None:
        with self._lock:
            self.tokens += tokens
            self._note(tokens=tokens)

    def keep_in(self, ledger: Path) -> None:
        """Continue from the totals in the run's ledger, and append to it.

        A line that a kill has cut counts as one call: it is better to spend too little than too much.
        """
        content = ledger.read_bytes() if ledger.exists() else b""
        for line in content.splitlines():
            calls, tokens = _spent(line)
            self.calls += calls
            self.tokens += tokens
        self._ledger, self._cut = ledger, not content.endswith(b"\n") and bool(content)

    def raise_failure(self) -> None:
        """Raise the error that kept the ledger from being written, once: `DoesNotFit` for a full disk."""
        failure, self._failure = self._failure, None
        if failure is not None:
            assert self._ledger is not None
            with within_disk(self._ledger):
                raise failure

    def _note(self, calls: int = 0, tokens: int = 0) -> bool:
        """Write one line with one system call. False if that fails."""
        if self._ledger is None:
            return True
        line = json.dumps({"calls": calls, "tokens": tokens}).encode() + b"\n"
        try:
            self._ledger.parent.mkdir(parents=True, exist_ok=True)
            with self._ledger.open("ab", buffering=0) as file:
                line = b"\n" + line if self._cut else line
                self._cut = True
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._cut = False
        except OSError as error:
            self._failure = error
            return False
        return True


def _spent(line: bytes) -> tuple[int, int]:
    """Calls and tokens of a line. An empty line counts nothing, and an unreadable line counts as one call.

    >>> _spent(b'{"calls": 0, "tokens": 7}'), _spent(b'{"calls": 1, "to'), _spent(b"")
    ((0, 7), (1, 0), (0, 0))
    """
    if not line.strip():
        return 0, 0
    try:
        entry = json.loads(line)
        return int(entry["calls"]), int(entry["tokens"])
    except (ValueError, LookupError, TypeError):
        return 1, 0
