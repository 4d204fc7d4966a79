"""The advisor's answer: records for programs, and text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.algorithms import ALGORITHMS
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.guides import from_rewards
from posttrain.lab.plan.verdict import size

WIDTH = 100
NOTHING = "No algorithm fits: there is nothing to learn from yet.\n"
MORE = (
    "--details 1 also prints: what it needs, how it fails, the alternatives, where guides disagree, which facts\n"
    "would change the answer, and the sources.\n"
)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a rule speaks for or against one algorithm. The facts meet the rule's condition."""

    rule: str
    points: float
    """Above 0: in favour. Below 0: against. 0: the rule excludes the algorithm."""
    text: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The memory that an algorithm needs."""

    models: int
    """Number of models in memory. Second adapters and models on disk or on another machine do not count."""
    roles: tuple[str, ...]
    bytes: int | None = None
    """Bytes on each device at the peak of a step, as `posttrain plan` predicts. None if the model's size is unknown."""
    by_role: tuple[tuple[str, int], ...] = ()
    """(role, bytes at that peak)."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """An algorithm for this situation, with what a user should know before trying it."""

    algorithm: str
    title: str
    score: float
    reasons: tuple[Reason, ...]
    concerns: tuple[Reason, ...]
    cost: Cost
    needs: tuple[str, ...]
    """The data, and the quantities computed in addition to the policy's log-probabilities."""
    failures: tuple[str, ...]
    avoid_when: str
    settings: dict[str, Any]
    """Settings of the algorithm that should differ from its defaults in this situation."""
    config: str
    """YAML for `posttrain train`. The file names are placeholders for your own."""


@dataclass(frozen=True, kw_only=True)
class RunnerUp:
    """An algorithm that was considered, and why it is not recommended."""

    algorithm: str
    title: str
    score: float | None
    """None if a rule excludes it."""
    why_not: str
    rule: str | None
    """The id of the rule behind `why_not`. None if the algorithm only has fewer points than the first one."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A first step, a contradiction, or a question on which guides disagree."""

    id: str
    text: str
    sources: tuple[str, ...]
    blocks: bool = False
    """For a first step: is learning from rewards pointless until it is done?"""


@dataclass(frozen=True, kw_only=True)
class Change:
    """An unknown fact, a value of it, and the algorithm that would then be recommended first."""

    fact: str
    value: str
    algorithm: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Ranked recommendations with reasons. There are none if there is nothing to learn from."""

    facts: Facts
    assumed: tuple[str, ...]
    before: tuple[Point, ...]
    contradictions: tuple[Point, ...]
    recommendations: tuple[Recommendation, ...]
    runners_up: tuple[RunnerUp, ...]
    disagreements: tuple[Point, ...]
    would_change: tuple[Change, ...]

    @property
    def best(self) -> Recommendation | None:
        return self.recommendations[0] if self.recommendations else None

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name != "facts"}
        facts = {name: value for name, value in self.facts.model_dump().items() if value not in (None, ())}
        return {"facts": facts, **{name: [_plain(entry) for entry in entries] for name, entries in told.items()}}

    def render(self, *, details: int = 0) -> str:
        """Return the advice as text: the algorithm, the reasons, the memory, the config, and the first steps. `details`
        is the number of recommendations to print in full, with the other algorithms considered and the sources."""
        return self._in_full(details) if details else self._in_short()

    def _in_short(self) -> str:
        best, others = self.best, self.recommendations[1:]
        parts = [
            self._only_after(),
            _pick(best) if best is not None else NOTHING,
            _section("Alternatives", [_in_a_line(told, best) for told in others]),
            _section("First", [point.text for point in self.before]),
            _section("These goals contradict each other", [point.text for point in self.contradictions]),
            _section("Assumed", self.assumed),
            MORE if best is not None else "",
        ]
        return "\n".join(filter(None, parts))

    def _in_full(self, details: int) -> str:
        cite = Citations()
        parts = [
            _section("Assumed", self.assumed),
            _section("First", [cite(point.text, point.sources) for point in self.before]),
            _section("These goals contradict each other", [cite(p.text, p.sources) for p in self.contradictions]),
            self._only_after(),
            *(_recommended(n, told, cite, full=n <= details) for n, told in enumerate(self.recommendations, 1)),
            "" if self.recommendations else NOTHING,
            _section("Considered, not recommended", [f"{told.algorithm}: {told.why_not}" for told in self.runners_up]),
            _section("Where guides disagree", [cite(point.text, point.sources) for point in self.disagreements]),
            _section("Facts that would change the answer", _changes(self.would_change)),
        ]
        return "\n".join(part for part in (*parts, cite.render()) if part)

    def _only_after(self) -> str:
        """Return a heading if the first recommendation would learn nothing before the first steps are done."""
        blocking = [point.id for point in self.before if point.blocks]
        learns = self.best is not None and from_rewards(ALGORITHMS[self.best.algorithm])
        return f"Only after the steps under First ({', '.join(blocking)})\n" if blocking and learns else ""

    def _repr_markdown_(self) -> str:
        return f"```text\n{self.render()}```"


def _plain(entry: Any) -> Any:
    return entry if isinstance(entry, str) else asdict(entry)


class Citations:
    """Numbers of the sources, in the order of their first citation."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str, sources: Sequence[str]) -> str:
        """Append the numbers of its sources to the text."""
        numbers = [self._numbers.setdefault(source, len(self._numbers) + 1) for source in dict.fromkeys(sources)]
        return f"{text} [{', '.join(map(str, numbers))}]" if numbers else text

    def render(self) -> str:
        return _section("Sources", [f"{number}: {source}" for source, number in self._numbers.items()])


