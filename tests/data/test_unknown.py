"""Text that a tokenizer cannot write is counted and named, in prompts, answers and gold answers of each kind."""

from __future__ import annotations

import json
import string
from functools import partial
from typing import Any, cast

import pytest
from tests.data import templates
from tests.data.samples import jsonl, rows_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posttrain.config import DataConfig
from posttrain.data import unknown
from posttrain.data.examples import render_examples
from posttrain.data.inspection import inspect_data
from posttrain.data.labels import render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.ratings import render_ratings
from posttrain.data.steps import render_steps
from posttrain.data.unknown import Unknown, UnknownText, refuse_unknown, unknown_text, unwritten
from posttrain.errors import DataError
from posttrain.tasks.tiny import build_tokenizer
from posttrain.types import Prompt

CONFIG = DataConfig(train="d")
RENDERS = {
    "examples": render_examples,
    "pairs": render_pairs,
    "labels": render_labels,
    "ratings": render_ratings,
    "steps": partial(render_steps, separator="|"),
}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
ANSWER = {"prompt": "a", "completion": "b"}
ROWS = [
    ("examples", {"text": "abc"}, {"text": "a日c"}, True),
    ("examples", ANSWER, {**ANSWER, "completion": "日"}, True),
    ("examples", ANSWER, {**ANSWER, "prompt": "😀日"}, False),
    ("pairs", PAIR, {**PAIR, "rejected": "日本"}, True),
    ("pairs", PAIR, {**PAIR, "prompt": "日"}, False),
    ("labels", PAIR, {**PAIR, "chosen": "日"}, True),
    ("labels", {**ANSWER, "label": True}, {**ANSWER, "completion": "日", "label": False}, True),
    ("ratings", {**ANSWER, "score": 1}, {**ANSWER, "completion": "日", "score": 2}, True),
    (
        "steps",
        {"prompt": "a", "completions": ["b"], "labels": [1]},
        {**ANSWER, "completions": ["日"], "labels": [1]},
        False,
    ),
    ("prompts", {"prompt": "a"}, {"prompt": "日a"}, False),
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(string.printable)


def looked_at(kind: str, tokenizer: Any, *values: dict[str, Any], **how: Any) -> UnknownText:
    rows, renderer = rows_of(*values), Renderer(tokenizer=tokenizer, chat=False, **how)
    if kind == "prompts":
        records = render_prompts(rows, CONFIG, renderer, max_prompt_length=99, what="data").prompts
    else:
        ends = {} if kind == "steps" else {"eos_ids": {2}}
        found = RENDERS[kind](rows, renderer, max_length=99, max_dropped=0.0, what="data", **ends)
        records = found.usable
    return unknown_text(records, rows, tokenizer, {2}, system_prompt=renderer.system_prompt)


def meant(row: dict[str, Any]) -> dict[str, Any]:
    """The row with <unk> spelled in place of the text that has no token."""
    text = json.dumps(row, ensure_ascii=False)
    return json.loads(text.replace("日本", "<unk>x").replace("😀", "").replace("日", "<unk>"))


@pytest.mark.parametrize(("kind", "clean", "row", "trained"), ROWS)
def test_rows_with_text_that_has_no_token_are_counted_and_named(tokenizer, kind, clean, row, trained):
    found = looked_at(kind, tokenizer, clean, row, meant(row), row).about_text()
    assert found is not None
    assert found.message.startswith("2 of 4 rows hold text that the tokenizer cannot write, and the model reads <unk>")
    assert "'日'" in found.message
    assert "rows:2, rows:4)" in found.message
    assert ("2 of them in trained tokens" in found.message) == trained
    assert looked_at(kind, tokenizer, clean, meant(row)).findings() == []


@pytest.mark.parametrize(("kind", "clean", "row", "trained"), ROWS)
def test_rows_that_teach_nothing_but_the_unknown_token_are_refused(tokenizer, kind, clean, row, trained):
    everything = {**row, **{name: "日" for name in ("text", "completion", "chosen") if name in row}}
    everything |= {"rejected": "本日"} if "rejected" in row else {}
    found = looked_at(kind, tokenizer, everything, everything)
    if kind in ("steps", "prompts"):
        assert not found.nothing_known, "no token of the text is trained"
        return
    with pytest.raises(DataError, match=r"every trained token except EOS is <unk>.*'日'.*rows:1, rows:2"):
        refuse_unknown(found, "training data")
    for known in (clean, meant(everything)):
        refuse_unknown(looked_at(kind, tokenizer, everything, known), "training data")
    refuse_unknown(looked_at(kind, tokenizer, clean, clean), "training data")


def test_a_system_prompt_may_spell_the_unknown_token(tokenizer):
    assert looked_at("examples", tokenizer, ANSWER, system_prompt="<unk>").findings() == []
    assert looked_at("examples", tokenizer, ANSWER, system_prompt="日").about_text() is not None


def test_gold_answers_that_no_answer_can_be_are_counted(tokenizer):
    golds = ["4", "#### 日", "日本 #### 4", "<unk>", 4, 2.5, None, ["日"], "é", "é"]
    found = looked_at("prompts", tokenizer, *({"prompt": "a", "answer": gold} for gold in golds))
    finding = found.about_golds()
    assert finding is not None
    assert finding.message.startswith("3 of 8 gold answers hold text that the tokenizer cannot write")
    assert "('日', 'é' in rows:2, rows:9, rows:10)" in finding.message


@pytest.mark.parametrize("dumped", [False, True])
def test_the_tests_of_a_program_are_no_gold_answer(tokenizer, dumped):
    tests: Any = {"inputs": ["日\n"], "outputs": ["日\n"]}
    tests = json.dumps(tests, ensure_ascii=False) if dumped else tests
    assert looked_at("prompts", tokenizer, {"prompt": "a", "answer": tests}).findings() == []


@pytest.mark.parametrize(("limit", "most"), [("GOLDS_AT_ONCE", 2), ("CHARACTERS_AT_ONCE", 3)])
def test_gold_answers_are_tokenised_a_few_at_a_time(tokenizer, monkeypatch, limit, most):
    asked_for: list[int] = []

    def counting(texts: Any, **how: Any) -> Any:
        asked_for.append(len(texts))
        assert how["verbose"] is False, "transformers would warn of gold answers beyond the context"
        return tokenizer(texts, **how)

    monkeypatch.setattr(unknown, limit, most)
    counter = Unknown(tokenizer=cast("Any", counting), id=3, token="<unk>")
    golds = ["1", "22", "1", "日", "3", "3", "4444", "日"]
    found = UnknownText(unknown=counter, rows=(), eos_ids=())
    for index, gold in enumerate(golds):
        found.add(Prompt(index=index, ids=(4,), text="a", columns={"answer": gold}, origin=f"rows:{index}"))
    found._tokenise_golds()
    assert sorted(found.unwritable.rows) == [3, 7]
    assert found.unwritable.origins == ["rows:3", "rows:7"]
    assert len(asked_for) > 2
    assert max(asked_for) <= most
    assert found.golds == len(golds)


@pytest.mark.parametrize("character", ["\n", "\t", "\u3000", "日"])
@pytest.mark.parametrize("kind", RENDERS)
def test_white_space_without_a_token_is_named_and_unread_columns_are_not(kind, character):
    answer = f"a{character}b"
    row = {
        "examples": {**ANSWER, "completion": answer},
        "pairs": {**PAIR, "rejected": answer},
        "labels": {**ANSWER, "completion": answer, "label": True},
        "ratings": {**ANSWER, "completion": answer, "score": 1},
        "steps": {"prompt": "a", "completions": [answer], "labels": [1]},
    }[kind]
    finding = looked_at(kind, build_tokenizer("abc|"), {"source": "WIKI <unk>", **row}).about_text()
    assert finding is not None
    assert f"({character!r} in rows:1)" in finding.message


def words(**special: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "<s>", "</s>", "the", "cat"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def asked(tokenizer: PreTrainedTokenizerFast, text: str) -> Prompt:
    return Prompt(index=0, ids=tuple(tokenizer(text).input_ids), text=text)


@pytest.mark.parametrize("special", [{"unk_token": "[UNK]"}, {}], ids=["declared", "known to the vocabulary only"])
def test_whole_words_are_named_where_tokens_are_words(special):
    tokenizer = words(**special)
    said = "The tokenizer cannot write 'queen': the model reads [UNK] instead."
    assert unwritten(tokenizer, asked(tokenizer, "the queen cat")) == said
    assert unwritten(tokenizer, asked(tokenizer, "the cat")) == ""


def test_the_unknown_token_in_a_text_is_meant():
    tokenizer = words(unk_token="[UNK]")
    assert unwritten(tokenizer, asked(tokenizer, "the [UNK] cat")) == ""
    assert "'queen':" in unwritten(tokenizer, asked(tokenizer, "the [UNK] queen"))


def test_tokenizers_that_write_any_text_or_use_the_token_otherwise_are_left_alone():
    anything = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])), unk_token="a")
    also_ends = words(unk_token="[UNK]", eos_token="[UNK]")
    in_template = words(unk_token="[UNK]")
    in_template.chat_template = "[UNK]{{ messages }}"
    assert [Unknown.of(one) for one in (anything, also_ends, in_template)] == [None] * 3
    assert Unknown.of(words(unk_token="[UNK]"), {0}) is None


