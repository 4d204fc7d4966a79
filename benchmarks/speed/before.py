"""A GRPO step of another checkout of posttrain beside this one's and TRL's, in turns, in float32 and bfloat16.

    git worktree add ../before COMMIT
    python -m benchmarks.speed.before ../before
    python -m benchmarks.speed.before ../before --model large --rounds 2

TRL takes part if POSTTRAIN_BENCH_TRL names a virtual environment that has it: at the same precision, and with its
fastest settings. A step of the large model takes TRL a minute or more, so it is measured once.

The column "replaced in place" of docs/speed.md is commit 1711258d.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.speed import workload
from benchmarks.speed.parts import BFLOAT16, FLOAT32, SLOW, TRL_BEST, TRL_FLOAT32
from benchmarks.speed.rounds import Side, in_turns

WITHOUT_RECOMPUTATION = {"gradient_checkpointing": False}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.before", description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, metavar="FOLDER", help="the other checkout, with its own benchmarks/")
    parser.add_argument("--model", default="small", choices=workload.MODELS)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    rounds = 1 if options.model in SLOW else None
    for settings, theirs in ((FLOAT32, TRL_FLOAT32 | WITHOUT_RECOMPUTATION), (BFLOAT16, TRL_BEST)):
        sides = [
            Side(name=name, side="posttrain", task="grpo", settings=settings, checkout=checkout)
            for name, checkout in (("before", options.checkout.resolve()), ("now", None))
        ]
        if "POSTTRAIN_BENCH_TRL" in os.environ:
            sides.append(Side(name="TRL", side="trl", task="grpo", settings=theirs, rounds=rounds))
        with tempfile.TemporaryDirectory(prefix="speed-") as scratch:
            folder = workload.write(Path(scratch), options.model, "short")
            found = in_turns(sides, folder, rounds=options.rounds)
        for name, summary in found.items():
            print(settings["model.precision"], name, summary, flush=True)
        before, now = (found[name].get("seconds") for name in ("before", "now"))
        if before and now:
            print(f"{settings['model.precision']}: {before} s -> {now} s, {1 - before / now:.0%} of the speed lost")


if __name__ == "__main__":
    main()
