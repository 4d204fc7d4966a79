"""docs/vllm.md says what the results on file say of killed servers and of a served recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def said() -> str:
    return " ".join((ROOT / "docs" / "vllm.md").read_text(encoding="utf-8").split())


def on_file(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def nats(value: float) -> str:
    """A small number as the page writes it.

    >>> nats(0.000116)
    '1.2e-4'
    """
    return f"{value:.1e}".replace("e-0", "e-")


def test_the_page_counts_the_kills_that_are_on_file(said: str):
    found = on_file("server_kills.json")
    kills = found["kills"]
    assert found["failed"] == []
    assert kills["trainer"] == 1
    assert (
        f"{kills['engine']} times a server was killed, {kills['hang']} times one was stopped (SIGSTOP), and once the "
        f"trainer was killed, at random moments of {found['runs']} asynchronous and synchronous runs."
    ) in said
    assert f"`python -m benchmarks.engine_kills --engine vllm --kills {sum(kills.values())}`" in said
    assert f"the runs reported {found['losses_told']} losses" in said
    assert f"{found['replayed']} runs were replayed" in said


def test_the_page_has_the_differences_of_the_served_recipe(said: str):
    found = on_file("served_recipe.json")
    largest, probes = nats(found["mismatch/fresh_max"]), nats(found["publish/probe_max_difference"])
    assert (
        f"The largest mismatch of a token under the weights that sampled it was {largest} nats, and that of the probes "
        f"{probes}."
    ) in said
    assert f"the largest difference of a token was {largest} nats over the {found['steps']} steps of [a run]" in said
    assert found["origin"]["date"] in said
