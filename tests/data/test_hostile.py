"""Rows and templates designed to do harm: each row is used or named, in bounded time and memory, or an error names the
file and line at fault. This holds for every file form and every kind of data, in `data check` and in training.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue, examples, few
from tests.data.malformed import GOOD, KINDS
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.config import DataConfig
from posttrain.data import forms, inspect_data, limits
from posttrain.data.dropped import Unusable
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.errors import DataError, PosttrainError

DEEP = 100_000
VALUES: Mapping[str, str] = {
    "arrays in arrays": "[" * DEEP + "]" * DEEP,
    "objects in objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "nesting without an end": "[" * DEEP,
    "just too deep": "[" * 120 + "]" * 120,
    "just not too deep": "[" * 90 + "]" * 90,
    "deep JSON as text": json.dumps("[" * DEEP + "]" * DEEP),
    "5,000 digits": "9" * 5000,
    "-5,000 digits": "-" + "9" * 5000,
    "4,000 digits": "9" * 4000,
    "5,000 digits as text": json.dumps("9" * 5000),
    "a huge exponent": "1e999999",
    "NaN": "NaN",
    "half a character": '"\\ud800"',
    "the other half": '"ab\\udfffba"',
    "half a character as a name": '{"\\ud800": "a"}',
    "NUL": '"a\\u0000b"',
    "commands to a terminal": '"\\u001b[2J\\u202egnp.exe\\u0007"',
    "2 MB of words": json.dumps("ab " * 700_000),
    "2 MB of one word": json.dumps("a" * 2_000_000),
    "true": "true",
    "a list of nulls": "[null, null]",
    "messages of numbers": '[{"role": "user", "content": 1e400}]',
    "a role of lists": '[{"role": ["user"], "content": "ab"}]',
    "a content of objects": '[{"role": "user", "content": {"a": []}}]',
}
"""A single value as JSON."""
LARGE = {name for name, text in VALUES.items() if len(text) > 50_000}


def row_text(layout: str, column: str, value: str) -> str:
    """A valid row of the layout as JSON, with another value in a column."""
    row = dict(GOOD[layout])
    marked = json.dumps({**row, column: "@@"})
    return marked.replace('"@@"', value)


def lines(rows: list[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def as_csv(rows: list[str]) -> bytes:
    """The rows as CSV; values that are not valid JSON are written as they are."""
    text = io.StringIO()
    found = [_loaded(row) for row in rows]
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in found for name in row)))
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().encode(errors="surrogatepass")


def as_parquet(rows: list[str]) -> bytes:
    out = pa.BufferOutputStream()
    found = [{name: _flat(value) for name, value in _loaded(row).items()} for row in rows]
    parquet.write_table(pa.Table.from_pylist(found), out)
    return out.getvalue().to_pybytes()


def _loaded(row: str) -> dict[str, Any]:
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return {"prompt": row}


def _flat(value: Any) -> str:
    """The value as text, because a column of a Parquet file has one type."""
    text = value if isinstance(value, str) else repr(value)
    return text.encode(errors="replace").decode()


FORMS: Mapping[str, Callable[[list[str]], bytes]] = {
    ".jsonl": lines,
    ".jsonl.gz": lambda rows: gzip.compress(lines(rows), 1),
    ".json": lambda rows: f"[{', '.join(rows)}]".encode(),
    ".csv": as_csv,
    ".parquet": as_parquet,
}


def looked_at(path: Path, layout: str, tokenizer: Any) -> None:
    """Check that `data check` gives a report that can be shown and stored, or raises an error that names the file."""
    started = time.process_time()
    try:
        report = inspect_data(str(path), tokenizer=tokenizer, max_length=256, kind=KINDS.get(layout, layout))  # type: ignore[arg-type]
        said = report.render() + json.dumps(report.to_json())
    except DataError as error:
        said = str(error)
        assert path.name in said
    assert time.process_time() - started < 20
    assert not any(ord(character) in (0, 7, 27, 0x202E) for character in said)
    said.encode()


@pytest.mark.slow
@given(
    st.sampled_from(sorted(GOOD)),
    st.integers(0, 3),
    st.sampled_from(sorted(set(VALUES) - LARGE)),
    st.sampled_from(sorted(FORMS)),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_hostile_value_in_any_column_of_any_form_is_used_or_named(
    tmp_path, chat_tokenizer, layout, place, value, form
):
    column = list(GOOD[layout])[place % len(GOOD[layout])]
    good = json.dumps(GOOD[layout])
    path = tmp_path / f"rows{form}"
    path.write_bytes(FORMS[form]([good, row_text(layout, column, VALUES[value]), good]))
    looked_at(path, layout, chat_tokenizer)


NAMES = "role content from value tool_calls function name arguments type text weight ground_truth messages input output"
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats()
    | st.sampled_from(["", "ab", "user", "assistant", "tool"])
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
    max_leaves=8,
)
turns = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | anything, "content": anything},
        optional=dict.fromkeys(("tool_calls", "weight", "name"), anything),
    ),
    max_size=3,
)


@pytest.mark.slow
@given(st.data())
@examples(40, 400)
def test_any_values_in_the_columns_of_any_form_are_read_or_left_out_with_a_reason(data):
    form = data.draw(st.sampled_from(forms.FORMS))
    values = {name: data.draw(anything | turns) for name in (*form.needs, *form.may_have)}
    for chat in (False, True):
        found = form.read(Row(values=values, origin="row"), chat=chat)
        assert isinstance(found, dict) or 0 < len(found.reason) < 200


@pytest.mark.parametrize("form", FORMS)
def test_large_values_cost_little_in_every_form(form, tmp_path, chat_tokenizer):
    path = tmp_path / f"rows{form}"
    for value in sorted(LARGE):
        for layout, column in (("prompts", "prompt"), ("pairs", "rejected"), ("steps", "completions")):
            if layout != "prompts" and form != ".jsonl":
                continue
            path.write_bytes(FORMS[form]([json.dumps(GOOD[layout]), row_text(layout, column, VALUES[value])]))
            looked_at(path, layout, chat_tokenizer)


SAID = {
    "arrays in arrays": "line 2: JSON with more than 100 levels",
    "5,000 digits": "line 2: an integer with more digits than Python reads",
    "nesting without an end": "line 2: JSON with more than 100 levels",
    "half a character": "1 text with half a character (a lone surrogate) (rows.jsonl:2)",
    "2 MB of words": "1 prompt longer than 256 tokens (rows.jsonl:2)",
    "2 MB of one word": "1 prompt longer than 256 tokens (rows.jsonl:2)",
}


@pytest.mark.parametrize("value", SAID)
def test_what_is_wrong_is_said_by_data_check(value, tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines([json.dumps(GOOD["prompts"]), row_text("prompts", "prompt", VALUES[value])]))
    try:
        said = inspect_data(str(path), tokenizer=tokenizer, max_length=256).render()
    except DataError as error:
        said = str(error)
    assert SAID[value] in said


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_training_says_the_same_of_them(tmp_path, streaming, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    model = str(tiny_model(tmp_path / "model"))
    for number, (name, value) in enumerate(VALUES.items()):
        path = tmp_path / "rows.jsonl"
        good = json.dumps(GOOD["pairs"])
        path.write_bytes(lines([good, row_text("pairs", "chosen", value), good, good]))
        config = {
            "model": model,
            "algorithm": "dpo",
            "data": {"train": str(path), "eval_fraction": 0.0, "streaming": streaming},
            "train": {"steps": 1, "prompts_per_step": 2},
            "output": str(tmp_path / f"run-{number}"),
            "report": False,
        }
        started = time.process_time()
        try:
            run = pt.train(config)
            said = (run.folder / "events.jsonl").read_text()
        except PosttrainError as error:
            said = str(error)
        if name not in ("NUL", "deep JSON as text", "5,000 digits as text", "commands to a terminal"):
            assert "rows.jsonl" in said, name
        assert time.process_time() - started < 30, name


def test_data_whose_columns_are_half_characters_is_refused_in_whole_ones(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(['{"\\ud800": "a"}', '{"\\ud800": "b"}']))
    report = inspect_data(str(path))
    assert not report.usable
    (report.render() + json.dumps(report.to_json())).encode()


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.data.read.LONGEST_LINE", 10_000)
    monkeypatch.setattr("posttrain.data.json_array.LONGEST_VALUE", 10_000)
    monkeypatch.setattr("posttrain.data.json_array.PIECE", 1_000)
    text = json.dumps({"prompt": "a" * 50_000})
    for name, content in (
        ("rows.jsonl", text),
        ("rows.json", f"[{text}]"),
        ("rows.csv", f'prompt\n"{"a" * 50_000}"\n'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=rf"{name}, line \d.*(more than 10,000|field limit)"):
            inspect_data(str(tmp_path / name))


# --- chat templates ---------------------------------------------------------------------------------------------------

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"
ENDLESS = {
    "a loop that writes nothing": LOOP.replace("BODY", ""),
    "a loop that writes": LOOP.replace("BODY", "x"),
    "a loop that keeps": "{% set ns = namespace(n=0) %}" + LOOP.replace("BODY", "{% set ns.n = ns.n + 1 %}"),
    "text that doubles": "{% set ns = namespace(s='abcd') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}{{ ns.s }}",
    "large texts in a loop": "{% for i in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}",
    "one large text": "{{ 'a' * 100000000000 }}",
    "a large format": "{{ '%099999999999d' % 1 }}",
    "a large power": "{{ 9 ** (9 ** 9) }}",
}
BROKEN = {
    "division by zero": "{{ 1 / 0 }}",
    "a range that is refused": "{% for i in range(10000000000) %}x{% endfor %}",
    "a macro in itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a name that is not there": "{{ nothing.at.all }}",
    "a message that is not there": "{{ messages[99].content }}",
    "an attribute that is forbidden": "{{ ''.__class__.__mro__ }}",
    "a wrong type": "{{ 1 + 'a' }}",
    "a syntax error": "{% for %}",
    "its own refusal": "{{ raise_exception('no') }}",
    "half a character": "{{ '\\ud800' }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", few(ENDLESS, "a loop that writes nothing"))
def test_a_template_without_an_end_is_refused_before_a_row_is_rendered(name, tokenizer, monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 1)
    tokenizer.chat_template = ENDLESS[name]
    started = time.process_time()
    with pytest.raises(DataError, match="the chat template takes more than 1 s of computing, or 1 GB"):
        inspect_data("task:sort", tokenizer=tokenizer)
    assert time.process_time() - started < 5


@pytest.mark.slow
def test_a_template_that_has_no_end_for_some_rows_only_is_stopped_there(tokenizer, monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 1)
    tokenizer.chat_template = "{% if 'now' in messages[0].content %}" + LOOP.replace("BODY", "") + "{% endif %}ab"
    renderer = Renderer(tokenizer=tokenizer, chat=True)
    assert renderer.text("ab") == "ab"
    with pytest.raises(DataError, match="takes more than 1 s"):
        renderer.text("now")


@catalogue("name", BROKEN)
def test_a_template_that_fails_leaves_the_row_out_with_the_reason(name, tokenizer):
    tokenizer.chat_template = BROKEN[name]
    renderer = Renderer(tokenizer=tokenizer, chat=True)
    with pytest.raises(Unusable, match=r"(?s)^.{1,300}$"):
        renderer.ids(renderer.text("ab"), is_chat=True)
    report = inspect_data("task:sort", tokenizer=tokenizer, config=DataConfig(train="task:sort", max_rows=4))
    (report.render() + json.dumps(report.to_json())).encode()
