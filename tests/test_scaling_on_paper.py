"""docs/scaling-on-paper.md agrees with the planner, and its one fitted number is the best fit."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from statistics import median

import pytest

from posttrain.cli import run
from posttrain.lab.plan.hardware import table
from posttrain.lab.plan.render import duration
from posttrain.lab.plan.verdict import size

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from published.page import page_of  # noqa: E402
from published.predict import Compared, compare, fitted_compute  # noqa: E402

PAGE = ROOT / "docs" / "scaling-on-paper.md"


@pytest.fixture(scope="module")
def found() -> list[Compared]:
    return compare()


@pytest.mark.slow
def test_the_page_is_that_of_the_planner_as_it_is():
    """This is a golden run of the planner: it covers every prediction, error and plan on the page."""
    assert page_of() == PAGE.read_text(encoding="utf-8"), "python benchmarks/scaling.py --page"


def test_the_commands_of_the_page_plan_the_first_rows_of_its_tables(capsys):
    page = PAGE.read_text(encoding="utf-8")
    rows = [
        next(line for line in page.splitlines() if line.startswith(start)) for start in ("| 64 | full |", "| 64 | 32")
    ]
    for command, row in zip(re.findall(r"^    posttrain (plan .*)$", page, re.MULTILINE), rows, strict=True):
        assert run([*shlex.split(command), "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert f"| {duration(plan['step']['seconds'])} |" in row
        assert f"| {size(plan['needed_bytes'])} |" in row


@pytest.mark.slow
def test_the_share_of_the_peak_is_the_one_that_fits():
    assert table()["efficiency"]["compute"] == fitted_compute()


def test_it_was_checked_with_other_libraries_than_it_was_fitted_on(found):
    fitted, checked = ({one.source.split(",")[0] for one in found if one.fitted is use} for use in (True, False))
    assert len(checked) >= 4
    assert not fitted & checked
    assert sum(not one.fitted for one in found) >= 6
    assert all(one.row["link"].startswith("https://") for one in found)


def test_half_of_the_trainings_that_it_was_not_fitted_on_are_within_a_fifth(found):
    errors = [abs(one.error) for one in found if not one.fitted and not one.grpo]
    assert median(errors) < 0.2
    assert max(errors) < 0.5


def test_models_have_the_parameters_that_their_authors_count(found):
    """The parameters of MPT come from LLM Foundry's table, in billions. MPT's layers have no biases."""
    counted = {one.row["model"]: one.workload.architecture.parameters / 1e9 for one in found}
    for name, parameters in (("mpt-7b", 6.659), ("mpt-13b", 12.854), ("mpt-30b", 29.975), ("mpt-70b", 64.862)):
        assert counted[name] == pytest.approx(parameters, rel=1e-3)
    assert counted["llama3-15b"] == pytest.approx(14.84, rel=1e-3)
    assert counted["llama3-70b"] == pytest.approx(70.55, rel=1e-3)


def test_a_row_by_hand(found):
    """Llama 3 70B on 64 A100s, one row of 8,192 tokens each: 8 operations per parameter of the layers, 4.5 times the
    attention and 4 times the head (its logits are recomputed), at 55% of 312 TFLOP/s, plus the exposed traffic."""
    (one,) = (one for one in found if one.row["model"] == "llama3-70b" and one.row["gpus"] == "64xa100-80gb")
    layers = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    attention = 2 * 80 * 64 * 256 * 8193 / 2
    again = 1 - 2**30 / (8191 * 128256 * 2)
    flops = 8192 * (8 * layers + 4.5 * attention) + 8191 * 2 * 8192 * 128256 * (3 + again)
    calls = 80 * 4 * 4e-4
    assert one.cost.seconds == pytest.approx(flops / (0.55 * 312e12) + calls, rel=0.01)
    assert one.predicted == pytest.approx(8192 / one.cost.seconds)
