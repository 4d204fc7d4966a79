"""The views of a run whose engines sample while it trains: timeline, step lines, report and dashboard."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.timelines import events_of, instants_of, spans_of
from tests.tiny import tiny_model, write_prompts

from posttrain.report.dashboard.pages import overlay
from posttrain.report.notes import observations
from posttrain.report.page import render
from posttrain.report.store import RunRecord, read_run
from posttrain.report.terminal import TerminalView
from posttrain.store.timeline import FILE
from posttrain.train.api import train
from posttrain.train.run import Run

STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asynchronous")


@pytest.fixture(scope="module")
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def run(folder: Path, screen: io.StringIO) -> Run:
    config = {
        "model": str(tiny_model(folder / "model")),
        "data": {"train": str(write_prompts(folder / "train.jsonl", count=24)), "eval_fraction": 0.25},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "algorithm": {"name": "grpo"},
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": STEPS, "prompts_per_step": 4, "run_ahead": 2, "max_staleness": 8},
        "rollout": {"engines": 1},
        "evaluation": {"every": 3},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / "run"),
    }
    return train(config, view=TerminalView(screen))


@pytest.mark.slow
def test_the_timeline_shows_what_each_did_and_agrees_with_the_metrics(run):
    events = events_of(run.folder / FILE)
    spans = list(spans_of(events))
    assert all(span.begin <= span.end < float("inf") for span in spans)
    by_name = Counter((span.track, span.name) for span in spans)
    for name in ("wait for groups", "train", "publish"):
        assert by_name["trainer", name] == STEPS
    assert by_name["trainer", "evaluate"] == 3  # before, halfway and after
    assert by_name["trainer", "checkpoint"] == 2
    assert by_name["engine 0", "starting"] == 1
    assert by_name["rewards", "score"] >= 2
    engine = sorted((span.begin, span.end) for span in spans if span.track == "engine 0")
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(engine))
    published = [args["version"] for _, name, args in instants_of(events) if name == "published"]
    assert published == list(range(STEPS + 1)), "engines evaluate the last version, too"
    loaded = [span.args["version"] for span in spans if span.name == "loading"]
    assert loaded == sorted(loaded)
    assert set(loaded) <= set(published)
    for record in run.metrics:
        (train,) = [span for span in spans if span.name == "train" and span.args["step"] == record["step"]]
        assert (train.end - train.begin) / 1e6 == pytest.approx(record["time/train"], abs=0.02)


@pytest.mark.slow
def test_the_step_line_says_how_old_tokens_are_and_who_waited(run, screen, monkeypatch):
    assert run.step == STEPS
    lines = [line for line in screen.getvalue().splitlines() if re.match(r"step \d", line)]
    assert len(lines) == STEPS
    monkeypatch.setenv("COLUMNS", "300")  # a narrow line leaves numbers out
    for record in run.metrics:
        TerminalView(line := io.StringIO()).step(record, STEPS)
        assert f"age {record['staleness/mean']:.1f}" in line.getvalue()
    TerminalView(wide := io.StringIO()).step(run.metrics[-1], STEPS)
    assert re.search(r"waiting for groups \d+% training \d+%", wide.getvalue())
    assert re.search(r"waited: trainer \d+%, engines 100%", wide.getvalue())  # no rows are left to be drawn


def test_the_report_and_the_dashboard_show_ages_lengths_queues_and_waits(run):
    page = (run.folder / "report.html").read_text()
    shown = ["Who waits", "Age of the tokens", "Tokens too old to be trained", "Lengths drawn and trained"]
    for title in (*shown, "Groups in flight and waiting", "timeline.json", "while engines sample"):
        assert title in page
    assert "queue/" not in page.partition("<footer")[0]  # queue metrics are not among those without a plot of their own
    assert "Age of the tokens: mean" in overlay({"one": read_run(run.folder), "two": read_run(run.folder)})


def record_of(**metrics: float) -> RunRecord:
    """Return ten steps with the same numbers."""
    return RunRecord(folder=Path("run"), status="finished", metrics=[{"step": n, **metrics} for n in range(1, 11)])


SIDE_BY_SIDE = {"queue/engines_idle": 0.0, "staleness/mean": 2.0, "staleness/max": 5.0, "time/step": 10.0}
NOTES = {
    "Almost no token was too old to train on": (
        {"staleness/masked": 0.002},
        "2.0 versions old on average, 5 at most",
    ),
    "12% of the tokens were too old to train on": ({"staleness/masked": 0.12}, "Raise train.max_staleness"),
    "The trainer waited 40% of the time for groups": ({"time/wait_for_groups": 4.0}, "raise rollout.engines"),
    "The trainer waited 30% of the time for groups": (
        {"time/wait_for_groups": 3.0, "queue/engines_idle": 0.5},
        "raise train.run_ahead",
    ),
}


@pytest.mark.parametrize("title", NOTES)
def test_what_asynchrony_costs_is_noticed_with_the_setting_to_change(title):
    metrics, advice = NOTES[title]
    found = {note.title: note.text for note in observations(record_of(**(SIDE_BY_SIDE | metrics)))}
    assert advice in found[title]


def test_a_run_that_samples_in_turns_shows_nothing_of_it():
    record = record_of(**{"staleness/mean": 0.0, "time/step": 10.0, "time/sample": 5.0, "reward": 0.5})
    page = render(record)
    for title in ("Who waits", "Age of the tokens", "timeline.json", "too old"):
        assert title not in page
    assert "Age of the tokens" not in overlay({"one": record, "two": record})
