"""`data.stratify`: group prompts by the values of a column, so that each step has every value in its overall share."""

from __future__ import annotations

import json
from collections.abc import Sequence

from posttrain.data.columns import listed
from posttrain.data.order import Strata
from posttrain.data.stream import StreamedRecords
from posttrain.errors import DataError
from posttrain.types import Prompt


def strata_of(prompts: Sequence[Prompt], column: str | None) -> Strata | None:
    """The strata of the prompts; None if `column` is None. Raises `DataError` if all prompts have the same value, if
    all have different ones, or if the rows are streamed."""
    if column is None:
        return None
    if isinstance(prompts, StreamedRecords):
        raise DataError(
            given=f"data.stratify = {column} with rows that are read only in the step that takes them",
            allowed="rows that are all in memory",
            fix="Set data.streaming = false, or leave data.stratify out.",
        )
    labels = [json.dumps(prompt.columns.get(column), sort_keys=True, default=str) for prompt in prompts]
    if not 1 < len(set(labels)) < len(labels):
        names = list(dict.fromkeys(name for prompt in prompts for name in prompt.columns))
        found = "the same value" if len(set(labels)) == 1 else "a value of its own"
        if column not in names:
            found = "no such column"
        raise DataError(
            given=f"data.stratify = {column}: {found} in each of the {len(prompts)} prompts",
            allowed=f"a column with a few values; the columns are {listed(names)}",
            fix="Set data.stratify to such a column, or leave it out.",
        )
    return Strata.by(labels)
