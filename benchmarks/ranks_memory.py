"""Live bytes of one rank in the second step of a run on 1, 2 and 4 ranks, compared with `posttrain plan`.

    python -m benchmarks.ranks_memory                 # starts the ranks of each case, and writes the results
    python -m benchmarks.ranks_memory divided         # the same with matrices divided in two (train.tensor)
    python -m benchmarks.ranks_memory CASE FOLDER OUT [SHARD [TENSOR]]
                                                      # one rank; SHARD ranks share a copy of the weights

It also measures the additional bytes of a publication, compared with the largest tensor and the largest block.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.planning.cases import CASES, Case, build_model, config_of, workload
from benchmarks.planning.meter import LiveBytes
from benchmarks.speed.machine import origin
from tests.ranks.jobs import finish, start

from posttrain.config import load_config
from posttrain.engines.weights import merged_tensors
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan
from posttrain.models import acceleration, sharding
from posttrain.models.compute import Compute
from posttrain.ranks.agreement import ONE, Ranks
from posttrain.ranks.environment import place_of_process
from posttrain.ranks.group import ProcessRanks
from posttrain.train.guards import NonFinite
from posttrain.train.loop import train_step
from posttrain.train.setup import Policy
from posttrain.types import Batch, Experience, Tokens

RESULTS = Path(__file__).parent / "results"
SIZES = (1, 2, 4)
NAMES = (
    "0.3M SFT",
    "0.3M PPO, separate critic",
    "15M DPO",
    "15M GRPO, LoRA, checkpointing",
    "26M GRPO",
    "26M SFT, LoRA",
    "26M PPO, critic as an adapter",
)
DIVIDED = ("26M GRPO",)


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.full_name == name)


def rank(name: str, folder: Path, out: Path, shard: str = "auto", tensor: str = "1") -> None:
    """Be one rank: do two steps on rows of the largest length. The last rank writes its measurements."""
    case = case_named(name)
    acceleration.register(None)
    place = place_of_process()
    ranks: Ranks = ONE if place is None else ProcessRanks(place, deadline=300)
    if isinstance(ranks, ProcessRanks):
        ranks.inside = True
    config = load_config(config_of(case, folder), [f"train.shard={shard}", f"train.tensor={tensor}"]).config
    algorithm, meter = config.algorithm.build(), LiveBytes()
    with meter.measuring():
        policy = Policy.of(config, algorithm, folder / "run", ranks)
        beside: dict[str, Any] = {"numbers": NonFinite(lambda step, rows: folder), "publish": lambda step: {}}
        trainer, _ = policy.trainer(config, [], **beside)
        update = trainer.update

        def updated(*args: Any, **how: Any) -> Any:
            with meter.span("train"):
                return update(*args, **how)

        trainer.update = updated  # type: ignore[method-assign]
        for step in (1, 2):
            rows = given(case, config.train.prompts_per_step)
            with meter.span("first step" if step == 1 else "score"):
                train_step(trainer, rows, step)
        with meter.span("publish"):
            for _ in merged_tensors(policy.loaded.model):
                pass
    if ranks.rank == ranks.size - 1:
        blocks = [sum(p.nbytes for p in block.parameters()) for block in sharding.blocks_of(policy.loaded.model)]
        largest = max(p.numel() * p.element_size() for p in policy.loaded.model.parameters())
        out.write_text(json.dumps({"peaks": meter.peaks(), "block": max(blocks), "tensor": largest}))


def given(case: Case, prompts: int) -> Experience | Batch:
    """Rows of the largest length, each group or pair with its own prompt."""
    kind, group = ("prompts" if case.sampled else case.algorithm["name"]), 4 if case.algorithm["name"] == "grpo" else 1
    count = prompts * group * (2 if case.algorithm["name"] in ("dpo", "simpo") else 1)
    width = case.prompt + case.completion
    ids_BT = torch.randint(3, 200, (count, width), generator=torch.Generator().manual_seed(0))
    if kind == "prompts":
        ids_BT[:, : case.prompt] = ids_BT[::group, : case.prompt].repeat_interleave(group, dim=0)
    if kind in ("dpo", "simpo"):  # both rows of a pair have its prompt
        ids_BT[count // 2 :, : case.prompt] = ids_BT[: count // 2, : case.prompt]
    mask_BT = (torch.arange(width) >= case.prompt).expand(count, width)
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=torch.full((count,), width))
    if kind == "prompts":
        return Experience.from_rewards(
            torch.rand(prompts, group, generator=torch.Generator().manual_seed(1)),
            completion_mask_BT=mask_BT,
            sampling_logprobs_BT=torch.where(mask_BT, -1.0, 0.0),
            tokens=tokens,
        )
    if case.algorithm["name"] == "sft":
        return Batch.from_examples(mask_BT, tokens=tokens)
    return Batch.from_pairs(mask_BT, torch.where(mask_BT, -1.0, 0.0), tokens=tokens)


def main(*, tensor: int = 1) -> int:
    lines: list[dict[str, Any]] = []
    for name in DIVIDED if tensor > 1 else NAMES:
        case = case_named(name)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            build_model(case, folder / "model")
            for size in (size for size in SIZES if size >= tensor):
                out = folder / f"{size}.json"
                told = (name, str(folder), str(out), "auto", str(tensor))
                finish(start(size, "benchmarks.ranks_memory", *told), timeout=1200)
                found = json.loads(out.read_text())
                of_phase = {phase.name: phase.bytes for phase in planned(case, size, tensor).phases}
                line = {
                    "case": name,
                    "ranks": size,
                    "neighbours": tensor,
                    "measured": found["peaks"]["train"],
                    "planned": of_phase["train"],
                    "error": of_phase["train"] / found["peaks"]["train"] - 1,
                    "publishing": found["peaks"]["publish"] - found["peaks"]["first step"],
                    **{key: found[key] for key in ("block", "tensor")},
                }
                print(json.dumps(line), flush=True)
                lines.append(line)
    file = RESULTS / ("ranks_memory_divided.json" if tensor > 1 else "ranks_memory.json")
    file.write_text(json.dumps({"lines": lines, "origin": origin()}, indent=1) + "\n")
    return 0


def planned(case: Case, ranks: int, neighbours: int) -> MemoryPlan:
    sharding = "full" if ranks > neighbours else "none"
    how = {"ranks": ranks, "tensor": neighbours, "sharding": sharding}
    return predict(workload(case, Compute(), engine="shared", **how))  # no rank samples here


def told() -> int:
    arguments = sys.argv[1:]
    if arguments in ([], ["divided"]):
        return main(tensor=2 if arguments else 1)
    rank(arguments[0], Path(arguments[1]), Path(arguments[2]), *arguments[3:])
    return 0


if __name__ == "__main__":
    sys.exit(told())
