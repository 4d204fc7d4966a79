"""What data looks like and is not read as: `data check` says so, for a run would quietly learn something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from posttrain.data.columns import two_answers
from posttrain.data.forms import ANSWER_COLUMNS, LOOKED_AT, MEANT, TAKEN_BY, Kind, columns_of, detect
from posttrain.data.read import Row
from posttrain.data.survey import Finding
from posttrain.errors import DataError

SHOWN_VALUES = 4
_ANSWER = re.compile(
    r"output|response|answer|completion|reply|generation|target|conversation|summary|ref", re.IGNORECASE
)
_VERDICT = re.compile(r"prefer|winner|better|label|choice", re.IGNORECASE)


def passed_over(rows: Sequence[Row], used: Kind, tried: Mapping[Kind, DataError]) -> list[Finding]:
    """Kinds that the columns suit better than the one that was used, and why no row can be read so."""
    return [_passed_over(rows, used, kind, error) for kind, error in tried.items()]


def _passed_over(rows: Sequence[Row], used: Kind, kind: Kind, error: DataError) -> Finding:
    form = detect(rows, kind)
    reason = error.given.removeprefix("the data: ")
    fix = f"{error.fix} As it is, the data is taken for {MEANT[used]}."
    if kind == "labels":
        label = form.needs[-1]
        fix = f"Write true (desirable) or false into {label} for {TAKEN_BY[kind]}; it holds {_values(rows, label)}."
        if used == "examples":
            fix += " As it is, sft would imitate all of these answers, the bad ones too."
    message = f"the columns {form.name} are those of {MEANT[kind]}, but training on them would stop: {reason}"
    return Finding(message=message, fix=fix)


def _values(rows: Iterable[Row], column: str) -> str:
    found = dict.fromkeys(repr(row.values.get(column)) for row in islice(rows, LOOKED_AT))
    return ", ".join([*islice(found, SHOWN_VALUES), *(["…"] if len(found) > SHOWN_VALUES else [])])


def looks_like(rows: Sequence[Row], used: Kind) -> list[Finding]:
    """Answers in columns that nothing reads as answers."""
    if used == "pairs":
        return []
    columns = columns_of(rows)
    if sides := two_answers(columns):
        return [_two_answers(sides, columns)]
    others = [name for name in columns if _ANSWER.search(name) and name not in ANSWER_COLUMNS]
    texts = [name for name in others if any(isinstance(row.values.get(name), str) for row in islice(rows, LOOKED_AT))]
    if used != "prompts" or not texts or set(columns) & set(ANSWER_COLUMNS):
        return []
    message = f"{texts[0]} looks like an answer, and only reward functions would receive it"
    fix = (
        f"Set data.columns = {{completion: {texts[0]}}} to imitate it with sft, or data.answer = {texts[0]} where it "
        "is the gold answer of rewards."
    )
    return [Finding(message=message, fix=fix)]


def _two_answers(sides: tuple[str, str], columns: Sequence[str]) -> Finding:
    told = next((name for name in columns if _VERDICT.search(name)), None)
    message = f"{sides[0]} and {sides[1]} look like two answers to compare"
    message += f", and {told} like the verdict; nothing reads them so" if told else "; nothing reads them so"
    fix = (
        f"For {TAKEN_BY['pairs']}, write the better answer to a column chosen, the other one to rejected and the "
        f"question to prompt, or the verdict as {sides[0]}, {sides[1]} or tie."
    )
    return Finding(message=message, fix=fix)
