"""Streamed data is the same data: rows and their order, held-out rows, drops, and every bit of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.samples import jsonl
from tests.tiny import tiny_model

from posttrain.cache import cache_folder
from posttrain.config import DataConfig
from posttrain.data import split, stream
from posttrain.data.examples import render_examples
from posttrain.data.labels import render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row, read_rows
from posttrain.data.split import read_split
from posttrain.data.store import Stored
from posttrain.data.stream import StreamedRows
from posttrain.errors import DataError
from posttrain.train.api import resume, train
from posttrain.train.run import Run

ROWS = [
    {"prompt": f"{n}+{n}=", "completion": str(2 * n), "chosen": str(2 * n), "rejected": f"{n}", "label": n % 3 == 0}
    for n in range(1, 61)
]
FAULTS = {7: {"prompt": ""}, 20: {"completion": None, "chosen": None}, 33: {"prompt": "9" * 80}}
KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "examples": (render_examples, "examples"),
    "pairs": (render_pairs, "pairs"),
    "labels": (render_labels, "rows"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(write) -> str:
    rows = [row | FAULTS.get(n, {}) for n, row in enumerate(ROWS)]
    return str(write("rows.jsonl", jsonl({"only here": 1} | rows[0], *rows[1:])))


def opened(path: str, **settings: Any) -> StreamedRows:
    rows = read_split(DataConfig(train=path, streaming=True, eval_fraction=0.0, **settings), seed=0).train
    assert isinstance(rows, StreamedRows)
    return rows


def rendered(kind: str, rows: Sequence[Row], renderer: Renderer, **changes: Any) -> tuple[Any, Sequence[Any]]:
    render, attribute = KINDS[kind]
    settings = {"eos_ids": {2}, "max_length": 50, "max_dropped": 0.5, "what": "data"} | changes
    found = render(rows, renderer, **settings)
    return found, getattr(found, attribute)


# --- rows ------------------------------------------------------------------------------------------------------------


def test_streamed_rows_are_the_rows(path):
    rows, streamed = read_rows(path), opened(path)
    assert list(streamed) == list(streamed) == rows
    assert len(streamed) == 60
    assert (streamed[3], streamed[-1]) == (rows[3], rows[-1])
    assert list(streamed[5:50:7]) == rows[5:50:7]
    assert list(streamed[10:40][3:5]) == rows[13:15]
    assert streamed.columns == ["only here", *ROWS[0]]


@pytest.mark.parametrize(
    "settings", [{}, {"eval_fraction": 0.3}, {"part": "2/3"}, {"max_rows": 20}, {"eval": "task:sort", "max_rows": 9}]
)
def test_the_split_is_that_of_rows_in_memory(path, settings):
    for seed in (0, 7):
        parts = [read_split(DataConfig(train=path, streaming=how, **settings), seed=seed) for how in (False, True)]
        assert [list(part.train) for part in parts[:1]] == [list(parts[1].train)]
        assert list(parts[0].heldout) == list(parts[1].heldout)
        assert isinstance(parts[1].train, StreamedRows)


def test_auto_streams_from_a_size_on(path, monkeypatch):
    config = DataConfig(train=path)
    assert isinstance(read_split(config, seed=0).train, list)
    monkeypatch.setattr(split, "STREAMED_FROM", os.path.getsize(path) - 1)
    assert isinstance(read_split(config, seed=0).train, StreamedRows)
    assert isinstance(read_split(config, seed=0).heldout, StreamedRows)


def test_a_broken_row_is_found_before_anything_else(write):
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2"):
        opened(str(write("rows.jsonl", jsonl(ROWS[0]) + "{broken\n")))


def test_rows_are_counted_once_for_the_same_content(path, monkeypatch):
    first = opened(path)
    monkeypatch.setattr(stream.Counted, "of", lambda rows: pytest.fail("counted again"))
    again = opened(path)
    assert (len(again), again.columns) == (len(first), first.columns)


@pytest.mark.parametrize(
    ("kind", "where"), [("examples", "cache"), ("pairs", "cache"), ("ratings", "memory"), ("steps", "memory")]
)
def test_the_note_says_where_tokenised_rows_are(path, cache, kind, where):
    (note,) = stream.streaming_notes({"training data": opened(path), "held-out data": []}, kind)
    place = cache / "data" if where == "cache" else "memory"
    assert note == f"training data: 60 rows are streamed; {kind}, once tokenised, are kept in {place}"


@pytest.mark.parametrize("content", [jsonl(*ROWS[:5]), jsonl(*ROWS, *ROWS)], ids=["fewer", "more"])
def test_data_that_changes_while_it_is_read_is_an_error(path, content):
    streamed = opened(path)
    Path(path).write_text(content)
    with pytest.raises(DataError, match="no longer has the 60 rows that were counted"):
        list(streamed)


# --- what rows render to ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_on_disk_is_what_would_be_in_memory(kind, path, renderer):
    inside, records = rendered(kind, read_rows(path), renderer)
    on_disk, stored = rendered(kind, opened(path), renderer)
    assert isinstance(stored, Stored)
    assert isinstance(records, tuple)
    assert list(stored) == list(records)
    assert list(on_disk.dropped) == list(inside.dropped)
    assert len(on_disk.dropped) == 3
    assert (on_disk.dropped_summary, on_disk.form, len(on_disk)) == (inside.dropped_summary, inside.form, len(inside))


def test_too_many_drops_are_the_same_error(path, renderer):
    errors = []
    for rows in (read_rows(path), opened(path)):
        with pytest.raises(DataError) as found:
            rendered("pairs", rows, renderer, max_dropped=0.0)
        errors.append(str(found.value))
    assert errors[0] == errors[1]


def test_a_second_run_tokenises_nothing(path, renderer, monkeypatch):
    _, first = rendered("pairs", opened(path), renderer)
    monkeypatch.setattr(stream, "write_store", lambda *_: pytest.fail("written again"))
    _, second = rendered("pairs", opened(path), renderer)
    assert list(second) == list(first)


def test_a_damaged_store_is_tokenised_again(path, renderer):
    _, first = rendered("pairs", opened(path), renderer)
    assert isinstance(first, Stored)
    before = list(first)
    with (first.folder / "ids.i32").open("r+b") as file:
        file.write(b"\xff\xff\xff")
    _, second = rendered("pairs", opened(path), renderer)
    assert list(second) == before


def test_whatever_tokenising_depends_on_has_a_store_of_its_own(path, write, renderer, chat_renderer):
    def folder(kind="pairs", rows=None, renderer=renderer, **changes):
        _, stored = rendered(kind, rows if rows is not None else opened(path), renderer, **changes)
        assert isinstance(stored, Stored)
        return stored.folder

    copied = (
        str(write("copy/rows.jsonl", Path(path).read_text())) if Path(path).parent.joinpath("copy").mkdir() else path
    )
    assert folder() == folder(rows=opened(copied))
    different = [
        folder(),
        folder("labels"),
        folder(max_length=40),
        folder(eos_ids={2, 3}),
        folder(renderer=replace(renderer, system_prompt="sum ")),
        folder(renderer=replace(chat_renderer, chat=True)),
        folder(renderer=replace(renderer, train_on="last")),
        folder(rows=opened(path, max_rows=40)),
        folder(rows=opened(path)[1:]),
        folder(rows=opened(str(write("more.jsonl", jsonl(*ROWS, ROWS[0]))))),
    ]
    assert len(set(different)) == len(different)


# --- runs ------------------------------------------------------------------------------------------------------------

RUNS = {"sft": "completion", "dpo": "chosen", "kto": "label"}


def trained(folder: Path, path: str, algorithm: str, name: str, **overrides: Any) -> Run:
    config = {
        "model": str(folder / "model"),
        "algorithm": algorithm,
        "data": {"train": path, "eval_fraction": 0.2},
        "train": {"steps": 4, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 4, "samples": 0},
        "output": str(folder / name),
        "report": False,
    }
    return train(config, **overrides)


def same_run(one: Run, other: Run) -> None:
    for name, tensor in one.trainer.loaded.model.state_dict().items():
        assert torch.equal(tensor, other.trainer.loaded.model.state_dict()[name]), name
    for a, b in zip(one.metrics, other.metrics, strict=True):
        assert {k: v for k, v in a.items() if not _of_the_clock(k)} == {
            k: v for k, v in b.items() if not _of_the_clock(k)
        }
    assert json.dumps(one.evaluation) == json.dumps(other.evaluation)


def _of_the_clock(metric: str) -> bool:
    return metric.startswith(("time/", "memory/")) or "per_second" in metric


@pytest.mark.parametrize("algorithm", RUNS)
def test_a_streamed_run_is_the_run_in_memory_bit_for_bit(tmp_path, path, algorithm):
    tiny_model(tmp_path / "model", characters="0123456789+= ")
    inside = trained(tmp_path, path, algorithm, "inside", **{"data.streaming": False})
    streamed = trained(tmp_path, path, algorithm, "streamed", **{"data.streaming": True})
    same_run(inside, streamed)
    events = (streamed.folder / "events.jsonl").read_text()
    assert "training data: 48 rows are streamed" in events
    assert "dropped 3 of" in events


def test_a_streamed_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, path):
    tiny_model(tmp_path / "model", characters="0123456789+= ")
    whole = trained(tmp_path, path, "sft", "whole", **{"data.streaming": True})
    short = trained(tmp_path, path, "sft", "short", **{"data.streaming": True, "train.steps": 2})
    for folder in cache_folder("data").glob("*/ids.i32"):
        folder.write_bytes(b"")  # the cache was damaged meanwhile
    resumed = resume(short.folder, steps=4)
    for name, tensor in whole.trainer.loaded.model.state_dict().items():
        assert torch.equal(tensor, resumed.trainer.loaded.model.state_dict()[name]), name


# --- memory ----------------------------------------------------------------------------------------------------------

MEASURE = """
import sys, threading, time
from functools import partial
from posttrain.config import DataConfig
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.split import read_split
from posttrain.tasks.tiny import build_tokenizer

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

