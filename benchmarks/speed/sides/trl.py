"""TRL's trainers, set up as in their documentation, with `settings` in their configs.

A callback takes the turn at the end of every optimizer step. Completion lengths are forced from outside: a logits
processor forbids EOS before its position and forces it there. Continuous batching and vLLM get a maximum length for
each request.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed.gate import Gate
from benchmarks.speed.sides.forced import force_requests, force_rows, force_vllm
from benchmarks.speed.workload import GROUP_SIZE, read
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

ROWS_PER_DEVICE = 8
"""TRL's default per_device_train_batch_size."""


class Turns(TrainerCallback):
    """A callback that ends every step at the gate, with the loss and gradient norm that the trainer logs."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        self.gate.turn(**{name: float(logs[name]) for name in ("loss", "grad_norm") if name in logs})


def grpo(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do GRPO steps without end, each over all prompts of the workload in order."""
    from trl import GRPOConfig, GRPOTrainer

    work = read(folder)
    rows = _rows(folder / "prompts.jsonl")
    lengths = [length for group in work["lengths"] for length in group]
    adapters = _adapters(settings)
    defaults = {
        "num_generations": GROUP_SIZE,
        "max_completion_length": max(lengths),
        "loss_type": "grpo",
        "shuffle_dataset": False,
        "router_aux_loss_coef": 0.0,  # for mixtures of experts; posttrain adds no such term
    }
    config = GRPOConfig(**_common(len(lengths), defaults | settings))
    namespace: dict[str, Any] = {}
    exec((folder / "reward.py").read_text(), namespace)
    trainer = GRPOTrainer(
        model=str(folder / "model"),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=namespace["reward"],
        args=config,
        train_dataset=Dataset.from_list(rows * 100),
        callbacks=[Turns(gate)],
        peft_config=adapters,
    )
    if settings.get("use_vllm"):
        force_vllm(trainer.vllm_generation.llm, gate, lengths)
    elif settings.get("use_transformers_continuous_batching"):
        force_requests(gate, lengths)
    else:
        force_rows(trainer.model, gate, lengths)
    trainer.train()


def grpo_check(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do one GRPO step on given completions, for its loss and gradient norm."""
    from trl import GRPOTrainer

    given = [ids for group in read(folder)["given"] for ids in group]
    GRPOTrainer._generate_single_turn = lambda self, *inputs, **more: (given, None)
    grpo(folder, settings, gate)


def dpo(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do DPO steps without end, each over all pairs of the workload."""
    from trl import DPOConfig, DPOTrainer

    rows = _rows(folder / "pairs.jsonl")
    _train(DPOTrainer, DPOConfig, folder, rows, {"max_length": None}, settings, gate)


def sft(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Do SFT steps without end, each over all examples of the workload."""
    from trl import SFTConfig, SFTTrainer

    rows = _rows(folder / "examples.jsonl")
    _train(SFTTrainer, SFTConfig, folder, rows, {"completion_only_loss": True, "max_length": None}, settings, gate)


def _train(
    trainer: Any,
    config: Any,
    folder: Path,
    rows: list[dict[str, str]],
    defaults: dict[str, Any],
    settings: dict[str, Any],
    gate: Gate,
) -> None:
    adapters = _adapters(settings)
    trainer(
        model=str(folder / "model"),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        args=config(**_common(len(rows), defaults | settings)),
        train_dataset=Dataset.from_list(rows),
        callbacks=[Turns(gate)],
        peft_config=adapters,
    ).train()


def _common(rows: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for steps over `rows` rows that write nothing; on the CPU unless `settings` say otherwise."""
    per_device = settings.setdefault("per_device_train_batch_size", ROWS_PER_DEVICE)
    return {
        "output_dir": tempfile.mkdtemp(prefix="trl-"),
        "max_steps": 1000,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "gradient_accumulation_steps": max(1, rows // per_device),
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **settings,
    }


def _adapters(settings: dict[str, Any]) -> Any:
    """The LoRA config for `settings["lora"]`, which is removed because TRL's config has no such setting."""
    rank = settings.pop("lora", None)
    if rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
