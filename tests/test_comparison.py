"""The table of docs/comparison.md lists every algorithm and agrees with the results on file."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from posttrain.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def comparison() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("comparison", ROOT / "benchmarks" / "algorithms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["comparison"] = module  # dataclasses looks its module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["comparison"]


def test_every_algorithm_that_samples_is_compared(comparison: ModuleType):
    compared = {recipe.algorithm["name"] for recipe in comparison.RECIPES.values()}
    assert compared == {key for key, cls in ALGORITHMS.items() if cls.data_kind == "prompts"}


def test_the_page_is_that_of_the_results_on_file(comparison: ModuleType, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(comparison, "PAGE", tmp_path / "comparison.md")
    comparison.write_page(json.loads(comparison.RESULT.read_text())["runs"])
    assert (tmp_path / "comparison.md").read_text() == (ROOT / "docs" / "comparison.md").read_text()


def test_each_line_has_all_its_seeds(comparison: ModuleType):
    runs = json.loads(comparison.RESULT.read_text())["runs"]
    for name, recipe in comparison.RECIPES.items():
        seeds = comparison.SEEDS_OF_A_PAGE if recipe.page else comparison.SEEDS_OF_THE_REST
        assert sorted(run["seed"] for run in runs if run["name"] == name) == list(seeds), name


def test_a_run_that_shows_no_improvement_is_named_on_the_page(comparison: ModuleType, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(comparison, "PAGE", tmp_path / "comparison.md")
    runs = json.loads(comparison.RESULT.read_text())["runs"]
    runs = [run | {"trained": run["baseline"]} if run["name"] == "opo" else run for run in runs]
    comparison.write_page(runs)
    assert "**opo** does not end significantly above its baseline" in (tmp_path / "comparison.md").read_text()
