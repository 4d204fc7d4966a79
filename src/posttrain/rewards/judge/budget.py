"""What a judge may cost, and what it has cost so far: in this process, and in the run before it was resumed."""

from __future__ import annotations

import json
import threading
from pathlib import Path


class Budget:
    """Calls and tokens of one judge; safe to use from several threads."""

    def __init__(self, max_calls: int | None = None, max_tokens: int | None = None) -> None:
        self.max_calls, self.max_tokens = max_calls, max_tokens
        self.calls = self.tokens = 0
        self._lock = threading.Lock()
        self._ledger: Path | None = None
        self._written = (0, 0)

    def allow(self) -> str:
        """Count one more call and return ""; or say why there may be none."""
        with self._lock:
            if self.max_calls is not None and self.calls >= self.max_calls:
                return f"the budget of {self.max_calls} calls (judge.max_calls) is spent"
            if self.max_tokens is not None and self.tokens >= self.max_tokens:
                return f"the budget of {self.max_tokens} tokens (judge.max_total_tokens) is spent"
            self.calls += 1
            return ""

    def add_tokens(self, tokens: int) -> None:
        with self._lock:
            self.tokens += tokens

    def keep_in(self, ledger: Path) -> None:
        """Go on from what the ledger of the run says, and write on in it."""
        if ledger.exists():
            spent = [json.loads(line) for line in ledger.read_text().splitlines() if line.endswith("}")]
            self.calls += sum(entry["calls"] for entry in spent)
            self.tokens += sum(entry["tokens"] for entry in spent)
        self._ledger, self._written = ledger, (self.calls, self.tokens)

    def write(self) -> None:
        """Add what was spent since the last time; a resumed run drops steps, but never this."""
        spent = {"calls": self.calls - self._written[0], "tokens": self.tokens - self._written[1]}
        if self._ledger is None or not any(spent.values()):
            return
        self._ledger.parent.mkdir(parents=True, exist_ok=True)
        with self._ledger.open("a") as file:
            file.write(json.dumps(spent) + "\n")
        self._written = (self.calls, self.tokens)
