"""The examples in docstrings show the right results."""

import doctest
import importlib

from tests.catalogue import catalogue

MODULES = [
    "posttrain.functional.preferences",
    "posttrain.explain",
    "posttrain.errors",
    "posttrain.functional.baselines",
    "posttrain.functional.choices",
    "posttrain.functional.kl",
    "posttrain.functional.masks",
    "posttrain.functional.shaping",
    "posttrain.functional.trust_regions",
]


@catalogue("name", MODULES)
def test_examples_in_docstrings_run(name: str):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
