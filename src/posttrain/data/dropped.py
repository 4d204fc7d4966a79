"""Rows that cannot be used. They are counted with their reasons and reported; too many of them are an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.data.read import Row

T = TypeVar("T")
IN_ANOTHER_FORM = "with the columns"
"""The beginning of the reason for a row of a file in another form."""
CURES = (
    (IN_ANOTHER_FORM, "Convert the files to one form: all rows are read by the same columns"),
    (
        "prompt longer than",
        "Shorten them, or lower sampling.max_completion_length: the context holds prompt and answer",
    ),
    ("longer than", "Shorten them, raise data.max_length if it is set, or use a model with a longer context"),
)
"""The beginning of a reason, and its remedy."""
MEND = "Fix the rows named above"


def a_type(value: object) -> str:
    """The type of a value in words, for a reason.

    >>> a_type(7), a_type("ab")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def counted(number: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class Dropped(NamedTuple):
    """One row that was left out."""

    origin: str
    reason: str
    """The reason, with the same text for all rows that have the same fault, such as "empty prompt"."""


class Unusable(Exception):
    """Raised while a row is read or rendered. Its text is the reason why the row is then dropped."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Base class for the usable rows of a dataset, which subclasses store, and the dropped rows."""

    dropped: Sequence[Dropped] = ()
    source: Sequence[Row] = ()
    """All rows that were read."""

    @property
    def usable(self) -> Sequence[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.usable)

    @property
    def dropped_summary(self) -> str:
        """A sentence about the dropped rows and their reasons; "" if no row was dropped."""
        return summary(self.dropped, self.rows_read)

    @property
    def rows_read(self) -> int:
        return len(self.usable) + len(self.dropped)


@dataclass(frozen=True, kw_only=True)
class Rendered(Kept, Generic[T]):
    """The tokenised usable rows of one kind."""

    rows: Sequence[T]
    form: str = ""
    """Names of the columns that were read."""

    @property
    def usable(self) -> Sequence[T]:
        return self.rows


def summary(dropped: Sequence[Dropped], total: int) -> str:
    """Text for a warning: "dropped 3 of 100 rows: 2 empty prompt (a.jsonl:4, …), 1 …"; "" if nothing was dropped."""
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
    """Raise `DataError` if all rows were dropped, or a larger share than `max_dropped`."""
    if len(dropped) == total or len(dropped) > max_dropped * total:
        raise too_many(dropped, total, max_dropped, what)


def too_many(dropped: Sequence[Dropped], total: int, max_dropped: float, what: str) -> DataError:
    """The error for too many dropped rows among the `total` rows that were read."""
    cures = (next((cure for fault, cure in CURES if reason.startswith(fault)), MEND) for _, reason in dropped)
    cure = Counter(cures).most_common(1)[0][0]
    share = f"at most {max_dropped:.0%} dropped rows, and " if max_dropped < 1 else ""
    return DataError(
        given=f"{what}: {summary(dropped, total)}",
        allowed=f"{share}at least one left",
        fix=f"{cure}." if len(dropped) == total else (f"{cure}; or raise data.max_dropped if you can do without them."),
    )
