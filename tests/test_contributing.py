"""The example in CONTRIBUTING.md is a real algorithm: its own test passes, and it trains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

TRAIN = """
import sys
from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.best_minus_second import BestMinusSecond
ALGORITHMS["best_minus_second"] = BestMinusSecond
import posttrain
from posttrain.explain import explain
assert "best minus second" in explain("best_minus_second").render()
run = posttrain.train({
    "model": {"path": "tiny:sort", "device": "cpu"}, "algorithm": {"name": "best_minus_second", "clip_high": 0.3},
    "data": {"train": "task:sort"}, "rewards": [{"name": "exact_match"}], "preset": "smoke", "output": sys.argv[1],
    "report": False,
})
print(len(run.metrics), "steps")
"""

TRAIN_ON_PAIRS = """
import sys
from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.squared_hinge import SquaredHinge
ALGORITHMS["squared_hinge"] = SquaredHinge
import posttrain
from posttrain.explain import explain
assert "squared hinge at 1" in explain("squared_hinge").render()
run = posttrain.train({
    "model": {"path": "tiny:sort", "device": "cpu"}, "algorithm": {"name": "squared_hinge", "beta": 0.3},
    "data": {"train": "task:pairs/taste", "max_rows": 64}, "preset": "smoke", "output": sys.argv[1], "report": False,
})
print(len(run.metrics), "steps")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """posttrain with the file of the example in it: links to the real source, and the one new file."""
    algorithm, test, line = re.findall(r"```python\n(.*?)```", PAGE.partition("## A complete example")[2], re.DOTALL)[
        :3
    ]
    assert line.strip() == '"best_minus_second": BestMinusSecond,'
    source, folder = ROOT / "src" / "posttrain", tmp_path / "posttrain"
    (folder / "algorithms").mkdir(parents=True)
    for path in source.iterdir():
        if path.name != "algorithms":
            (folder / path.name).symlink_to(path)
    for path in (source / "algorithms").iterdir():
        (folder / "algorithms" / path.name).symlink_to(path)
    (folder / "algorithms" / "best_minus_second.py").write_text(algorithm)
    (tmp_path / "test_best_minus_second.py").write_text(test)
    return tmp_path


def run(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(package), "PATH": "", "HOME": str(package), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_test_of_the_example_passes(package: Path):
    assert "4 passed" in run(package, "-m", "pytest", "-p", "no:cacheprovider", "test_best_minus_second.py").stdout


@pytest.mark.slow
def test_the_algorithm_of_the_example_trains(package: Path):
    assert "2 steps" in run(package, "-c", TRAIN, str(package / "run")).stdout


def test_the_example_keeps_the_rules_of_the_house(package: Path):
    """At most 150 lines, formatted and without lint."""
    file = package / "posttrain" / "algorithms" / "best_minus_second.py"
    assert len(file.read_text().splitlines()) <= 150
    for command in (["format", "--check", "--line-length", "120"], ["check", "--config", str(ROOT / "pyproject.toml")]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_preference_loss_of_the_page_passes_its_test_and_trains(package: Path):
    section = PAGE.partition("## A preference loss")[2].partition("\n## ")[0]
    algorithm, test = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (package / "posttrain" / "algorithms" / "squared_hinge.py").write_text(algorithm)
    (package / "test_squared_hinge.py").write_text(test)
    assert "2 passed" in run(package, "-m", "pytest", "-p", "no:cacheprovider", "test_squared_hinge.py").stdout
    assert "2 steps" in run(package, "-c", TRAIN_ON_PAIRS, str(package / "run")).stdout
