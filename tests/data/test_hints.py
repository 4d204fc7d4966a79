"""Data that resembles one kind but is read as another: `data check` says which kind, and what is missing."""

import pytest
from tests.data.samples import jsonl

from posttrain.config import DataConfig
from posttrain.data import inspect_data, read_rows
from posttrain.data.hints import unseen_media
from posttrain.data.split import open_rows

ASK, ANSWER = [{"role": "user", "content": "a?"}], [{"role": "assistant", "content": "yes"}]


def check(write, *rows):
    """The use and the hints of the report, in one text."""
    report = inspect_data(str(write("rows.jsonl", jsonl(*rows))))
    found = " ".join(f"{finding.message} {finding.fix}" for finding in report.findings)
    assert report.uses, report.problems
    return report.uses[0].kind, found


@pytest.mark.parametrize("labels", [("good", "bad"), ("yes", "no"), (2, 1.5)])
def test_labels_in_words_are_named_and_what_sft_would_do_with_them(write, labels):
    kind, found = check(write, *({"prompt": "a", "completion": "b", "label": label} for label in labels))
    assert kind == "examples"
    assert "the columns prompt + completion + label suit judged answers" in found
    assert "2 label is neither true nor false (rows.jsonl:1, rows.jsonl:2)" in found
    assert "Write true (desirable) or false into label for kto and the other" in found
    assert f"it holds {labels[0]!r}, {labels[1]!r}." in found
    assert "sft would imitate all of these answers, including the bad ones" in found


def test_pairs_that_are_half_messages_are_said_to_be_unusable_as_pairs(write):
    kind, found = check(write, {"prompt": ASK, "chosen": ANSWER, "rejected": "no"})
    assert kind == "prompts"
    assert "the columns prompt + chosen + rejected suit preference pairs" in found
    assert "1 one answer is text, the other messages (rows.jsonl:1)" in found


def test_two_answers_with_a_verdict_look_like_pairs(write):
    kind, found = check(write, {"instruction": "a", "output_1": "b", "output_2": "c", "preference": 0.7})
    assert kind == "prompts"
    assert "output_1 and output_2 look like two answers to compare, and preference like the verdict" in found
    assert "write the better answer to a column chosen, the other one to rejected and the question to prompt" in found
    assert "or the verdict as output_1, output_2 or tie" in found


def test_a_column_that_looks_like_an_answer_is_not_passed_over(write):
    assert "answer_text looks like an answer" in check(write, {"prompt": "a", "answer_text": "b"})[1]
    assert check(write, {"question": "a", "answer": "b", "answer_type": "number"}) == ("prompts", "")
    assert check(write, {"problem": "a", "solution": "b"}) == ("prompts", "")
    assert check(write, {"prompt": "a", "response": "b"}) == ("examples", "")


def test_a_fault_that_rules_out_every_use_is_told_once(write):
    report = inspect_data(str(write("rows.jsonl", jsonl({"messages": [{"role": "wizard", "content": "a"}]}))))
    assert len(report.problems) == 1
    assert "100%" not in report.problems[0]


# --- pictures, videos and sound ---------------------------------------------------------------------------------------

TEXT = {"prompt": "a", "completion": "b"}
FILLED = [["x.png"], "x.png", {"bytes": "x"}, [{"path": "x.png"}]]


@pytest.mark.parametrize("column", ["image", "images", "video", "videos", "audio", "audios", "Image", "IMAGES"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_column_that_the_model_does_not_see_is_named(write, column, streaming, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    for value in FILLED:
        path = str(write("rows.jsonl", jsonl(TEXT, TEXT | {column: None}, TEXT | {column: value})))
        rows = open_rows(DataConfig(train=path, streaming=streaming), path, "train", 0)
        (found,) = unseen_media(rows)
        assert found.message.startswith(f"the column {column} holds values that the model does not see")
        assert found in inspect_data(path).findings


@pytest.mark.parametrize(
    ("column", "value"), [("images", []), ("image", None), ("audio", ""), ("image_id", "x"), ("imagesize", 3)]
)
def test_other_columns_and_empty_ones_are_not_named(write, column, value):
    assert unseen_media(read_rows(str(write("rows.jsonl", jsonl(TEXT | {column: value}))))) == []
