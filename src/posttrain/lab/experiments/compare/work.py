"""Carries out the runs of a comparison, and records how each attempt ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from posttrain.config import to_yaml
from posttrain.control_groups import cores
from posttrain.files import write_atomically
from posttrain.lab.experiments.children import Child, ChildResult, start_child
from posttrain.lab.experiments.compare.design import Design, Unit
from posttrain.lab.experiments.compare.outcomes import Outcome, is_settled, read_lines
from posttrain.lab.experiments.pool import let_orphans_end, planned_time, share_of_processor, threads_of, work
from posttrain.report.store import read_run
from posttrain.report.svg import compact

ATTEMPTS = "attempts.jsonl"
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """One run of a comparison, to carry out."""

    design: Design
    arm: str
    seed: int
    folder: Path
    environment: Mapping[str, str]
    ended_as: Callable[[RunTask, ChildResult], None]

    def start(self) -> Child:
        settings = self.folder.with_name(f"{self.folder.name}.yaml")
        write_atomically(settings, to_yaml(self.design.resolved(self.arm, self.seed)))
        return start_child(settings, self.folder, environment=self.environment)

    def look(self, child: Child) -> None:
        """Do nothing: no run is stopped early, so that all get the same budget."""

    def ended(self, result: ChildResult) -> None:
        self.ended_as(self, result)


def places_of(design: Design, folder: Path) -> list[tuple[str, int, Path]]:
    """Return (arm, seed, run folder) for all runs, seed by seed. An interrupted comparison then has complete seeds, and
    all arms run under similar conditions."""
    return [(arm, seed, run_folder(folder, arm, seed)) for seed in design.seeds for arm in design.arms]


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    return folder / "runs" / f"{arm}-seed{seed}"


def carry_out(design: Design, folder: Path, *, workers: int, tell: Tell) -> None:
    """Do every run that is not settled, `workers` at a time. A failed run is recorded and stops no other."""
    places = places_of(design, folder)
    waiting = [place for place in places if not is_settled(place[2])]
    if any(run.is_dir() for _, _, run in waiting):
        let_orphans_end()
    done = len(places) - len(waiting)

    def ended_as(task: RunTask, result: ChildResult) -> None:
        nonlocal done
        done += 1
        keep_attempt(folder, _attempt(task, result, workers))
        state = "finished" if result.ok else f"did not finish: {result.reason}"
        tell(f"{done} of {len(places)}: {task.arm}, seed {task.seed}, {state} ({result.seconds:.0f} s)")

    by_steps = design.budget.unit == "steps"
    took = planned_time(design.resolved(arm, seed).config for arm, seed, _ in waiting) if by_steps else ""
    left = f"{len(waiting)} runs" if len(waiting) == len(places) else f"{len(waiting)} of {len(places)} runs are left"
    tell(f"{left}: {len(design.arms)} arms with {len(design.seeds)} seeds each{took}")
    environment = share_of_processor(workers)
    tasks = (
        RunTask(design=design, arm=arm, seed=seed, folder=run, environment=environment, ended_as=ended_as)
        for arm, seed, run in waiting
    )
    work(tasks, workers)


def read_attempts(folder: Path) -> list[dict[str, Any]]:
    """Return all attempts in the order in which they ended. A line truncated by a kill is skipped."""
    return [dict(line) for line in read_lines(folder / ATTEMPTS)]


def keep_attempt(folder: Path, attempt: Mapping[str, Any]) -> None:
    """Append the attempt to the file, on a new line even after a line that a kill truncated."""
    path = folder / ATTEMPTS
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(attempt) + "\n")


def _attempt(task: RunTask, result: ChildResult, workers: int) -> dict[str, Any]:
    return {
        "arm": task.arm,
        "seed": task.seed,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "workers": workers,
        "threads": threads_of(task.environment),
        "load": round(os.getloadavg()[0], 2),
    }


# --- the conditions of the runs --------------------------------------------------------------------------------------


BUSY = 0.5
"""Median load above the threads of the comparison. From this value on, the machine counts as shared."""
UNEQUAL = 0.05
"""Relative difference in tokens from which on the arms count as unequal."""


def conditions_of(outcomes: Sequence[Outcome], attempts: Sequence[Mapping[str, Any]], budget: Unit) -> dict[str, Any]:
    """Return workers, load and resumes. Two notes say why seconds or tokens are not comparable, if they are not."""
    workers = sorted({int(attempt["workers"]) for attempt in attempts})
    loads = [float(attempt["load"]) for attempt in attempts]
    resumed = sorted({run.arm for run in outcomes if _was_resumed(run)})
    found = {
        "workers": workers,
        "threads": max((_threads(attempt) for attempt in attempts), default=0),
        "cores": cores(),
        "load": median(loads) if loads else None,
        "resumed": resumed,
        "retried": len(attempts) - len({(attempt["arm"], attempt["seed"]) for attempt in attempts}),
    }
    return found | {"tokens_note": _tokens_note(outcomes, budget), "seconds_note": _seconds_note(found)}


def _threads(attempt: Mapping[str, Any]) -> int:
    """Return the threads of all parallel runs: the load that the comparison itself causes."""
    workers = int(attempt["workers"])
    return workers * int(attempt.get("threads", max(1, cores() // workers)))


def _tokens_note(outcomes: Sequence[Outcome], budget: Unit) -> str:
    """Note unequal tokens. Budgets in steps or seconds allow them; the last step overshoots a budget in tokens."""
    arms = dict.fromkeys(run.arm for run in outcomes if run.status == "finished")
    spent = {arm: fmean(run.tokens for run in outcomes if run.arm == arm and run.status == "finished") for arm in arms}
    if len(spent) < 2 or max(spent.values()) <= (1 + UNEQUAL) * min(spent.values()):
        return ""
    shown = ", ".join(f"{arm} {compact(tokens)}" for arm, tokens in spent.items())
    way = (
        "a larger budget would hide the last step" if budget == "tokens" else "a budget in tokens would make them equal"
    )
    return f"The arms used different numbers of tokens ({shown}); {way}."


def _seconds_note(found: Mapping[str, Any]) -> str:
    reasons = []
    most = max(found["workers"], default=1)
    if len(found["workers"]) > 1:
        reasons.append(f"some ran {found['workers'][0]} and some {most} at a time")
    if found["load"] is not None and found["load"] > min(found["threads"], found["cores"]) + BUSY:
        reasons.append(f"other programs were running (load {found['load']:.1f} on {found['cores']} cores)")
    if found["resumed"]:
        reasons.append(f"runs of {', '.join(found['resumed'])} were stopped and resumed")
    if reasons:
        return f"Seconds of these runs are not comparable: {'; '.join(reasons)}. Tokens and steps are comparable."
    if most > 1:
        return (
            f"Seconds were measured with {most} runs at a time, which share memory and caches; a single run is faster."
        )
    return ""


def _was_resumed(run: Outcome) -> bool:
    return any(event.get("kind") == "resume" for event in read_run(run.folder).events)
