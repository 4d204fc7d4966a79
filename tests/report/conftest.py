from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.synthetic_run import write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run that learned."""
    return write_run(tmp_path / "demo")
