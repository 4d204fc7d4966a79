"""The first rows of a run as the model reads them: shown before the first step, and saved as `samples.txt`.

The run also checks that answers end with a trained EOS token. A model that never sees an answer end does not learn to
end its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from posttrain.data.looks import Parts, marked, stretches
from posttrain.types import Example

if TYPE_CHECKING:
    from posttrain.train.run import Run

LOOKED_THROUGH = 2000
"""Number of rows that are searched for an EOS token, and for the first row of each kind."""
NOT_IMITATED = ("rejected", "undesirable", "prompt")
"""Rows that the model is not meant to produce, or that have no answer yet."""
NamedRow = tuple[str, Example]


def show_first_rows(run: Run) -> None:
    """Show one row of each kind on the terminal, save it in `samples.txt`, and warn of missing EOS tokens."""
    rows = list(islice(run.feed.named_rows(), LOOKED_THROUGH))
    decode = partial(run.trainer.loaded.tokenizer.decode, skip_special_tokens=False)
    shown = [(name, stretches(example, decode)) for name, example in first_of_each(rows)]
    if not shown:
        return
    run.store.samples(as_text(shown))
    run.view.rows(shown)
    if "scores" not in run.trainer.algorithm.needs:
        for note in eos_notes(rows, run.trainer.loaded.eos_ids):
            run.warn("eos", note)


def first_of_each(rows: Iterable[NamedRow]) -> list[NamedRow]:
    found: dict[str, Example] = {}
    for name, example in rows:
        found.setdefault(name, example)
    return list(found.items())


def as_text(shown: Iterable[tuple[str, Parts]]) -> str:
    """The text of `samples.txt`."""
    lines = [f"--- {name}\n{marked(parts)}\n" for name, parts in shown]
    return "\n".join([*lines, "⟦…⟧ is what is trained.\n"])


def eos_notes(rows: Iterable[NamedRow], eos_ids: Collection[int]) -> list[str]:
    """A warning about answers without a trained EOS token; empty if there are none."""
    answers = [example for name, example in rows if name not in NOT_IMITATED and any(example.completion_mask)]
    without = sum(not trains_eos(example, eos_ids) for example in answers)
    if not without:
        return []
    fix = "check the chat template and the tokenizer's EOS with `posttrain data check`"
    if without == len(answers):
        return [
            f"no answer in the training data ends with a trained EOS ({len(answers)} checked): the model does not "
            f"learn to stop, and its answers will run on to sampling.max_completion_length; {fix}"
        ]
    return [
        f"{without} of {len(answers)} answers in the training data have no trained EOS, which teaches the model "
        f"to run on; {fix}"
    ]


def trains_eos(example: Example, eos_ids: Collection[int]) -> bool:
    pairs = zip(example.input_ids, example.completion_mask, strict=True)
    return any(trained and token in eos_ids for token, trained in pairs)
