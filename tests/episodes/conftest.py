"""Every process that a test of environments has started must end with the test."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import psutil
import pytest

from posttrain.child import LocalChild
from posttrain.episodes import sessions

WORD = "STARTED_BY_TEST"


@pytest.fixture
def started(monkeypatch) -> Callable[[], list[psutil.Process]]:
    """The living processes that this test has started, even if they have another parent now."""
    word = secrets.token_hex(8)
    monkeypatch.setenv(WORD, word)

    def living() -> list[psutil.Process]:
        found = psutil.process_iter(["environ", "status"])
        own = [process for process in found if (process.info["environ"] or {}).get(WORD) == word]
        return [process for process in own if process.info["status"] != psutil.STATUS_ZOMBIE]

    return living


@pytest.fixture(autouse=True)
def hosts_of_a_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start hosts as a run does in tests that look for processes by their environment."""
    if "started" in request.fixturenames:
        monkeypatch.setattr(sessions, "LocalChild", LocalChild)
