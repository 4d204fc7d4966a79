"""If the system refuses a path that a user named, the error says so and offers a fix. A fault of ours stays a fault."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.catalogue import catalogue
from tests.lab.experiments.test_children import RUN

from posttrain import environment
from posttrain.cli import run
from posttrain.cli.refused import FIXES, refusal
from posttrain.errors import ConfigError, DoesNotFit

SWEEP = "sweep base.yaml train.learning_rate=log(1e-4,1e-2) --out"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file in place of a folder, and a folder in place of a file."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(RUN))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@catalogue(
    "command, refused",
    [
        ("advise --data pairs --write missing/run.yaml", "missing/run.yaml cannot be read or written: No such file"),
        ("advise --data pairs --write file/run.yaml", "file/run.yaml cannot be read or written: Not a directory"),
        ("advise --data pairs --write /proc/run.yaml", "/proc/run.yaml cannot be read or written: No such file"),
        (f"advise --data pairs --write {'x' * 300}", "cannot be read or written: File name too long"),
        ("init file -y", "file"),
        ("init file/project -y", "file/project cannot be read or written: Not a directory"),
        ("init /proc/project -y", "/proc/project cannot be read or written: No such file"),
        ("compare base.yaml --algorithms grpo,rloo --out file", "file cannot be read or written: Not a directory"),
        ("compare base.yaml --algorithms grpo,rloo --out file/out", "file/out cannot be read or written: Not a dir"),
        ("compare base.yaml --algorithms grpo,rloo --out /proc/out", "/proc/out cannot be read or written: No such"),
        (f"{SWEEP} file", "file cannot be read or written: File exists"),
        (f"{SWEEP} file/out", "file/out cannot be read or written: Not a directory"),
        (f"{SWEEP} /proc/out", "/proc/out cannot be read or written: No such file"),
        ("train base.yaml --output /proc/run", "output = /proc/run, which cannot be written"),
        ("train base.yaml --output file/run", "output = file/run, which cannot be written"),
    ],
)
def test_a_path_that_cannot_be_written_is_exit_code_2_and_no_fault(folder, capfd, command, refused):
    before = sorted(folder.rglob("*"))
    assert run([*command.split(), "--json"]) == 2
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    error = json.loads(out)["error"]
    assert error["type"] == "ConfigError"
    assert refused in error["message"]
    assert "\n  " in error["message"], "the message must say how to fix it"
    assert sorted(folder.rglob("*")) == before
    assert (folder / "file").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["/proc/page.html", "file/page.html", "taken"])
def test_so_is_the_page_of_the_explorer(folder, capfd, place):
    assert run(["explore", "--out", place]) == 2
    err = capfd.readouterr().err
    assert "cannot be read or written" in err
    assert "Traceback" not in err


@catalogue("number", [*FIXES, errno.ENOSPC])
def test_every_kind_of_it_names_the_path_the_reason_and_a_way_out(number):
    found = refusal(OSError(number, os.strerror(number), "out/run.yaml"), ["--out=out/run.yaml"])
    assert isinstance(found, DoesNotFit if number == errno.ENOSPC else ConfigError)
    assert str(found).startswith("out/run.yaml cannot be")
    assert os.strerror(number) in found.given
    assert found.fix.endswith(".")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/elsewhere/weights.safetensors"),
        FileExistsError(errno.EEXIST, "File exists", "out/runs/a"),
        OSError(errno.EBADF, "Bad file descriptor", "out"),
        PermissionError(errno.EPERM, "Operation not permitted"),
        OSError("a library says something"),
    ],
)
def test_what_may_be_a_fault_of_ours_is_not_taken_for_a_mistake_of_the_user(error, monkeypatch, capfd):
    def fail() -> None:
        raise error

    assert refusal(error, ["check", "--out", "out"]) is None
    monkeypatch.setattr(environment, "check_environment", fail)
    assert run(["check"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("Traceback")
    assert "This is a bug in posttrain" in err


def test_a_folder_above_a_named_path_counts_as_named():
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "a/b")
    assert refusal(missing, ["--output=a/b/c"]) is not None
    assert refusal(missing, ["--output=a/bc"]) is None


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_exit_code_3():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "posttrain", "explain", "grpo", "--json"]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 3
    assert found.stderr.startswith("DoesNotFit: The output cannot be written: No space left on device")
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr


@pytest.mark.slow
def test_an_error_is_told_where_stdout_was_closed():
    command = ["sh", "-c", 'exec "$0" -m posttrain explain grop >&-', sys.executable]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 2
    assert found.stderr.startswith("ConfigError: ")
    assert "Traceback" not in found.stderr