def _changes(changes: Sequence[Change]) -> list[str]:
    by_fact: dict[str, list[str]] = {}
    for change in changes:
        by_fact.setdefault(change.fact, []).append(f"{change.value} ({change.algorithm})")
    return [f"{fact} = {' or '.join(values)}" for fact, values in by_fact.items()]


def _section(title: str, lines: Sequence[str]) -> str:
    return f"{title}\n" + "".join(f"{_listed(line)}\n" for line in lines) if lines else ""


def _listed(line: str, mark: str = "- ") -> str:
    """Format a list item. Lines break only between words, so that URLs stay whole."""
    return textwrap.fill(
        line,
        WIDTH,
        initial_indent=f"  {mark}",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _recommended(place: int, told: Recommendation, cite: Citations, *, full: bool) -> str:
    lines = _told_in_full(told, cite) if full else _told_in_short(told, cite)
    return _head(place, told) + "".join(f"{line}\n" for line in lines)


def _head(place: int, told: Recommendation) -> str:
    return f"{place}. {told.algorithm}  {told.title}  ({told.score:g} points)\n"


def _pick(told: Recommendation) -> str:
    """Return the first recommendation in short: reasons, concerns, memory and config."""
    marked = [("+ ", reason) for reason in told.reasons] + [("- ", reason) for reason in told.concerns]
    lines = [_listed(reason.text, mark) for mark, reason in marked]
    cost = textwrap.fill(f"Memory: {_models(told.cost)}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    config = textwrap.indent(told.config, "    ").rstrip("\n")
    return _head(1, told) + "".join(f"{line}\n" for line in (*lines, cost, "  Config", config))


def _in_a_line(told: Recommendation, best: Recommendation | None) -> str:
    """Return a lower-ranked recommendation in one line, with a reason that the first one does not share."""
    common = {reason.text for reason in best.reasons} if best is not None else set()
    why = next((reason.text for reason in told.reasons if reason.text not in common), told.title)
    needed = f", {size(told.cost.bytes)}" if told.cost.bytes is not None else ""
    return f"{told.algorithm}: {why} ({_number_of_models(told.cost)}{needed})"


def _reasons(reasons: Sequence[Reason], mark: str, cite: Citations) -> Iterator[str]:
    return (_listed(cite(f"{reason.text} ({reason.rule})", reason.sources), mark) for reason in reasons)


def _told_in_short(told: Recommendation, cite: Citations) -> Iterator[str]:
    yield from _reasons(told.reasons[:1], "+ ", cite)
    yield from _reasons(told.concerns[:1], "- ", cite)
    yield textwrap.fill(_models(told.cost), WIDTH, initial_indent="    ", subsequent_indent="    ")


def _told_in_full(told: Recommendation, cite: Citations) -> Iterator[str]:
    yield from _reasons(told.reasons, "+ ", cite)
    yield from _reasons(told.concerns, "- ", cite)
    yield textwrap.fill(f"Memory: {_models(told.cost)}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield from (_listed(role) for role in told.cost.roles)
    yield from (_listed(f"{role}: {size(number)}") for role, number in told.cost.by_role)
    yield "  Needs"
    yield from (_listed(need) for need in told.needs)
    yield "  How it fails"
    yield from (_listed(failure) for failure in told.failures)
    yield _listed(f"avoid it when: {told.avoid_when}")
    yield "  Config"
    yield textwrap.indent(told.config, "    ").rstrip("\n")


def _number_of_models(cost: Cost) -> str:
    return f"{cost.models} model{'s' * (cost.models > 1)}"


def _models(cost: Cost) -> str:
    number = _number_of_models(cost)
    needed = f", {size(cost.bytes)} at the peak of a step" if cost.bytes is not None else ""
    return number + needed + (f" ({cost.note})" if cost.note else "")
