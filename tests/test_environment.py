"""`posttrain check`: the tested versions are those in constraints.txt, and a finding names the command to fix it."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from posttrain import environment
from posttrain.environment import TESTED, EnvironmentReport, Finding, check_environment

ROOT = Path(__file__).parent.parent


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def found(what: str) -> Finding:
    return next(finding for finding in check_environment().findings if finding.what == what)


def test_the_tested_versions_are_those_of_the_constraints():
    assert {name: pinned()[canonicalize_name(name)] for name in TESTED} == TESTED


def test_every_dependency_is_checked():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(line).name for line in declared} == set(TESTED)


def test_the_tested_versions_are_within_the_declared_ranges():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert all(Requirement(line).specifier.contains(TESTED[Requirement(line).name]) for line in declared)


@pytest.mark.parametrize(
    ("installed", "level", "words"),
    [
        ("2.13.0+cpu", "OK", "2.13.0+cpu"),
        ("2.13.1", "WARN", "2.13.1, tested with 2.13.0"),
        ("1.0", "FAIL", "1.0, needs >=2.11"),
        (None, "FAIL", "missing"),
    ],
)
def test_a_version_is_ok_as_tested_a_warning_in_the_range_and_a_failure_outside(monkeypatch, installed, level, words):
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name != "torch":
            return real(name)
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = found("torch")
    assert (finding.level, finding.found) == (level, words)
    assert finding.fix == ("" if level == "OK" else "pip install 'torch==2.13.0'")


def test_a_library_that_cannot_be_imported_is_a_failure(monkeypatch):
    def broken(name: str) -> None:
        raise RuntimeError(f"{name} was built for another torch\nand more")

    monkeypatch.setattr(environment.importlib, "import_module", broken)
    finding = found("imports")
    assert finding.level == "FAIL"
    assert finding.found == "torch cannot be imported: torch was built for another torch"


@pytest.mark.parametrize("what", ["disk", "cache"])
def test_a_folder_that_cannot_be_written_is_a_warning(monkeypatch, tmp_path, what):
    (tmp_path / "file").touch()
    monkeypatch.setattr(environment.Path, "cwd", lambda: tmp_path / "file")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "cache"))
    finding = found(what)
    assert finding.level == "WARN"
    assert re.search("is not writable .*Not a directory", finding.found)
    assert finding.fix


def test_warnings_do_not_make_an_environment_unusable_but_failures_do():
    ok, warn, fail = (Finding(level=level, what="x", found="y", fix="z") for level in ("OK", "WARN", "FAIL"))
    assert EnvironmentReport(findings=(ok, warn)).usable
    assert EnvironmentReport(findings=(ok, warn)).render().endswith("Ready. 1 warning.")
    assert not EnvironmentReport(findings=(warn, fail)).usable
    assert EnvironmentReport(findings=(fail,)).render().endswith("Not usable: fix the lines marked FAIL.")
    assert "FAIL  x             y\n      z" in EnvironmentReport(findings=(fail,)).render()
