"""GPU work of a training step, counted on the stand-in for a GPU: the table of docs/gpu.md.

`python -m tests.gpu.count_training` prints it, and test_training_path.py compares the page with it. The counts from
before updates ran without waiting cannot be repeated, so this file holds them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.tiny import tiny_model

import posttrain


@dataclass(frozen=True, kw_only=True)
class Before:
    name: str
    waits: int
    casts: int
    megabytes: float


BEFORE = {
    "grpo": Before(name="GRPO", waits=19, casts=192_512, megabytes=11.9),
    "grpo, LoRA and reference": Before(name="GRPO with LoRA and a reference", waits=33, casts=385_512, megabytes=17.1),
    "dpo": Before(name="DPO", waits=19, casts=192_512, megabytes=11.9),
    "ppo": Before(name="PPO with a critic of its own", waits=74, casts=688_992, megabytes=36.6),
}
LAUNCHES = 1_345
"""Launches of a step of GRPO or DPO, from before updates ran without waiting."""


def run(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Run the scenarios in one separate process, because torch must find the stand-in when it is imported."""
    root, package = Path(__file__).parents[2], Path(posttrain.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.gpu.program", str(folder), *names]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def counted(folder: Path) -> dict[str, Any]:
    """The accounts of a Llama with two layers."""
    tiny_model(folder / "llama")
    return run(folder, tuple(BEFORE))


def page_of(accounts: Mapping[str, Any]) -> str:
    """The part of the page that has numbers."""
    lines = [
        "| | waits before | waits now | casts to bfloat16 before | now | bytes moved before | now |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, before in BEFORE.items():
        now = accounts[name]
        casts, megabytes = now["casts"]["torch.float32 -> torch.bfloat16"], now["moved"] / 1e6
        lines.append(
            f"| {before.name} | {before.waits} | {sum(now['waits'].values())} | {before.casts:,} | {casts:,} "
            f"| {before.megabytes} MB | {megabytes:.1f} MB |"
        )
    grpo, dpo = accounts["grpo"]["launches"], accounts["dpo"]["launches"]
    return "\n".join(
        [*lines, "", f"Operations launched: GRPO {LAUNCHES:,} before, {grpo:,} now; DPO {LAUNCHES:,}, {dpo:,}."]
    )


def main() -> None:
    with TemporaryDirectory() as folder:
        print(page_of(counted(Path(folder))))


if __name__ == "__main__":
    main()
