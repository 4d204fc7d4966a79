"""What can be seen of a run whose engines sample while it trains: its timeline, step lines, report and dashboard."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from pathlib import Path

import pytest
from tests.timelines import events_of, instants_of, spans_of
from tests.tiny import tiny_model, write_prompts

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


def test_the_timeline_shows_what_each_did_and_agrees_with_the_metrics(run):
    events = events_of(run.folder / FILE)
    spans = list(spans_of(events))
    assert all(span.begin <= span.end < float("inf") for span in spans)
    by_name = Counter((span.track, span.name) for span in spans)
    for name in ("wait for groups", "train", "publish"):
        assert by_name["trainer", name] == STEPS
    assert by_name["trainer", "evaluate"] == 3  # before, in the middle, after
    assert by_name["trainer", "checkpoint"] == 2
    assert by_name["engine 0", "starting"] == 1
    assert by_name["rewards", "score"] >= 2
    engine = sorted((span.begin, span.end) for span in spans if span.track == "engine 0")
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(engine))
    published = [args["version"] for _, name, args in instants_of(events) if name == "published"]
    assert published == list(range(STEPS))
    loaded = [span.args["version"] for span in spans if span.name == "loading"]
    assert loaded == sorted(loaded)
    assert set(loaded) <= set(published)
    for record in run.metrics:
        (train,) = [span for span in spans if span.name == "train" and span.args["step"] == record["step"]]
        assert (train.end - train.begin) / 1e6 == pytest.approx(record["time/train"], abs=0.02)
