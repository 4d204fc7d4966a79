"""Streamed data is the same data: rows, order, held-out rows, drops, and every bit of the run; it is never all in
memory."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from tests.data.samples import jsonl
from tests.tiny import tiny_model

from posttrain.cache import cache_folder
from posttrain.config import DataConfig
from posttrain.data import split, stream
from posttrain.data.examples import render_examples
from posttrain.data.labels import render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.read import Row, iter_rows, read_rows
from posttrain.data.split import read_split
from posttrain.data.stream import RowSource, StreamedRecords, StreamedRows
from posttrain.errors import DataError
from posttrain.train.api import resume, train
from posttrain.train.run import Run

ROWS = [
    {"prompt": f"{n}+{n}=", "completion": str(2 * n), "chosen": str(2 * n), "rejected": f"{n}", "label": n % 3 == 0}
    for n in range(1, 61)
]
FAULTS = {7: {"prompt": ""}, 20: {"completion": None, "chosen": None}, 33: {"prompt": "9" * 80}}
"""Two rows whose faults are seen on reading, and one that is too long after tokenisation."""
KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "examples": (render_examples, "rows"),
    "pairs": (render_pairs, "rows"),
    "labels": (render_labels, "rows"),
    "prompts": (render_prompts, "prompts"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def faulty() -> list[dict[str, Any]]:
    rows = [row | FAULTS.get(n, {}) for n, row in enumerate(ROWS)]
    return [{"only here": 1} | rows[0], *rows[1:]]


@pytest.fixture
def path(write) -> str:
    return str(write("rows.jsonl", jsonl(*faulty())))


def opened(path: str, **settings: Any) -> StreamedRows:
    rows = read_split(DataConfig(train=path, streaming=True, eval_fraction=0.0, **settings), seed=0).train
    assert isinstance(rows, StreamedRows)
    return rows


def rendered(
    kind: str, rows: Sequence[Row], renderer: Renderer, *, max_length: int = 50, max_dropped: float = 0.5
) -> tuple[Any, Sequence[Any]]:
    render, attribute = KINDS[kind]
    if kind == "prompts":
        config = DataConfig(train="-", max_dropped=max_dropped)
        found = render(rows, config, renderer, max_prompt_length=max_length, what="data")
    else:
        limits = {"eos_ids": {2}, "max_length": max_length, "max_dropped": max_dropped, "what": "data"}
        found = render(rows, renderer, **limits)
    return found, getattr(found, attribute)


def lazily(monkeypatch) -> None:
    """Let a run tokenise nothing beforehand except the first and the last row."""
    monkeypatch.setattr(stream, "LONGEST", 0)
    monkeypatch.setattr(stream, "SAMPLE", 2)


# --- rows ------------------------------------------------------------------------------------------------------------


def test_streamed_rows_are_the_rows(path):
    rows, streamed = read_rows(path), opened(path)
    assert list(streamed) == list(streamed) == rows
    assert len(streamed) == 60
    assert (streamed[3], streamed[-1]) == (rows[3], rows[-1])
    assert list(streamed[5:50:7]) == rows[5:50:7]
    assert list(streamed[10:40][3:5]) == rows[13:15]
    assert streamed.columns == ["only here", *ROWS[0]]


@pytest.mark.parametrize("end", ["\xa0", "\u2028", "\x0c", "\x1f", "\u3000"])
def test_white_space_that_json_does_not_know_ends_a_line_streamed_or_not(end, tmp_path):
    path = _written(tmp_path / "rows.jsonl", "".join(f'{{"prompt": "q{n}"}}{end}\n' for n in range(4)))
    rows = read_rows(str(path))
    assert [row.values["prompt"] for row in rows] == ["q0", "q1", "q2", "q3"]
    assert list(opened(str(path))) == rows


def as_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    texts = [",".join(f'"{row.get(name) or ""}"' for name in ROWS[0]) for row in rows]
    return _written(path.with_suffix(".csv"), "\n".join([",".join(ROWS[0]), *texts]))


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a Parquet file with values that JSON cannot represent."""
    day = datetime.datetime(2026, 1, 2, 3, 4, 5, 678)
    more = {"when": day, "day": day.date(), "time": day.time(), "raw": b"\0\xff", "price": Decimal("1.50")}
    more["span"] = datetime.timedelta(days=2, microseconds=3)
    parquet.write_table(pa.Table.from_pylist([row | more for row in rows]), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _packed(path: Path, rows: list[dict[str, Any]]) -> Path:
    import gzip

    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(jsonl(*rows).encode()))
    return packed


