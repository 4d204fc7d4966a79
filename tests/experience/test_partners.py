"""Each prompt meets the answer of a suitable other row, however far away; without one, the run says so."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from tests.tiny import tiny_model

from posttrain.errors import ConfigError, DataError
from posttrain.experience.partners import LOOKED_AT, MismatchedAnswers, Partners
from posttrain.train.api import train
from posttrain.types import Example, LabelledExample


def row(index: int, prompt: list[int], answer: list[int]) -> LabelledExample:
    mask = (*(False for _ in prompt), *(True for _ in answer))
    return LabelledExample(
        index=index, example=Example(index=index, input_ids=(*prompt, *answer), completion_mask=mask), label=True
    )


def alike(number: int, *others: tuple[list[int], list[int]]) -> list[LabelledExample]:
    """`number` rows with one prompt, and some rows with others."""
    rows = [([1, 5], [7])] * number + list(others)
    return [row(index, prompt, answer) for index, (prompt, answer) in enumerate(rows)]


def test_the_partner_is_found_however_far_it_stands():
    rows = alike(40 * LOOKED_AT, ([1, 6], [8, 9]))
    partners = Partners(rows, seed=3, max_length=10)
    assert {partners.of(place) for place in range(len(rows) - 1)} == {len(rows) - 1}
    assert MismatchedAnswers(rows, seed=3, max_length=10)[0].input_ids == (1, 5, 8, 9)


def test_near_and_far_partners_follow_one_rule(monkeypatch):
    """Searching all prompts together finds the same partners as searching one row after the other."""
    rows = [row(n, [1, n % 3], [7] * (1 + n % 5)) for n in range(50)]
    near = Partners(rows, seed=1, max_length=6)
    expected = [near.of(place) for place in range(50)]
    monkeypatch.setattr("posttrain.experience.partners.LOOKED_AT", 0)
    assert [Partners(rows, seed=1, max_length=6).of(place) for place in range(50)] == expected
    assert len(set(expected)) > 10
    assert [Partners(rows, seed=2, max_length=6).of(place) for place in range(50)] != expected


def test_a_partner_fits_behind_the_prompt():
    rows = alike(30, ([1, 6], [8] * 9), ([1, 7], [9]))
    partners = Partners(rows, seed=0, max_length=10)
    assert partners.of(0) == 31
    assert Partners(alike(30, ([1, 6], [8] * 9)), seed=0, max_length=10).of(0) is None


def config(tmp_path, rows: list[dict], **more) -> dict:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model": str(tiny_model(tmp_path / "model")),
        "algorithm": "kto",
        "data": {"train": str(tmp_path / "rows.jsonl"), "eval_fraction": 0},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3, **more},
        "output": str(tmp_path / "run"),
        "report": False,
    }


def labels(*prompts: str, answers: Sequence[str] = "ab") -> list[dict]:
    return [{"prompt": prompt, "completion": answers[n % 2], "label": n % 2 == 0} for n, prompt in enumerate(prompts)]


def test_prompts_that_are_all_the_same_are_refused_before_anything_is_scored(tmp_path):
    message = (
        r"for 8 of the 8 rows that the run uses, no other prompt's answer .* and an update of step 1 could hold "
        r"nothing else: kto would have no reference point; allowed: in every update, at least one row whose "
        r"prompt can be combined"
    )
    with pytest.raises(DataError, match=message):
        train(config(tmp_path, labels(*["a"] * 8)))
    assert not list((tmp_path / "run").glob("references*"))


@pytest.mark.slow
def test_rows_without_a_partner_are_counted_and_the_others_are_trained_on(tmp_path):
    """The prompt of one row leaves no room for the answer of another one in a context of 64 tokens."""
    rows = [*labels(*"abcdefg", answers=["c" * 20, "d" * 20]), {"prompt": "x" * 50, "completion": "c", "label": True}]
    train(config(tmp_path, rows))
    assert (
        "for 1 of the 8 rows that the run uses, no other prompt's answer"
        in (tmp_path / "run" / "events.jsonl").read_text()
    )


def test_updates_of_one_row_are_refused_before_the_model_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="at least 2 rows per update"):
        train(config(tmp_path, labels(*"abcd"), prompts_per_step=4, minibatches=4))


@pytest.mark.slow
def test_a_run_warns_of_special_tokens_in_its_data(tmp_path):
    rows = labels(*"abcdefgh")
    rows[3]["completion"] = "b<eos>a"
    train(config(tmp_path, rows))
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "training data: 1 row holds special tokens in the text, such as <eos>" in events
