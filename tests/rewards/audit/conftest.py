"""Audits that a slow machine does not change."""

import pytest

from posttrain.rewards.audit import speed, surroundings


@pytest.fixture(autouse=True)
def _patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that blocks is watched for 12 s, and on a busy machine for longer than a probe may take."""
    monkeypatch.setattr(surroundings, "PROBE_SECONDS", 600.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For rewards that have nothing to hide: a machine that stalls, or is slow, is not held against them."""
    monkeypatch.setattr(speed, "DEADLINE", 30.0)
    monkeypatch.setattr(surroundings, "STALL_LIMIT", 5.0)
