"""Starts the processes of a job and waits for them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.processes import Module

from posttrain.train.local_ranks import free_port


def start(size: int, module: str, *arguments: str) -> list[Module]:
    """Start `python -m module arguments` as `size` ranks; one rank is no job."""
    port, ranks = str(free_port()), []
    for rank in range(size):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(place if size > 1 else {})}
        ranks.append(Module(module, *arguments, environment=environment))
    return ranks


def finish(ranks: Sequence[Module], timeout: float = 240) -> None:
    """Wait for the ranks; a failed rank's output becomes the message of the failure."""
    said = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    failed = [f"rank {number}: {text[-3000:]}" for number, text in enumerate(said) if ranks[number].returncode]
    assert not failed, "\n".join(failed)
