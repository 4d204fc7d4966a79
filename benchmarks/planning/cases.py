"""The runs for the comparison with the planner's memory: real steps of models with random weights.

Prompts and answers are made of characters, one token each, so that every length is known. With a vocabulary of
thousands of tokens, an untrained model hardly ever samples EOS.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.lab.plan.architecture import architecture_of
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.workload import workload_of
from posttrain.models.compute import Compute

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
SHAPES: Mapping[str, Mapping[str, int]] = {
    name: dict(zip(SIZES, sizes, strict=True))
    for name, sizes in {
        "0.3M": (64, 172, 5, 8, 4, 4096),
        "15M": (288, 768, 6, 6, 6, 32000),
        "26M": (512, 1408, 8, 8, 2, 6400),
        "135M": (576, 1536, 30, 9, 3, 49152),
    }.items()
}
"""The shapes of stories260K with more tokens, stories15M, MiniMind2-small and SmolLM2-135M."""
ROWS = 96
"""Number of rows, more than two steps take: a row that comes twice in a step would be computed only once."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run, and its measurements."""

    name: str
    shape: str
    algorithm: dict[str, Any]
    prompt: int = 32
    """Length of the prompt, in tokens."""
    completion: int = 32
    settings: dict[str, Any] = field(default_factory=dict)
    resident: bool = False
    """Whether anonymous resident memory is measured, too."""
    precision: str = "float32"
    attention: str = "sdpa"

    @property
    def full_name(self) -> str:
        return f"{self.shape} {self.name}"

    @property
    def sampled(self) -> bool:
        return self.algorithm["name"] in ("grpo", "ppo", "rloo", "reinforce_plus_plus")


def _train(rows: int, tokens: int, **more: Any) -> dict[str, Any]:
    return {"train": {"prompts_per_step": rows, "tokens_per_microbatch": tokens, **more}}


CHECKPOINTING = {"gradient_checkpointing": True}
SFT, DPO, SIMPO = {"name": "sft"}, {"name": "dpo"}, {"name": "simpo"}
GRPO, PPO = {"name": "grpo", "kl_coef": 0.04}, {"name": "ppo", "kl_coef": 0.05}

CASES = (
    Case(name="SFT", shape="0.3M", algorithm=SFT, settings=_train(32, 1024)),
    Case(name="GRPO", shape="0.3M", algorithm=GRPO, settings=_train(4, 1024)),
    Case(name="GRPO, long answers", shape="0.3M", algorithm=GRPO, completion=850, settings=_train(4, 1024)),
    Case(
        name="GRPO, eager attention", shape="0.3M", algorithm=GRPO, prompt=300, completion=100,
        settings=_train(4, 2048), attention="eager",
    ),
    Case(name="PPO, separate critic", shape="0.3M", algorithm=PPO, settings=_train(16, 512)),
    Case(
        name="PPO, shared critic, checkpointing", shape="0.3M", algorithm=PPO,
        settings=_train(16, 1024, **CHECKPOINTING) | {"critic": {"kind": "shared"}},
    ),
    Case(name="DPO", shape="15M", algorithm=DPO, settings=_train(8, 1024)),
    Case(name="SimPO", shape="15M", algorithm=SIMPO, settings=_train(8, 512)),
    Case(
        name="GRPO, LoRA, checkpointing", shape="15M", algorithm=GRPO,
        settings=_train(4, 1024, **CHECKPOINTING) | {"lora": {}},
    ),
    Case(name="GRPO", shape="26M", algorithm=GRPO, settings=_train(4, 1024)),
    Case(name="SFT, LoRA", shape="26M", algorithm=SFT, settings=_train(16, 1024) | {"lora": {"rank": 32}}),
    Case(
        name="PPO, critic as an adapter", shape="26M", algorithm=PPO,
        settings=_train(16, 1024) | {"lora": {}, "critic": {"kind": "lora"}},
    ),
    Case(name="GRPO in bfloat16", shape="26M", algorithm=GRPO, settings=_train(4, 1024), precision="bfloat16"),
    Case(name="SFT", shape="135M", algorithm=SFT, settings=_train(8, 512), resident=True),
    Case(
        name="SFT, checkpointing", shape="135M", algorithm=SFT, settings=_train(8, 512, **CHECKPOINTING), resident=True
    ),
    Case(name="GRPO", shape="135M", algorithm=GRPO, settings=_train(2, 512), resident=True),
    Case(name="DPO, LoRA", shape="135M", algorithm=DPO, settings=_train(8, 1024) | {"lora": {}}, resident=True),
    Case(name="PPO, separate critic", shape="135M", algorithm=PPO, settings=_train(8, 512), resident=True),
    Case(
        name="PPO, shared critic", shape="135M", algorithm=PPO,
        settings=_train(8, 512) | {"critic": {"kind": "shared"}}, resident=True,
    ),
)  # fmt: skip
GROUP = 4


def write_inputs(case: Case, folder: Path) -> None:
    """Write the model, the data and the reward of the run."""
    build_model(case, folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(case)))
    (folder / "reward.py").write_text("def length(prompt, completion, **row):\n    return float(len(completion) % 7)\n")


def config_of(case: Case, folder: Path) -> dict[str, Any]:
    """The configuration of the run, with its inputs in `folder`."""
    settings = {key: dict(value) for key, value in case.settings.items()}
    train = settings.pop("train") | {"steps": 2, "learning_rate": 1e-4}
    computing = {"device": "cpu", "precision": case.precision, "attention": case.attention}
    config: dict[str, Any] = {
        "model": {"path": str(folder / "model"), **computing},
        "algorithm": case.algorithm,
        "data": {"train": str(folder / "rows.jsonl"), "chat": False},
        "train": train,
        "output": str(folder / "run"),
        "report": False,
        **settings,
    }
    if case.sampled:
        config["rewards"] = [{"function": f"{folder / 'reward.py'}:length"}]
        group = GROUP if case.algorithm["name"] == "grpo" else 1
        config["sampling"] = {"group_size": group, "max_completion_length": case.completion}
    return config


def rows_of(case: Case) -> list[dict[str, str]]:
    """Rows with prompts of `prompt` tokens including BOS, and answers of `completion` tokens including EOS."""
    draw = random.Random(0)

    def text(length: int) -> str:
        return "".join(draw.choice(string.ascii_lowercase) for _ in range(length))

    prompt, answer = case.prompt - 1, case.completion - 1  # BOS before it, EOS after it
    return [
        {"prompt": text(prompt), "completion": text(answer), "chosen": text(answer), "rejected": text(answer)}
        for _ in range(ROWS)
    ]


def build_model(case: Case, folder: Path) -> None:
    """Write a Llama of this shape with random weights and a tokenizer of characters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from posttrain.models.modes import without_progress_bars
    from posttrain.tasks.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    config = LlamaConfig(
        **SHAPES[case.shape],
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with without_progress_bars():
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.model_max_length = 2048
    tokenizer.save_pretrained(folder)


def workload(case: Case, computing: Compute, **known: Any) -> Workload:
    """The planner's input: the configuration, the lengths, how the run chose to compute, and the `known` figures."""
    from posttrain.config import load_config

    architecture = architecture_of({"model_type": "llama", "tie_word_embeddings": True, **SHAPES[case.shape]})
    config = load_config(config_of(case, Path("inputs"))).config
    lengths = {"prompt_tokens": case.prompt, "completion_tokens": case.completion}
    return workload_of(config, computing=computing, architecture=architecture, **lengths, **known)
