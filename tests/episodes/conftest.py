"""What a test of environments has started must end with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import psutil
import pytest

WORD = "STARTED_BY_TEST"


@pytest.fixture
def started(monkeypatch) -> Callable[[], list[psutil.Process]]:
    """The processes that this test has started and that live, whoever is their parent now."""
    word = secrets.token_hex(8)
    monkeypatch.setenv(WORD, word)

    def living() -> list[psutil.Process]:
        found = psutil.process_iter(["environ", "status"])
        own = [process for process in found if (process.info["environ"] or {}).get(WORD) == word]
        return [process for process in own if process.info["status"] != psutil.STATUS_ZOMBIE]

    return living
