"""Training on answers that were judged one by one: where those of a step come from, and what each is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from posttrain.data.collate import collate_examples
from posttrain.data.dataset import numbers_of
from posttrain.data.order import rows_for_step
from posttrain.experience.feed import Fed
from posttrain.experience.partners import Partners, prompt_of
from posttrain.experience.references import References
from posttrain.train.guards import Guards, name_examples
from posttrain.types import Batch, Example, LabelledExample, Mismatched

if TYPE_CHECKING:
    from posttrain.config import RunConfig


class Answers(Sequence[Example]):
    """The examples of labelled rows, one by one."""

    def __init__(self, rows: Sequence[LabelledExample]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        return self.rows[place].example


class MismatchedAnswers(Sequence[Example]):
    """Each prompt with the answer of its partner; a row without one has nothing that is trained."""

    def __init__(self, rows: Sequence[LabelledExample], *, seed: int, max_length: int) -> None:
        self.rows, self.partners = rows, Partners(rows, seed=seed, max_length=max_length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
        place = range(len(self))[place]  # IndexError past the end, where iteration stops
        own, partner = self.rows[place].example, self.partners.of(place)
        prompt, mask = prompt_of(own), ()
        ids = prompt
        if partner is not None:
            other = self.rows[partner].example
            begin = len(prompt_of(other))
            ids, mask = (*prompt, *other.input_ids[begin:]), other.completion_mask[begin:]
        return Example(index=own.index, input_ids=ids, completion_mask=(False,) * len(prompt) + mask)


class Beside(NamedTuple):
    """Examples, and what the reference says about them."""

    examples: Sequence[Example]
    references: References


class LabelFeed:
    """Labelled answers of a dataset, `prompts_per_step` of them at a time."""

    samples = False

    def __init__(
        self,
        config: RunConfig,
        rows: Sequence[LabelledExample],
        *,
        pad_id: int,
        references: References | None = None,
        mismatched: Beside | None = None,
    ) -> None:
        self.config, self.rows, self.pad_id = config, rows, pad_id
        self.references, self.mismatched = references, mismatched

    def take(self, step: int, version: int) -> Fed:
        places = rows_for_step(self.config.seed, step, self.config.train.prompts_per_step, len(self.rows))
        rows = [self.rows[place] for place in places]
        examples = [row.example for row in rows]
        tokens, mask_BT = collate_examples(examples, self.pad_id)
        batch = Batch.from_labels(
            mask_BT,
            torch.tensor([row.label for row in rows]),
            None if self.references is None else self.references.beside(places, mask_BT),
            mismatched=None if self.mismatched is None else self._mismatched(self.mismatched, places),
            tokens=tokens,
        )
        return Fed(experience=batch, version=version, examples=examples)

    def _mismatched(self, beside: Beside, places: Sequence[int]) -> Mismatched:
        tokens, mask_BT = collate_examples([beside.examples[place] for place in places], self.pad_id)
        return Mismatched(
            tokens=tokens, completion_mask_BT=mask_BT, ref_logprobs_BT=beside.references.beside(places, mask_BT)
        )

    def inspect(self, fed: Fed, step: int, guards: Guards) -> list[str]:
        guards.non_finite.watch(name_examples(fed.examples))
        return []

    def metrics(self, fed: Fed) -> dict[str, float]:
        return {}

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        rows = (self.rows[place] for place in range(len(self.rows)))
        return (("desirable" if row.label else "undesirable", row.example) for row in rows)

    def describe(self) -> str:
        return f"{len(self.rows)} labelled answers, {desirable(self.rows)} of them desirable"


def desirable(rows: Sequence[LabelledExample]) -> int:
    """How many rows are, without tokenising any."""
    return int(sum(numbers_of(rows)))
