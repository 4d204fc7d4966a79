"""One rank of a run of two: the memory that it takes while it loads, trains, saves and publishes.

RANK=0 WORLD_SIZE=2 … python -m tests.ranks.counting FOLDER OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.planning.meter import LiveBytes
from tests.gpu.program import given

from posttrain.config import load_config
from posttrain.engines.weights import merged_tensors
from posttrain.models import acceleration, sharding
from posttrain.models.forward_path import without_adapters
from posttrain.models.save import save_model
from posttrain.ranks.environment import place_of_process
from posttrain.ranks.group import ProcessRanks
from posttrain.train.followers import END
from posttrain.train.guards import NonFinite
from posttrain.train.loop import train_step
from posttrain.train.setup import Policy
from posttrain.train.sharded_state import save_part


def main(folder: Path, out: Path) -> None:
    acceleration.register(None)
    place = place_of_process()
    assert place is not None
    ranks = ProcessRanks(place, deadline=120)
    ranks.inside = True  # every rank runs this program, so nothing is announced
    config = load_config(
        {
            "algorithm": "grpo",
            "rewards": [{"name": "repetition", "settings": {"n": 1}}],
            "data": {"train": str(folder / "unread.jsonl")},
            "train": {"steps": 2, "learning_rate": 1e-3, "tokens_per_microbatch": 60},
            "model": {"path": str(folder), "precision": "float32", "device": "cpu"},
            "output": str(folder / "run"),
        }
    ).config
    file = (folder / "model.safetensors").stat().st_size
    meter, mine = LiveBytes(mapped={file}), folder / f"rank-{ranks.rank}"
    mine.mkdir()
    with meter.measuring():
        with meter.span("load"):
            policy = Policy.of(config, config.algorithm.build(), mine, ranks)
        beside: dict[str, Any] = {"numbers": NonFinite(lambda step, rows: folder), "publish": lambda step: {}}
        trainer, _ = policy.trainer(config, [], **beside)
        with meter.span("first step"):
            train_step(trainer, given(config), 1)
        with meter.span("step"):
            train_step(trainer, given(config), 2)
        with meter.span("checkpoint"):
            save_part(trainer, folder / "state", 2)
        with meter.span("publication"):
            for _ in merged_tensors(policy.loaded.model):
                pass
        loaded, ranks.inside = policy.loaded, ranks.rank > 0
        with meter.span("save"):
            if ranks.rank == 0:  # the first rank writes, and the others send the parts that it requests
                save_model(loaded.model, loaded.tokenizer, mine / "model", eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
                with ranks.together(END):
                    pass
            else:
                for arguments in iter(lambda: ranks.follow(), (END, ())):
                    sharding.bring(*arguments[1])
    model = without_adapters(loaded.model)
    blocks = [sum(p.numel() for p in block.parameters()) for block in sharding.blocks_of(model)]
    spans = ("load", "first step", "step", "checkpoint", "publication", "save")
    found = {name: [meter.largest(name), meter.peaks()[name], meter.before(name)] for name in spans}
    sizes = {
        "block": 4 * max(blocks),
        "tensor": 4 * max(p.numel() for p in model.parameters()),
        "model": 4 * sum(p.numel() for p in model.parameters()),
    }
    out.with_suffix(f".{ranks.rank}.json").write_text(json.dumps(sizes | {"spans": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
