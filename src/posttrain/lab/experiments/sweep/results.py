"""The findings of a sweep, in sentences that claim no more than the evidence supports."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.config.text import redact
from posttrain.lab.experiments.sweep.analysis import Boundary
from posttrain.lab.experiments.sweep.confirm import Confirmation
from posttrain.lab.experiments.sweep.settings import SweepSettings
from posttrain.lab.experiments.sweep.study import TrialRecord
from posttrain.lab.experiments.sweep.trials import goodness
from posttrain.report.spans import Span, show_span


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The complete result of a sweep. `results.json` holds its `to_json`."""

    folder: Path
    settings: SweepSettings
    measure: str
    trials: tuple[TrialRecord, ...]
    best: TrialRecord | None
    importance: Mapping[str, float]
    """Setting -> its share in separating the best quarter of the trials from all (PED-ANOVA). Empty with few trials."""
    boundaries: tuple[Boundary, ...]
    """The boundary between success and collapse for each knob, clearest first."""
    confirmation: Confirmation | None
    """None if the default is the best, no trial finished, or no fresh seeds were requested."""
    fresh_rows: bool
    """Does each seed draw its own held-out rows?"""
    notes: tuple[str, ...] = ()
    not_comparable: str = ""
    """Which trials measured other held-out rows or tokens than others. Then none is the best."""
    untrained: Span | None = None
    """The held-out score of the best trial's model before training, on the same rows."""

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def best_config(self) -> Path | None:
        return self.folder / "best.yaml" if self.best is not None else None

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(trial.outcome for trial in self.trials))

    def sentences(self) -> list[str]:
        """The result in words."""
        told = (self._found(), self._trained(), self._held(), self._bias(), self._collapses())
        return [text for text in told if text]

    def _found(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        if self.not_comparable:
            return self.not_comparable
        if self.best is None:
            return f"None of {len(self.trials)} trials finished ({counts}): there is no best configuration."
        values = ", ".join(f"{key} = {show(value)}" for key, value in self.best.values.items())
        span = f"{self.best.score:.4g}"
        if self.best.low is not None and self.best.high is not None:
            span += f" ({self.best.low:.4g} to {self.best.high:.4g})"
        return (
            f"Of {len(self.trials)} trials ({counts}), number {self.best.number} has the best held-out {self.measure}, "
            f"{span}: {values}."
        )

    def _trained(self) -> str:
        """The score before training. Without it, the best of many runs that spoil the model looks like a success."""
        if self.best is None or self.best.score is None or self.untrained is None:
            return ""
        before = self.untrained
        gain = goodness(self.measure, self.best.score) - goodness(self.measure, before.mean)
        told = "" if gain > 0 else ": the best trial is no better"
        return f"Before training, its model had {show_span(self.measure, before)}{told}."

    def _held(self) -> str:
        if self.best is not None and self.best.is_default:
            return "It is the default configuration: no tried configuration beats it, so none was run again."
        if self.confirmation is None:
            return (
                "" if self.best is None else ("It was not run on fresh seeds, so it is not shown to beat the default.")
            )
        c = self.confirmation
        ran = f"On {len(c.pairs)} fresh seeds with which both finished,"
        if len(c.pairs) < 2:
            return f"{ran} nothing can be concluded: an interval needs two seeds. {self._fell()}".rstrip()
        before, after = (statistics.fmean(side) for side in zip(*c.pairs, strict=True))
        mean, low, high, _ = c.difference
        span = f"a difference of {mean:+.3g}, 95% interval {low:+.3g} to {high:+.3g}"
        if c.is_tied:
            span = f"a difference of {mean:+.3g} with every seed, so that there is no interval"
        text = f"{ran} it scores {after:.4g} and the default {before:.4g}: {span}"
        says = {
            1: "which is better than the default.",
            -1: "which is worse than the default.",
            0: "which does not show that it is better than the default.",
        }
        return f"{text}, {says[c.verdict]} {self._fell()}".rstrip()

    def _fell(self) -> str:
        assert self.confirmation is not None
        c, runs = self.confirmation, len(self.confirmation.of("best"))
        kinds = {"Collapsed": c.collapses, "Failed otherwise": lambda side: c.lost(side) - c.collapses(side)}
        return " ".join(
            f"{kind}: {best} of {runs} runs of the best configuration, {default} of {runs} of the default."
            for kind, of in kinds.items()
            if (best := of("best")) + (default := of("default"))
        )

    def _bias(self) -> str:
        if self.best is None or self.best.is_default:
            return ""
        ended = sum(trial.outcome == "finished" for trial in self.trials)
        luck = f"Its score in the sweep is the highest of {ended}, and therefore too high by luck"
        if self.confirmation is None:
            return f"{luck}."
        rows = (
            "Each of them draws new held-out rows."
            if self.fresh_rows
            else "The held-out rows are those used for the selection, so some of the luck remains in both."
        )
        return f"{luck}; the fresh seeds played no part in the selection. {rows}"

    def _collapses(self) -> str:
        if not any(trial.outcome == "collapsed" for trial in self.trials):
            return ""
        return self.boundaries[0].sentence if self.boundaries else "No single knob explains the collapses."

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "best_config": None if self.best_config is None else str(self.best_config),
            "measure": self.measure,
            "comparable": not self.not_comparable,
            "settings": redact(self.settings.to_json()),
            "default": self.settings.default,
            "counts": self.counts,
            "best": None if self.best is None else asdict(self.best),
            "untrained": None if self.untrained is None else self.untrained.mean,
            "trials": [asdict(trial) for trial in self.trials],
            "importance": dict(self.importance),
            "boundaries": [boundary.to_json() for boundary in self.boundaries],
            "confirmation": None if self.confirmation is None else self.confirmation.to_json(),
            "sentences": self.sentences(),
            "notes": list(self.notes),
        }

    def render(self) -> str:
        """Return the result as text for a terminal."""
        places = [("report", self.report), ("best", self.best_config)]
        return "\n".join([*self.sentences(), *self.notes, "", *(f"{name:<8} {path}" for name, path in places if path)])


def show(value: Any) -> str:
    """Format a knob's value, with four significant digits for a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def best_of(trials: Sequence[TrialRecord], measure: str) -> TrialRecord | None:
    """Return the finished trial with the best score. The first one wins a tie."""
    ended = [trial for trial in trials if trial.outcome == "finished" and trial.score is not None]
    return max(ended, key=lambda trial: goodness(measure, trial.score or 0.0), default=None)
