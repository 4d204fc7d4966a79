"""What tests do on a machine that has no sandbox."""

from __future__ import annotations

from typing import NoReturn

import pytest


def no_sandbox(reason: str) -> NoReturn:
    """Skip, for this reason. A sandbox that starts but does not hold is no reason: then the test fails."""
    if "a program in it could" in reason or "the self-test ended" in reason:
        pytest.fail(f"the sandbox does not hold: {reason}")
    pytest.skip(f"this machine does not offer it: {reason}")
