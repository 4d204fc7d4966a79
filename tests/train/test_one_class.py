"""Judged answers of one class only: there is nothing to train on, and the held-out measurement says what it lacks."""

import json
from pathlib import Path

import pytest
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.errors import DataError
from posttrain.report.lines import evaluation_line
from posttrain.report.store import read_run
from posttrain.report.verdict import verdict

WORDS = ["abc", "bcd", "cde", "def", "efg", "fgh", "ghi", "hij"]


def config(folder: Path, labels: list[bool], **data: object) -> dict:
    rows = [
        {"prompt": word, "completion": word[::-1], "label": labels[n % len(labels)]} for n, word in enumerate(WORDS)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model": str(tiny_model(folder / "model")),
        "algorithm": "kto",
        "data": {"train": str(folder / "train.jsonl"), "eval_fraction": 0, **data},
        "train": {"steps": 1, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"writing": 0},
        "output": str(folder / "run"),
        "report": False,
    }


@pytest.mark.parametrize(
    ("label", "said", "fix"),
    [
        (True, "all 8 answers are desirable", "label false, or imitate these alone with algorithm: sft"),
        (False, "all 8 answers are undesirable", "label true."),
    ],
)
@pytest.mark.parametrize("algorithm", ["kto", "bco"])
def test_there_is_nothing_to_tell_answers_of_one_kind_from(tmp_path, algorithm, label, said, fix):
    with pytest.raises(DataError, match=said) as error:
        pt.train(config(tmp_path, [label]) | {"algorithm": algorithm})
    assert fix in str(error.value)


def test_dropped_rows_are_named_before_the_missing_class(tmp_path):
    with pytest.raises(DataError) as error:
        pt.train(config(tmp_path, [1, -1], max_dropped=0.5))  # type: ignore[list-item]
    assert (
        "training data: dropped 4 of 8 rows: 4 label is neither true nor false (train.jsonl:2, train.jsonl:4, "
        "train.jsonl:6); all 4 answers left are desirable"
    ) in str(error.value)
    assert "Write true or false, or 1 or 0, as the label of the dropped rows." in str(error.value)
    assert "Add answers" not in str(error.value)


def test_held_out_answers_of_one_kind_are_not_said_to_be_missing(tmp_path):
    heldout = tmp_path / "heldout.jsonl"
    heldout.write_text("".join(json.dumps({"prompt": w, "completion": w, "label": False}) + "\n" for w in WORDS[:3]))
    run = pt.train(config(tmp_path, [True, False], eval=str(heldout)))
    assert "held-out data: all 3 answers are undesirable" in (run.folder / "events.jsonl").read_text()
    assert evaluation_line(run.evaluation["baseline"]) == "no AUC, all answers are undesirable, 3 answers"
    found = verdict(read_run(run.folder))
    assert found.headline == "The held-out data cannot show whether the model improved."
    assert found.sentences[0].startswith("All 3 held-out answers are undesirable")
    assert found.sentences[1].startswith("Their log-probability changed by ")
