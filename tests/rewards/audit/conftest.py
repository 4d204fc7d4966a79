"""Audits that a slow machine does not change."""

import pytest

from posttrain.rewards.audit import speed, surroundings


@pytest.fixture(autouse=True)
def _patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit watches a reward that blocks for 12 s; on a busy machine that takes longer than a probe may."""
    monkeypatch.setattr(surroundings, "PROBE_SECONDS", 600.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixture for honest rewards: a machine that stalls or is slow does not count against them."""
    monkeypatch.setattr(speed, "DEADLINE", 30.0)
    monkeypatch.setattr(surroundings, "STALL_LIMIT", 5.0)
