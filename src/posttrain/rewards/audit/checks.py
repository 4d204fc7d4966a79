"""The checks of an audit, and the comparison of a measure with its limits. `checks.yaml` lists the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from posttrain.rewards.audit import correctness, outputs, programs, repeats, samples, slope, speed, surroundings
from posttrain.rewards.audit.finding import Finding, Measured, Status
from posttrain.rewards.audit.subject import KINDS, OutOfTime, Subject
from posttrain.verify import read_table

ORDER: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. A measure that exceeds the limit `warn` or `fail` gets that status."""

    name: str
    asks: str
    """The question that the check answers."""
    run: Callable[[Subject], Measured]
    kinds: frozenset[str] = frozenset(KINDS)
    unit: str = "%"
    """"%" for a share, else the things that the number counts."""
    warn: float | None = None
    fail: float | None = None
    judges_fail: float | None = None
    """The limit for rewards that are models, because models make some errors."""
    at_least: bool = False
    """True if the measure has to reach the limit instead of staying below it."""

    def limit(self, kind: str | None = None) -> str:
        """The limits in words, for one kind or for all."""
        sign = "<" if self.at_least else ">"
        fail = self.judges_fail if kind == "judge" and self.judges_fail is not None else self.fail
        parts = [
            f"{name} {sign} {self._shown(at)}" for name, at in (("warn", self.warn), ("fail", fail)) if at is not None
        ]
        if kind is None and self.judges_fail is not None:
            parts.append(f"judges {sign} {self._shown(self.judges_fail)}")
        return ", ".join(parts)

    def __call__(self, subject: Subject) -> Finding:
        start = time.perf_counter()
        measured = self._measured(subject)
        return Finding(
            check=self.name,
            status=self.status(measured, subject.kind),
            measured=measured.value,
            limit=self.limit(subject.kind),
            text=measured.text,
            examples=measured.examples,
            seconds=time.perf_counter() - start,
        )

    def _measured(self, subject: Subject) -> Measured:
        if subject.kind not in self.kinds:
            return Measured(text=f"not for kind {subject.kind}")
        try:
            subject.require_time()
            return self.run(subject)
        except OutOfTime as late:
            return Measured(text=str(late))

    def status(self, measured: Measured, kind: str) -> Status:
        """The status of a measure for a kind of reward; "skipped" without a measure."""
        if measured.value is None:
            return "skipped"
        fail = self.judges_fail if kind == "judge" and self.judges_fail is not None else self.fail
        found: Status = "ok"
        if self._exceeds(measured.value, self.warn):
            found = "warn"
        if self._exceeds(measured.value, fail):
            found = "fail"
        places = [ORDER.index(measured.at_least), min(ORDER.index(found), ORDER.index(measured.at_most))]
        return ORDER[max(places)]

    def _exceeds(self, value: float, limit: float | None) -> bool:
        """Whether a value exceeds a limit; nan exceeds every limit."""
        if limit is None:
            return False
        return not (value >= limit if self.at_least else value <= limit)

    def _shown(self, limit: float) -> str:
        return f"{100 * limit:g} %" if self.unit == "%" else f"{limit:g} {self.unit}".strip()


_MEASURES = (
    *(correctness.false_accepts, correctness.false_rejects, correctness.constant_guess),
    *(programs.code_attacks, programs.mutation_score, slope.length_slope, slope.format_slope),
    *(repeats.determinism, repeats.noise, outputs.malformed_rows, outputs.contract),
    *(speed.hostile_inputs, speed.latency, surroundings.safety, surroundings.side_effects, samples.group_signal),
)


def _declared() -> Iterator[Check]:
    measures = {measure.__name__: measure for measure in _MEASURES}
    for name, told in read_table(Path(__file__).with_suffix(".yaml")).items():
        told["kinds"] = frozenset(told.get("kinds", KINDS))
        yield Check(name=name, run=measures[name], **told)


CHECKS: tuple[Check, ...] = tuple(_declared())
