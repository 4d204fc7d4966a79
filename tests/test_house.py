"""No package imports one above it, no file takes part in an import cycle, and a reader of one step opens few files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.house import FLOORS, READING, SOURCE, Import, all_imports, circles, part_of, reading_lines, upward

MOST = {"GRPO": (6, 350), "DPO": (4, 350)}
"""Largest number of files, and of lines, that a reader of one step goes through."""


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return all_imports()


def test_every_part_has_a_floor():
    parts = {part_of(file) for file in SOURCE.rglob("*.py")}
    named = [part for floor in FLOORS for part in floor]
    assert sorted(parts) == sorted(named)


def test_no_arrow_runs_up(imports):
    assert upward(imports) == []


def test_no_file_takes_part_in_a_circle(imports):
    assert circles(imports) == []


@pytest.mark.parametrize("step", MOST)
def test_a_step_is_read_in_few_files(step):
    lines = [reading_lines(name, definitions) for name, definitions in READING[step].items()]
    files, most = MOST[step]
    assert len(lines) <= files
    assert sum(lines) <= most


@pytest.mark.parametrize(
    ("file", "module", "complaint"),
    [
        ("models/load.py", "posttrain.train.loop", "models/load.py:7 imports posttrain.train.loop"),
        ("train/loop.py", "posttrain.cpu.kernels", "train/loop.py:7 imports posttrain.cpu.kernels"),
        ("report/page.py", "posttrain.store.checkpoint", "report/page.py:7 imports posttrain.store.checkpoint"),
        ("train/loop.py", "posttrain", "train/loop.py:7 imports posttrain"),
    ],
)
def test_an_arrow_that_runs_up_is_found_also_for_types(file, module, complaint):
    for for_types in (False, True):
        assert upward([Import(Path(SOURCE / file), 7, module, for_types)]) == [complaint]


def test_a_circle_of_three_is_found_and_types_alone_make_none():
    def arrow(file: str, module: str, for_types: bool = False) -> Import:
        return Import(SOURCE / file, 1, f"posttrain.{module}", for_types)

    round_trip = [arrow("a.py", "b"), arrow("b.py", "c"), arrow("c.py", "a"), arrow("c.py", "d")]
    assert circles(round_trip) == [["posttrain.a", "posttrain.b", "posttrain.c"]]
    assert circles([arrow("a.py", "b"), arrow("b.py", "a", for_types=True)]) == []
