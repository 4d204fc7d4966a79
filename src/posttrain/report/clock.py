"""The tokens and the seconds of each step: the two other x axes for plots of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from posttrain.report.store import RunRecord, number
from posttrain.report.svg import spread

Clock = Mapping[str, Sequence[tuple[float, float]]]
"""By `tokens` and `seconds`: (step, how many of them until its end), both ascending."""
MOST_TIMES = 500
"""Between which the script of a page draws straight lines."""


def clock_of(run: RunRecord) -> Clock:
    """Tokens of all prompts and completions, and seconds spent in steps: evaluations and pauses do not count."""
    spent = [(row["step"], number(row.get("time/step"), 0.0)) for row in run.metrics]
    known = {
        "tokens": run.series("num_tokens"),
        "seconds": list(zip((step for step, _ in spent), accumulate(took for _, took in spent), strict=True)),
    }
    return {unit: _from_the_start(points) for unit, points in known.items() if points and points[-1][1] > 0}


def _from_the_start(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Before the first step there was nothing; what a damaged file takes back is left out."""
    kept = [(0.0, 0.0)]
    for step, total in points:
        if step > kept[-1][0] and total >= kept[-1][1]:
            kept.append((float(step), float(total)))
    return spread(kept, MOST_TIMES)
