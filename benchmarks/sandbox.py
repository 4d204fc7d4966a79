"""Number of programs that a sandbox runs per second: `python benchmarks/sandbox.py [TIER ...] [--programs N]`.

The sandbox is warm: its fork-servers run before the clock starts. The program is minimal, so that the benchmark
measures the sandbox itself: fork, confinement, input, output and end. It also measures the time of one program alone,
the time to open a sandbox, and the CPU time for each program, which hardly depends on other load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import psutil

from posttrain.verify.sandbox import Sandbox, SandboxUnavailable, open_sandbox

PROGRAM = ("print(sum(map(int, input().split())))", b"1 2 3 4\n")


ROUNDS = 5


def measure(sandbox: Sandbox, programs: int) -> str:
    sandbox.run_many([PROGRAM] * 4 * sandbox.size)
    alone = []
    for _ in range(100):
        began = time.perf_counter()
        assert sandbox.run(*PROGRAM).stdout == b"10\n"
        alone.append(time.perf_counter() - began)
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ran = sandbox.run_many([PROGRAM] * (programs // ROUNDS))
        rates.append(len(ran) / (time.perf_counter() - began))
        assert all(one.stdout == b"10\n" for one in ran)
    median, late = 1000 * statistics.median(alone), 1000 * statistics.quantiles(alone, n=20)[-1]
    rate = f"{max(rates):4.0f} per second over {sandbox.size} slots (best of {ROUNDS}, worst {min(rates):.0f})"
    return f"{rate}; alone {median:.1f} ms (median), {late:.1f} ms (95%)"


def processor_time() -> float:
    """CPU seconds of this process and of its fork-servers, including the programs that have ended in them."""
    here = psutil.Process()
    return sum(sum(one.cpu_times()[:4]) for one in (here, *here.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiers", nargs="*", default=["landlock", "bubblewrap"])
    parser.add_argument("--programs", type=int, default=1000)
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for tier in arguments.tiers:
        began = time.perf_counter()
        try:
            with open_sandbox(tier) as sandbox:
                opened = time.perf_counter() - began
                before = processor_time()
                line = f"{sandbox.tier:11} {measure(sandbox, arguments.programs)}; opened in {opened:.2f} s"
                each = (processor_time() - before) / (arguments.programs + 100 + 4 * sandbox.size)
                print(f"{line}; {1000 * each:.1f} ms of processor time each")
        except SandboxUnavailable as error:
            print(f"{tier:11} {error.given}")


if __name__ == "__main__":
    main()
