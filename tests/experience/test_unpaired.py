"""Pairs as judged answers: algorithms that learn from thumbs up and down take both sides of a pair."""

import json
import math
import random
import string
from collections.abc import Sequence

import pytest
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.data.dataset import numbers_of
from posttrain.data.labels import Unpaired
from posttrain.types import Example, LabelledExample, Pair


def example(*ids: int) -> Example:
    return Example(index=0, input_ids=(1, *ids), completion_mask=(False, *(True for _ in ids)))


def test_each_pair_is_a_desirable_and_an_undesirable_answer():
    pairs = [Pair(index=n, chosen=example(10 + n), rejected=example(20 + n)) for n in (4, 7)]
    rows = list(Unpaired(pairs))
    assert [(row.index, row.example.input_ids[1], row.label) for row in rows] == [
        (4, 14, True),
        (4, 24, False),
        (7, 17, True),
        (7, 27, False),
    ]
    assert Unpaired(pairs)[-1] == rows[-1]
    with pytest.raises(IndexError):
        Unpaired(pairs)[4]


def test_kto_learns_from_pairs_and_is_measured_on_pairs(tmp_path):
    dice = random.Random(0)
    words = ["".join(dice.choices(string.ascii_lowercase, k=4)) for _ in range(20)]
    rows = [{"prompt": word, "chosen": word, "rejected": word[::-1] + "a"} for word in words]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": str(tiny_model(tmp_path / "model")),
        "algorithm": "kto",
        "data": {"train": str(tmp_path / "pairs.jsonl"), "eval_fraction": 0.2},
        "train": {"steps": 2, "prompts_per_step": 8, "learning_rate": 1e-3},
        "output": str(tmp_path / "run"),
        "report": False,
    }
    run = pt.train(config)
    assert run.feed.describe() == "32 labelled answers, 16 of them desirable"
    assert run.evaluation["baseline"]["pairs"] == 4
    assert "16 pairs" in (tmp_path / "run" / "events.jsonl").read_text()


class Untokenised(Sequence):
    """Streamed records whose number is known, but not their answers."""

    def __init__(self, record, numbers):
        self.record, self.numbers = record, numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, place):
        pytest.fail("an answer was read")


def test_labels_and_margins_are_counted_without_reading_an_answer():
    labelled = [LabelledExample(index=n, example=example(n), label=n % 3 == 0) for n in range(10)]
    margin = {2: 0.0, 3: 1.5}
    pairs = [Pair(index=n, chosen=example(n), rejected=example(9), margin=margin.get(n)) for n in range(5)]
    stored = [Untokenised(kind, numbers_of(rows)) for kind, rows in ((LabelledExample, labelled), (Pair, pairs))]

    def counted(labels, margins):
        return sum(numbers_of(labels)), sum(not math.isnan(number) for number in numbers_of(margins))

    assert counted(labelled, pairs) == (4, 2)
    assert counted(*stored) == (4, 2)
    assert sum(numbers_of(Unpaired(stored[1]))) == 5
