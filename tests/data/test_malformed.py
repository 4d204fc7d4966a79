"""One bad row among ten thousand is named by file and line, and no other row is lost."""

from __future__ import annotations

import json

import pytest
from tests.catalogue import catalogue, few
from tests.data import templates
from tests.data.malformed import GOOD, TABLE, Malformed

from posttrain.config import DataConfig
from posttrain.data.dropped import Dropped
from posttrain.data.examples import render_examples
from posttrain.data.forms import detect
from posttrain.data.labels import render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.read import Row, read_rows

ROWS, LINE, LIMIT = 2_000, 711, 256
SETS = {"examples": render_examples, "pairs": render_pairs, "labels": render_labels}


@pytest.fixture
def renderer(tokenizer) -> Renderer:
    """A renderer that leaves plain text unchanged and writes conversations with their calls."""
    tokenizer.chat_template = templates.CALLS
    return Renderer(tokenizer=tokenizer, chat=False)


def read(rows: list[Row], kind: str, renderer: Renderer) -> tuple[list[int], list[Dropped]]:
    """The numbers of the usable rows, and the dropped rows."""
    if kind == "prompts":
        config = DataConfig(train="rows.jsonl", max_dropped=1.0)
        found = render_prompts(rows, config, renderer, max_prompt_length=LIMIT, what="data")
        return [prompt.index for prompt in found.prompts], list(found.dropped)
    if kind in SETS:
        eos_ids = {renderer.tokenizer.eos_token_id}
        found = SETS[kind](rows, renderer, eos_ids=eos_ids, max_length=LIMIT, max_dropped=1.0, what="data")
        usable = getattr(found, "examples", None) or getattr(found, "pairs", None) or found.rows
        return [one.index for one in usable], list(found.dropped)
    form = detect(rows, kind)
    values = [form.read(row) for row in rows]
    usable = [n for n, one in enumerate(values) if not isinstance(one, Dropped)]
    return usable, [one for one in values if isinstance(one, Dropped)]


@catalogue("bad", TABLE, ids=lambda bad: bad.name)
def test_a_bad_row_is_named_with_its_reason(bad: Malformed, renderer):
    good = Row(values=dict(GOOD[bad.layout]), origin="rows.jsonl:1")
    usable, dropped = read([good, Row(values=bad.row, origin="rows.jsonl:2")], bad.kind, renderer)
    assert (usable, dropped) == ([0], [Dropped("rows.jsonl:2", bad.reason)])


@pytest.mark.parametrize("layout", few(GOOD, "prompts"))
def test_bad_rows_among_thousands_are_named_by_line_and_no_other_row_is_lost(layout, write, renderer):
    bad = {LINE + 3 * n: one for n, one in enumerate(one for one in TABLE if one.layout == layout)}
    good = json.dumps(GOOD[layout]) + "\n"
    lines = (json.dumps(bad[n].row) + "\n" if n in bad else good for n in range(1, ROWS + 1))
    rows = read_rows(str(write("rows.jsonl", "".join(lines))))
    kind = next(iter(bad.values())).kind
    usable, dropped = read(rows, kind, renderer)
    assert dropped == [Dropped(f"rows.jsonl:{line}", one.reason) for line, one in bad.items()]
    assert usable == [n - 1 for n in range(1, ROWS + 1) if n not in bad]


def test_there_are_many_kinds_of_every_kind_of_data():
    assert len({bad.reason for bad in TABLE}) >= 35
    assert {bad.layout for bad in TABLE} == set(GOOD)