FORMS: dict[str, Callable[[Path, list[dict[str, Any]]], Path]] = {
    "jsonl": lambda path, rows: _written(path, "\ufeff" + jsonl(*rows).replace("\n", "\n\n \n", 3)),
    "json": lambda path, rows: _written(path.with_suffix(".json"), json.dumps(rows, indent=1)),
    "csv": as_csv,
    "parquet": as_parquet,
    "gz": _packed,
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_stream_as_they_are_read(form, tmp_path):
    path = str(FORMS[form](tmp_path / "rows.jsonl", faulty()))
    for more in ((), (path,)):  # and two sources, each cut off
        source = RowSource(paths=(path, *more), split="train", max_rows=50 if more else None, seed=0)
        expected = list(iter_rows(source.paths, max_rows=source.max_rows))
        for _ in range(2):  # the second time from the cache
            streamed = StreamedRows.open(source)
            assert list(streamed) == expected
            assert [streamed[place] for place in (59, 0, -1)] == [expected[place] for place in (59, 0, -1)]


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.none()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text()
            | st.lists(st.text(max_size=3), max_size=2),
            max_size=3,
        ),
        min_size=1,
        max_size=9,
    ),
    st.booleans(),
)
@examples(10, 30)
def test_any_rows_come_back_whether_read_in_place_or_copied(tmp_path_factory, rows, in_place):
    path = tmp_path_factory.mktemp("any") / ("rows.jsonl" if in_place else "rows.json")
    text = jsonl(*rows) if in_place else json.dumps(rows)
    path.write_text(text)
    streamed = StreamedRows.open(RowSource(paths=(str(path),), split="train", max_rows=None, seed=0))
    assert list(streamed) == read_rows(str(path))


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


def test_rows_are_looked_for_once_for_the_same_content_and_again_where_the_cache_is_damaged(path, cache, monkeypatch):
    first = list(opened(path))
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_index", lambda places: pytest.fail("read again"))
        assert list(opened(path)) == first
    (kept,) = cache.glob("data/*.npz")
    for damage in (b"", b"PK", kept.read_bytes()[:-100], kept.read_bytes().replace(b"completion", b"completiom")):
        kept.write_bytes(damage)
        assert list(opened(path)) == first


@pytest.mark.parametrize("content", [jsonl(*ROWS[:5]), jsonl(*ROWS, *ROWS)], ids=["fewer", "more"])
def test_data_that_changes_while_it_is_read_is_an_error(path, content):
    streamed = opened(path)
    Path(path).write_text(content)
    for read in (lambda: list(streamed), lambda: streamed[3]):
        with pytest.raises(DataError, match="the data changed while the run was reading it"):
            read()


def test_a_file_that_is_replaced_is_read_on_as_it_was(path):
    streamed, rows = opened(path), read_rows(path)
    Path(path).rename(f"{path}.old")
    Path(path).write_text(jsonl(*ROWS[:5]))
    assert list(streamed) == rows


# --- rendered rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_those_that_would_be_in_memory(kind, path, renderer):
    inside, records = rendered(kind, read_rows(path), renderer)
    streaming, streamed = rendered(kind, opened(path), renderer)
    assert isinstance(streamed, StreamedRecords)
    assert isinstance(records, tuple)
    assert list(streamed) == list(records)
    assert [streamed[place] for place in range(len(streamed))] == list(records)
    assert streamed[3:9] == records[3:9]
    assert list(streaming.dropped) == list(inside.dropped)
    assert streaming.dropped_summary == inside.dropped_summary
    assert len(streaming) == len(inside) == 60 - len(inside.dropped)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_found_bad_during_the_run_is_named_and_the_next_stands_in_for_it(
    kind, path, renderer, monkeypatch
):
    _, records = rendered(kind, read_rows(path), renderer)
    lazily(monkeypatch)
    found, streamed = rendered(kind, opened(path), renderer)
    assert isinstance(streamed, StreamedRecords)
    before, told = len(found.dropped), []
    streamed.tell(told.append)
    place = next(n for n in range(len(streamed)) if streamed.usable_N[n] == 33)
    assert (len(streamed), streamed[place]) == (len(records) + 1, records[place])
    reason = "prompt longer than 50 tokens" if kind == "prompts" else "longer than 50 tokens"
    assert told == [f"data: left out rows.jsonl:34: {reason} ({before + 1} rows so far)"]
    assert [streamed[n] for n in (place, place + 1)] == [records[place]] * 2
    assert list(streamed) == list(records)
    assert len(told) == 1
    assert [dropped.origin for dropped in streamed.dropped] == [
        d.origin for d in rendered(kind, read_rows(path), renderer)[0].dropped
    ]


