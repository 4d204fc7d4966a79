"""The table of checks: what each asks, for which kinds of rewards, and where its limits lie. Declared here, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from posttrain.rewards.audit import correctness, groups, outputs, programs, repeats, slope, speed, surroundings
from posttrain.rewards.audit.finding import Finding, Measured, Status
from posttrain.rewards.audit.subject import KINDS, Kind, OutOfTime, Subject

GRADED: frozenset[Kind] = frozenset({"exact", "literal", "judge", "code"})
"""Kinds that judge what an answer says."""
ORDER: tuple[Status, ...] = ("ok", "warn", "fail")
ANY: frozenset[str] = frozenset(KINDS)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. Its measure is held against `warn` and `fail`: what exceeds them is that."""

    name: str
    asks: str
    """The question that it answers."""
    run: Callable[[Subject], Measured]
    kinds: frozenset[str] = ANY
    unit: str = "%"
    """"%": a share; otherwise what the number counts."""
    warn: float | None = None
    fail: float | None = None
    judges_fail: float | None = None
    """The limit for rewards that are models, which err now and then."""
    at_least: bool = False
    """The measure has to reach the limit instead of staying below it."""

    def limit(self, kind: str | None = None) -> str:
        """The limits in words; of one kind, or of all."""
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
        """What a measure comes to for a kind of reward; without a measure the check was skipped."""
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
        """nan exceeds every limit."""
        if limit is None:
            return False
        return not (value >= limit if self.at_least else value <= limit)

    def _shown(self, limit: float) -> str:
        return f"{100 * limit:g} %" if self.unit == "%" else f"{limit:g} {self.unit}".strip()


CHECKS: tuple[Check, ...] = (
    Check(
        name="false_accepts",
        asks="Does a completion that earns nothing get the score of a right answer?",
        run=correctness.false_accepts,
        kinds=GRADED,
        fail=0.0,
        judges_fail=0.01,
    ),
    Check(
        name="false_rejects",
        asks="Is a right answer accepted, however it is spelt?",
        run=correctness.false_rejects,
        kinds=GRADED,
        fail=0.02,
    ),
    Check(
        name="constant_guess",
        asks="How far does one answer to all questions get?",
        run=correctness.constant_guess,
        kinds=GRADED - {"code"},
        warn=0.1,
        fail=0.3,
    ),
    Check(
        name="code_attacks",
        asks="Can a program pass without solving the task?",
        run=programs.code_attacks,
        kinds=frozenset({"code"}),
        unit="programs",
        fail=0,
    ),
    Check(
        name="mutation_score",
        asks="Do the tests notice when a right program is changed?",
        run=programs.mutation_score,
        kinds=frozenset({"code"}),
        warn=0.8,
        at_least=True,
    ),
    Check(
        name="length_slope",
        asks="Does the same answer earn more, or less, when the text before it is longer?",
        run=slope.length_slope,
        kinds=ANY - {"length", "literal"},
        unit="of the gap between right and wrong",
        fail=0.02,
    ),
    Check(
        name="format_slope",
        asks="Does it earn more, or less, with lists, headings and bold text?",
        run=slope.format_slope,
        kinds=ANY - {"format", "length", "literal"},
        unit="of the gap between right and wrong",
        fail=0.02,
    ),
    Check(
        name="determinism",
        asks="Is a score the same again: later, in another order, alone, in another process?",
        run=repeats.determinism,
        fail=0.0,
    ),
    Check(
        name="noise",
        asks="How much of the spread of the scores is real? var(true) / (var(true) + var(noise))",
        run=repeats.noise,
        unit="",
        fail=0.8,
        at_least=True,
    ),
    Check(
        name="malformed_rows",
        asks="Is a row whose gold answer cannot be meant refused?",
        run=outputs.malformed_rows,
        kinds=GRADED - {"code"},
        unit="sorts of rows",
        fail=0,
    ),
    Check(
        name="hostile_inputs",
        asks="Does it come back from completions made to cost time?",
        run=speed.hostile_inputs,
        kinds=ANY - {"judge"},
        unit="completions",
        fail=0,
    ),
    Check(
        name="latency",
        asks="Which share of a training step does scoring take?",
        run=speed.latency,
        warn=0.2,
    ),
    Check(
        name="safety",
        asks="Does it work in threads, under asyncio and in a spawned process?",
        run=surroundings.safety,
        unit="surroundings",
        fail=0,
    ),
    Check(
        name="side_effects",
        asks="What does it do beside scoring?",
        run=surroundings.side_effects,
        unit="sorts of effects",
        fail=0,
    ),
    Check(
        name="contract",
        asks="Is there one finite number for each completion?",
        run=outputs.contract,
        unit="answers",
        fail=0,
    ),
    Check(
        name="group_signal",
        asks="In how many groups of a model's completions are all scores equal?",
        run=groups.group_signal,
        warn=0.8,
    ),
)
