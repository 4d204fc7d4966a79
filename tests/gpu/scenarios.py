"""Scenarios for training on the stand-in; tests import this module, so it must not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REWARDS = {"rewards": [{"name": "repetition", "settings": {"n": 1}}]}
LORA = {"lora": {"rank": 2}}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    algorithm: str | Mapping[str, Any]
    model: str = "llama"
    settings: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    plant: str | None = None
    """The fault that is planted into the loop."""


SCENARIOS = {
    "grpo": Scenario(algorithm="grpo", settings=REWARDS),
    "grpo, Qwen3": Scenario(algorithm="grpo", model="qwen3", settings=REWARDS),
    "grpo, LoRA and reference": Scenario(algorithm={"name": "grpo", "kl_coef": 0.1}, settings=REWARDS | LORA),
    "grpo, one micro-batch": Scenario(algorithm="grpo", settings=REWARDS, train={"tokens_per_microbatch": 500}),
    "grpo, float32": Scenario(algorithm="grpo", settings={**REWARDS, "model": {"precision": "float32"}}),
    "grpo, checkpointed": Scenario(algorithm="grpo", settings=REWARDS, train={"gradient_checkpointing": True}),
    "grpo, two updates": Scenario(algorithm="grpo", settings=REWARDS, train={"minibatches": 2}),
    "ppo": Scenario(algorithm="ppo", settings=REWARDS),
    "ppo, LoRA": Scenario(algorithm="ppo", settings=REWARDS | LORA),
    "ppo, shared critic": Scenario(algorithm="ppo", settings=REWARDS | {"critic": {"kind": "shared"}}),
    "dpo": Scenario(algorithm="dpo"),
    "sft": Scenario(algorithm="sft"),
    "reward_model": Scenario(algorithm="reward_model"),
    "online_dpo": Scenario(algorithm="online_dpo", settings=REWARDS | {"sampling": {"group_size": 2}}),
    "distillation": Scenario(algorithm="distillation"),
    "kto": Scenario(algorithm="kto"),
    "reward_regression": Scenario(algorithm="reward_regression"),
    "process_reward_model": Scenario(algorithm="process_reward_model"),
    "clip_cov": Scenario(algorithm="clip_cov", settings=REWARDS),
    "kl_cov": Scenario(algorithm="kl_cov", settings=REWARDS),
    "sapo": Scenario(algorithm="sapo", settings=REWARDS),
    "grpo, top entropy": Scenario(algorithm={"name": "grpo", "top_entropy_quantile": 0.5}, settings=REWARDS),
    "a number read in the loop": Scenario(algorithm="grpo", settings=REWARDS, plant="item"),
    "a tensor on the CPU": Scenario(algorithm="grpo", settings=REWARDS, plant="cpu tensor"),
    "a blocking copy": Scenario(algorithm="grpo", settings=REWARDS, plant="blocking copy"),
    "memory written to during a copy": Scenario(algorithm="grpo", settings=REWARDS, plant="missing wait"),
}
PLANTS = [name for name, scenario in SCENARIOS.items() if scenario.plant is not None]
HONEST = ["grpo", "grpo, one micro-batch", "grpo, LoRA and reference", "dpo"]
THOROUGH = [name for name in SCENARIOS if name not in (*HONEST, *PLANTS)]
READ_IN_THE_LOOP = ["grpo", "a number read in the loop"]
QUICK = [*HONEST, *(name for name in PLANTS if name not in READ_IN_THE_LOOP)]
