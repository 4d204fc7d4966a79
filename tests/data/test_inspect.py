"""`data check` shows what a run would read: the same columns, ids, drops and trained tokens."""

from __future__ import annotations

import json

import pytest
from tests.data.samples import jsonl, real_tokenizer, shared_file

from posttrain.config import DataConfig
from posttrain.data import inspect_data
from posttrain.errors import DataError


def test_prompts_are_counted_measured_and_shown(write, tokenizer):
    rows = [
        {"question": "1+1=", "answer": 2},
        {"question": "1+1=", "answer": 2},
        {"question": " "},
        {"question": "10+10="},
    ]
    report = inspect_data(str(write("sums.jsonl", jsonl(*rows))), tokenizer=tokenizer)
    (use,) = report.uses
    assert report.usable
    assert (report.rows, report.unit) == (4, "tokens")
    assert (use.kind, use.usable, use.duplicates) == ("prompts", 3, 1)
    assert use.mapping == "training with rewards, prompt from column 'question', answer from 'answer'"
    assert use.lengths["prompt"] == (5, 5, 7, 7, 7)  # BOS and four characters, twice; BOS and six
    assert [dropped.reason for dropped in use.dropped] == ["empty prompt"]
    assert [(column.name, column.types, column.missing) for column in report.columns] == [
        ("question", ("str",), 0),
        ("answer", ("int",), 2),
    ]
    assert (use.samples[0].origin, use.samples[0].parts, use.samples[0].answer) == (
        "sums.jsonl:1",
        (("1+1=", False),),
        2,
    )


def test_the_page_says_it_all(write, tokenizer):
    rows = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1+2=", "completion": None}]
    text = inspect_data(str(write("sums.jsonl", jsonl(*rows))), tokenizer=tokenizer).render()
    for part in (
        "sums.jsonl: 2 rows",
        "completion  str, missing in 1 rows",
        "supervised training, prompt and completion\n  usable      1 of 2 rows; dropped 1 of 2 rows: "
        "1 no value in column 'completion' (sums.jsonl:2)",
        "whole row   tokens: 7 to 7, median 7",
        "trained     tokens: 2 to 2",
        "training with rewards, prompt from column 'prompt', no answer column",
        "--- sums.jsonl:1\n<bos>1+1=⟦2<eos>⟧",
        "⟦…⟧ is what is trained.",
    ):
        assert part in text


def test_without_a_tokenizer_lengths_are_in_characters(write):
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    report = inspect_data(str(write("talks.jsonl", jsonl({"messages": talk}))))
    (use,) = report.uses
    assert report.unit == "characters"
    assert use.samples[0].parts == (("user: hello\nassistant: ", False), ("hi\n", True))


def test_the_settings_of_a_run_are_followed(write):
    path = str(write("svamp.jsonl", jsonl({"Body": "Two and two.", "Question": "How many?", "Answer": 4.0})))
    report = inspect_data(path, config=DataConfig(train=path, prompt="{Body} {Question}", answer="Answer"))
    assert [use.kind for use in report.uses] == ["prompts"]
    assert report.uses[0].samples[0].parts == (("Two and two. How many?", False),)


def test_data_that_fits_no_use_says_why_for_each(write):
    report = inspect_data(str(write("odd.jsonl", jsonl({"a": 1, "b": 2}))))
    assert not report.usable
    text = report.render()
    assert "not usable: supervised training cannot use the columns a, b" in text
    assert "not usable: the data has no column for the prompt; its columns are a, b" in text


def test_data_of_which_nothing_is_left_is_not_usable(write):
    report = inspect_data(str(write("empty.jsonl", jsonl({"prompt": ""}, {"prompt": " "}))))
    assert not report.usable
    assert "dropped 2 of 2 rows: 2 empty prompt (empty.jsonl:1, empty.jsonl:2)" in report.render()


def test_what_cannot_be_read_is_an_error(write):
    with pytest.raises(DataError, match="line 1, column 2: broken JSON"):
        inspect_data(str(write("broken.jsonl", "{oops}\n")))


def test_the_report_is_plain_json(write, tokenizer):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": ""}, {"prompt": ["x"], "completion": "c"}]
    report = inspect_data(str(write("rows.jsonl", jsonl(*rows))), tokenizer=tokenizer)
    found = json.loads(json.dumps(report.to_json()))
    assert found["usable"] is True
    assert found["uses"][0]["lengths"]["whole row"]["longest"] == 4
    assert found["uses"][0]["dropped"] == {"prompt: message without role and content": 1}
    assert found["uses"][0]["dropped_rows"][0]["origin"] == "rows.jsonl:3"


def test_long_samples_are_cut_on_the_page_only(write):
    report = inspect_data(str(write("long.jsonl", jsonl({"prompt": "x" * 5000, "answer": "y" * 5000}))))
    assert len(report.render()) < 2000
    assert len(report.uses[0].samples[0].parts[0][0]) == 5000


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("math/gsm8k_test.jsonl", ["prompts"]),
        ("sft/llamafactory_alpaca_en_demo.jsonl.gz", ["examples", "prompts"]),
        ("preference/llamafactory_kto_en_demo.jsonl.gz", ["examples"]),
        ("preference/ultrafeedback_eval.jsonl.gz", ["prompts"]),
    ],
)
def test_real_files_are_recognised(name, kinds):
    path = str(shared_file(name))
    config = DataConfig(train=path, max_rows=40)
    report = inspect_data(path, tokenizer=real_tokenizer("tokenizers/smollm2"), config=config)
    assert [use.kind for use in report.uses] == kinds
    assert all(use.usable == 40 for use in report.uses)
