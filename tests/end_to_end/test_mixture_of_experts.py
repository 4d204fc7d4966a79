"""A mixture of experts trains like a dense model, and every publish measures its routing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import tiny_tokenizer, write_prompts
from transformers import OlmoeConfig, OlmoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import posttrain

REWARD = """
def vowels(prompt, completion, **row):
    return sum(letter in "aeiou" for letter in completion) + 0.1 * sum(letter in "rstl" for letter in completion)
"""
MODELS = {
    "qwen3-moe": lambda **sizes: Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, moe_intermediate_size=16, head_dim=8)),
    "olmoe": lambda **sizes: OlmoeForCausalLM(OlmoeConfig(**sizes)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    tokenizer = tiny_tokenizer()
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = build(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_experts=8,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            output_router_logits=True,
        )
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    write_prompts(folder / "prompts.jsonl", count=20)
    (folder / "rewards.py").write_text(REWARD)
    return folder


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        pytest.param("qwen3-moe", "grpo", marks=pytest.mark.slow),
        pytest.param("olmoe", "gspo", marks=pytest.mark.slow),
        pytest.param("qwen3-moe", "gspo", marks=pytest.mark.slow),
        pytest.param("olmoe", "grpo", marks=pytest.mark.slow),
    ],
)
def test_a_mixture_of_experts_learns(folder, model, algorithm):
    run = trained(folder, model, algorithm, steps=8)
    rewards = [row["reward"] for row in run.metrics]
    assert sum(rewards[-3:]) > 1.3 * sum(rewards[:3])


def test_every_publish_of_a_mixture_of_experts_measures_its_routing_and_every_expert_is_trained(folder):
    trained(folder, "qwen3-moe", "grpo", steps=2)


def trained(folder: Path, model: str, algorithm: str, *, steps: int) -> Any:
    """Train, and require that sampler and trainer agree on the routing, and that experts and routers have moved."""
    run = posttrain.train(
        {
            "model": {"path": str(folder / model), "device": "cpu"},
            "algorithm": algorithm,
            "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0},
            "rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}],
            "sampling": {"group_size": 8, "max_completion_length": 6},
            "train": {"steps": steps, "prompts_per_step": 4, "learning_rate": 0.01, "minibatches": 2},
            "guards": {"max_truncated": 1.0},
            "output": str(folder / f"{model}-{algorithm}-{steps}"),
            "report": False,
        }
    )
    assert {row["mismatch/routing_difference"] for row in run.metrics} == {0.0}, (
        "in float32 no routing choice may differ"
    )
    assert all(row["sampling/sampling_logp_difference/max"] < 1e-4 for row in run.metrics)
    assert trained_experts(folder / model, run.model_path) > 0.9
    return run


def trained_experts(before: Path, after: Path | None) -> float:
    """Return the share of expert and router tensors that training has changed."""
    assert after is not None
    old, new = (load_file(path / "model.safetensors") for path in (before, after))
    names = [name for name in old if "experts" in name or "gate.weight" in name]
    assert names
    return sum(not torch.equal(old[name], new[name]) for name in names) / len(names)
