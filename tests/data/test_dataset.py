"""All kinds of given data are read in the same way: record numbers in, one batch out, in any order."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from posttrain.data.dataset import (
    RECORD_TYPES,
    Dataset,
    Scale,
    add_references,
    numbers_of,
    ratings_batch,
)
from posttrain.types import Example, LabelledExample, Pair, RatedExample, StepExample


def example(index: int, prompt: int, answer: int) -> Example:
    ids = tuple(range(10 * index, 10 * index + prompt + answer))
    return Example(index=index, input_ids=ids, completion_mask=(False,) * prompt + (True,) * answer)


def answers(count: int = 5) -> list[Example]:
    return [example(n, 1 + n % 3, 1 + n % 2) for n in range(count)]


def steps(one: Example) -> StepExample:
    last = (*(False for _ in one.input_ids[1:]), True)
    marked = Example(index=one.index, input_ids=one.input_ids, completion_mask=last)
    return StepExample(index=one.index, example=marked, labels=(float(one.index % 2),))


RECORDS = {
    Example: answers(),
    Pair: [Pair(index=n, chosen=example(n, 2, 2), rejected=example(n, 2, 3), margin=float(n)) for n in range(5)],
    LabelledExample: [LabelledExample(index=e.index, example=e, label=e.index % 2 == 0) for e in answers()],
    RatedExample: [RatedExample(index=e.index, example=e, score=e.index / 2) for e in answers()],
    StepExample: [steps(e) for e in answers()],
}


def test_there_is_a_case_of_every_type():
    assert set(RECORDS) == set(RECORD_TYPES)


@pytest.mark.parametrize("record", RECORDS)
def test_a_batch_holds_the_tokens_and_masks_of_its_records_row_by_row(record):
    dataset = Dataset(records=RECORDS[record], pad_id=-1)
    for rows in ([0], [3, 1], [4, 4, 0, 2]):
        batch, examples = dataset.batch(rows), dataset.examples(rows)
        assert batch.tokens is not None
        assert len(examples) == batch.num_rows == len(rows) * dataset.type.sides
        for row, one in enumerate(examples):
            length = len(one.input_ids)
            assert batch.tokens.lengths_B[row] == length
            assert tuple(batch.tokens.input_ids_BT[row, :length].tolist()) == one.input_ids
            assert tuple(batch.completion_mask_BT[row, :length].tolist()) == one.completion_mask
            assert (batch.tokens.input_ids_BT[row, length:] == -1).all()
            assert not batch.completion_mask_BT[row, length:].any()


@pytest.mark.parametrize("record", RECORDS)
def test_all_sequences_are_those_of_the_records_side_by_side(record):
    dataset = Dataset(records=RECORDS[record], pad_id=0)
    named = [one for _, one in dataset.named_rows()]
    assert list(dataset.sequences) == named
    assert [dataset.sequences[place] for place in dataset.sequences.of([2, 0])] == [
        one for row in (2, 0) for _, one in dataset.type.sequences(dataset.records[row])
    ]
    assert list(dataset.sequences.of(range(5))) == list(range(len(named)))


def test_what_belongs_to_a_record_beside_its_tokens_is_in_its_batch():
    def of(record, rows=(3, 1), **more):
        return Dataset(records=RECORDS[record], pad_id=0, **more).batch(rows)

    assert of(Pair).margins_B.tolist() == [3, 1, 3, 1]
    assert of(Pair).chosen_B.tolist() == [True, True, False, False]
    assert of(LabelledExample).labels_B.tolist() == [False, False]
    assert of(RatedExample).targets_B.tolist() == [1.5, 0.5]
    scaled = of(RatedExample, collate=partial(ratings_batch, scale=Scale(1.0, 0.5)))
    assert scaled.targets_B.tolist() == [1.0, -1.0]
    batch = of(StepExample)
    assert batch.targets_BT[batch.completion_mask_BT].tolist() == [1, 1]
    without = [Pair(index=0, chosen=example(0, 1, 1), rejected=example(1, 1, 1)), RECORDS[Pair][0]]
    assert Dataset(records=without, pad_id=0).batch([0, 1]).margins_B is None


def test_references_come_in_beside_the_batch_in_the_order_of_its_rows():
    dataset = Dataset(records=RECORDS[Pair], pad_id=0)
    sequences = dataset.sequences

    def said(places, mask_BT):
        number_B = torch.tensor([float(sum(sequences[place].input_ids)) for place in places])
        return number_B[:, None] * mask_BT

    batch = dataset.with_added(add_references(said, sequences)).batch([2, 0])
    expected_B = [float(sum(one.input_ids)) for one in dataset.examples([2, 0])]
    assert batch.ref_logprobs_BT.amax(dim=-1).tolist() == expected_B


def test_a_dataset_is_described_in_words():
    assert [Dataset(records=records, pad_id=0).describe() for records in RECORDS.values()] == [
        "5 examples",
        "5 pairs",
        "5 labelled answers, 3 of them desirable",
        "5 rated answers",
        "5 answers with 5 labelled steps",
    ]
    assert [list(numbers_of(RECORDS[kind])) for kind in (Pair, LabelledExample)] == [[0, 1, 2, 3, 4], [1, 0, 1, 0, 1]]
