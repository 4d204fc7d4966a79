"""Asynchronous runs: speed compared with synchronous runs, learning from older tokens, and the gain on two cores.

python -m benchmarks.asynchrony                   everything (an hour): results/asynchrony.json and its page
python -m benchmarks.asynchrony speed             one part; the other results on file stay
python -m benchmarks.asynchrony --work FOLDER     keep the result of each run there, and continue from them
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.asynchrony import cores, learning, page, speed
from benchmarks.speed import machine

PARTS = {"speed": speed.run_all, "fast": speed.run_fast, "learning": learning.run_all, "cores": cores.run_all}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asynchrony", description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--work", type=Path, help="folder that keeps the result of every run")
    options = parser.parse_args()
    result = json.loads(page.RESULT.read_text()) if page.RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.work or Path(scratch)
        for part in options.parts:
            found = PARTS[part](folder)
            result |= {part: found, "origins": result.get("origins", {}) | {part: machine.origin()}}
            page.RESULT.write_text(json.dumps(result, indent=1) + "\n")
            page.write(result)


if __name__ == "__main__":
    main()