def test_what_stands_in_does_not_depend_on_what_was_read_before(path, renderer, monkeypatch):
    lazily(monkeypatch)
    orders = [range(60), reversed(range(60)), [33, 32, 5, 34, 33]]
    seen: list[dict[int, Any]] = []
    for order in orders:
        _, streamed = rendered("pairs", opened(path), renderer)
        seen.append({place: streamed[place] for place in order if place < len(streamed)})
    for found in seen[1:]:
        assert all(found[place] == seen[0][place] for place in found)


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_drops_are_the_same_error(kind, path, renderer):
    errors = []
    for rows in (read_rows(path), opened(path)):
        with pytest.raises(DataError) as found:
            rendered(kind, rows, renderer, max_dropped=0.0)
        errors.append(str(found.value))
    assert errors[0] == errors[1]


def test_too_many_drops_during_the_run_are_an_error_that_names_them(write, renderer, monkeypatch):
    lazily(monkeypatch)
    rows = [row | ({"prompt": "9" * 80} if n % 2 else {}) for n, row in enumerate(ROWS[:59])]
    _, streamed = rendered("pairs", opened(str(write("half.jsonl", jsonl(*rows)))), renderer, max_dropped=0.3)
    with pytest.raises(DataError, match=r"dropped 1 of 3 rows: 1 longer than 50 tokens \(half.jsonl:2\)"):
        [streamed[place] for place in range(len(streamed))]


def test_data_of_which_nothing_is_usable_is_refused_before_the_run(write, renderer):
    for bad in ({"prompt": ""}, {"prompt": "9" * 80}):
        path = str(write("bad.jsonl", jsonl(*(row | bad for row in ROWS))))
        with pytest.raises(DataError, match="dropped 60 of 60 rows"):
            rendered("pairs", opened(path), renderer, max_dropped=1.0)


