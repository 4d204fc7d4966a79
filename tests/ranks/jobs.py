"""Starts the processes of a job and waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from posttrain.train.local_ranks import free_port


def start(size: int, module: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """`python -m module arguments` as so many ranks; one is no job."""
    port, ranks = str(free_port()), []
    for rank in range(size):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**os.environ, "OMP_NUM_THREADS": "1", **(place if size > 1 else {})},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return ranks


def finish(ranks: Sequence[subprocess.Popen[str]], timeout: float = 240) -> None:
    """Wait; what a failed rank has said is the message of the failure."""
    said = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    failed = [f"rank {number}: {text[-3000:]}" for number, text in enumerate(said) if ranks[number].returncode]
    assert not failed, "\n".join(failed)
