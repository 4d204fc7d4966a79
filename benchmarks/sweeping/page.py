"""Save the result of the demonstration's sweep, and put its figures into docs/sweep.md.

posttrain sweep benchmarks/sweeping/knobs.yaml --workers 2 --out sweeps/sort
python benchmarks/sweeping/page.py sweeps/sort
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.lab.experiments.sweep.knobs import Knob
from posttrain.lab.experiments.sweep.page import Found, compact_value, knob_chart, knobs_of
from posttrain.report.svg import HEIGHT, WIDTH
from posttrain.report.text import escaped

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "results" / "sweep.json"
PAGE, PICTURE = ROOT / "docs" / "sweep.md", ROOT / "docs" / "images" / "sweep.svg"
_HEAD, _ROW = 44, HEIGHT + 34
_STYLE = """
text { font: 11.5px ui-sans-serif, system-ui, sans-serif; fill: #6b7280 } .head { font-size: 14px; font-weight: 600; fill: #1c1e22 }
.grid { stroke: #e3e3e0 } .mark { stroke: #8b9099; stroke-dasharray: 4 4 } .band { fill: #c2651a; opacity: .12 }
.dot.s1 { fill: #1f5fa8 } .dot.s6 { fill: #b4b9c1 } .whisker { fill: none; stroke-width: 1.8 } .whisker.s1 { stroke: #1f5fa8 } .whisker.s2 { stroke: #c2651a }
@media (prefers-color-scheme: dark) {
  text { fill: #9aa1ab } .head { fill: #e8e6e1 } .grid { stroke: #30343a } .dot.s1 { fill: #6ea8ea } .dot.s6 { fill: #5d646e }
  .whisker.s1 { stroke: #6ea8ea } .whisker.s2 { stroke: #eb9a55 } .band { fill: #eb9a55 }
}
"""  # noqa: E501
BLOCK = re.compile(r"(?s)(<!-- measured -->\n).*?(<!-- end -->)")


def block(found: Mapping[str, Any]) -> str:
    """The generated part of the page: the sentences, the fresh seeds, and every trial."""
    keys = list(found["settings"]["knobs"])
    head = ["trial", "", "held-out score", *(key.rpartition(".")[2] for key in keys), "tokens"]
    rows = [
        [
            f"{trial['number']}{' (default)' if trial['is_default'] else ''}",
            trial["outcome"],
            "" if trial["score"] is None else f"{trial['score']:.3f}",
            *(compact_value(trial["values"][key]) for key in keys),
            f"{trial['tokens']:,}",
        ]
        for trial in sorted(found["trials"], key=lambda trial: -(trial["score"] or 0))
    ]
    sentences = "\n".join(f"> {sentence}" for sentence in found["sentences"])
    importance = ", ".join(f"`{key}` {share:.0%}" for key, share in found["importance"].items())
    weights = f"Importance (PED-ANOVA): {importance}.\n\n" if importance else ""
    return f"{sentences}\n\n{weights}{_fresh(found)}{_table(head, rows)}\n"


def _fresh(found: Mapping[str, Any]) -> str:
    if found["confirmation"] is None:
        return ""
    sides: dict[int, dict[str, str]] = {}
    for score in found["confirmation"]["scores"]:
        without = "collapsed" if score["collapsed"] else "failed"
        text = without if score["score"] is None else f"{score['score']:.3f}"
        sides.setdefault(score["seed"], {})[score["side"]] = text
    rows = [[str(seed), both["default"], both["best"]] for seed, both in sides.items()]
    return _table(["fresh seed", "default", "best"], rows) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def picture(found: Found) -> str:
    """A self-contained picture of all knobs, for another page."""
    rows: Sequence[tuple[Knob, str]] = [(knob, chart) for knob in knobs_of(found) if (chart := knob_chart(found, knob))]
    parts = [
        f'<text class="head" x="52" y="{_HEAD + n * _ROW + 14}">{escaped(knob.key)}</text>'
        f'<g transform="translate(0 {_HEAD + n * _ROW + 22})">{chart}</g>'
        for n, (knob, chart) in enumerate(rows)
    ]
    height = _HEAD + len(rows) * _ROW
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    legend = "dot: finished · pale: pruned · cross: collapsed · ring: the best · shaded: collapse"
    title = f"Held-out {found['measure']} of {len(found['trials'])} trials against each setting"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
        f'<text class="head" x="52" y="18">{escaped(title)}</text><text x="52" y="36">{escaped(legend)}</text>'
        f"{''.join(parts)}</svg>\n"
    )


def main(folder: Path) -> None:
    found = json.loads((folder / "results.json").read_text())
    found |= {"folder": "sweeps/sort", "report": "sweeps/sort/report.html", "best_config": "sweeps/sort/best.yaml"}
    found["machine"] = {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    PICTURE.write_text(picture(found))
    PAGE.write_text(BLOCK.sub(lambda match: match[1] + block(found) + match[2], PAGE.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