def test_numbers_and_repeated_rows_are_known_without_tokens(path, renderer, monkeypatch):
    lazily(monkeypatch)
    _, labels = rendered("labels", opened(path), renderer)
    assert isinstance(labels, StreamedRecords)
    monkeypatch.setattr(StreamedRecords, "_usable", lambda *_: pytest.fail("a row was tokenised"))
    assert sum(labels.numbers) == sum(row["label"] for n, row in enumerate(faulty()) if n not in (7, 20))
    others = [
        Row(values=row, origin="other") for row in (ROWS[3], ROWS[4] | {"label": True}, {**ROWS[5], "completion": "x"})
    ]
    assert labels.shared_with(others) == 2
    stranger = Row(values=ROWS[3] | {"prompt": "a prompt of its own"}, origin="other")
    assert labels.prompts_shared_with([*others, stranger]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_key_changes_with_whatever_a_record_depends_on_and_with_nothing_else(kind, path, write, renderer):
    def key(content: str = "", name: str = "other.jsonl", **changes: Any) -> str:
        _, streamed = rendered(kind, opened(str(write(name, content)) if content else path), renderer, **changes)
        assert isinstance(streamed, StreamedRecords)
        return streamed.key()

    rows = faulty()
    assert key() == key(jsonl(*rows)) == key(json.dumps(rows), "other.json")
    swapped, longer = [*rows[:3], rows[4], rows[3], *rows[5:]], [*rows, ROWS[0]]
    changed = [*rows[:3], rows[3] | {"prompt": "1=", "label": rows[3]["label"]}, *rows[4:]]
    different = [key(), key(max_length=40), *(key(jsonl(*other)) for other in (swapped, longer, changed))]
    if kind == "labels":
        different.append(key(jsonl(*rows[:3], rows[3] | {"label": not rows[3]["label"]}, *rows[4:])))
    assert len(set(different)) == len(different)


# --- runs ------------------------------------------------------------------------------------------------------------

RUNS = {"sft": "completion", "dpo": "chosen", "kto": "label"}


def trained(folder: Path, path: str, algorithm: str, name: str, **overrides: Any) -> Run:
    config = {
        "model": str(folder / "model"),
        "algorithm": algorithm,
        "data": {"train": path, "eval_fraction": 0.2},
        "train": {"steps": 4, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"writing": 0, "prompts": 4, "samples": 0},
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
    assert _without_seconds(one.evaluation) == _without_seconds(other.evaluation)


def _without_seconds(measured: Any) -> str:
    """All measured values except the times."""
    return (
        json.dumps(measured, default=str)
        if not isinstance(measured, dict)
        else json.dumps({name: _without_seconds(value) for name, value in measured.items() if name != "seconds"})
    )


def _of_the_clock(metric: str) -> bool:
    return metric.startswith(("time/", "memory/")) or "per_second" in metric


@pytest.mark.parametrize("algorithm", few(RUNS, "kto"))
def test_a_streamed_run_is_the_run_in_memory_bit_for_bit(tmp_path, path, algorithm):
    tiny_model(tmp_path / "model", characters="0123456789+= ")
    inside = trained(tmp_path, path, algorithm, "inside", **{"data.streaming": False, "train.steps": 2})
    streamed = trained(tmp_path, path, algorithm, "streamed", **{"data.streaming": True, "train.steps": 2})
    same_run(inside, streamed)
    events = (streamed.folder / "events.jsonl").read_text()
    assert "training data: 48 rows are streamed: the step that takes a row tokenises it" in events
    assert "dropped 3 of" in events


@pytest.mark.parametrize("algorithm", few(RUNS, "sft"))
def test_a_streamed_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, path, algorithm, monkeypatch):
    """This also holds if some rows turn out bad later, and if the cache was deleted."""
    lazily(monkeypatch)
    tiny_model(tmp_path / "model", characters="0123456789+= ")
    streamed = {"data.streaming": True, "train.prompts_per_step": 24}
    whole = trained(tmp_path, path, algorithm, "whole", **streamed)
    short = trained(tmp_path, path, algorithm, "short", **streamed, **{"train.steps": 2})
    for file in cache_folder("data").glob("*"):
        file.unlink()
    same_run(whole, resume(short.folder, steps=4))
    assert "left out rows.jsonl:34: longer than 64 tokens" in (whole.folder / "events.jsonl").read_text()


def test_a_run_whose_streamed_rows_were_changed_is_not_resumed(tmp_path, path):
    tiny_model(tmp_path / "model", characters="0123456789+= ")
    run = trained(tmp_path, path, "dpo", "run", **{"data.streaming": True, "train.steps": 1})
    Path(path).write_text(jsonl(*reversed(faulty())))
    with pytest.raises(DataError, match="training data: 45 rows as before, but their content"):
        resume(run.folder, steps=2)


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
pairs = render(read_split(large, seed=0).train).rows
read = sum(len(pairs[n].chosen.input_ids) for n in range(0, len(pairs), 7))
print(len(pairs), read, peak[0] - start)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [30, 300])
def test_memory_stays_bounded_however_large_the_file(tmp_path, megabytes):
    """In memory the same file would take more than its size."""
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
    assert inside[2] > megabytes * 0.8


def test_shared_prompts_of_streamed_conversations_are_those_that_are_held_out_together(write, renderer, monkeypatch):
    """Conversations that only begin alike share none, and those with other calls of tools before the answer do."""
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    )
    monkeypatch.setattr(renderer.tokenizer, "chat_template", template)
    hello = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]

    def conversation(question: str, *more: dict[str, Any]) -> dict[str, Any]:
        asked = [*hello, {"role": "user", "content": question}, *more]
        return {"messages": [*asked, {"role": "assistant", "content": "c"}]}

    path = str(write("talks.jsonl", jsonl(*(conversation(letter) for letter in "abcdefgh"))))
    _, streamed = rendered("examples", opened(path), renderer)
    assert isinstance(streamed, StreamedRecords)
    tried = [{"role": "assistant", "content": "d"}, {"role": "tool", "name": "t", "content": "e"}]
    others = [conversation("x"), conversation("a"), conversation("b", *tried)]
    assert streamed.prompts_shared_with([Row(values=row, origin="other") for row in others]) == 2
