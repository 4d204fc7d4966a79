"""`compare`: several algorithms or configs on one task, with the same seeds and the same budget.

    found = pt.compare("base.yaml", algorithms=["grpo", "rloo"], seeds=3, budget="tokens=2e6", out="grpo-or-rloo")
    print(found.render())

The folder holds compare.yaml (the design), runs/ARM-seedN (an ordinary run each, and its log in a file next to it),
attempts.jsonl (how each process ended), compare.json (all numbers) and report.html. To continue a comparison, repeat
the call, or call it with the folder as its source. You can add seeds and arms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.files import write_atomically
from posttrain.lab.experiments.compare.analysis import Analysis, analyse
from posttrain.lab.experiments.compare.design import HOLD_OUT, Design, check_same_split, held_out_rows, read_design
from posttrain.lab.experiments.compare.outcomes import is_settled, read_outcome, with_common_names
from posttrain.lab.experiments.compare.verdict import render, verdict
from posttrain.lab.experiments.compare.work import carry_out, conditions_of, places_of, read_attempts
from posttrain.report.heldout import measure_of
from posttrain.report.store import finite, mapping, read_run
from posttrain.shown import shown

DESIGN, RESULT = "compare.yaml", "compare.json"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a comparison."""

    folder: Path
    analysis: Analysis

    @property
    def verdict(self) -> list[str]:
        """The answer in a sentence, followed by its limitations."""
        return verdict(self.analysis)

    @property
    def comparable(self) -> bool:
        """Do at least two arms have a score?"""
        return sum(arm.score.seeds > 0 for arm in self.analysis.arms) >= 2

    @property
    def complete(self) -> bool:
        """Has every run finished?"""
        return not any(arm.lost for arm in self.analysis.arms)

    def to_json(self) -> dict[str, Any]:
        """Return plain data. Numbers that are not finite become None."""
        places = {"folder": str(self.folder), "report": str(self.folder / "report.html")}
        return finite({**places, "verdict": self.verdict, **self.analysis.to_json()})

    def render(self) -> str:
        """Return a table and the verdict as plain text."""
        return render(self.analysis)

    def __repr__(self) -> str:
        return f"<Comparison {self.folder}: {self.verdict[0]}>"


def compare(
    source: str | Path | Mapping[str, Any],
    *,
    algorithms: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    budget: Any = None,
    target: float | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Train every arm with every seed, and compare the arms. Finished runs in the folder are reused.

    `source` is a comparison (a file or mapping with `arms`), a config together with `algorithms`, or the folder of a
    comparison. `overrides` are settings for all arms. `tell` receives a line per run. A failed run is counted and does
    not stop the others. Raises ConfigError for an invalid design, before any training.
    """
    if workers < 1:
        raise ConfigError(given=f"workers = {workers}", allowed="at least 1", fix="Write workers=1.")
    folder, given = _place(source, out)
    begun = _saved(folder)
    design = read_design(
        given,
        algorithms=algorithms,
        seeds=seeds,
        budget=budget,
        target=target,
        overrides=overrides,
        hold_out="prompts" if begun is None else begun.hold_out,
    )
    _begin(folder, design, begun)
    from posttrain.store.run_store import RunLock

    lock = RunLock(folder)
    try:
        carry_out(design, folder, workers=workers, tell=tell)
    except BaseException as error:
        error.add_note(f"Finished runs are kept; `posttrain compare {shown(folder)}` continues.")
        raise
    finally:
        lock.release()
    return conclude(folder)


def conclude(folder: str | Path) -> Comparison:
    """Read the runs of a comparison in their current state, and write compare.json and report.html."""
    from posttrain.lab.experiments.compare.page import write_page

    folder = Path(folder)
    design = _read(folder)
    comparison = Comparison(folder=folder, analysis=_analysis(design, folder))
    content = comparison.to_json()
    write_atomically(folder / RESULT, json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_page(folder, comparison.analysis)
    return comparison


def _analysis(design: Design, folder: Path) -> Analysis:
    attempts = read_attempts(folder)
    reasons = {(attempt["arm"], attempt["seed"]): attempt["reason"] for attempt in attempts}
    places = places_of(design, folder)
    sides = [mapping(side) for _, _, run in places for side in _evaluations(run)]
    measure = measure_of(*filter(None, sides))
    outcomes = [
        read_outcome(
            arm,
            seed,
            run,
            measure=measure,
            measures=design.measures,
            by_check=design.score == "check",
            target=design.target,
            reason=reasons.get((arm, seed), ""),
        )
        for arm, seed, run in places
    ]
    outcomes = with_common_names(
        outcomes, {arm: held_out_rows(design.resolved(arm, design.seeds[0]).config.data) for arm in design.arms}
    )
    judged_by = "check" if design.score == "check" else measure
    conditions = conditions_of(outcomes, attempts, budget=design.budget.unit)
    return analyse(design, outcomes, measure=judged_by, conditions=conditions)


def _evaluations(folder: Path) -> list[Any]:
    evaluation = read_run(folder).evaluation
    return [evaluation.get("baseline"), evaluation.get("trained")]


def _place(
    source: str | Path | Mapping[str, Any], out: str | Path | None
) -> tuple[Path, str | Path | Mapping[str, Any]]:
    """Return the folder of the comparison, and the source of its design."""
    if not isinstance(source, Mapping) and (Path(source) / DESIGN).is_file():
        return Path(source), Path(source) / DESIGN
    stem = "comparison" if isinstance(source, Mapping) else Path(source).stem
    return Path(out) if out is not None else Path("comparisons") / stem, source


def _read(folder: Path) -> Design:
    """Read the saved design. Its runs hold out single rows if an earlier version, which did not say so, began it."""
    return read_design(folder / DESIGN, hold_out="rows")


def _saved(folder: Path) -> Design | None:
    """Return the design of the comparison in the folder. None if there is none."""
    return _read(folder) if (folder / DESIGN).exists() else None


def _begin(folder: Path, design: Design, before: Design | None) -> None:
    """Save the design. Raise ConfigError if the comparison in the folder, `before`, has other settings, or if arms hold
    out other rows with a seed that is to be trained."""
    if before is None:
        _refuse_other_content(folder)
    else:
        odd = [
            name for name in ("base", "settings", "budget", "score") if getattr(before, name) != getattr(design, name)
        ]
        odd += [HOLD_OUT] if before.hold_out != design.hold_out else []
        odd += [f"arms.{arm}" for arm, changes in before.arms.items() if design.arms.get(arm) != changes]
        odd += ["seeds"] if not set(before.seeds) <= set(design.seeds) else []
        if odd:
            raise ConfigError(
                given=f"{folder} holds a comparison with other settings: {', '.join(odd)}",
                allowed="the same settings; you may add arms and seeds, and change target, measures, title and "
                "confidence",
                fix=f"Choose another folder with --out, or continue with `posttrain compare {shown(folder)}`.",
            )
    check_same_split(design, dict.fromkeys(seed for _, seed, run in places_of(design, folder) if not is_settled(run)))
    write_atomically(folder / DESIGN, json.dumps(design.record(), indent=1) + "\n")  # JSON is YAML


def _refuse_other_content(folder: Path) -> None:
    if folder.exists() and any(path.name != ".lock" for path in folder.iterdir()):
        raise ConfigError(
            given=f"out = {folder}, which is neither empty nor a comparison",
            allowed="a folder that does not exist yet, an empty one, or the folder of a comparison",
            fix="Choose another folder with --out.",
        )
