"""A resumed run continues with the data of its start: it reports every kind of row that changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.catalogue import few
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.errors import DataError
from posttrain.evaluate.row_scores import RowScores
from posttrain.train.same_data import rows_key
from posttrain.types import Example, LabelledExample, Pair, Prompt, RatedExample, StepExample

Rows = list[dict[str, Any]]


def row(number: int) -> dict[str, Any]:
    word = "abcdefgh"[number % 8] * (1 + number // 8)
    return {
        "prompt": word,
        "completion": word[::-1] + "x",
        "chosen": word + "x",
        "rejected": word + "y",
        "label": number % 3 == 0,
        "score": float(number),
        "completions": [word, "y"],
        "labels": [True, number % 2 == 0],
    }


COLUMNS = {
    "grpo": ("prompt", "label"),
    "sft": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
    "reward_model": ("prompt", "chosen", "rejected"),
    "reward_regression": ("prompt", "completion", "score"),
    "process_reward_model": ("prompt", "completions", "labels"),
}


REWARD = """def reward(prompts, completions, label, **columns):
    return [float(len(set(completion)) % 3 + kept) for completion, kept in zip(completions, label)]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("same") / "model")


def write(file: Path, algorithm: str, rows: Rows) -> None:
    chosen = [{name: row[name] for name in COLUMNS[algorithm]} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in chosen))


def begun(tmp_path: Path, model: Path, algorithm: str, **data: Any) -> Path:
    """A run on 24 rows, 8 of them held out, after the first of its two steps."""
    write(tmp_path / "train.jsonl", algorithm, [row(n) for n in range(16)])
    write(tmp_path / "eval.jsonl", algorithm, [row(n) for n in range(16, 24)])
    (tmp_path / "rewards.py").write_text(REWARD)
    sampled = {
        "rewards": [{"function": f"{tmp_path / 'rewards.py'}:reward"}],
        "sampling": {"max_completion_length": 4, "group_size": 2},
        "guards": {"max_truncated": 1.0},
        "evaluation": {"writing": 0, "samples": 0},
    }
    pt.train(
        {
            "model": {"path": str(model), "device": "cpu"},
            "algorithm": algorithm,
            "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl"), **data},
            "train": {"steps": 1, "prompts_per_step": 4, "learning_rate": 1e-3},
            "evaluation": {"writing": 0},
            "output": str(tmp_path / "run"),
            "report": False,
            **(sampled if algorithm == "grpo" else {}),
        }
    )
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", few(COLUMNS, "grpo"))
def test_rows_in_another_order_are_another_run(tmp_path, model, algorithm):
    folder = begun(tmp_path, model, algorithm)
    checkpoints = sorted(folder.glob("checkpoints/*"))
    write(tmp_path / "train.jsonl", algorithm, [row(n) for n in reversed(range(16))])
    with pytest.raises(DataError, match="differs from the data that the run was started with") as error:
        pt.resume(folder, steps=2)
    for text in (
        f"data.train = {tmp_path}/train.jsonl",
        "training data: 16 rows as before",
        "their order differs",
        "Restore",
    ):
        assert text in str(error.value)
    assert error.value.__notes__ == [f"The run is in {folder}."], "to resume it again would not help"
    assert "held-out data:" not in str(error.value)
    assert sorted(folder.glob("checkpoints/*")) == checkpoints
    write(tmp_path / "train.jsonl", algorithm, [row(n) for n in range(16)])
    assert pt.resume(folder, steps=2).step == 2


CHANGES: dict[str, tuple[str, Callable[[Rows], Rows], str]] = {
    "one more": ("train", lambda rows: [*rows, row(40)], "training data: 17 rows, but there were 16"),
    "one less held out": ("eval", lambda rows: rows[1:], "held-out data: 7 rows, but there were 8"),
    "one letter": ("eval", lambda rows: [rows[0] | {"completion": "zx"}, *rows[1:]], "held-out data: 8 rows as before"),
    "one label": ("train", lambda rows: [rows[0] | {"label": False}, *rows[1:]], "training data: 16 rows as before"),
}


