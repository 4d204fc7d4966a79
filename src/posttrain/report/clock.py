"""Tokens and seconds up to each step: the two other x axes for plots of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from posttrain.report.store import RunRecord, number
from posttrain.report.svg import spread

Clock = Mapping[str, Sequence[tuple[float, float]]]
"""`tokens` or `seconds` -> [(step, their total at the end of the step)], both ascending."""
MOST_TIMES = 500
"""Maximum number of points of a clock. The script of a page interpolates linearly between them."""


def clock_of(run: RunRecord) -> Clock:
    """Return the tokens of all prompts and completions, and the seconds of all steps without evaluations and pauses."""
    spent = [(row["step"], number(row.get("time/step"), 0.0)) for row in run.metrics]
    known = {
        "tokens": run.series("num_tokens"),
        "seconds": list(zip((step for step, _ in spent), accumulate(took for _, took in spent), strict=True)),
    }
    return {unit: _from_the_start(points) for unit, points in known.items() if points and points[-1][1] > 0}


def _from_the_start(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Add (0, 0) before the first step, and drop points at which a damaged file goes backwards."""
    kept = [(0.0, 0.0)]
    for step, total in points:
        if step > kept[-1][0] and total >= kept[-1][1]:
            kept.append((float(step), float(total)))
    return spread(kept, MOST_TIMES)
