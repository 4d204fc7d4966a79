"""The answers that an alarm points to, from the stored rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as parquet

from posttrain.functional.texts import distinct_ngrams

if TYPE_CHECKING:
    from posttrain.watch.records import Alarm

KEPT = 20
LONGEST_LOOK_BACK = 50
"""Maximum number of steps whose answers are searched."""
COLUMNS = ("step", "prompt_index", "row", "prompt", "completion", "completion_ids", "reward", "advantage", "discarded")

Row = Mapping[str, Any]
Suspicion = Callable[[Row], tuple[float, ...]]


def suspicious(folder: Path, alarm: Alarm, accepts_at: float) -> list[dict[str, Any]]:
    """At most 20 answers since the change, the most suspicious first, without duplicate texts.

    `accepts_at` is the score of the check from which it agrees with an answer (`alarms.check_accepts_at`).
    It reads one step at a time, because all steps of a large run do not fit into memory.
    """
    kept: list[Row] = []
    for step in range(max(1, alarm.change_point, alarm.step - LONGEST_LOOK_BACK + 1), alarm.step + 1):
        rows = [row for row in rows_of(folder, step) if row["reward"] is not None and not row["discarded"]]
        kept = first_of_each([*kept, *rows], suspicion_of(alarm, accepts_at))
    shown = ("step", "prompt_index", "row", "prompt", "completion", "reward", "advantage")
    return [
        {
            "alarm": alarm.kind,
            **{name: row[name] for name in shown},
            "tokens": len(row["completion_ids"]),
            **{name: value for name, value in row.items() if name.startswith(("check/", "reward/"))},
        }
        for row in kept
    ]


def first_of_each(rows: Iterable[Row], suspicion: Suspicion) -> list[Row]:
    """The 20 most suspicious rows with different texts, the most suspicious first."""
    kept: dict[str, Row] = {}
    for row in sorted(rows, key=suspicion, reverse=True):
        kept.setdefault(row["completion"], row)
        if len(kept) == KEPT:
            break
    return list(kept.values())


def rows_of(folder: Path, step: int) -> list[dict[str, Any]]:
    """The stored answers of a step; none if the file is missing or damaged, because that must not end a run."""
    try:
        with parquet.ParquetFile(folder / "rollouts" / f"step-{step:06d}.parquet") as file:
            names = [
                name
                for name in file.schema_arrow.names
                if name in COLUMNS or name.startswith("check/") or (name.startswith("reward/") and name.count("/") == 1)
            ]
            return file.read(columns=names).to_pylist()
    except (OSError, pa.ArrowException):
        return []


def suspicion_of(alarm: Alarm, accepts_at: float) -> Suspicion:
    """The sort key of suspicious answers: first the check's rejection, then the alarm's subject, then the reward."""
    special = SUSPICIONS.get(alarm.kind, lambda row: 0.0)
    return lambda row: (rejection(row, accepts_at), special(row), row["reward"], row["step"], -row["row"])


def rejection(row: Row, accepts_at: float) -> float:
    """How far the lowest check score is below `accepts_at`: above 0 for a rejected answer, at most 0 for an accepted
    one, and 0 for an answer that the check did not see."""
    scores = [value for name, value in row.items() if name.startswith("check/") and value is not None]
    return accepts_at - min(scores) if scores else 0.0


def repeated(row: Row) -> float:
    return -distinct_ngrams(row["completion_ids"], 4)


SUSPICIONS: Mapping[str, Callable[[Row], float]] = {
    "length": lambda row: len(row["completion_ids"]),
    "length_correlation": lambda row: len(row["completion_ids"]),
    "truncation": lambda row: len(row["completion_ids"]),
    "repetition": repeated,
    "compression": repeated,
}
