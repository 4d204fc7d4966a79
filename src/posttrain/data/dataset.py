"""Tokenised datasets: one interface to examples, pairs, labelled answers, rated answers and labelled steps.

    dataset = Dataset(records, pad_id=0)     # records of one of the types of RECORD_TYPES
    len(dataset), dataset.records[3]         # the number of records, and one of them
    dataset.batch([3, 1])                    # the batch that an algorithm's loss receives
    dataset.examples([3, 1])                 # the token sequences of the rows of that batch, in order
    dataset.sequences                        # the token sequences of all records, for a model that scores them first
    dataset.named_rows(), dataset.describe() # each sequence with its name; the whole dataset in words

One feed serves every kind: `rows_for_step` says which records a step takes, and the dataset makes their batch. `add`
holds functions that put precomputed values, such as reference log-probabilities, into a batch.
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
"""A function from a batch and the indices of its records to the batch with more values."""


class Scale(NamedTuple):
    """The target of a rating y: (y - mean) / std."""

    mean: float = 0.0
    std: float = 1.0


AS_IT_IS = Scale()

# --- records into batches ---------------------------------------------------------------------------------------------


def examples_batch(examples: Sequence[Example], pad_id: int) -> Batch:
    """Build the batch of supervised rows."""
    tokens, mask_BT = collate_examples(examples, pad_id)
    return Batch.from_examples(mask_BT, tokens=tokens)


def pairs_batch(pairs: Sequence[Pair], pad_id: int) -> Batch:
    """Build the batch of pairs: chosen rows, then rejected rows. It has margins if every pair has one."""
    tokens, mask_BT = collate_examples([p.chosen for p in pairs] + [p.rejected for p in pairs], pad_id)
    margins = [pair.margin for pair in pairs if pair.margin is not None]
    known = len(margins) == len(pairs)
    return Batch.from_pairs(mask_BT, margins_N=torch.tensor(margins) if known else None, tokens=tokens)


def labels_batch(rows: Sequence[LabelledExample], pad_id: int) -> Batch:
    """Build the batch of labelled answers."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    return Batch.from_labels(mask_BT, torch.tensor([row.label for row in rows]), tokens=tokens)


def ratings_batch(rows: Sequence[RatedExample], pad_id: int, scale: Scale = AS_IT_IS) -> Batch:
    """Build the batch of rated answers. Targets are scaled ratings, computed in float64 and stored in float32."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    targets_B = torch.tensor([(row.score - scale.mean) / scale.std for row in rows], dtype=torch.float32)
    return Batch.from_ratings(mask_BT, targets_B, tokens=tokens)


def steps_batch(rows: Sequence[StepExample], pad_id: int) -> Batch:
    """Build the batch of answers with labelled steps. The label of each step is at its last token."""
    tokens, mask_BT = collate_examples([row.example for row in rows], pad_id)
    targets_BT = pad_rows([row.labels for row in rows], mask_BT, dtype=torch.float32)
    return Batch.from_steps(mask_BT, targets_BT, tokens=tokens)


# --- what differs from kind to kind -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RecordType(Generic[R]):
    """The functions that handle one kind of record."""

    describe: Callable[[Sequence[R]], str]
    """Describes a list of records in words."""
    sides: int
    """Number of token sequences of a record. A batch holds the first sequences of all records, then the second ones."""
    sequences: Callable[[R], Sequence[tuple[str, Example]]]
    """The token sequences of a record, each with its name."""
    batch: Callable[[Sequence[R], int], Batch]
    """Builds a batch from records and the padding id."""
    numbers: Callable[[R], Sequence[float | None]] = lambda record: ()
    """The values of a record besides its tokens: margin, label, score or labels of steps."""


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
    """The record type of a sequence of records. A sequence that reads records one by one names the type in `record`."""
    return RECORD_TYPES[getattr(records, "record", None) or type(records[0])]


def numbers_of(records: Sequence[R]) -> Sequence[float]:
    """The first number of each record (margin, label or score; NaN for none). No record is tokenised for it."""
    known: Sequence[float] | None = getattr(records, "numbers", None)
    if known is not None:
        return known
    firsts = (next(iter(type_of(records).numbers(record)), None) for record in records) if len(records) else ()
    return [math.nan if number is None else number for number in firsts]


class Sequences(Sequence[Example]):
    """The token sequences of all records. The sequences of one record are neighbours.

    A model that runs on them part by part thus sees the two answers to a prompt together, and computes the prompt once.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self.records, self.type = records, type_of(records)

    def __len__(self) -> int:
        return self.type.sides * len(self.records)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        record, side = divmod(range(len(self))[place], self.type.sides)  # IndexError past the end: iteration stops
        return self.type.sequences(self.records[record])[side][1]

    def of(self, rows: Sequence[int]) -> Sequence[int]:
        """Indices of the sequences of these records, record by record."""
        if rows == range(len(self.records)):
            return range(len(self))
        return array("q", (self.type.sides * row + side for row in rows for side in range(self.type.sides)))

    def as_batched(self, rows: Sequence[int]) -> Sequence[int]:
        """The same indices in the order of a batch: the first sequences of all records, then the second ones."""
        return array("q", (self.type.sides * row + side for side in range(self.type.sides) for row in rows))


@dataclass(frozen=True, kw_only=True)
class Dataset(Generic[R]):
    """The records that a run learns from, of any kind. The module's docstring shows how to use it."""

    records: Sequence[R]
    pad_id: int
    collate: Callable[[Sequence[R], int], Batch] | None = None
    """Replaces the usual function that builds a batch, for example `partial(ratings_batch, scale=scale)`."""
    add: Sequence[AddToBatch] = ()
    """Functions that add computed values to each batch."""

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
        """The batch of the records with these indices."""
        records = [self.records[row] for row in rows]
        batch = (self.collate or self.type.batch)(records, self.pad_id)
        for add in self.add:
            batch = add(batch, rows)
        return batch

    def examples(self, rows: Sequence[int]) -> list[Example]:
        """The token sequences of the batch of these records, row by row."""
        sides = zip(*(self.type.sequences(self.records[row]) for row in rows), strict=True)
        return [example for side in sides for _, example in side]

    def named_rows(self) -> Iterator[tuple[str, Example]]:
        """All token sequences in the order of the data, each with its name."""
        for row in range(len(self.records)):
            yield from self.type.sequences(self.records[row])

    def describe(self) -> str:
        """The dataset in words.

        >>> example = Example(index=0, input_ids=(1, 2), completion_mask=(False, True))
        >>> Dataset(records=[example, example], pad_id=0).describe()
        '2 examples'
        """
        return self.type.describe(self.records)


def add_references(logprobs_of: Callable[[Sequence[int], Tensor], Tensor], sequences: Sequences) -> AddToBatch:
    """A function that adds `ref_logprobs_BT` to a batch. `logprobs_of(indices, mask_BT)` returns the reference model's
    log-probabilities of these sequences, `[B, T]`."""

    def add(batch: Batch, rows: Sequence[int]) -> Batch:
        return replace(batch, ref_logprobs_BT=logprobs_of(sequences.as_batched(rows), batch.completion_mask_BT))

    return add
