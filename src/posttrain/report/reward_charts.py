"""The plots of what answers were worth: the reward, its components, and why they gave what they gave."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.report.chart import Chart, draw
from posttrain.report.store import RunRecord
from posttrain.report.svg import Series, compact, percent, smooth

COLOURS = 6
"""Of lines; a reward with more reasons has its rarest ones under "more metrics"."""


def reward_chart(run: RunRecord) -> Chart | None:
    points = run.series("reward")
    if not points:
        return None
    window = max(1, len(points) // 15)
    lines = [Series(name="each step", points=points, colour=6 if window > 1 else 1)]
    if window > 1:
        lines.append(Series(name=f"mean of {window} steps", points=smooth(points, window), colour=1))
    return draw("Reward", lines, compact, "Mean over all answers of a step.", names=["reward"])


def parts_chart(run: RunRecord) -> Chart | None:
    names = [name for name in run.names("rewards/") if name.endswith("/mean")]
    deviations = [name for name in run.names("rewards/") if name.endswith("/std")]
    lines = [
        Series(
            name=name.removeprefix("rewards/").removesuffix("/mean"), points=run.series(name), colour=i % COLOURS + 1
        )
        for i, name in enumerate(names)
    ]
    lines = [line for line in lines if line.points]
    if not lines or (len(lines) == 1 and lines[0].points == run.series("reward")):
        return None
    return draw(
        "Reward by component",
        lines,
        compact,
        "Before weighting; where one was not applicable it is left out.",
        names=[*names, *deviations],
    )


def reason_charts(run: RunRecord) -> list[Chart]:
    """Of each reward that gives reasons: the share of the answers with each of them, step by step."""
    names: dict[str, list[str]] = {}
    for name in run.names("rewards/"):
        label, found, _ = name.removeprefix("rewards/").partition("/reason/")
        if found:
            names.setdefault(label, []).append(name)
    return [_reason_chart(run, label, found) for label, found in names.items()]


def _reason_chart(run: RunRecord, label: str, names: Sequence[str]) -> Chart:
    """A reason that a step does not name was that of no answer in it."""
    shares = {name: dict(run.series(name)) for name in names}
    steps = sorted({step for share in shares.values() for step in share})
    drawn = sorted(names, key=lambda name: -sum(shares[name].values()))[:COLOURS]
    lines = [
        Series(
            name=name.rpartition("/")[2].replace("_", " "),
            points=[(step, shares[name].get(step, 0.0)) for step in steps],
            colour=colour,
        )
        for colour, name in enumerate(drawn, start=1)
    ]
    hint = "Share of the answers by the reason of their verdict."
    return draw(f"Why: {label}", lines, percent, hint, y_range=(0.0, 1.0), names=drawn)
