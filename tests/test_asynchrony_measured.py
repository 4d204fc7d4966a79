"""docs/asynchronous-measured.md agrees with the results on file, and its engines sample real tokens."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.asynchrony import engines, learning, page, speed
from tests.catalogue import few

from posttrain.config import ModelConfig, SamplingConfig
from posttrain.engines.continuous import ContinuousSampler
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Piece, Task
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path
from posttrain.train.fleet import Fleet

RESULT: dict[str, Any] = json.loads(page.RESULT.read_text()) if page.RESULT.exists() else {}


def part(name: str) -> dict[str, Any]:
    if name not in RESULT:
        pytest.skip(f"{name} was not measured: there are no results on file")
    return RESULT[name]


def test_the_page_is_that_of_the_results_on_file():
    if not RESULT:
        pytest.skip("nothing was measured: there are no results on file")
    assert page.PAGE.read_text() == page.text(RESULT)


@pytest.mark.parametrize("module", few([speed, learning], learning), ids=["speed", "learning"])
def test_the_lines_follow_from_the_runs_on_file_which_are_of_the_settings_as_they_are_now(module: Any):
    found = part(module.__name__.rpartition(".")[2])
    assert json.loads(json.dumps(module.summary(found["runs"]))) == found


def test_no_trained_token_was_older_than_its_bound_and_hardly_any_was_masked_at_the_defaults():
    for line in part("speed")["lines"]:
        assert line["lag_max"] <= line["max_staleness"] or line["masked"] > 0
        assert line["masked"] < 0.01
    for run in part("learning")["runs"]:
        assert run["lag_max"] <= run["bound"]
        assert run["lag_mean"] >= 0.85 * run["bound"], "nearly every token is as old as the bound allows"


def test_the_lengths_of_sleeping_rows_are_log_normal_around_their_mean_and_the_same_for_the_same_row():
    pace = engines.Pace(seconds=0.5)
    task = Task(row=(0, 0), attempt=1, prompt_ids=(1,), seed=3, stream=(0, 0), max_new_tokens=4)
    drawn = [pace.of(replace(task, stream=(number, 0))) for number in range(4000)]
    assert pace.of(task) == pace.of(replace(task, attempt=2, row=(7, 7)))
    assert max(drawn) == 0.5 * 6
    assert statistics.mean(drawn) == pytest.approx(0.5, rel=0.1)
    assert statistics.median(drawn) == pytest.approx(0.5 * 2.718**-0.5, rel=0.1)


def test_sleeping_rows_draw_what_the_local_sampler_draws_and_need_their_time(monkeypatch: pytest.MonkeyPatch):
    loaded = load_model(resolve_model_path(ModelConfig(path="tiny:sort", device="cpu"), 0))
    sampling = SamplingConfig(group_size=2, max_completion_length=6)
    prompt_ids = tuple(loaded.tokenizer("sort bca =").input_ids)
    tasks = [
        Task(row=(0, g), attempt=1, prompt_ids=prompt_ids, seed=1, stream=(0, g), max_new_tokens=6) for g in range(8)
    ]
    plain = ContinuousSampler(LocalSampler.of(loaded, "copied"), sampling)
    monkeypatch.setattr(engines, "TICK", 0.001)
    sleeping = engines.SleepingRows(LocalSampler.of(loaded, "copied"), sampling, engines.Pace(0.002, slots=3))
    assert drained(sleeping, tasks) == drained(plain, tasks)
    sleeping.pace = engines.Pace(1000.0, slots=3)
    sleeping.submit(tasks)
    assert sleeping.step() == []
    told, left = sleeping.interrupt([((0, 0), 1), ((0, 7), 1), ((5, 5), 1)])
    assert told == []
    assert [task.row for task in left] == [(0, 0), (0, 7)], "one row that is decoding and one that waits for a slot"
    assert list(sleeping.rows) == [(0, g) for g in range(1, 7)]


@pytest.mark.slow
def test_with_an_engine_that_decodes_at_once_every_token_is_as_old_as_the_bound(monkeypatch: pytest.MonkeyPatch):
    few = {"train": {**learning.BASE["train"], "steps": 5, "prompts_per_step": 2, "warmup_steps": 0}}
    monkeypatch.setattr(learning, "BASE", {**learning.BASE, **few, "evaluation": {"prompts": 4, "samples": 0}})
    monkeypatch.setattr(Fleet, "start", Fleet.start)  # undone after the test: measure changes it
    found = learning.measure(learning.Case(2, "none", 0))
    assert (found["lag_mean"], found["lag_max"]) == ((0 + 1 + 2 + 2 + 2) / 5, 2)
    assert found["masked"] == 0


def drained(rows: ContinuousSampler, tasks: list[Task]) -> list[tuple[Any, tuple[Any, ...]]]:
    rows.submit(tasks)
    pieces: dict[tuple[int, int], list[Piece]] = {}
    while rows:
        for piece in [*rows.step(), *rows.told()]:
            pieces.setdefault(piece.row, []).append(piece)
    return sorted(
        (row, (tuple(token for one in found for token in one.ids), found[-1].reason, found[-1].text))
        for row, found in pieces.items()
    )
