"""Sandboxes of each tier that works here, and a process of an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.verify.missing import no_sandbox

from posttrain.verify.sandbox import Limits, Sandbox, SandboxUnavailable, open_sandbox

ROOT = Path(__file__).parents[3]
TIERS = ("landlock", "bubblewrap")
USER = 54_321
"""The user id of nobody, for the tests that root runs as another user."""
PATIENT = Limits(wall=120, cpu=60)
"""Deadline in seconds for programs that end on their own, generous enough for a busy machine."""


def opened(tier: str) -> Sandbox:
    if tier == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    try:
        return open_sandbox(tier, PATIENT, size=2)
    except SandboxUnavailable as error:
        no_sandbox(error.given)


@pytest.fixture(scope="session", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of each tier, after its self-test."""
    with opened(request.param) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def landlock() -> Iterator[Sandbox]:
    """A sandbox for tests that are the same in every tier."""
    with opened("landlock") as sandbox:
        yield sandbox


@pytest.fixture
def run_as() -> Iterator[Callable[..., Any]]:
    """Run a script as `root` or as a `user`; returns the JSON that it prints."""

    home = tempfile.mkdtemp()  # not in pytest's own folder, which others may not enter; remembers no self-test
    os.chmod(home, 0o777)

    def run(who: str, script: str, *arguments: str) -> Any:
        if who == "root" and os.getuid() != 0:
            pytest.skip("only root can test what root gets")
        other = who == "user" and os.getuid() == 0
        places = [str(ROOT), str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
        environment = {"PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": os.pathsep.join(places)}
        ran = subprocess.run(
            [interpreter_for_others() if other else sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            cwd="/",
            **({"user": USER, "group": USER, "extra_groups": []} if other else {}),
        )
        if "SandboxUnavailable" in ran.stderr:
            no_sandbox(ran.stderr[ran.stderr.rindex("SandboxUnavailable") :])
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    yield run
    shutil.rmtree(home)


def interpreter_for_others() -> str:
    """An interpreter that an ordinary user may run; root's own may be in root's home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")):
        try:
            subprocess.run([str(path), "-c", ""], check=True, capture_output=True, user=USER, group=USER, cwd="/")
            return str(path)
        except (OSError, subprocess.CalledProcessError):
            continue
    pytest.skip(f"no Python {version} that another user may run")