renderer = Renderer(tokenizer=build_tokenizer("0123456789abc "), chat=False)
render = partial(render_pairs, renderer=renderer, eos_ids={2}, max_length=999, max_dropped=0.5, what="data")
small = DataConfig(train=sys.argv[1], streaming=True)
render(read_split(small, seed=0).train)  # everything is loaded and warm
start, peak = anonymous(), [0.0]
threading.Thread(target=watch, daemon=True).start()
large = DataConfig(train=sys.argv[2], streaming=sys.argv[3] == "streamed")
pairs = render(read_split(large, seed=0).train).pairs
read = sum(len(pair.chosen.input_ids) for pair in pairs)
print(len(pairs), read, peak[0] - start)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
@pytest.mark.parametrize("megabytes", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_memory_stays_bounded_however_large_the_file(tmp_path, megabytes):
    """In memory the same file takes more than its size."""
    filler, rows = "x" * 15_000, megabytes * 200 // 3
    for name, count in (("small", 10), ("large", rows)):
        with (tmp_path / f"{name}.jsonl").open("w") as file:
            for n in range(count):
                row = {"prompt": f"a{n}", "chosen": f"b{n}", "rejected": "c", "unused": filler}
                file.write(json.dumps(row) + "\n")
    assert (tmp_path / "large.jsonl").stat().st_size > megabytes * 1e6

    def measured(how: str) -> list[float]:
        files = [str(tmp_path / f"{name}.jsonl") for name in ("small", "large")]
        command = [sys.executable, "-c", MEASURE, *files, how]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        return [float(number) for number in done.stdout.split()]

    streamed, inside = measured("streamed"), measured("inside")
    assert streamed[:2] == inside[:2]
    assert streamed[0] == rows - round(rows / 10)
    assert streamed[2] < 20
    assert inside[2] > megabytes * 0.9
