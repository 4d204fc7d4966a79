"""Statistics of the records of a dataset: lengths, repetitions, contradictions, balance, and findings about them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from posttrain.data.dropped import Dropped, counted
from posttrain.data.forms import Kind
from posttrain.functional.intervals import Interval, mean_interval, wilson

PLACES = 3
"""Number of rows that a message names if many have the same fault."""
NOTABLE = 0.05
"""Smallest difference of length that is reported, as a share of the mean length."""
TELLING = 0.6
"""Smallest share of right choices for which the rule "the longer one", or "the shorter one", is reported."""


class Lengths(NamedTuple):
    """Quantiles over the usable rows. Each is one of the values."""

    shortest: float
    median: float
    p90: float
    p99: float
    longest: float

    @staticmethod
    def of(values: Iterable[float]) -> Lengths:
        """The quantiles of some values.

        >>> Lengths.of(range(1, 101))
        Lengths(shortest=1, median=50, p90=90, p99=99, longest=100)
        """
        ordered = sorted(values)
        return Lengths(*(ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (0, 50, 90, 99, 100)))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row as the model will read it."""

    origin: str
    parts: tuple[tuple[str, bool], ...]
    """Segments of text, and whether their tokens are trained. For a pair, the chosen answer."""
    rejected: tuple[tuple[str, bool], ...] = ()
    """The segments with the rejected answer of a pair."""
    texts: tuple[str, ...] = ()
    """The texts of the row, as they are in the data."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Other columns: the gold answer, a label, a score or a margin."""

    @property
    def answer(self) -> Any:
        """The gold answer that rewards receive."""
        return self.facts.get("answer")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A remark for anyone who trains on the data."""

    message: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class LengthBias:
    """How well the length of the answers alone predicts which one was chosen."""

    difference: Interval
    """Mean length of chosen minus rejected answers, in the unit of the lengths."""
    longer_is_chosen: Interval
    """Share of pairs in which the longer answer was chosen, among pairs with answers of different length."""

    @staticmethod
    def of(chosen: Sequence[int], rejected: Sequence[int]) -> LengthBias:
        differences = [a - b for a, b in zip(chosen, rejected, strict=True)]
        return LengthBias(
            difference=mean_interval(differences),
            longer_is_chosen=wilson(sum(d > 0 for d in differences), sum(d != 0 for d in differences)),
        )

    @property
    def is_telling(self) -> bool:
        """Does a rule of length name the chosen answer more often than chance, in enough of all pairs to matter?"""
        longer = self.longer_is_chosen
        tells = longer.n and longer.excludes(0.5)
        return bool(tells) and abs(longer.mean - 0.5) * longer.n >= (TELLING - 0.5) * self.difference.n


class Seen(NamedTuple):
    """The properties of one record that are counted."""

    index: int
    """Index of its row."""
    prompt: object
    """A value that is equal for records with the same prompt; None if there is no prompt."""
    content: object
    """A value that is equal for equal records."""
    lengths: Mapping[str, int]
    tokens: int
    trained: int
    numbers: Mapping[str, float]
    contrary: object = None
    """The `content` of a record that says the opposite; None if there is no opposite."""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Use:
    """The data as one kind of training uses it."""

    kind: Kind
    mapping: str
    """How the columns are read, in words."""
    usable: int
    """Number of rows that can be trained on."""
    records: int
    """Number of records made from these rows. A pair whose answers are rated separately counts as two."""
    dropped: Sequence[Dropped]
    duplicates: int
    """Number of rows that repeat an earlier row."""
    repeated_prompts: int
    """Number of rows with the prompt of an earlier row."""
    contradictions: int
    """Number of rows that say the opposite of an earlier row: the same pair swapped, or the other label."""
    tokens: int
    trained: int
    """Number of trained tokens; 0 if answers are sampled."""
    lengths: Mapping[str, Lengths]
    """Name of what is measured, for example "prompt" -> quantiles of its lengths."""
    numbers: Mapping[str, Lengths]
    """Name of a number that is no length (margins, scores, steps per answer) -> its quantiles."""
    classes: Mapping[str, int]
    """Label -> number of answers or steps that have it."""
    length_bias: LengthBias | None
    samples: tuple[Sample, ...]
    findings: tuple[Finding, ...]


@dataclass(kw_only=True)
class Survey:
    """The running counts. It keeps a few numbers and up to three fingerprints for each record."""

    lengths: dict[str, array[int]] = field(default_factory=dict)
    numbers: dict[str, array[float]] = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)
    rows: set[int] = field(default_factory=set)
    tokens: int = 0
    trained: int = 0
    duplicates: list[int] = field(default_factory=list)
    contradictions: list[int] = field(default_factory=list)
    repeated_prompts: list[int] = field(default_factory=list)
    contents: set[bytes] = field(default_factory=set)
    prompts: dict[bytes, int] = field(default_factory=dict)

    def add(self, seen: Seen) -> None:
        for name, value in seen.lengths.items():
            self.lengths.setdefault(name, array("q")).append(value)
        for name, value in seen.numbers.items():
            self.numbers.setdefault(name, array("d")).append(value)
        self.classes.update(seen.classes)
        self.tokens += seen.tokens
        self.trained += seen.trained
        content = _fingerprint(seen.content)
        if content in self.contents:
            self.duplicates.append(seen.index)
        if seen.contrary is not None and _fingerprint(seen.contrary) in self.contents:
            self.contradictions.append(seen.index)
        if seen.prompt is not None and self.prompts.setdefault(_fingerprint(seen.prompt), seen.index) != seen.index:
            self.repeated_prompts.append(seen.index)
        self.contents.add(content)
        self.rows.add(seen.index)

    def length_bias(self) -> LengthBias | None:
        sides = [self.lengths.get(name) for name in ("chosen", "rejected")]
        return None if sides[0] is None or sides[1] is None else LengthBias.of(sides[0], sides[1])

    def findings(self, kind: Kind, unit: str, places: Callable[[Sequence[int]], str]) -> tuple[Finding, ...]:
        """Remarks about the rows. `places` turns indices of rows into their names."""
        return (
            *_repetitions(self, kind, places),
            *_length_findings(self.length_bias(), self.lengths, unit),
            *_margin_findings(self.numbers.get("margin", ())),
            *(_class_findings(self.classes) if kind == "labels" else ()),
            *_constant_findings(self.numbers.get("score", ()), "score"),
        )


def kto_weights(desirable: int, undesirable: int) -> dict[str, tuple[float, float]]:
    """The setting to change and the range that brings λ_D n_D / (λ_U n_U) into [1, 4/3] (arXiv:2402.01306).

    Empty if both weights may stay 1.

    >>> kto_weights(100, 200), kto_weights(200, 100), kto_weights(110, 100)
    ({'desirable_weight': (2.0, 2.6666666666666665)}, {'undesirable_weight': (1.5, 2.0)}, {})
    """
    ratio = desirable / undesirable
    if ratio < 1:
        return {"desirable_weight": (1 / ratio, 4 / 3 / ratio)}
    return {"undesirable_weight": (0.75 * ratio, ratio)} if ratio > 4 / 3 else {}


def _repetitions(survey: Survey, kind: Kind, places: Callable[[Sequence[int]], str]) -> list[Finding]:
    found = []
    if rows := survey.contradictions:
        what = "the same pair the other way round" if kind == "pairs" else "the same answer with the other label"
        message = f"{_rows_that('contradict', rows)} an earlier one: {what} ({places(rows)})"
        found.append(Finding(message=message, fix="Remove one row of each pair: together they teach nothing."))
    if rows := survey.duplicates:
        message = f"{_rows_that('repeat', rows)} an earlier one ({places(rows)})"
        fix = "Remove them: they count twice, and one copy may be held out while the other is trained on."
        found.append(Finding(message=message, fix=fix))
    return found


def _rows_that(do: str, rows: Sequence[int]) -> str:
    return f"{counted(len(rows), 'row')} {do}{'s' if len(rows) == 1 else ''}"


def _have(pairs: int) -> str:
    return f"{counted(pairs, 'pair')} {'has' if pairs == 1 else 'have'}"


def _length_findings(bias: LengthBias | None, lengths: Mapping[str, Sequence[int]], unit: str) -> list[Finding]:
    if bias is None:
        return []
    mean = sum(lengths["rejected"]) / len(lengths["rejected"])
    difference, longer = bias.difference, bias.longer_is_chosen
    apart = difference.finite and difference.excludes(0) and abs(difference.mean) >= NOTABLE * mean
    if not (apart or bias.is_telling):
        return []
    which = "longer" if (longer.mean > 0.5 if bias.is_telling else difference.mean > 0) else "shorter"
    right = longer.mean if which == "longer" else 1 - longer.mean
    by = abs(difference.mean)
    same_way = difference.mean > 0 if which == "longer" else difference.mean < 0
    size = f"{which}, by {by:.{0 if by >= 10 else 1}f} {unit} on average" if same_way else f"mostly {which}"
    among = f" of the {counted(longer.n, 'pair')} of different length" if longer.n < difference.n else ""
    message = f"chosen answers are {size}; always choosing the {which} of the two would be right in {right:.0%}{among}"
    fix = (
        "A model can learn length instead of quality: compare its accuracy with that share, and watch the length of "
        "its answers."
    )
    return [Finding(message=message, fix=fix)]


def _margin_findings(margins: Sequence[float]) -> list[Finding]:
    found = []
    if wrong := sum(margin < 0 for margin in margins):
        message = f"{_have(wrong)} a negative margin: by their own scores the rejected answer is the better one"
        found.append(Finding(message=message, fix="Swap or remove them."))
    if equal := sum(margin == 0 for margin in margins):
        message = f"{_have(equal)} a margin of 0: by their own scores neither answer is better"
        found.append(Finding(message=message, fix="Remove them: which answer was chosen is chance."))
    return found


def _class_findings(classes: Mapping[str, int]) -> list[Finding]:
    desirable, undesirable = classes.get("true", 0), classes.get("false", 0)
    if not desirable or not undesirable:
        only = "desirable" if desirable else "undesirable"
        fix = "Add answers with the other label; desirable answers alone are imitated by sft."
        return [Finding(message=f"all answers are {only}: there is nothing to compare them with", fix=fix)]
    for setting, (low, high) in kto_weights(desirable, undesirable).items():
        message = f"{desirable} answers are desirable and {undesirable} are not: with equal weights one class dominates"
        fix = f"Set algorithm.{setting} between {low:.3g} and {high:.3g} (kto), the other weight being 1."
        return [Finding(message=message, fix=fix)]
    return []


def _constant_findings(values: Sequence[float], what: str) -> list[Finding]:
    if len(values) < 2 or min(values) < max(values):
        return []
    return [Finding(message=f"every {what} is {values[0]:g}: there is nothing to learn", fix="Check the column.")]


def _fingerprint(content: object) -> bytes:
    return blake2b(repr(content).encode(), digest_size=16).digest()
