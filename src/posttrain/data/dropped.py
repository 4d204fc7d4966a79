"""Rows that cannot be used: counted with their reason, shown, and past a limit an error. Never silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.data.read import Row

T = TypeVar("T")
CURES = (
    (
        "prompt longer than",
        "Shorten them, or lower sampling.max_completion_length: the context holds prompt and answer",
    ),
    ("longer than", "Shorten them, raise data.max_length if it is set, or use a model with a longer context"),
)
"""How a reason begins, and what helps."""
MEND = "Mend the rows named above"


def a_type(value: object) -> str:
    """What a value is, for a reason.

    >>> a_type(7), a_type("ab")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class Dropped(NamedTuple):
    """One row that was left out."""

    origin: str
    reason: str
    """The kind, the same text for all rows with the same fault: "empty prompt"."""


class Unusable(Exception):
    """Raised while a row is read or rendered; its text is the reason for which the row is then dropped."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Base of the records that hold what is usable of a dataset, under a name of their own, and what was left out."""

    dropped: Sequence[Dropped] = ()
    source: Sequence[Row] = ()
    """The rows that were read."""

    @property
    def usable(self) -> Sequence[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.usable)

    @property
    def dropped_summary(self) -> str:
        """A sentence about the dropped rows and the reasons; "" if none were dropped."""
        return summary(self.dropped, self.rows_read)

    @property
    def rows_read(self) -> int:
        return len(self.usable) + len(self.dropped)


@dataclass(frozen=True, kw_only=True)
class Rendered(Kept, Generic[T]):
    """The usable rows of one kind, tokenised."""

    rows: Sequence[T]
    form: str = ""
    """The columns that were read."""

    @property
    def usable(self) -> Sequence[T]:
        return self.rows


def summary(dropped: Sequence[Dropped], total: int) -> str:
    """For a warning: "dropped 3 of 100 rows: 2 empty prompt (a.jsonl:4, …), 1 …"; "" when nothing was dropped."""
    if not dropped:
        return ""
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for origin, reason in dropped:
        counts[reason] += 1
        if counts[reason] <= 3:
            examples.setdefault(reason, []).append(origin)
    parts = [f"{count} {reason} ({', '.join(examples[reason])})" for reason, count in counts.most_common()]
    return f"dropped {len(dropped)} of {counted(total, 'row')}: " + "; ".join(parts)


def refuse_too_many(dropped: Sequence[Dropped], total: int, max_dropped: float, what: str) -> None:
    """Raises `DataError` when a larger share than `max_dropped` was left out, or everything."""
    if len(dropped) == total or len(dropped) > max_dropped * total:
        raise too_many(dropped, total, max_dropped, what)


def too_many(dropped: Sequence[Dropped], total: int, max_dropped: float, what: str) -> DataError:
    """The error that so much was left out of the `total` rows that were looked at."""
    cure = next((cure for fault, cure in CURES if any(reason.startswith(fault) for _, reason in dropped)), MEND)
    share = f"at most {max_dropped:.0%} dropped rows, and " if max_dropped < 1 else ""
    return DataError(
        given=f"{what}: {summary(dropped, total)}",
        allowed=f"{share}at least one left",
        fix=f"{cure}." if len(dropped) == total else (f"{cure}; or raise data.max_dropped if you can do without them."),
    )
