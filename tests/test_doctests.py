"""The examples in docstrings show what the code does."""

from __future__ import annotations

import doctest
import importlib
import linecache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "posttrain"
WITH_EXAMPLES = [file for file in sorted(SOURCE.rglob("*.py")) if ">>> " in file.read_text(encoding="utf-8")]
PACKAGES = sorted({file.relative_to(SOURCE).parts[0] for file in WITH_EXAMPLES})


@pytest.mark.parametrize("package", PACKAGES)
def test_the_examples_of_a_package_hold(package: str):
    tried = 0
    for file in WITH_EXAMPLES:
        place = file.relative_to(SOURCE)
        if place.parts[0] == package:
            module = importlib.import_module(
                ".".join(("posttrain", *place.with_suffix("").parts)).removesuffix(".__init__")
            )
            linecache.clearcache()  # each example asks for every file in it whether it has changed
            found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
            assert not found.failed, f"{place}: python -m doctest shows what differs"
            tried += found.attempted
    assert tried
