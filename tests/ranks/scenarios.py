"""Scenarios for several ranks: every algorithm, and the cases that differ for FSDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.algorithms import ALGORITHMS

REWARDS = {"rewards": [{"name": "repetition", "settings": {"n": 1}}]}
LORA = {"lora": {"rank": 2}}
TWO_TO_A_COPY = {"shard": 2}
"""Two ranks share a copy of the weights, so four ranks hold two copies and two ranks hold one."""
DIVIDED = {"tensor": 2}
"""Matrices divided between two neighbours."""
REFERENCE = {"name": "grpo", "kl_coef": 0.1}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    algorithm: str | Mapping[str, Any]
    model: str = "llama"
    settings: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    """How many of the eight rows are trained."""
    precision: str = "float64"
    """Precision of weights and computation; for bfloat16, of the computation alone."""


def _of(name: str) -> Scenario:
    algorithm = ALGORITHMS[name]()
    settings: dict[str, Any] = {}
    if algorithm.data_kind == "prompts" and algorithm.learns_from_rewards:
        settings |= REWARDS
    if "teacher" in algorithm.needs:
        settings["teacher"] = "TEACHER"
    if (size := algorithm.group_size_needed) > 1 or name in ("online_dpo",):
        settings["sampling"] = {"group_size": max(2, size)}
    return Scenario(algorithm={"name": name, "k": 2} if name == "pass_at_k" else name, settings=settings)


SCENARIOS = {
    **{name: _of(name) for name in ALGORITHMS},
    "grpo, Qwen3": Scenario(algorithm="grpo", model="qwen3", settings=REWARDS),
    "grpo, mixture of experts": Scenario(algorithm="grpo", model="moe", settings=REWARDS),
    "grpo, reference": Scenario(algorithm=REFERENCE, settings=REWARDS),
    "grpo, LoRA and reference": Scenario(algorithm=REFERENCE, settings=REWARDS | LORA),
    "grpo, checkpointed": Scenario(algorithm="grpo", settings=REWARDS, train={"gradient_checkpointing": True}),
    "grpo, parts in main memory": Scenario(algorithm="grpo", settings=REWARDS, train={"cpu_offload": True}),
    "grpo, two ranks to a copy": Scenario(algorithm="grpo", settings=REWARDS, train=TWO_TO_A_COPY),
    "grpo, a copy on each rank": Scenario(algorithm="grpo", settings=REWARDS, train={"shard": 1}),
    "ppo, LoRA, two ranks to a copy": Scenario(algorithm="ppo", settings=REWARDS | LORA, train=TWO_TO_A_COPY),
    "grpo, Qwen3 and reference, two ranks to a copy": Scenario(
        algorithm=REFERENCE, model="qwen3", settings=REWARDS, train=TWO_TO_A_COPY
    ),
    "grpo, mixture of experts, two ranks to a copy": Scenario(
        algorithm="grpo", model="moe", settings=REWARDS, train=TWO_TO_A_COPY
    ),
    "grpo, one row, two ranks to a copy": Scenario(algorithm="grpo", settings=REWARDS, rows=1, train=TWO_TO_A_COPY),
    "grpo, three rows, two ranks to a copy": Scenario(
        algorithm="grpo", settings=REWARDS, rows=3, train=TWO_TO_A_COPY | {"cpu_offload": True}
    ),
    "reward_model, two ranks to a copy": Scenario(algorithm="reward_model", train=TWO_TO_A_COPY),
    "grpo, two updates": Scenario(algorithm="grpo", settings=REWARDS, train={"minibatches": 2, "epochs": 2}),
    "grpo, one row": Scenario(algorithm="grpo", settings=REWARDS, rows=1),
    "grpo, three rows": Scenario(algorithm="grpo", settings=REWARDS, rows=3),
    "grpo, one micro-batch": Scenario(algorithm="grpo", settings=REWARDS, train={"tokens_per_microbatch": 500}),
    "ppo, LoRA": Scenario(algorithm="ppo", settings=REWARDS | LORA),
    "ppo, shared critic": Scenario(algorithm="ppo", settings=REWARDS | {"critic": {"kind": "shared"}}),
    "ppo, one row": Scenario(algorithm="ppo", settings=REWARDS, rows=1),
    "dpo, LoRA": Scenario(algorithm="dpo", settings=LORA),
    "kto, three rows": Scenario(algorithm="kto", rows=3),
    "reward_model, LoRA": Scenario(algorithm="reward_model", settings=LORA),
    "grpo, divided": Scenario(algorithm="grpo", settings=REWARDS, train=DIVIDED),
    "sft, divided": Scenario(algorithm="sft", train=DIVIDED),
    "grpo, Qwen3, divided": Scenario(algorithm="grpo", model="qwen3", settings=REWARDS, train=DIVIDED),
    "grpo, Qwen3, divided, in bfloat16": Scenario(
        algorithm="grpo", model="qwen3", settings=REWARDS, train=DIVIDED, precision="bfloat16"
    ),
    "grpo, Qwen2, divided": Scenario(algorithm="grpo", model="qwen2", settings=REWARDS, train=DIVIDED),
    "grpo, biases, divided": Scenario(algorithm="grpo", model="biases", settings=REWARDS, train=DIVIDED),
    "distillation, divided": Scenario(algorithm="distillation", settings={"teacher": "TEACHER"}, train=DIVIDED),
    "grpo, parts in main memory, divided": Scenario(
        algorithm="grpo", settings=REWARDS, train=DIVIDED | {"cpu_offload": True}
    ),
    "grpo, reference, divided": Scenario(algorithm=REFERENCE, settings=REWARDS, train=DIVIDED),
    "ppo, divided": Scenario(algorithm="ppo", settings=REWARDS, train=DIVIDED),
    "ppo, shared critic, divided": Scenario(
        algorithm="ppo", settings=REWARDS | {"critic": {"kind": "shared"}}, train=DIVIDED
    ),
    "dpo, divided": Scenario(algorithm="dpo", train=DIVIDED),
    "kto, three rows, divided": Scenario(algorithm="kto", rows=3, train=DIVIDED),
    "reward_model, divided": Scenario(algorithm="reward_model", train=DIVIDED),
    "grpo, one row, divided": Scenario(algorithm="grpo", settings=REWARDS, rows=1, train=DIVIDED),
    "grpo, checkpointed, divided": Scenario(
        algorithm="grpo", settings=REWARDS, train=DIVIDED | {"gradient_checkpointing": True}
    ),
    "grpo, two updates, divided": Scenario(
        algorithm="grpo", model="qwen3", settings=REWARDS, train=DIVIDED | {"minibatches": 2, "epochs": 2}
    ),
    "grpo, divided, a copy on each pair": Scenario(
        algorithm="grpo", model="qwen3", settings=REWARDS, train=DIVIDED | {"shard": 1}
    ),
}
