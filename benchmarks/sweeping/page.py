"""Put the result of the demonstration's sweep on file, and its figures into docs/sweep.md.

posttrain sweep benchmarks/sweeping/knobs.yaml --workers 2 --out sweeps/sort
python benchmarks/sweeping/page.py sweeps/sort
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.lab.experiments.sweep.plots import compact_value, picture

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "results" / "sweep.json"
PAGE, PICTURE = ROOT / "docs" / "sweep.md", ROOT / "docs" / "images" / "sweep.svg"
BLOCK = re.compile(r"(?s)(<!-- measured -->\n).*?(<!-- end -->)")


def block(found: Mapping[str, Any]) -> str:
    """What the page says of it: the sentences, the fresh seeds, and every trial."""
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


def main(folder: Path) -> None:
    found = json.loads((folder / "results.json").read_text())
    found |= {"folder": "sweeps/sort", "report": "sweeps/sort/report.html", "best_config": "sweeps/sort/best.yaml"}
    found["machine"] = {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    PICTURE.write_text(picture(found))
    PAGE.write_text(BLOCK.sub(lambda match: match[1] + block(found) + match[2], PAGE.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
