"""`reward.svg`: training reward and held-out score of a run in one picture that stands alone, for a README."""

from __future__ import annotations

import math
from pathlib import Path

from posttrain.files import write_atomically
from posttrain.report.charts import heldout_points
from posttrain.report.store import RunRecord, read_run
from posttrain.report.svg import HEIGHT, WIDTH, Series, compact, line_chart, percent, smooth
from posttrain.report.text import escaped

_HEAD = 54
_STYLE = """
text { font: 11.5px ui-sans-serif, system-ui, sans-serif; fill: #6b7280 } .head { font-size: 15px; font-weight: 600; fill: #1c1e22 }
.grid { stroke: #e3e3e0 } .line { fill: none; stroke-width: 2; stroke-linejoin: round } .line.s6 { stroke: #b4b9c1; stroke-width: 1.2 }
.line.s1 { stroke: #1f5fa8 } .line.s2, .whisker { stroke: #c2651a; fill: none; stroke-width: 1.6 } .line.faint { opacity: .45 }
.dot.s2, .key.s2 { fill: #c2651a } .dot.s1, .key.s1 { fill: #1f5fa8 }
@media (prefers-color-scheme: dark) {
  text { fill: #9aa1ab } .head { fill: #e8e6e1 } .grid { stroke: #30343a } .line.s6 { stroke: #5d646e }
  .line.s1 { stroke: #6ea8ea } .line.s2, .whisker { stroke: #eb9a55 } .dot.s2, .key.s2 { fill: #eb9a55 } .dot.s1, .key.s1 { fill: #6ea8ea }
}
"""  # noqa: E501


def write_plot(folder: Path | str, path: Path | str | None = None) -> Path | None:
    """Write the picture of a run to `path` (default: `reward.svg` in its folder); None when it recorded no reward."""
    run = read_run(folder)
    picture = reward_svg(run)
    if not picture:
        return None
    target = run.folder / "reward.svg" if path is None else Path(path)
    write_atomically(target, picture)
    return target


def reward_svg(run: RunRecord) -> str:
    """The picture as text: reward of each step, its running mean, held-out score with its intervals."""
    rewards = run.series("reward")
    if not rewards:
        return ""
    window = max(1, len(rewards) // 15)
    measure, spans = heldout_points(run)
    heldout = Series(
        name=f"held-out {measure}",
        points=[(x, span.mean) for x, span in spans],
        band=[(x, span.low, span.high) for x, span in spans if math.isfinite(span.low) and math.isfinite(span.high)],
        colour=2,
        dots=True,
    )
    mean = Series(name="training reward", points=smooth(rewards, window))
    each = Series(name="", points=rewards, colour=6)
    form = percent if measure == "accuracy" else compact
    heading = f"Held-out {measure} {form(spans[0][1].mean)} → {form(spans[-1][1].mean)}" if len(spans) > 1 else "Reward"
    chart = line_chart(
        [each, mean, heldout] if window > 1 else [mean, heldout],
        label=f"{heading}, and training reward over {len(rewards)} steps",
        y_range=(0.0, 1.0 if max(y for _, y in rewards) <= 1 else None),
    )
    keys = [("s1", mean.name)] + ([("s2", f"{heldout.name} with intervals")] if spans else [])
    legend = "".join(
        f'<rect class="key {colour}" x="{52 + 150 * i}" y="33" width="14" height="4" rx="2"/>'
        f'<text x="{72 + 150 * i}" y="39">{escaped(name)}</text>'
        for i, (colour, name) in enumerate(keys)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + _HEAD}" width="{WIDTH}" '
        f'height="{HEIGHT + _HEAD}"><style>{_STYLE}</style><text class="head" x="52" y="20">{escaped(heading)}</text>'
        f'{legend}<g transform="translate(0 {_HEAD})">{chart}</g></svg>\n'
    )
