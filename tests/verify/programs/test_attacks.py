"""A program earns nothing unless it solves its task, and none escapes: in each tier, as root and as an ordinary
user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.verify.missing import no_sandbox
from tests.verify.programs.withstand import SECRET

from posttrain.errors import SandboxUnavailable
from posttrain.rewards.code_runner import CodeRunner
from posttrain.verify.programs import code
from posttrain.verify.programs.attacks import (
    ASSERTIONS,
    ATTACKS,
    CALL_TESTS,
    HONEST,
    HONEST_STDIO,
    SCRIPT,
    STDIO,
    Scene,
    fenced,
)
from posttrain.verify.sandbox import open_sandbox

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
NOBODY = 65_534


def interpreter_for(user: int | None) -> str:
    """A Python of our version that this user may start: ours, or the system's."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")):
        options: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        try:
            subprocess.run([str(path), "-c", ""], check=True, capture_output=True, cwd="/", **options)
        except (OSError, subprocess.CalledProcessError):
            continue
        return str(path)
    pytest.skip(f"no Python {version} that an ordinary user may start")


ALL = tuple(attack.name for attack in ATTACKS)
ON_THE_TIER = (
    *("read_environment", "read_other_environ", "open_memory", "read_file", "write_outside", "write_shared_memory"),
    *("symlink_out", "fill_disk", "signal_trainer", "signal_all", "trace_trainer", "write_trainer", "new_namespace"),
    *("fork_once", "start_program", "daemon", "tcp", "unix_socket", "datagram", "busy", "memory", "forks"),
)
"""The attacks that the tier must stop; the grader, which is the same in each tier, stops the others."""


@pytest.mark.parametrize(
    ("tier", "as_root", "names", "seconds"),
    [
        ("landlock", False, ALL, 0.4),
        ("bubblewrap", True, ON_THE_TIER, 0.4),
        pytest.param("landlock", False, ALL, 1.5, marks=pytest.mark.slow),
        pytest.param("bubblewrap", True, ALL, 1.5, marks=pytest.mark.slow),
        pytest.param("landlock", True, ALL, 1.5, marks=pytest.mark.slow),
        pytest.param("bubblewrap", False, ALL, 1.5, marks=pytest.mark.slow),
    ],
)
def test_no_attack_is_paid_and_none_gets_out(tier: str, as_root: bool, names: tuple[str, ...], seconds: float):
    if as_root and os.getuid() != 0:
        pytest.skip("these tests run as an ordinary user")
    try:
        open_sandbox(tier).close()
    except SandboxUnavailable as error:
        no_sandbox(error.given)
    user = NOBODY if not as_root and os.getuid() == 0 else None
    options: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run(
        [interpreter_for(user), str(HERE / "withstand.py"), tier, str(seconds), *names],
        env={
            "PYTHONPATH": os.pathsep.join(
                [str(SOURCE), *(path for path in sys.path if path.endswith("site-packages"))]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/",
            "PATH": os.environ["PATH"],
        },
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=900,
        **options,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)

    assert (report["uid"] == 0) is as_root
    assert {name for name, *_ in report["verdicts"]} == set(names)
    assert [name for name, kind, value, *_ in report["verdicts"] if (kind, value) != ("value", 0.0)] == []
    assert report["written"] == report["left"] == []
    assert report["secret"]
    assert report["connected"] == [False, False]
    assert SECRET not in json.dumps(report["verdicts"])
    slowest = max(seconds for *_, seconds in report["verdicts"])
    assert slowest < 60  # the longest would never end; docs/code.md has the times on a quiet machine


@pytest.mark.parametrize(
    ("program", "tests"),
    [(HONEST, CALL_TESTS), (HONEST, ASSERTIONS), (HONEST, SCRIPT), (HONEST_STDIO, STDIO)],
)
def test_the_honest_program_is_paid_in_every_form(program: str, tests: dict[str, Any]):
    assert code(fenced(program), **tests, wall=60.0, cpu=60.0) == 1.0


@pytest.mark.filterwarnings("ignore:sandbox")
@pytest.mark.parametrize("name", ["read_environment", "write_outside", "read_file", "fork_once", "start_program"])
def test_the_probes_do_get_out_where_nothing_holds_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The negative control: with `unsafe`, the same programs earn the reward."""
    (tmp_path / "secret").write_text(SECRET)
    scene = Scene(str(tmp_path), str(tmp_path / "secret"))
    attack = next(attack for attack in ATTACKS if attack.name == name)
    monkeypatch.setenv("POSTTRAIN_TOKEN", SECRET)
    runner = CodeRunner({"sandbox": "unsafe"})
    try:
        [outcome] = runner.run(
            [{"completion": fenced(attack.source(scene)), **CALL_TESTS}], {"wall": 60.0, "cpu": 60.0}, 120.0
        )
    finally:
        runner.close()
    assert outcome.value == (0.0 if name == "read_environment" else 1.0)  # the environment is empty even there


NAIVE = """
import json, sys
names = {}
exec(sys.stdin.read(), names)
tests = json.loads(sys.argv[1])
assert all(names["solve"](n) == total for n, total in tests)
"""


@pytest.mark.parametrize("name", ["exit_on_import", "equal_object", "equal_integer", "walk_frames", "patch_builtins"])
def test_a_grader_that_runs_program_and_tests_together_is_fooled(name: str):
    """This shows that the attacks are worth a defence."""
    attack = next(attack for attack in ATTACKS if attack.name == name)
    tests = json.dumps([[n, n * (n + 1) // 2] for n in (10, 100)])
    done = subprocess.run(
        [sys.executable, "-c", NAIVE, tests],
        input=attack.source(Scene()),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_every_attack_has_a_name_and_says_what_it_tries():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 90
    assert all(attack.tries for attack in ATTACKS)
