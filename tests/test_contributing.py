"""The example in CONTRIBUTING.md is a real algorithm: its own test passes, and it trains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import run_code

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

TRAIN = """
import sys
from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.best_minus_second import BestMinusSecond
ALGORITHMS["best_minus_second"] = BestMinusSecond
import posttrain
from posttrain.explain import explain
assert "best_minus_second" in explain("best_minus_second").render()
run = posttrain.train({
    "model": {"path": "tiny:sort", "device": "cpu"}, "algorithm": {"name": "best_minus_second", "clip_high": 0.3},
    "data": {"train": "task:sort"}, "rewards": [{"name": "exact_match"}], "preset": "smoke", "output": sys.argv[1],
    "report": False,
})
print(len(run.metrics), "steps", file=sys.stderr)
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
print(len(run.metrics), "steps", file=sys.stderr)
"""


IN_ITS_PLACE = """
import os, sys
import posttrain.algorithms
posttrain.algorithms.__path__.append(os.path.join(os.getcwd(), "algorithms"))
"""
"""Make a file in the current folder importable as a module of `posttrain.algorithms`."""

PYTEST = f"""
{IN_ITS_PLACE}
import pytest
os.dup2(2, 1)  # what is printed can be read
sys.exit(pytest.main(["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", sys.argv[1]]))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the example's test, and its algorithm where `posttrain.algorithms` looks for modules."""
    algorithm, test, line = re.findall(r"```python\n(.*?)```", PAGE.partition("## A complete example")[2], re.DOTALL)[
        :3
    ]
    assert line.strip() == '"best_minus_second": "best_minus_second:BestMinusSecond",'
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "best_minus_second.py").write_text(algorithm)
    (tmp_path / "test_best_minus_second.py").write_text(test)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(code: str, *arguments: str) -> str:
    """Run code in a new process, and return what it wrote to stderr."""
    done = run_code(code, *arguments)
    assert done.exit_code == 0, done.errors
    return done.errors


def test_the_test_of_the_example_passes(package: Path):
    assert "4 passed" in run(PYTEST, "test_best_minus_second.py")


@pytest.mark.slow
def test_the_algorithm_of_the_example_trains(package: Path):
    assert "2 steps" in run(IN_ITS_PLACE + TRAIN, str(package / "run"))


def test_the_example_keeps_the_rules_of_the_house(package: Path):
    """The example is formatted and passes the linter."""
    file = package / "algorithms" / "best_minus_second.py"
    for command in (["format", "--check", "--line-length", "120"], ["check", "--config", str(ROOT / "pyproject.toml")]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_preference_loss_of_the_page_passes_its_test_and_trains(package: Path):
    section = PAGE.partition("## A preference loss")[2].partition("\n## ")[0]
    algorithm, test = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (package / "algorithms" / "squared_hinge.py").write_text(algorithm)
    (package / "test_squared_hinge.py").write_text(test)
    assert "2 passed" in run(PYTEST, "test_squared_hinge.py")
    assert "2 steps" in run(IN_ITS_PLACE + TRAIN_ON_PAIRS, str(package / "run"))
