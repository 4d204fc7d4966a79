"""`ALGORITHMS`: a mapping that imports an algorithm when it is asked for, and accepts algorithms from elsewhere."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from tests.catalogue import catalogue

import posttrain.algorithms
from posttrain.algorithms import ALGORITHMS, GRPO, register
from posttrain.algorithms.settings import settings
from posttrain.errors import ConfigError

WITHOUT_TORCH = """
import importlib, pathlib, sys, types

class Untouched(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)  # the import system asks for those
        raise SystemExit(f"torch.{name} was read")

sys.modules["torch"] = Untouched("torch")
source = pathlib.Path(sys.argv[1])
root = sys.modules["posttrain"] = types.ModuleType("posttrain")
root.__path__ = [str(source)]
"""
"""Code that lets `import torch` find a module that ends the process when anything is taken from it."""


def without_torch(code: str) -> str:
    source = str(Path(posttrain.algorithms.__file__).parent.parent)
    command = [sys.executable, "-c", WITHOUT_TORCH + code, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_importing_algorithms_functions_and_records_touches_nothing_of_torch():
    """Two files are exempt: they hold the head's kernel, and one of them defines a `torch.autograd.Function`."""
    without_torch("""
for file in sorted((source / "functional").glob("[!_]*.py")):
    if file.stem not in ("linear_logprobs", "logprobs"):
        importlib.import_module(f"posttrain.functional.{file.stem}")
import posttrain.types
from posttrain.algorithms import ALGORITHMS
for key in ALGORITHMS:
    ALGORITHMS[key]()
""")


def test_an_algorithm_is_imported_when_it_is_asked_for_and_no_other_is():
    loaded = without_torch("""
from posttrain.algorithms import ALGORITHMS
assert "grpo" in ALGORITHMS and len(list(ALGORITHMS)) == len(ALGORITHMS)
assert not any("grpo" in name for name in sys.modules)
ALGORITHMS["grpo"]()
print(*sorted(name for name in sys.modules if name.startswith("posttrain.algorithms.")), file=sys.stderr)
""")
    assert "posttrain.algorithms.grpo" in loaded
    assert not {"dapo", "dpo", "rows", "policy_gradient"} & {name.rpartition(".")[2] for name in loaded.split()}


def test_it_is_a_mapping():
    assert len(ALGORITHMS) == len(list(ALGORITHMS)) == len(set(ALGORITHMS)) == len(ALGORITHMS.items())
    assert all(cls.key == key for key, cls in ALGORITHMS.items())
    assert ALGORITHMS["grpo"] is ALGORITHMS.get("grpo") is GRPO is posttrain.algorithms.GRPO
    assert (ALGORITHMS.get("none"), "none" in ALGORITHMS, None in ALGORITHMS) == (None, False, False)
    assert {"GRPO", "Algorithm", "ALGORITHMS"} <= set(dir(posttrain.algorithms))
    with pytest.raises(AttributeError, match="GRPOO"):
        posttrain.algorithms.GRPOO  # noqa: B018


@catalogue("given, meant", [("grpoo", "grpo"), ("gpro", "grpo"), ("dpoo", "dpo"), ("PPO", None)])
def test_an_unknown_name_is_a_short_error_that_says_what_was_meant(given, meant):
    with pytest.raises(KeyError) as caught:
        ALGORITHMS[given]
    assert isinstance(caught.value, ConfigError)
    assert f"there is no algorithm {given!r}" in str(caught.value)
    assert len(str(caught.value)) < 120
    assert meant is None or f"Did you mean {meant!r}?" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@settings
class Mine(GRPO):
    key: ClassVar[str] = "mine"


def test_an_algorithm_of_your_own_is_one_of_the_mapping(monkeypatch):
    monkeypatch.setattr(ALGORITHMS, "_set", {})
    register("mine", Mine)
    assert ALGORITHMS["mine"] is Mine
    assert list(ALGORITHMS)[-1] == "mine"
    assert "mine" in ALGORITHMS
    del ALGORITHMS["mine"]
    assert "mine" not in ALGORITHMS


@catalogue(
    "key, cls, said",
    [
        ("grpo", GRPO, "exists already"),
        ("other", Mine, "key = 'mine'"),
        ("text", "Mine", "the same key"),
        ("plain", type("Plain", (), {"key": "plain"}), r"derived from .*Algorithm.*\n  Write class Plain\(Algorithm\)"),
    ],
)
def test_what_cannot_be_an_algorithm_of_that_name_is_refused(key, cls, said):
    with pytest.raises(ConfigError, match=said):
        register(key, cls)
    assert ALGORITHMS["grpo"] is GRPO


PACKAGE = """
from typing import ClassVar
from posttrain.algorithms import GRPO
from posttrain.algorithms.settings import NonNegative, settings

@settings
class Published(GRPO):
    key: ClassVar[str] = "published"

    extra: NonNegative = 0.0
    \"\"\"A setting of its own.\"\"\"
"""
POINTS = "[posttrain.algorithms]\npublished = their_package:Published\ngrpo = their_package:Published\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with an installed package that publishes an algorithm."""
    (tmp_path / "their_package.py").write_text(PACKAGE)
    about = tmp_path / "their_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: their_package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    return tmp_path


def in_a_process(package: Path, code: str) -> None:
    script = package / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(package)!r})\nfolder = {str(package / 'run')!r}\n{code}")
    done = subprocess.run([sys.executable, "-P", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_package_publishes_algorithms_by_an_entry_point(package):
    in_a_process(
        package,
        """
from posttrain.algorithms import ALGORITHMS
assert "published" in ALGORITHMS and "their_package" not in sys.modules
assert ALGORITHMS["published"]().extra == 0
assert ALGORITHMS["grpo"].__name__ == "GRPO", "ours cannot be replaced"
""",
    )


TRAIN = """
import posttrain
posttrain.train({
    "model": {"path": "tiny:sort", "device": "cpu"}, "algorithm": {"name": "KEY", "extra": 0.5},
    "data": {"train": "task:sort"}, "rewards": [{"name": "exact_match"}], "preset": "smoke", "output": folder,
    "report": False,
})
"""
LOOK = """
from posttrain.cli import run
for words in (["explain"], ["explain", "KEY"], ["eval", folder]):
    assert run(words) == 0, words
"""


@pytest.mark.slow
def test_a_published_algorithm_trains_and_other_processes_evaluate_and_explain_it(package):
    in_a_process(package, TRAIN.replace("KEY", "published"))
    in_a_process(package, LOOK.replace("KEY", "published"))


@pytest.mark.slow
def test_an_algorithm_registered_in_a_process_trains_and_is_evaluated_and_explained_there(package):
    mine = PACKAGE.replace('"published"', '"mine"') + "from posttrain.algorithms import register\n"
    in_a_process(package, mine + "register('mine', Published)\n" + (TRAIN + LOOK).replace("KEY", "mine"))