@pytest.mark.parametrize("algorithm", ["BPE", "Unigram"])
@pytest.mark.parametrize(("missing", "falls_back"), [(0, True), (1, True), (0, False)])
def test_a_tokenizer_that_falls_back_to_all_bytes_writes_any_text(algorithm, missing, falls_back):
    names = ["<unk>", "a", *(f"<0x{number:02X}>" for number in range(256 - missing))]
    if algorithm == "BPE":
        vocabulary = {name: number for number, name in enumerate(names)}
        model = models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=falls_back)
    else:
        model = models.Unigram([(name, 0.0) for name in names], unk_id=0, byte_fallback=falls_back)
    found = Unknown.of(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>"))
    assert (found is None) == (falls_back and not missing)


def test_the_check_of_data_says_so(write, tokenizer):
    path = str(write("a.jsonl", jsonl({**ANSWER, "completion": "日"}, {"prompt": "b", "completion": "b"})))
    [use] = inspect_data(path, tokenizer=tokenizer).uses
    [finding] = use.findings
    assert finding.message.startswith("1 of 2 rows holds text that the tokenizer cannot write")
    assert "('日' in a.jsonl:1)" in finding.message
    [use] = inspect_data(path).uses
    assert use.findings == ()


def test_rendered_conversations_are_searched_too(write):
    tokenizer = build_tokenizer(string.printable)
    tokenizer.chat_template = templates.APPENDS
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "日"}]
    path = str(write("talks.jsonl", jsonl({"messages": talk})))
    assert "no other trained token but EOS" in " ".join(inspect_data(path, tokenizer=tokenizer).render().split())
