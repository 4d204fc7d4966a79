"""For every wrong input, the user learns what was given, what is allowed and how to fix it; the exit code is never 0.

The table is in bad_inputs.py, and docs/bad-inputs.md shows its output.
"""

from __future__ import annotations

import re

import pytest
import torch
from tests.catalogue import few
from tests.data.malformed import TABLE
from tests.faults.bad_inputs import CASES, PAGE, BadInput, entry, make_good, provoke

from posttrain.environment import check_environment
from posttrain.rewards.reward_set import build_rewards
from posttrain.rewards.worker_process import LocalWorker

ALL = [case for cases in CASES.values() for case in cases]
ROWS = CASES["Rows that can be read but not used"]
FIRST = {bad.layout: bad.name for bad in reversed(TABLE)}
QUICK = [case for case in ALL if case not in ROWS or case.name in FIRST.values()]
"""`make test` provokes one bad row of each layout: tests/data/test_malformed.py reads every one of them."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_good(tmp_path_factory.mktemp("good").resolve())


@pytest.fixture(scope="module")
def as_tested() -> bool:
    """Whether the libraries have the tested versions: some messages contain theirs, and the page shows those."""
    packages = [finding for finding in check_environment().findings if finding.fix.startswith("pip")]
    return not packages


@pytest.mark.parametrize("case", few(ALL, *QUICK), ids=lambda case: case.name)
def test_a_bad_input_is_explained_and_does_not_exit_with_0(case: BadInput, good, as_tested, monkeypatch):
    if case.name == "A reward that hangs":  # the message shows the calls of a worker, which is not a forked one
        monkeypatch.setitem(build_rewards.__kwdefaults__, "start", LocalWorker)
    if "model.device=cuda" in case.command and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    outcome = provoke(case, good)
    assert outcome.exit_code == case.exit_code, outcome.message
    assert re.search(case.says, outcome.message, re.DOTALL), outcome.message
    assert re.match(r"\w+: ", outcome.message), f"there is text before the message:\n{outcome.message}"
    assert "bug in posttrain" not in outcome.message
    if as_tested:
        assert entry(case, outcome) in PAGE.read_text(), "python -m tests.faults.bad_inputs writes the page again"


def test_the_page_has_every_case_once_and_no_other():
    assert re.findall("^### (.*)$", PAGE.read_text(), re.MULTILINE) == [case.name for case in ALL]
    assert len(ALL) >= 30


def test_no_case_expects_success():
    assert all(case.exit_code in (1, 2, 3, 4) for case in ALL)
