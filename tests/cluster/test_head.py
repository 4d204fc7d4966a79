"""A run whose cluster loses its head ends, and continues on another cluster.

The driver is connected to the head's machine here: Ray ends such a process itself, without our error message.
"""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from tests.cluster.nodes import lives, running, three_nodes, wait_for
from tests.cluster.test_ray import ENGINE, WORKER, config, place, steps_of, trained
from tests.processes import Command

import posttrain as pt

__all__ = ["place"]
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


def test_a_run_whose_head_is_lost_ends_and_another_cluster_goes_on(place, monkeypatch):
    ahead = {
        "train": {"steps": 30, "prompts_per_step": 4, "run_ahead": 2, "max_staleness": 8},
        "checkpoint": {"every": 5},
    }
    folder = place / "headless"
    (place / "headless.yaml").write_text(json.dumps(config(place, "headless", cluster="auto", **ahead)))
    with three_nodes() as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        trainer = Command("train", "headless.yaml", cwd=place)
        wait_for("step 8", lambda: steps_of(folder) >= 8 or trainer.returncode is not None, 300)
        held = [*running(ENGINE), *running(WORKER)]
        assert len(held) == 4
        began = time.monotonic()
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        trainer.communicate(timeout=300)
        print(f"\nhead: the run ended after {time.monotonic() - began:.1f} s, exit code {trainer.returncode}")
        assert trainer.returncode not in (None, 0)
        wait_for("the end of its processes", lambda: not any(map(lives, held)))
    with three_nodes() as other:
        monkeypatch.setenv("RAY_ADDRESS", other.address)
        pt.resume(folder)
    counts = Counter(prompt for _, prompt in trained(folder))
    assert len(counts) == 30 * 4
    assert set(counts.values()) == {1}
