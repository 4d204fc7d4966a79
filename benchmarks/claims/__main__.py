"""Claims from the literature, measured by `posttrain compare` on tiny models: docs/claims.md.

    python -m benchmarks.claims                     all of them; runs on file are not repeated
    python -m benchmarks.claims clip_higher stale   only these
    python -m benchmarks.claims --page              write the page again from the numbers on file

Each comparison is in runs/claims/KEY, with its own page. Comparisons of time and memory (ppo_time, memory) need an idle
machine, and do one run at a time.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims.catalogue import CLAIMS
from benchmarks.claims.page import RESULT, ROOT, write

HERE = Path(__file__).parent
FOLDER = ROOT / "runs" / "claims"
ALONE = ("ppo_time", "memory")
MODEL = FOLDER / "llama-50m"


def measure(key: str) -> dict[str, Any]:
    """Carry out one comparison, and return the figures for the page."""
    if key == "memory" and not MODEL.exists():
        write_model(MODEL)
    workers = 1 if key in ALONE else min(2, os.cpu_count() or 1)
    command = [sys.executable, "-m", "posttrain", "compare", str(HERE / f"{key}.yaml"), "--out", str(FOLDER / key)]
    subprocess.run([*command, "--workers", str(workers)], cwd=ROOT, check=True)
    found = json.loads((FOLDER / key / "compare.json").read_text())
    dropped = ("folder", "report")
    for run in found["runs"]:
        del run["curve"]
    return {name: value for name, value in found.items() if name not in dropped}


def write_model(folder: Path) -> None:
    """Write a random Llama with 50 million parameters and characters as tokens. Its weights take more memory than the
    libraries."""
    from posttrain.tasks.base import TinyRecipe
    from posttrain.tasks.tiny import build_model, build_tokenizer

    recipe = TinyRecipe(demonstrations=0, hidden_size=512, intermediate_size=2048, layers=12, heads=8)
    tokenizer = build_tokenizer()
    build_model(tokenizer, recipe, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: Sequence[str]) -> int:
    known: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"claims": {}}
    keys = [] if "--page" in arguments else list(arguments) or [claim.key for claim in CLAIMS]
    for key in keys:
        known["claims"][key] = measure(key)
        known["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        RESULT.write_text(json.dumps(known, indent=1) + "\n")
    write(known["claims"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
