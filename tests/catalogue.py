"""One test for a whole catalogue.

`pytest.mark.parametrize` makes one test per member. Ten thousand tests take minutes to collect and report. `catalogue`
takes the same arguments, but makes a single test. It goes through all members and names every member that fails.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

import hypothesis
import pytest

Test = Callable[..., None]

THOROUGH = bool(os.environ.get("POSTTRAIN_THOROUGH"))
"""Whether catalogues and drawn examples are to be complete, as in a part of `make test-slow`."""


def catalogue(names: str, members: Iterable[Any], ids: Iterable[object] | Callable[[Any], object] | None = None):
    """Decorate a test so that it runs once per member, with the member's values as the arguments `names`
    (comma-separated).

    The test's other arguments stay fixtures, and all members share them: in `tmp_path`, a member must overwrite every
    file that it reads, or have files of its own. Below `hypothesis.given`, all members get the same examples, each
    drawn once.
    """
    arguments, cases = [name.strip() for name in names.split(",")], list(members)
    assert cases, "an empty catalogue tests nothing"
    labels = [ids(case) for case in cases] if callable(ids) else list(cases if ids is None else ids)

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in arguments]

        def through_all(*given: Any, **fixtures: Any) -> None:
            fixtures |= {parameter.name: each for parameter, each in zip(left, given, strict=False)}
            failed, skipped = [], []
            for case, label in zip(cases, labels, strict=True):
                values = [case] if len(arguments) == 1 else case
                try:
                    test(**fixtures, **dict(zip(arguments, values, strict=True)))
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{names}: {label}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(cases)} members", failed)
            if len(skipped) == len(cases):
                pytest.skip(skipped[0])

        functools.update_wrapper(through_all, test, updated=())
        vars(through_all)["__signature__"] = signature.replace(parameters=left)
        vars(through_all)["pytestmark"] = list(getattr(test, "pytestmark", ()))
        return through_all

    return decorate


def examples(quick: int, thorough: int) -> hypothesis.settings:
    """Return settings that draw `quick` examples per member in `make test`, and `thorough` in `make test-slow`."""
    return hypothesis.settings(max_examples=thorough if THOROUGH else quick)


def few(members: Iterable[Any], *quick: Any) -> list[Any]:
    """Return members for `parametrize`: `make test` runs only those in `quick`, `make test-slow` runs all of them."""
    found = list(members)
    assert set(quick) <= set(found), f"no members: {sorted(set(quick) - set(found))}"
    slow = (pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow) for each in found)
    return [each if each in quick else later for each, later in zip(found, slow, strict=True)]
