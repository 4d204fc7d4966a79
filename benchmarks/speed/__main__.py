"""Speed compared with TRL, transformers and vLLM on the same weights, prompts and completion lengths.

    python -m benchmarks.speed                       everything: results/speed.json and docs/speed.md
    python -m benchmarks.speed grpo sampling         some parts; the other results on file stay
    python -m benchmarks.speed grpo --models small --rounds 1 --out /tmp/speed.json

POSTTRAIN_BENCH_TRL and POSTTRAIN_BENCH_VLLM name the virtual environments of the other libraries; `make bench` builds
them and sets both.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.speed import machine, page, parts, workload
from benchmarks.speed.page import RESULT


def main() -> None:
    """Measure the parts. On SIGTERM it exits cleanly: no process and no folder stays behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = _options()
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="speed-") as scratch:
        folder = options.work or Path(scratch)
        for part in options.parts:
            started = time.perf_counter()
            found = parts.PARTS[part](folder, options.models)
            result |= {part: found, "origins": result.get("origins", {}) | {part: machine.origin()}}
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            print(f"== {part}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
            print(json.dumps(found, indent=1), flush=True)
    if options.out == RESULT:
        page.write(result)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts.PARTS)}; default: all")
    parser.add_argument("--models", nargs="+", default=list(workload.MODELS), choices=workload.MODELS)
    parser.add_argument("--rounds", type=int, help="number of rounds for every case, instead of its own")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--work", type=Path, help="keep models, prompts and logs in this folder")
    options = parser.parse_args()
    options.parts = options.parts or list(parts.PARTS)
    if unknown := set(options.parts) - set(parts.PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(parts.PARTS)}")
    if options.rounds:
        parts.limit_rounds(options.rounds)
    return options


if __name__ == "__main__":
    main()
