"""Published pairs of gold and answer: `math` departs from their labels only in cases that the benchmark explains."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.catalogue import few

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "answer_pairs.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("answer_pairs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer_pairs"] = module
    spec.loader.exec_module(module)
    if not module.DATA.is_dir():
        pytest.skip("the shared data folder is not there")
    return module


@pytest.fixture
def ours(benchmark, monkeypatch) -> ModuleType:
    """The benchmark without math-verify, which takes longer than everything else: for tests of our verdicts alone."""
    monkeypatch.setattr(benchmark, "_math_verify", lambda *_: False)
    return benchmark


FILES = ["answer_pairs_math_verify.jsonl", "answer_pairs_qwen_math100.jsonl"]


@pytest.mark.parametrize("file", FILES)
def test_every_departure_from_a_label_has_its_reason(ours, file):
    pairs = list(ours.pairs(file))
    departures = {(pair.file, pair.row) for pair in pairs if pair.accepted != pair.label}
    assert departures == {key for key in ours.REASONS if key[0] == file}


@pytest.mark.slow
def test_qwens_answers_are_judged_as_math_verify_judges_them(benchmark):
    pairs = list(benchmark.pairs("answer_pairs_qwen_math100.jsonl"))
    assert len(pairs) == 800
    assert [pair for pair in pairs if pair.accepted != pair.theirs] == []


@pytest.mark.parametrize("file", FILES)
def test_every_departure_of_its_conventions_has_its_reason(ours, file):
    pairs = list(ours.pairs(file, lenient=True))
    assert {(p.file, p.row) for p in pairs if p.accepted != p.label} == {
        key for key in ours.LENIENT_REASONS if key[0] == file
    }


@pytest.mark.slow
@pytest.mark.parametrize("file", few(FILES, FILES[1]))
def test_with_its_conventions_declared_we_err_no_more_than_math_verify(benchmark, file):
    pairs = list(benchmark.pairs(file, lenient=True))
    _, accepts, rejects = benchmark.counts(pairs, ours=True)
    _, their_accepts, their_rejects = benchmark.counts(pairs, ours=False)
    assert accepts <= their_accepts
    assert rejects <= their_rejects


@pytest.mark.slow
def test_the_options_of_the_rows_settle_what_the_conventions_do_not(ours):
    pairs = list(ours.pairs("answer_pairs_math_verify.jsonl", lenient=True, declared=True))
    assert ours.counts(pairs, ours=True)[1:] == (2, 3)


@pytest.mark.slow
def test_a_declared_option_brings_the_lenient_reading_back(ours):
    """The rows that math-verify reads with decimal commas, and those that leave a computation unfinished."""
    rows = {pair.row: pair for pair in ours.pairs("answer_pairs_math_verify.jsonl")}
    for row in (6, 17):
        assert ours.math(rows[row].given, rows[row].gold, decimal_comma=True) == 1.0, rows[row]
    assert ours.math(rows[30].given, rows[30].gold, require_evaluated=False) == 1.0


@pytest.mark.parametrize("file", few(FILES, FILES[1]))
def test_where_labels_follow_the_rules_we_err_no_more_than_math_verify(benchmark, file):
    """Both graders get the options that a row declares, and skip rows whose label contradicts a stated rule."""
    kept = [pair for pair in benchmark.pairs(file, declared=True) if not pair.rule]
    count, accepts, rejects = benchmark.counts(kept, ours=True)
    their_count, their_accepts, their_rejects = benchmark.counts(kept, ours=False)
    assert count == their_count >= 246
    assert accepts <= their_accepts
    assert rejects <= their_rejects


def test_only_departures_are_set_aside(benchmark):
    """A row whose label agrees with our verdict stays in the count, whatever rule it may contradict."""
    assert benchmark.CONTRADICTIONS.keys() <= benchmark.REASONS.keys()
