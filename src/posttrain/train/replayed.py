"""The result of a replay, as a record and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.train.differences import Compared, Difference

SHOWN = 3
"""Number of differences of each kind that are printed; replay.json has all."""
ENDS = 8
"""Number of first steps, and of last steps, that are printed for a what-if."""
TOLD = ("loss", "grad_norm", "entropy")
"""Metrics of a what-if that are printed for each step; replay.json has all."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of a replay; `replay.json` in its folder holds the same."""

    run: Path
    folder: Path
    """The replay's folder, with metrics.jsonl, replay.json and the checkpoint of the last step."""
    first: int
    last: int
    start: str
    """The weights from which the replay started, in words."""
    what_if: bool
    """Were settings changed? Then the replay claims no equality."""
    changed: list[str]
    """Settings that differ from the run's, in words."""
    compared: Compared
    metrics: list[tuple[int, dict[str, float], dict[str, Any]]]
    """(step, replayed, recorded) metrics of training."""
    apart: dict[int, float] = field(default_factory=dict)
    """For a what-if, by step: the distance of its weights to the run's, over how far the run's weights have moved."""
    notes: list[str] = field(default_factory=list)
    """Other differences from the run, in words."""

    @property
    def same(self) -> bool:
        """Was everything that could be compared the same?"""
        return not self.compared.differences

    @property
    def differences(self) -> list[Difference]:
        """All differences, in the order of the steps."""
        return self.compared.differences

    @property
    def exit_code(self) -> int:
        """4 if bits differ with the settings of the run, else 0. A what-if always has 0."""
        return 0 if self.same or self.what_if else 4

    def to_json(self) -> dict[str, Any]:
        compared = self.compared
        return {
            "run": str(self.run),
            "folder": str(self.folder),
            "first": self.first,
            "last": self.last,
            "start": self.start,
            "what_if": self.what_if,
            "changed": self.changed,
            "same": self.same,
            "compared": {
                "steps": compared.steps,
                "metrics": compared.metrics,
                "rows": compared.rows,
                "tensors": compared.tensors,
                "checkpoints": compared.checkpoints,
            },
            "differences": [difference._asdict() for difference in compared.differences],
            "apart": {str(step): share for step, share in self.apart.items()},
            "metrics": [{"step": step, "replayed": now, "run": then} for step, now, then in self.metrics],
            "notes": self.notes,
        }

    def render(self) -> str:
        """The final output of the command."""
        body = self._what_if() if self.what_if else self._verdict()
        notes = [f"note       {note}" for note in self.notes]
        return "\n".join([*body, f"started    from {self.start}", *notes, f"folder     {self.folder}"])

    def _verdict(self) -> list[str]:
        steps = f"Steps {self.first} to {self.last} of {self.run}"
        if self.same:
            what = "the same bits" if self.compared.tensors else "the same numbers; no weights were compared"
            return [f"{steps}, trained again from what was recorded: {what}.", *self._counts()]
        first = self.differences[0].step
        lines = [f"{steps}, trained again from what was recorded: NOT the same, from step {first} on."]
        for kind in dict.fromkeys(difference.kind for difference in self.differences):
            own = [difference for difference in self.differences if difference.kind == kind]
            lines += [f"  {difference}" for difference in own[:SHOWN]]
            lines += [f"  and {len(own) - SHOWN} more {kind}s, in replay.json"] if len(own) > SHOWN else []
        return [*lines, *self._counts()]

    def _counts(self) -> list[str]:
        compared = self.compared
        rows = f", {compared.rows} rows of advantages or roles" if compared.rows else ""
        steps = ", ".join(map(str, compared.checkpoints))
        tensors = (
            f"{compared.tensors} tensors (policy, critic and optimizer after step {steps})"
            if compared.checkpoints
            else "no tensors, because the run has no checkpoint of these steps"
        )
        return [f"compared   {compared.metrics} metrics of {compared.steps} steps{rows}, {tensors}"]

    def _what_if(self) -> list[str]:
        changed = "; ".join(self.changed) or "no setting changed"
        told = [name for name in TOLD if any(name in now for _, now, _ in self.metrics)]
        width = max(map(len, TOLD)) + 9
        lines = [
            f"What if: steps {self.first} to {self.last} of {self.run} with {changed}.",
            "It trains on what the run sampled and scored; it claims no equality with the run.",
            "",
            "  step" + "".join(f"{name + ' (run)':>{width}}{'what-if':>12}" for name in told),
        ]
        for place, (step, now, then) in enumerate(self.metrics):
            if ENDS <= place < len(self.metrics) - ENDS:
                lines += ["     …"] if place == ENDS else []
                continue
            numbers = "".join(f"{_number(then.get(name)):>{width}}{_number(now.get(name)):>12}" for name in told)
            lines.append(f"{step:6}{numbers}")
        lines.append("")
        for step, share in self.apart.items():
            lines.append(
                f"weights after step {step}: their distance to the run's weights is {share:.2f} times as far as "
                f"the run's weights moved since step {self.first - 1}"
            )
        if not self.apart:
            lines.append("weights    not compared, because the run has no checkpoint of these steps")
        return lines


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"
