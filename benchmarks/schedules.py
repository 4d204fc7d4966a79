"""Simulate asynchronous runs with faults of every kind, and check that the invariants hold in each of them.

    python benchmarks/schedules.py                 100,000 schedules on two processes
    python benchmarks/schedules.py --number 5000   fewer
    python benchmarks/schedules.py --seed 4711     one of them, with its history

A schedule is a run of a few tiny steps in virtual time. Its seed determines everything: limits, engines, durations, and
all faults with their times. The script counts the faults that happened and those that were noticed. The other faults
came so late that the run ended first.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from posttrain.controller.controller import Controller
from posttrain.controller.faults import FAULTS, Faults
from posttrain.controller.invariants import INVARIANTS
from posttrain.controller.messages import Limits, WaitKind
from posttrain.controller.simulate import Simulated, simulate
from posttrain.controller.workload import Workload

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from asynchrony.tables import table, with_tables  # noqa: E402

RESULT = HERE / "results" / "schedules.json"
PAGE = HERE.parent / "docs" / "asynchronous.md"
DEADLINES: dict[WaitKind, float] = {
    "join": 5.0,
    "load": 3.0,
    "sleep": 3.0,
    "draw": 4.0,
    "act": 6.0,
    "score": 4.0,
    "ask": 5.0,
    "train": 6.0,
    "publish": 5.0,
}
AT_ONCE = 500
"""Number of schedules in one task of a process."""


def limits_of(rng: Random) -> Limits:
    limits = Limits(
        prompts_per_step=rng.randint(1, 3),
        group_size=rng.randint(1, 3),
        last_version=rng.randint(1, 5),
        run_ahead=rng.choice((0, 0, 1, 2, 3)),
        max_staleness=rng.randint(0, 4),
        publish_every=rng.choice((1, 1, 1, 2, 3)),
        max_groups=rng.choice((1 << 30, 1 << 30, rng.randint(1, 4))),
        attempts=rng.randint(1, 3),
        max_given_up=rng.choice((4, 16)),
        max_voided=8,
    )
    synchronous = limits.run_ahead == 0 and limits.publish_every == 1
    return replace(limits, in_turns=synchronous and rng.random() < 0.8)


def workload_of(rng: Random, limits: Limits) -> Workload:
    """A random workload. Sampling a step takes about one second, and so does training."""
    return Workload(
        engines=rng.randint(1, 3),
        slots=rng.randint(1, 6),
        seconds_per_token=0.05,
        seconds_per_token_and_row=rng.choice((0.0, 0.01)),
        mean_tokens=20,
        sigma=rng.choice((0.5, 1.0, 1.5)),
        reward_seconds=rng.choice((0.0, 0.1, 1.0)),
        train_seconds=rng.choice((0.1, 1.0, 2.0)),
        publish_seconds=rng.choice((0.0, 0.02, 0.3)),
        load_seconds=rng.choice((0.0, 0.05, 0.8)),
        sleep_seconds=rng.choice((0.0, 0.1, 0.8)),
        join_seconds=rng.choice((0.0, 0.3, 2.0)),
        lead_changes=rng.choice((0.0, 0.0, 0.5)) if limits.run_ahead else 0.0,
        voided=rng.choice((0.0, 0.0, 0.2)),
        evaluate_every=rng.choice((0, 0, 1, 2)),
        evaluated=rng.randint(1, 3),
        report_seconds=rng.choice((0.5, 1.5)),
        deadlines=DEADLINES,
    )


def with_turns(rng: Random, limits: Limits, workload: Workload) -> tuple[Limits, Workload]:
    """Give rows several turns, with environments between them, in every third schedule."""
    if rng.randrange(3):
        return limits, workload
    acts = {
        "turns": rng.randint(1, 4),
        "act_seconds": rng.choice((0.01, 0.3, 1.0)),
        "act_fails": rng.choice((0.0, 0.1)),
        "act_hangs": rng.choice((0.0, 0.0, 0.02)),
    }
    return replace(limits, turns=True), replace(workload, **acts)


def scheduled(seed: int, *, controller: type[Controller] = Controller, history: bool = False) -> Simulated:
    """Simulate the run of a seed."""
    rng = Random(seed)
    limits = limits_of(rng)
    workload = workload_of(rng, limits)
    faults = Faults(rng.randint(0, 7), within=rng.choice((2.0, 8.0)) * limits.last_version)
    limits, workload = with_turns(Random(f"turns {seed}"), limits, workload)
    return simulate(limits, workload, seed=seed, faults=faults, controller=controller, watched=True, history=history)


def found_by(seeds: range, controller: type[Controller] = Controller) -> dict[str, Counter[str]]:
    """Simulate some runs and count their events. The entries of `broken` name the seeds."""
    counts = {name: Counter[str]() for name in ("faults", "answered", "ends", "broken")}
    for seed in seeds:
        run = scheduled(seed, controller=controller)
        counts["faults"].update(run.faults)
        counts["answered"].update(run.answered)
        counts["ends"][how_it_ended(run)] += 1
        counts["broken"].update({f"seed {seed}: {broken.name}: {broken.text}": 1 for broken in run.broken[:3]})
    return counts


def how_it_ended(run: Simulated) -> str:
    if run.stop is None:
        return "not at all"
    if not run.stop.failed:
        return "done" if run.stop.cause == "done" else "stopped by the user"
    return "failed, with a cause"


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate asynchronous runs with faults, and check their invariants.")
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, help="one schedule, with its history")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed)
    began = time.time()
    total = {name: Counter[str]() for name in ("faults", "answered", "ends", "broken")}
    last = options.first + options.number
    pieces = [range(first, min(last, first + AT_ONCE)) for first in range(options.first, last, AT_ONCE)]
    with ProcessPoolExecutor(options.processes) as pool:
        for counts in pool.map(partial(found_by), pieces):
            for name, counter in counts.items():
                total[name].update(counter)
            for line in counts["broken"]:
                print(line, flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return report(options.number, total, time.time() - began, used.ru_utime + used.ru_stime)


def report(number: int, total: dict[str, Counter[str]], seconds: float, cpu: float) -> int:
    print(f"{number} schedules in {seconds:.0f} s, {cpu:.0f} s of processor time; ends: {dict(total['ends'])}")
    print(f"{'fault':20} {'happened':>9} {'noticed':>9}")
    for kind in FAULTS:
        print(f"{kind:20} {total['faults'][kind]:9} {total['answered'][kind]:9}")
    if total["broken"]:
        print(f"{len(total['broken'])} broken invariants; python benchmarks/schedules.py --seed N shows a history")
        return 1
    print(f"all {len(INVARIANTS)} invariants held in all of them")
    if number >= 100_000:
        kept = {name: dict(sorted(total[name].items())) for name in ("faults", "answered", "ends")}
        found = {"schedules": number, "seconds": round(seconds), "cpu_seconds": round(cpu), **kept}
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables(on_file())), encoding="utf-8")
    return 0


def on_file() -> dict[str, Any]:
    return json.loads(RESULT.read_text(encoding="utf-8"))


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The tables for docs/: the invariants, and the faults."""
    faults = [[kind, f"{found['faults'][kind]:,}", f"{found['answered'][kind]:,}"] for kind in FAULTS]
    ends = "; ".join(f"{count:,} {how}" for how, count in sorted(found["ends"].items()))
    minutes = f"{found['cpu_seconds'] / 60:.0f} minutes of CPU time"
    counted = f"{found['schedules']:,} schedules took {minutes}. Their ends: {ends}."
    return {
        "invariants": table(["name", "what holds"], list(INVARIANTS.items())),
        "faults": f"{counted}\n\n" + table(["fault", "happened", "noticed"], faults),
    }


def replay(seed: int) -> int:
    """Print one run, event by event."""
    rng = Random(seed)
    limits = limits_of(rng)
    print(limits, workload_of(rng, limits), sep="\n")
    run = scheduled(seed, history=True)
    for at, event, commands in run.history:
        print(f"{at:9.3f}  {event}")
        for command in commands:
            print(f"{'':9}    -> {command}")
    print(f"faults {run.faults}, answered {run.answered}, {run.stop}")
    for broken in run.broken:
        print(f"broken: {broken.name} ({INVARIANTS[broken.name]}): {broken.text}")
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
