"""Under what conditions the runs were made: what seconds and bytes may be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from posttrain.control_groups import cores
from posttrain.lab.experiments.compare.design import Unit
from posttrain.lab.experiments.compare.outcomes import Outcome
from posttrain.report.store import read_run
from posttrain.report.svg import compact

BUSY = 0.5
"""Load beside the threads of the comparison, in the median of its runs, from which on the machine counts as shared."""
UNEQUAL = 0.05
"""Relative difference of tokens from which on arms did not get the same."""


def conditions_of(outcomes: Sequence[Outcome], attempts: Sequence[Mapping[str, Any]], budget: Unit) -> dict[str, Any]:
    """Workers, load and resumes; `seconds_note` and `tokens_note` say why those cannot be compared, or nothing."""
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
    """Of all runs at a time: the load that a comparison makes by itself."""
    workers = int(attempt["workers"])
    return workers * int(attempt.get("threads", max(1, cores() // workers)))


def _tokens_note(outcomes: Sequence[Outcome], budget: Unit) -> str:
    """Equal steps or seconds are not equal tokens, and a small budget of tokens is passed by the last step."""
    arms = dict.fromkeys(run.arm for run in outcomes if run.status == "finished")
    spent = {arm: fmean(run.tokens for run in outcomes if run.arm == arm and run.status == "finished") for arm in arms}
    if len(spent) < 2 or max(spent.values()) <= (1 + UNEQUAL) * min(spent.values()):
        return ""
    shown = ", ".join(f"{arm} {compact(tokens)}" for arm, tokens in spent.items())
    way = (
        "a larger budget would hide the last step" if budget == "tokens" else "a budget in tokens would make them equal"
    )
    return f"Arms went through different numbers of tokens ({shown}); {way}."


def _seconds_note(found: Mapping[str, Any]) -> str:
    reasons = []
    most = max(found["workers"], default=1)
    if len(found["workers"]) > 1:
        reasons.append(f"some were made {found['workers'][0]} and some {most} at a time")
    if found["load"] is not None and found["load"] > min(found["threads"], found["cores"]) + BUSY:
        reasons.append(f"other programs were at work (load {found['load']:.1f} on {found['cores']} cores)")
    if found["resumed"]:
        reasons.append(f"runs of {', '.join(found['resumed'])} were stopped and resumed")
    if reasons:
        return f"Seconds of these runs are not comparable: {'; '.join(reasons)}. Tokens and steps are."
    if most > 1:
        return f"Seconds are those of {most} runs at a time, which share memory and caches; alone each run is faster."
    return ""


def _was_resumed(run: Outcome) -> bool:
    return any(event.get("kind") == "resume" for event in read_run(run.folder).events)
