"""A judge server for the runs that show the effect of each judge setting, and the table of those settings."""

from __future__ import annotations

import hashlib
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.rewards.judge.server import Server, serving


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = free_port()
URL = f"http://127.0.0.1:{PORT}/v1"
KEY = "JUDGE_KEY_OF_THE_TESTS"

SERVED = {"model": "judge", "url": URL, "mode": "score", "cache": False, "retries": 1}
SLOW, FLAKY = SERVED | {"url": f"{URL}/slow"}, SERVED | {"url": f"{URL}/flaky"}
ONCE = SERVED | {"url": f"{URL}/once", "cache": "said"}
SAMPLED = SERVED | {"temperature": 0.5}
HERE = {"model": "judge_model", "mode": "score", "cache": False, "max_tokens": 2}

VERDICTS: dict[str, tuple[dict[str, Any], Any]] = {
    "model": (SERVED, "another"),
    "url": (SERVED, f"{URL}/other"),
    "api_key_env": (SERVED, KEY),
    "mode": (SERVED, "reference"),
    "against": (SERVED | {"mode": "reference"}, "hint"),
    "rubric": (SERVED, "Be strict."),
    "template": (SERVED, "judge.txt"),
    "strip_reasoning": (SERVED, False),
    "samples": (SAMPLED, 3),
    "temperature": (SERVED, 0.5),
    "top_p": (SAMPLED, 0.5),
    "max_tokens": (SERVED, 99),
    "request": (SERVED, {"user": "me"}),
}
"""Settings that change the request or its receiver: the judge to show each with, and another value."""

LOSSES: dict[str, tuple[dict[str, Any], Any]] = {
    "timeout": (SLOW, 0.02),
    "deadline": (SLOW, 0.02),
    "retries": (FLAKY, 0),
    "max_calls": (SERVED, 3),
    "max_total_tokens": (SERVED, 300),
}
"""Settings that leave answers unscored."""


class HashedVerdicts(Server):
    """A server whose verdict is a function of every byte of the request.

    /slow takes its time, /flaky fails every first attempt, and /once fails every attempt but the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def begin(self, body: dict[str, Any], key: str | None, path: str) -> tuple[int, dict[str, str]] | None:
        fault = super().begin(body, key, path)
        self.seconds = 0.3 if "slow" in path else 0.0
        sent = json.dumps([path, body])
        self.seen[sent] += 1
        fails = ("flaky" in path and self.seen[sent] % 2) or ("once" in path and self.seen[sent] > 1)
        return (503, {}) if fails else fault

    def reply(self, body: dict[str, Any], key: str | None, path: str) -> bytes:
        number = hashlib.sha256(json.dumps([path, key, body]).encode()).digest()[0]
        question = body["messages"][0]["content"]
        verdict = ("correct", "incorrect")[number % 2] if "<reference" in question else "AB"[number % 2]
        text = f"Score: {number % 6}" if "Score: N" in question else f"Verdict: {verdict}"
        return self.completion(text)


@contextmanager
def verdicts_by_hash() -> Iterator[None]:
    with serving(HashedVerdicts(), port=PORT):
        yield
