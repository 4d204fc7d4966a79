"""docs/plugins.md shows the package that the tests install, file by file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.plugins.conftest import SOURCE

from posttrain.algorithms import PPO
from posttrain.testing import algorithm_checks

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
FILES = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".toml") and path.name != "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_of_the_package_stands_on_the_page(path):
    name = path.relative_to(SOURCE).as_posix()
    assert f"# {name}\n{path.read_text(encoding='utf-8')}```" in PAGE


def test_every_check_is_explained_on_the_page():
    table = PAGE.partition("| check | what must hold |")[2]
    assert re.findall(r"^\| (?!---)([^|]+?) \|", table, re.MULTILINE) == list(algorithm_checks(PPO))
