"""Time that a run takes to notice a loss and to continue, on a Ray cluster of three nodes on this machine.

    RAY_worker_niceness=0 python -m benchmarks.cluster      # a few minutes; needs posttrain[ray]

Two tests cause the losses, check the recovery and measure the times. This script writes their figures to a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed.machine import origin

RESULT = Path(__file__).parent / "results" / "cluster.json"
TESTS = {
    "engines and rewards": (
        "tests/cluster/test_ray.py::test_lost_actors_and_a_lost_node_are_replaced_and_every_prompt_is_trained_once"
    ),
    "ranks": (
        "tests/cluster/test_ray_ranks.py"
        "::test_lost_ranks_and_a_lost_node_start_the_job_again_and_it_ends_with_the_same_bits"
    ),
}
TOLD = re.compile(r"^([a-z0-9 ]+): noticed after ([\d.]+) s, (.+)$", re.MULTILINE)
LATER = re.compile(r"(?:, )?([a-z ]+) after ([\d.]+) s")


def lines_of(printed: str) -> list[dict[str, Any]]:
    """The losses, and the time in seconds after which each event happened.

    >>> lines_of("node: noticed after 2.0 s, the next step but one after 9.5 s, replaced after 18.9 s")
    [{'lost': 'node', 'noticed': 2.0, 'the next step but one': 9.5, 'replaced': 18.9}]
    """
    return [
        {"lost": lost, "noticed": float(noticed)} | {what: float(after) for what, after in LATER.findall(rest)}
        for lost, noticed, rest in TOLD.findall(printed)
    ]


def main() -> int:
    found: dict[str, Any] = {}
    for name, test in TESTS.items():
        load = os.getloadavg()[0]
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "ray", test]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stdout
        found[name] = {"load_before": load, "load_after": os.getloadavg()[0], "losses": lines_of(done.stdout)}
        print(json.dumps({name: found[name]}), flush=True)
        assert len(found[name]["losses"]) == 3, done.stdout
    RESULT.write_text(json.dumps(found | {"origin": origin()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
