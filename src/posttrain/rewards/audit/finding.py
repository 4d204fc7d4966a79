"""The report of an audit: one finding per check, and the overall result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurement of a check, before it is compared with the limit."""

    value: float | None = None
    """The measure, in the unit of the check. None: nothing could be measured, and `text` says why."""
    text: str
    """One line for the user."""
    examples: tuple[str, ...] = ()
    """The worst cases, in a form that can be tried by hand."""
    at_most: Literal["ok", "warn", "fail"] = "fail"
    """The worst possible status; a check that is not sure of its own measure says "warn"."""
    at_least: Literal["ok", "warn"] = "ok"
    """The best possible status: "warn" if a part of the check could not run."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    status: Status
    measured: float | None
    limit: str
    """The limit in words, as in the table of the checks."""
    text: str
    examples: tuple[str, ...] = ()
    seconds: float = 0.0
    """Duration of the check, in seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The results of the audit of one reward."""

    reward: str
    kind: str
    """The declared or inferred kind of the reward: see `posttrain.rewards.audit.subject.Kind`."""
    why: str
    """How the kind was decided."""
    rows: int
    reads: tuple[str, ...]
    """The forms of an answer that the reward reads, as templates."""
    checks: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if no check failed and at least one ran. An audit without time for any check has shown nothing.

        Warnings do not count.
        """
        return not self.named("fail") and bool(self.named("ok") or self.named("warn"))

    def named(self, status: Status) -> list[str]:
        """The names of the checks with this status."""
        return [finding.check for finding in self.checks if finding.status == status]

    def __getitem__(self, check: str) -> Finding:
        return next(finding for finding in self.checks if finding.check == check)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {"ok": self.ok, **asdict(self)}

    def render(self) -> str:
        """A table for a terminal, followed by examples for the checks that failed or warned."""
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
    """A share in words.

    >>> share(3, 64), share(0, 0)
    ('3 of 64 (4.69 %)', '0 of 0')
    """
    return f"{part} of {whole} ({100 * part / whole:.3g} %)" if whole else f"{part} of {whole}"


def quote(text: Any, length: int = 90) -> str:
    """A text as one line. The middle of a long text is left out.

    >>> quote("7" * 200, 20)
    "'7777777777 ... (200 characters) ... 77777'"
    """
    shown = repr(text)
    if len(shown) <= length:
        return shown
    head, tail = shown[: length // 2 + 1], shown[-(length // 4) - 1 :]
    return f"{head} ... ({len(text) if isinstance(text, str) else len(shown)} characters) ... {tail}"


def mean(values: Sequence[float]) -> float:
    """The mean of the values; nan if there are none."""
    return math.fsum(values) / len(values) if values else math.nan
