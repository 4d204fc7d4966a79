"""The published files: the wheel holds every file of the package, and works without the source tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import posttrain

ROOT = Path(__file__).parent.parent
LIBRARIES = [place for place in sys.path if place.endswith("site-packages")]


def test_version_and_citation_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(cited["version"]) == posttrain.__version__
    assert cited["license"] == "Apache-2.0"
    assert re.search(r"^## \[Unreleased\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_templates_are_whole(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem != "config":
        assert {"name", "description", "body"} <= form.keys()
        assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """Run `make dist` into a temporary folder."""
    pytest.importorskip("hatchling", reason="`pip install -e '.[dev]'` has it")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def source_files() -> set[str]:
    files = (path for path in (ROOT / "src" / "posttrain").rglob("*") if path.is_file())
    return {path.relative_to(ROOT / "src").as_posix() for path in files if path.suffix != ".pyc"}


@pytest.mark.slow
def test_wheel_and_source_archive_hold_every_file(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {name for name in names if name.startswith("posttrain/")} == source_files()
    assert f"Version: {posttrain.__version__}\n" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    with tarfile.open(built["sdist"]) as archive:
        top = f"posttrain-{posttrain.__version__}/"
        inside = {name.removeprefix(top) for name in archive.getnames()}
    assert {f"src/{name}" for name in source_files()} <= inside
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "recipes/sft_dpo.yaml", "Makefile"}
    assert wanted <= inside
    assert not [name for name in inside if name.startswith(("runs/", ".venv", "dist/", "build/"))]


COMMANDS = (
    ("--version",),
    ("explain", "grpo"),
    ("advise", "--json"),
    ("plan", "run.yaml"),
    ("explore",),
    ("reward", "test", "exact_match", "--data", "task:sort", "--no-model"),
    ("train", "run.yaml"),
    ("eval", "run", "-k", "2"),
    ("chat", "run", "-m", "dbca>"),
    ("export", "run", "out"),
    ("check",),
)
RUN = {
    "model": {"path": "tiny:sort", "device": "cpu"},
    "algorithm": "grpo",
    "data": {"train": "task:sort"},
    "rewards": ["exact_match"],
    "sampling": {"group_size": 4, "max_completion_length": 10},
    "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3},
    "evaluation": {"prompts": 8, "samples": 0},
    "output": "run",
}
"""The run of `posttrain demo`, shortened to two steps."""


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder(built, tmp_path):
    """The test's environment contains the wheel and sees the libraries of this one, but not the source."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (own,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (own / "libraries.pth").write_text("\n".join(LIBRARIES))  # .pth files in those folders are not followed
    quiet = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, built["wheel"]], check=True, capture_output=True)
    place = tmp_path / "empty"
    place.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    where = "import posttrain; print(posttrain.__file__)"
    found = subprocess.run(
        [python, "-c", where], cwd=place, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).is_relative_to(own)
    (place / "run.yaml").write_text(yaml.safe_dump(RUN))
    for words in COMMANDS:
        done = subprocess.run(
            [tmp_path / "env" / "bin" / "posttrain", *words], cwd=place, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
    assert (place / "run" / "report.html").is_file()
    assert (place / "out" / "model.safetensors").is_file()
    assert (place / "explore.html").is_file()
    assert json.loads((place / "run" / "evaluation.json").read_text())["trained"]
