"""Held-out rows: named, generated, or a share of the training rows that the seed alone decides."""

from __future__ import annotations

import pytest
from tests.data.samples import jsonl

from posttrain.config import DataConfig
from posttrain.data.split import read_split
from posttrain.errors import DataError


@pytest.fixture
def hundred(write) -> str:
    return str(write("train.jsonl", jsonl(*[{"prompt": str(n)} for n in range(100)])))


def numbers(rows) -> list[int]:
    return [int(row.values["prompt"]) for row in rows]


def test_a_share_of_the_rows_is_held_out_and_no_row_is_lost_or_in_both_parts(hundred):
    train, heldout = read_split(DataConfig(train=hundred, eval_fraction=0.2), seed=0)
    assert len(heldout) == 20
    assert sorted(numbers(train) + numbers(heldout)) == list(range(100))
    assert numbers(train) == sorted(numbers(train))


def test_the_seed_decides_which(hundred):
    config = DataConfig(train=hundred, eval_fraction=0.2)
    assert read_split(config, seed=1) == read_split(config, seed=1)
    assert read_split(config, seed=1).heldout != read_split(config, seed=2).heldout


def test_a_named_source_is_used_instead(hundred, write):
    named = str(write("test.jsonl", jsonl({"prompt": "7"})))
    train, heldout = read_split(DataConfig(train=hundred, eval=named), seed=0)
    assert (len(train), numbers(heldout)) == (100, [7])


def test_a_task_brings_its_own_held_out_rows():
    train, heldout = read_split(DataConfig(train="task:sort", max_rows=300), seed=0)
    assert len(train) == len(heldout) == 300
    assert not {row.values["prompt"] for row in train} & {row.values["prompt"] for row in heldout}


def test_a_named_task_gives_its_held_out_rows(hundred):
    heldout = read_split(DataConfig(train=hundred, eval="task:sort", max_rows=5), seed=0).heldout
    assert heldout[0].origin == "task:sort, eval row 0"


def test_at_least_one_row_is_held_out_and_one_is_left(write):
    two = str(write("two.jsonl", jsonl({"prompt": "1"}, {"prompt": "2"})))
    assert [len(part) for part in read_split(DataConfig(train=two, eval_fraction=0.01), seed=0)] == [1, 1]
    one = str(write("one.jsonl", jsonl({"prompt": "1"})))
    with pytest.raises(DataError, match=r"data.eval_fraction = 0.5 of 1 rows leaves nothing to train on"):
        read_split(DataConfig(train=one, eval_fraction=0.5), seed=0)


def test_nothing_is_held_out_at_zero(hundred):
    assert [len(part) for part in read_split(DataConfig(train=hundred, eval_fraction=0.0), seed=0)] == [100, 0]


def test_a_part_of_the_training_rows_is_taken_in_their_order_beside_the_same_held_out_rows(hundred):
    whole = read_split(DataConfig(train=hundred, eval_fraction=0.2), seed=0)
    parts = [read_split(DataConfig(train=hundred, eval_fraction=0.2, part=f"{k}/3"), seed=0) for k in (1, 2, 3)]
    assert [len(part.train) for part in parts] == [26, 27, 27]
    assert [n for part in parts for n in numbers(part.train)] == numbers(whole.train)
    assert all(numbers(part.heldout) == numbers(whole.heldout) for part in parts)


def test_more_parts_than_rows_are_refused(write):
    few = str(write("few.jsonl", jsonl({"prompt": "1"}, {"prompt": "2"})))
    with pytest.raises(DataError, match="leaves some parts empty"):
        read_split(DataConfig(train=few, eval_fraction=0, part="1/3"), seed=0)


def test_of_prompts_beside_sampled_pairs_only_prompts_are_held_out_streamed_or_not(write, tmp_path, monkeypatch):
    """Every round holds out the same prompts, whatever the earlier rounds have added."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    prompts = str(write("prompts.jsonl", jsonl(*[{"prompt": str(n)} for n in range(50)])))
    pair = {"chosen": "a", "rejected": "b", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}
    earlier = str(write("pairs.jsonl", jsonl(*[{"prompt": str(n), **pair} for n in range(50, 120)])))
    first = read_split(DataConfig(train=prompts, eval_fraction=0.2), seed=0)
    for streaming in (False, True, True):  # the second time from the stored counts
        config = DataConfig(train=[prompts, earlier], eval_fraction=0.2, streaming=streaming)
        train, heldout = read_split(config, seed=0)
        assert [row.values for row in heldout] == [row.values for row in first.heldout], streaming
        assert numbers(train) == numbers(first.train) + list(range(50, 120))
        part = read_split(config.model_copy(update={"part": "2/2"}), seed=0)
        assert numbers(part.train) == numbers(train)[55:]


def test_of_sampled_pairs_alone_pairs_are_held_out(write):
    pair = {"chosen": "a", "rejected": "b", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}
    pairs = str(write("pairs.jsonl", jsonl(*[{"prompt": str(n), **pair} for n in range(10)])))
    assert [len(part) for part in read_split(DataConfig(train=pairs, eval_fraction=0.2), seed=0)] == [8, 2]
