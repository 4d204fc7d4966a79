"""Given data, tokenised: one interface to examples, pairs, labelled answers, rated answers and labelled steps.

    dataset = Dataset(records, pad_id=0)     # records of one of the types of RECORD_TYPES
    len(dataset), dataset.records[3]         # how many there are, and one of them
    dataset.batch([3, 1])                    # the batch that the loss of an algorithm is given
    dataset.examples([3, 1])                 # the token sequences of its rows, in their order
    dataset.sequences                        # those of all records, for a model that scores them beforehand
    dataset.named_rows(), dataset.describe() # each sequence by what it is; the whole in words

One feed serves every kind: it asks `rows_for_step` which records a step takes, and the dataset for their batch. What
was computed of the records before the run, such as reference log-probabilities, comes in by `add`: functions from a
batch and the numbers of its records to the batch with more in it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from posttrain.data.collate import collate_examples, pad_rows
from posttrain.types import Batch, Example, LabelledExample, Pair, RatedExample, StepExample

R = TypeVar("R", Example, Pair, LabelledExample, RatedExample, StepExample)
AddToBatch = Callable[[Batch, Sequence[int]], Batch]
"""A batch and the numbers of its records -> the batch with more in it."""


class Scale(NamedTuple):
    """The target of a rating y: (y - mean) / std."""

    mean: float = 0.0
    std: float = 1.0


AS_IT_IS = Scale()

# --- records into batches ---------------------------------------------------------------------------------------------


def examples_batch(examples: Sequence[Example], pad_id: int) -> Batch:
    """Supervised rows."""
    tokens, mask_BT = collate_examples(examples, pad_id)
    return Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(examples)), tokens=tokens)


def pairs_batch(pairs: Sequence[Pair], pad_id: int) -> Batch:
    """Chosen rows, then rejected ones; with margins where every row of the data has one."""
    tokens, mask_BT = collate_examples([p.chosen for p in pairs] + [p.rejected for p in pairs], pad_id)
    margins = [pair.margin for pair in pairs if pair.margin is not None]
    known = len(margins) == len(pairs)
    return Batch.from_pairs(mask_BT, margins_N=torch.tensor(margins) if known else None, tokens=tokens)


def labels_batch(rows: Sequence[LabelledExample], pad_id: int) -> Batch:
    """Answers with the label of each."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    return Batch.from_labels(mask_BT, torch.tensor([row.label for row in rows]), tokens=tokens)


def ratings_batch(rows: Sequence[RatedExample], pad_id: int, scale: Scale = AS_IT_IS) -> Batch:
    """Targets are ratings on the scale, computed in float64 and held in float32."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    targets_B = torch.tensor([(row.score - scale.mean) / scale.std for row in rows], dtype=torch.float32)
    return Batch.from_ratings(mask_BT, targets_B, tokens=tokens)


def steps_batch(rows: Sequence[StepExample], pad_id: int) -> Batch:
    """The label of each step stands at its last token."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    targets_BT = pad_rows([row.labels for row in rows], mask_BT, dtype=torch.float32)
    return Batch.from_steps(mask_BT, targets_BT, tokens=tokens)


# --- what differs from kind to kind -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RecordType(Generic[R]):
    """What one kind of record is made of."""

    describe: Callable[[Sequence[R]], str]
    """All of them in words."""
    sides: int
    """Token sequences of a record. In a batch the first ones of all records come first."""
    sequences: Callable[[R], Sequence[tuple[str, Example]]]
    """Each by what it is."""
    batch: Callable[[Sequence[R], int], Batch]
    """Records and the id of padding -> a batch."""
    numbers: Callable[[R], Sequence[float | None]] = lambda record: ()
    """The values of a record beside its tokens: margin, label, score, labels of steps."""


def _labels_in_words(rows: Sequence[LabelledExample]) -> str:
    return f"{len(rows)} labelled answers, {int(sum(numbers_of(rows)))} of them desirable"


def _steps_in_words(rows: Sequence[StepExample]) -> str:
    return f"{len(rows)} answers with {sum(len(row.labels) for row in rows)} labelled steps"


def _label(row: LabelledExample) -> Sequence[tuple[str, Example]]:
    return (("desirable" if row.label else "undesirable", row.example),)


