"""Threads that wait for each other soon sleep, unless the user chooses otherwise or torch was imported before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.processes import run_code

SAYS = "import os; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"


def policy(code: str, **settings: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_WAIT", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {SAYS}"], capture_output=True, text=True, env=kept | settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "settings", "expected"),
    [
        ("import posttrain", {}, "None 30000"),
        ("import posttrain", {"OMP_WAIT_POLICY": "active"}, "active None"),
        ("import posttrain", {"GOMP_SPINCOUNT": "100"}, "None 100"),
    ],
    ids=["by default", "the user's policy", "the user's number of turns"],
)
def test_threads_soon_sleep_unless_the_user_says_otherwise(code, settings, expected):
    assert policy(code, **settings) == expected


def test_nothing_changes_if_torch_was_there_before():
    """The process is forked from one that has imported torch, and imports posttrain anew."""
    code = f"""
import os, sys, torch
for name in [name for name in sys.modules if name.partition(".")[0] == "posttrain"]:
    del sys.modules[name]
for name in [name for name in os.environ if name.startswith(("OMP_WAIT", "GOMP_", "KMP_"))]:
    del os.environ[name]
import posttrain
{SAYS}
"""
    ended = run_code(code)
    assert (ended.exit_code, ended.printed) == (0, "None None\n"), ended.errors
