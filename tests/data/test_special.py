"""Special tokens in the text of rows are counted and named, because a tokenizer reads them as special."""

from __future__ import annotations

import pytest
from tests.data import templates
from tests.data.samples import jsonl, rows_of

from posttrain.data.inspection import inspect_data
from posttrain.data.special import injected, texts_in

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b<eos>c"}]
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
LABEL = {"prompt": "a", "completion": "b", "label": True}
STEPS = {"prompt": "a", "completions": ["b"], "labels": [1]}


@pytest.mark.parametrize(
    ("kind", "clean", "row"),
    [
        ("examples", {"prompt": "a", "completion": "b<eos>"}, {"prompt": "a<bos>b", "completion": "b"}),
        ("examples", {"messages": [TALK[0], {**TALK[1], "content": "b"}]}, {"messages": TALK}),
        ("pairs", PAIR, {**PAIR, "rejected": "<eos>c"}),
        ("labels", PAIR, {**PAIR, "prompt": "<eos>a"}),
        ("labels", LABEL, {**LABEL, "completion": "<eos>b"}),
        ("prompts", {"prompt": "a", "answer": "<eos>b"}, {"prompt": "a<eos>b", "answer": "b"}),
        ("steps", STEPS, {**STEPS, "completions": ["b<eos>c"]}),
    ],
)
def test_rows_with_special_tokens_in_their_text_are_named(tokenizer, kind, clean, row):
    found = injected(rows_of(clean, row, row), kind, tokenizer, {tokenizer.eos_token_id}, chat=False)
    assert found is not None
    assert (found.count, found.origins) == (2, ("rows:2", "rows:3"))
    assert found.token in ("<eos>", "<bos>")
    assert injected(rows_of(clean), kind, tokenizer, {tokenizer.eos_token_id}, chat=False) is None


def test_texts_are_found_however_deep_they_stand():
    call = {"function": {"name": "add", "arguments": {"n": ["x", 1]}}}
    assert list(texts_in({"content": "a", "tool_calls": [call], "weight": 1})) == ["a", "add", "x"]


def test_the_check_of_data_says_so(write, tokenizer):
    tokenizer.chat_template = templates.APPENDS
    path = str(write("talks.jsonl", jsonl({"messages": TALK})))
    text = " ".join(inspect_data(path, tokenizer=tokenizer).render().split())
    assert "1 row holds special tokens in the text, such as <eos>, which the model reads as special tokens" in text
    assert "(talks.jsonl:1)" in text
    assert "special tokens in the text" not in inspect_data(path).render()
