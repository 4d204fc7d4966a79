"""The cost of waiting for a tool: 64 trajectories of 5 turns, with a tool that takes half a second or no time.

    python -m benchmarks.waiting                 turns of three lengths, and the table of docs/environments.md
    python -m benchmarks.waiting --models 85M    the same trajectories with a larger model; other results on file stay
    python -m benchmarks.waiting --ends -2 --rounds 1          only print the result

A random model samples turns, and its bias for the end of a turn determines their mean length. Both runs sample exactly
the same tokens, which is checked; they alternate, round after round. The cost of a tool depends on its time relative to
the time of a turn, so the result includes the latter. It also includes the calls of one trajectory, which cannot
overlap: 5 of half a second. Without waiting, all trajectories are decoded in one batch if the clock decides when they
return, and in batches of half of them if a count decides.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.asynchrony.tables import table, with_tables
from tests.episodes.talkers import episodes, plain_talker, play, prompts, talker
from transformers import PreTrainedModel

from posttrain.models.compute import PLAIN, Compute
from posttrain.types import Completion

HERE = Path(__file__).parent
RESULT = HERE / "results" / "waiting.json"
PAGE = HERE.parent / "docs" / "environments.md"
TRAJECTORIES, TURNS, PAUSE, CONTEXT = 64, 5, 0.5, 4096
ENDS = (0.5, -0.7, -2.0)
"""Biases of the model for the end of a turn."""
COMPILED = Compute(kernels="compiled")


class Model(NamedTuple):
    make: Callable[..., PreTrainedModel]
    sizes: Mapping[str, int]
    ends: Sequence[float] = ENDS
    """The biases with which the model is measured."""
    compute: Compute = PLAIN


MODELS = {
    "1.4M by kernels": Model(plain_talker, {"width": 256, "layers": 3, "mlp": 256}, compute=COMPILED),
    "1.4M by PyTorch": Model(talker, {"width": 256, "layers": 3}),
    "85M": Model(talker, {"width": 768, "layers": 12, "heads": 12, "mlp": 3072}, ENDS[1:2]),
}
"""The first two have the same number of weights. The last has the layers of the 110M model of docs/speed.md, without
its vocabulary: a plain MLP of 3072 has as many weights as a gated one of 2048."""


def measure(name: str, ends: float, rounds: int) -> dict[str, Any]:
    """Measure the seconds with and without the pause, for turns of one length."""
    how = MODELS[name]
    model = how.make(context=CONTEXT, ends=ends, **how.sizes)
    setup: dict[str, Any] = {"max_turns": TURNS, "context": CONTEXT, "model": model, "compute": how.compute}
    seconds: dict[float, list[float]] = {0.0: [], PAUSE: []}
    drawn: list[list[Completion]] = []
    for _ in range(rounds):
        for pause, own in seconds.items():
            with episodes("Chatty", settings={"pause": pause}, **setup) as one:
                if not drawn:
                    play(one, prompts(2), max_completion_length=20)  # compiles what is compiled once
                began = time.monotonic()
                drawn.append(list(chain(*play(one, prompts(TRAJECTORIES), max_completion_length=CONTEXT))))
                own.append(time.monotonic() - began)
    if any(other != drawn[0] for other in drawn):
        raise SystemExit("the two runs have sampled different tokens and cannot be compared")
    turns = sum(completion.episode.turns for completion in drawn[0] if completion.episode)
    without, paused = (statistics.median(own) for own in seconds.values())
    return {
        "model": name,
        "counted": how.compute == PLAIN,
        "turns": turns,
        "tokens_per_turn": round(sum(len(completion.logprobs) for completion in drawn[0]) / turns, 1),
        "turn_seconds": round(without / TURNS, 2),
        "without": [round(one, 2) for one in seconds[0.0]],
        "with": [round(one, 2) for one in seconds[PAUSE]],
        "ratio": round(paused / without, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of waiting for a tool that takes half a second.")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS)[:2])
    parser.add_argument("--ends", type=float, nargs="+", help="biases for the end of a turn; nothing is saved")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    load, cells = os.getloadavg()[0], []
    for name in options.models:
        for ends in options.ends or MODELS[name].ends:
            cells.append(measure(name, ends, options.rounds))
            print(json.dumps(cells[-1]), flush=True)
    if options.ends is None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start"
        kept = [cell for cell in on_file()["cells"] if cell["model"] not in options.models]
        cells = [{**cell, "machine": machine} for cell in cells]
        found = sorted([*kept, *cells], key=lambda cell: list(MODELS).index(cell["model"]))
        RESULT.write_text(json.dumps({"pause": PAUSE, "cells": found}, indent=1) + "\n")
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables(on_file())), encoding="utf-8")


def on_file() -> dict[str, Any]:
    return json.loads(RESULT.read_text(encoding="utf-8"))


def tables(found: Mapping[str, Any]) -> Mapping[str, str]:
    """The table for docs/environments.md."""
    head = (
        "model",
        "returns",
        "tokens per turn",
        "time per turn",
        "without waiting",
        f"with a tool of {found['pause']:g} s",
        "ratio",
    )
    return {"waiting": table(head, [_line(cell) for cell in found["cells"]])}


def _line(cell: Mapping[str, Any]) -> Sequence[str]:
    without, paused = (statistics.median(cell[name]) for name in ("without", "with"))
    seconds = (f"{number:.1f} s" for number in (cell["turn_seconds"], without, paused))
    back = "by count" if cell["counted"] else "when ready"
    return (cell["model"], back, f"{cell['tokens_per_turn']:.0f}", *seconds, f"{cell['ratio']:.2f}")


if __name__ == "__main__":
    main()