RECORD_TYPES: Mapping[type, RecordType[Any]] = {
    Example: RecordType(
        describe=lambda rows: f"{len(rows)} examples",
        sides=1,
        sequences=lambda row: (("answer", row),),
        batch=examples_batch,
    ),
    Pair: RecordType(
        describe=lambda pairs: f"{len(pairs)} pairs",
        sides=2,
        sequences=lambda pair: (("chosen", pair.chosen), ("rejected", pair.rejected)),
        batch=pairs_batch,
        numbers=lambda pair: (pair.margin,),
    ),
    LabelledExample: RecordType(
        describe=_labels_in_words,
        sides=1,
        sequences=_label,
        batch=labels_batch,
        numbers=lambda row: (float(row.label),),
    ),
    RatedExample: RecordType(
        describe=lambda rows: f"{len(rows)} rated answers",
        sides=1,
        sequences=lambda row: (("rated answer", row.example),),
        batch=ratings_batch,
        numbers=lambda row: (row.score,),
    ),
    StepExample: RecordType(
        describe=_steps_in_words,
        sides=1,
        sequences=lambda row: (("labelled steps", row.example),),
        batch=steps_batch,
        numbers=lambda row: row.labels,
    ),
}


def type_of(records: Sequence[R]) -> RecordType[R]:
    """The type of records that all have the same one; records that are read one by one name their type in `record`."""
    return RECORD_TYPES[getattr(records, "record", None) or type(records[0])]


def numbers_of(records: Sequence[R]) -> Sequence[float]:
    """The first number of each record (margin, label or score; NaN where it has none), without tokenising any."""
    known: Sequence[float] | None = getattr(records, "numbers", None)
    if known is not None:
        return known
    firsts = (next(iter(type_of(records).numbers(record)), None) for record in records) if len(records) else ()
    return [math.nan if number is None else number for number in firsts]


class Sequences(Sequence[Example]):
    """The token sequences of records, one by one; those of a record stand together.

    Whoever runs a model on them part by part thus meets the two answers to a prompt together, and computes it once.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self.records, self.type = records, type_of(records)

    def __len__(self) -> int:
        return self.type.sides * len(self.records)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        record, side = divmod(range(len(self))[place], self.type.sides)  # IndexError past the end: iteration stops
        return self.type.sequences(self.records[record])[side][1]

    def of(self, rows: Sequence[int]) -> Sequence[int]:
        """Where the sequences of these records stand, record by record."""
        if rows == range(len(self.records)):
            return range(len(self))
        return array("q", (self.type.sides * row + side for row in rows for side in range(self.type.sides)))

    def as_batched(self, rows: Sequence[int]) -> Sequence[int]:
        """The same in the order of a batch: the first sequences of all records, then the second ones."""
        return array("q", (self.type.sides * row + side for side in range(self.type.sides) for row in rows))


@dataclass(frozen=True, kw_only=True)
class Dataset(Generic[R]):
    """The records that a run learns from, whatever their kind. See the module."""

    records: Sequence[R]
    pad_id: int
    collate: Callable[[Sequence[R], int], Batch] | None = None
    """In place of the usual one, for example `partial(ratings_batch, scale=scale)`."""
    add: Sequence[AddToBatch] = ()
    """Values computed for the records, batch by batch."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def type(self) -> RecordType[R]:
        return type_of(self.records)

    @property
    def sequences(self) -> Sequences:
        return Sequences(self.records)

    def with_added(self, *add: AddToBatch) -> Dataset[R]:
        return replace(self, add=(*self.add, *add))

    def batch(self, rows: Sequence[int]) -> Batch:
        """The batch of the records with these numbers."""
        records = [self.records[row] for row in rows]
        batch = (self.collate or self.type.batch)(records, self.pad_id)
        for add in self.add:
            batch = add(batch, rows)
        return batch

    def examples(self, rows: Sequence[int]) -> list[Example]:
        """The token sequences of that batch, row by row."""
        sides = zip(*(self.type.sequences(self.records[row]) for row in rows), strict=True)
        return [example for side in sides for _, example in side]

    def named_rows(self) -> Iterator[tuple[str, Example]]:
        """All token sequences in the order of the data, each by what it is."""
        for row in range(len(self.records)):
            yield from self.type.sequences(self.records[row])

    def describe(self) -> str:
        """
        >>> example = Example(index=0, input_ids=(1, 2), completion_mask=(False, True))
        >>> Dataset(records=[example, example], pad_id=0).describe()
        '2 examples'
        """
        return self.type.describe(self.records)


def add_references(logprobs_of: Callable[[Sequence[int], Tensor], Tensor], sequences: Sequences) -> AddToBatch:
    """`ref_logprobs_BT` from what a reference said of the sequences: `logprobs_of(places, mask_BT)` is `[B, T]`."""

    def add(batch: Batch, rows: Sequence[int]) -> Batch:
        return replace(batch, ref_logprobs_BT=logprobs_of(sequences.as_batched(rows), batch.completion_mask_BT))

    return add
