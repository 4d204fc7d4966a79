"""Programs that are judged have more time than usual: those that end by themselves shall do so on any machine."""

import pytest

from posttrain.verify.programs import verify


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SECONDS", 120.0)