@pytest.mark.parametrize(
    ("streaming", "change"), few(product((False, True), CHANGES), (False, "one label"), (True, "one less held out"))
)
def test_whatever_changed_is_said(tmp_path, model, change, streaming, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    folder = begun(tmp_path, model, "kto", streaming=streaming)
    file, edit, message = CHANGES[change]
    write(tmp_path / f"{file}.jsonl", "kto", edit([row(n) for n in (range(16) if file == "train" else range(16, 24))]))
    with pytest.raises(DataError, match=message):
        pt.resume(folder, steps=2)


GRPO_CHANGES: dict[str, tuple[str, Callable[[Rows], Rows], str]] = {
    "one more in front": ("eval", lambda rows: [row(40), *rows], "held-out data: 9 rows, but there were 8"),
    "one column that rewards read": (
        "train",
        lambda rows: [rows[0] | {"label": not rows[0]["label"]}, *rows[1:]],
        "training data: 16 rows as before",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", few(GRPO_CHANGES, "one more in front"))
def test_prompts_that_changed_are_said_too(tmp_path, model, change):
    """Otherwise their held-out answers would be compared with a baseline of answers to other prompts."""
    folder = begun(tmp_path, model, "grpo")
    file, edit, message = GRPO_CHANGES[change]
    write(tmp_path / f"{file}.jsonl", "grpo", edit([row(n) for n in (range(16) if file == "train" else range(16, 24))]))
    with pytest.raises(DataError, match=message):
        pt.resume(folder, steps=2)


def test_a_run_of_an_earlier_version_gets_its_file_when_it_is_resumed(tmp_path, model):
    folder = begun(tmp_path, model, "sft")
    file = folder / "data.json"
    content = file.read_bytes()
    file.unlink()
    pt.resume(folder, steps=2)
    assert file.read_bytes() == content


@pytest.mark.slow
def test_a_part_that_an_earlier_version_left_out_gets_there_too(tmp_path, model):
    """The file has no entry for the prompts."""
    folder = begun(tmp_path, model, "grpo")
    file = folder / "data.json"
    whole = json.loads(file.read_bytes())
    file.write_text(json.dumps({"training data": whole["training data"]}))
    pt.resume(folder, steps=2)
    assert json.loads(file.read_bytes()) == whole


def test_columns_that_json_has_no_form_for_are_told_apart_in_every_process():
    array = np.arange(5000)
    other = array.copy()
    other[2500] = 0
    kinds = [array, other, {"a", "b"}, {"a", "c"}, b"\0", date(2026, 1, 2), object()]
    keys = [rows_key([Prompt(index=0, ids=(1,), text="a", columns={"extra": value})]) for value in kinds]
    assert len(set(keys)) == len(kinds)
    assert keys[-1] == rows_key([Prompt(index=0, ids=(1,), text="a", columns={"extra": object()})])


def test_a_baseline_of_other_rows_is_no_baseline():
    with pytest.raises(DataError, match=r"2 held-out answers with 3 tokens, but the baseline .* has scored 1 with 3"):
        RowScores([-1.0, -2.0], [1, 2]) - RowScores([-3.0], [3])


# --- the hash ---------------------------------------------------------------------------------------------------------


def example(*ids: int) -> Example:
    return Example(index=0, input_ids=(1, *ids), completion_mask=(False, *(True for _ in ids)))


def records(kind: str, numbers: list[int]) -> list[Any]:
    make: dict[str, Callable[[int], Any]] = {
        "examples": lambda n: example(n, n + 1),
        "pairs": lambda n: Pair(index=n, chosen=example(n), rejected=example(n, 9), margin=None if n == 3 else 0.5),
        "labels": lambda n: LabelledExample(index=n, example=example(n), label=n > 3),
        "ratings": lambda n: RatedExample(index=n, example=example(n), score=n / 2),
        "steps": lambda n: StepExample(index=n, example=example(n, n), labels=(1.0, 0.0)),
    }
    return [make[kind](n) for n in numbers]


@pytest.mark.parametrize("kind", ["examples", "pairs", "labels", "ratings", "steps"])
def test_the_hash_knows_content_and_order(kind):
    keys = [rows_key(records(kind, numbers)) for numbers in ([2, 3, 4], [3, 2, 4], [2, 3], [2, 3, 5])]
    assert len(set(keys)) == 4
    assert rows_key(records(kind, [2, 3, 4])) == keys[0]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("labels", LabelledExample(index=2, example=example(2), label=True)),
        ("ratings", RatedExample(index=2, example=example(2), score=7.0)),
        ("steps", StepExample(index=2, example=example(2, 2), labels=(1.0, 1.0))),
        ("pairs", Pair(index=2, chosen=example(2), rejected=example(2, 9), margin=0.6)),
        ("examples", Example(index=2, input_ids=(1, 2, 3), completion_mask=(False, False, True))),
    ],
)
def test_the_hash_knows_masks_and_numbers(kind, changed):
    before = records(kind, [2, 3])
    assert rows_key([changed, *before[1:]]) != rows_key(before)
