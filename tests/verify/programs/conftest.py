"""Give judged programs more time than usual, so that programs that end on their own do so on any machine."""

import pytest

from posttrain.verify.programs import verify


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SECONDS", 120.0)
