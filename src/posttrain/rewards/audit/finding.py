"""The report of an audit: one finding per check, and their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The observation of a check, before it is compared with its limit."""

    value: float | None = None
    """In the unit of the check; None: nothing could be measured, `text` says why."""
    text: str
    """One line for a reader."""
    examples: tuple[str, ...] = ()
    """The worst cases, as they can be tried by hand."""
    at_most: Literal["ok", "warn", "fail"] = "fail"
    """The worst possible status; a check that is not sure of its own measure says "warn"."""
    at_least: Literal["ok", "warn"] = "ok"
    """The best possible status: "warn" if a part of the check could not run."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found."""

    check: str
    status: Status
    measured: float | None
    limit: str
    """In words, as in the table of the checks."""
    text: str
    examples: tuple[str, ...] = ()
    seconds: float = 0.0
    """That the check took."""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Everything that was found out about one reward."""

    reward: str
    kind: str
    """The kind that the reward was taken for: see `posttrain.rewards.audit.subject.Kind`."""
    why: str
    """How that was decided."""
    rows: int
    reads: tuple[str, ...]
    """The forms of an answer that it reads, as templates."""
    checks: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Nothing failed, and something was tried: an audit without time for any check has shown nothing.

        Warnings do not count.
        """
        return not self.named("fail") and bool(self.named("ok") or self.named("warn"))

    def named(self, status: Status) -> list[str]:
        """The checks that came to this."""
        return [finding.check for finding in self.checks if finding.status == status]

    def __getitem__(self, check: str) -> Finding:
        return next(finding for finding in self.checks if finding.check == check)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"ok": self.ok, **asdict(self)}

    def render(self) -> str:
        """A table for a terminal, and below it the examples of what was not right."""
        head = [
            f"reward  {self.reward}",
            f"taken for  {self.kind}: {self.why}",
            f"rows  {self.rows}",
            f"reads  {'  '.join(self.reads) or '-'}",
            "",
        ]
        width = max(len(finding.check) for finding in self.checks)
        ordered = sorted(self.checks, key=lambda finding: finding.status == "skipped")
        table = [f"{finding.status.upper():<8}{finding.check:<{width}}  {finding.text}" for finding in ordered]
        return "\n".join([*head, *table, *self._details(), "", self._last_line()])

    def _details(self) -> list[str]:
        lines: list[str] = []
        for finding in self.checks:
            if finding.status in ("warn", "fail"):
                lines += ["", f"{finding.status.upper()} {finding.check}   limit: {finding.limit}"]
                lines += [f"    {example}" for example in finding.examples]
        return lines

    def _last_line(self) -> str:
        counts = {status: len(self.named(status)) for status in ("fail", "warn", "ok", "skipped")}
        numbers = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        verdict = "Do not train on this reward yet" if not self.ok else "Nothing failed"
        if late := sum("out of time" in finding.text for finding in self.checks):
            verdict += f", and there was no time for {late} checks: give the audit more time (--seconds)"
        return f"{verdict}: {numbers}; {self.seconds:.0f} s."


def share(part: int, whole: int) -> str:
    """
    >>> share(3, 64), share(0, 0)
    ('3 of 64 (4.69 %)', '0 of 0')
    """
    return f"{part} of {whole} ({100 * part / whole:.3g} %)" if whole else f"{part} of {whole}"


def quote(text: Any, length: int = 90) -> str:
    """One line of a text, its middle left out where it is long.

    >>> quote("7" * 200, 20)
    "'7777777777 ... (200 characters) ... 77777'"
    """
    shown = repr(text)
    if len(shown) <= length:
        return shown
    head, tail = shown[: length // 2 + 1], shown[-(length // 4) - 1 :]
    return f"{head} ... ({len(text) if isinstance(text, str) else len(shown)} characters) ... {tail}"


def mean(values: Sequence[float]) -> float:
    """nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan
