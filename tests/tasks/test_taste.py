"""Preferences with a known truth: which answers are preferred; only the preferences reveal it."""

from __future__ import annotations

import doctest
import statistics
from collections import Counter
from pathlib import Path

import pytest
import torch

from posttrain.config import ModelConfig
from posttrain.data.collate import collate
from posttrain.models.forward import token_logprobs
from posttrain.models.load import load_model
from posttrain.tasks import find_task, taste
from posttrain.tasks.base import split_of
from posttrain.tasks.taste import worth
from posttrain.tasks.tiny import EOS_ID, build_tokenizer, tiny_model_path


def test_the_chosen_answer_is_worth_more():
    rows = find_task("pairs/taste").rows(300)
    assert all(worth(row["prompt"], row["chosen"]) > worth(row["prompt"], row["rejected"]) for row in rows)
    assert {row["prompt"][-1] for row in rows} == {"+", "-"}


def test_a_label_says_whether_most_letters_are_liked_and_both_are_as_frequent():
    rows = find_task("labels/taste").rows(1000)
    assert all(row["label"] == (worth(row["prompt"], row["completion"]) >= 3) for row in rows)
    assert 0.45 < statistics.fmean(row["label"] for row in rows) < 0.55


def test_neither_length_nor_letters_tell_the_chosen_answers_from_the_rejected_ones():
    rows = find_task("pairs/taste").rows(4000)
    letters = {side: Counter("".join(row[side] for row in rows)) for side in ("chosen", "rejected")}
    assert {len(row[side]) for row in rows for side in letters} == {5}
    for letter in taste.LETTERS:
        assert letters["chosen"][letter] == pytest.approx(letters["rejected"][letter], rel=0.1)


def test_rows_are_a_function_of_seed_and_split_and_the_splits_share_no_prompt():
    for form in ("pairs", "labels"):
        source = find_task(f"{form}/taste")
        assert source.rows(20, seed=1) == source.rows(30, seed=1)[:20] != source.rows(20, seed=2)
        for split in ("train", "eval"):
            assert {split_of(row["prompt"]) for row in source.rows(50, split=split)} == {split}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sort", "addition"])
def test_a_model_that_does_not_know_the_marks_ranks_half_of_the_pairs_right(name: str, tmp_path: Path):
    model = load_model(ModelConfig(path=str(tiny_model_path(name, cache=tmp_path)), device="cpu")).model
    tokenizer, rows = build_tokenizer(), find_task("pairs/taste").rows(512, split="eval")

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    def likelihoods(side: str) -> torch.Tensor:
        tokens, mask_BT = collate([([1, *ids(r["prompt"])], [*ids(r[side]), EOS_ID]) for r in rows], pad_id=0)
        return token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT.sum(dim=-1)

    with torch.no_grad():
        accuracy = (likelihoods("chosen") > likelihoods("rejected")).float().mean().item()
    assert 0.43 < accuracy < 0.57


@pytest.mark.parametrize("name", ["sort:8", "count"])
def test_labelled_answers_of_a_task_are_those_of_its_pairs(name: str):
    rows, pairs = find_task(f"labels/{name}").rows(200), find_task(f"pairs/{name}").rows(200)
    assert [row["prompt"] for row in rows] == [pair["prompt"] for pair in pairs]
    for row, pair in zip(rows, pairs, strict=True):
        assert row["completion"] == pair["chosen" if row["label"] else "rejected"]
    assert 70 < sum(row["label"] for row in rows) < 130


def test_the_example_in_its_docstring_is_true():
    assert doctest.testmod(taste) == (0, 1)
