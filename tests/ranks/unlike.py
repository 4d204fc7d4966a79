"""One rank of a job that must be refused; its error goes to a file.

RANK=0 WORLD_SIZE=2 … python -m tests.ranks.unlike FOLDER OUT machines     neighbours are on two of them
                                                        … bits NAME...     a weight that both hold differs in one bit
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import torch
from tests.ranks.program import build, config_of, parameters
from tests.ranks.scenarios import SCENARIOS
from torch.distributed.tensor import DTensor

from posttrain.errors import PosttrainError
from posttrain.models import acceleration
from posttrain.models.layout import is_repeated
from posttrain.ranks.environment import place_of_process
from posttrain.ranks.group import ProcessRanks
from posttrain.train.job import join
from posttrain.train.sharded_state import save_sharded


def refused_for_machines(folder: Path) -> list[str]:
    socket.gethostname = lambda: f"machine-{os.environ['RANK']}"
    try:
        join(config_of(folder, SCENARIOS["grpo, Qwen3, divided"]))
    except PosttrainError as error:
        return [type(error).__name__, str(error)]
    return []


def refused_for_bits(folder: Path, name: str, ranks: ProcessRanks) -> list[str]:
    trainer = build(config_of(folder, SCENARIOS[name]), folder, ranks)
    state = folder / f"state of {name}"
    save_sharded(trainer, state, 1, {})
    found = ((key, p) for key, p in parameters(trainer).items() if isinstance(p, DTensor) and is_repeated(p))
    key, parameter = next(found)
    if ranks.rank == 1:
        with torch.no_grad():
            first = parameter.to_local().view(-1)[:1]
            first.copy_(torch.nextafter(first, torch.tensor(9.0)))
    try:
        save_sharded(trainer, folder / f"second state of {name}", 2, {})
    except PosttrainError as error:
        return [type(error).__name__, str(error), key]
    return []


def main(folder: Path, out: Path, what: str, *names: str) -> None:
    acceleration.register(None)
    if what == "machines":
        said = [refused_for_machines(folder)]
    else:
        place = place_of_process()
        assert place is not None
        ranks = ProcessRanks(place, deadline=120)
        ranks.inside = True  # every rank runs this program, so nothing is announced
        said = [refused_for_bits(folder, name, ranks) for name in names]
    out.with_suffix(f".{os.environ['RANK']}").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
