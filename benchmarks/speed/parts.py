"""What is measured: for each part its sides, and which of them are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.speed import workload
from benchmarks.speed.rounds import Side, in_turns, ratio

FLOAT32, BFLOAT16 = {"model.precision": "float32"}, {"model.precision": "bfloat16"}
TRL_FLOAT32 = {"bf16": False}
"""TRL computes in bfloat16 under autocast unless it is told not to, with weights in float32."""
TRL_BEST = {"gradient_checkpointing": False, "model_init_kwargs": {"dtype": "bfloat16"}}
"""The fastest on this kind of machine of what TRL's documentation offers, for a step of this size: no recomputation,
weights in bfloat16 too. Larger device batches and continuous batching were slower, see `docs/speed.md`."""

OURS, OURS_32, OURS_16 = "posttrain", "posttrain float32", "posttrain bfloat16"
TRL, TRL_32, TRL_FAST = "TRL", "TRL float32", "TRL best"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload, and how long it may take."""

    model: str
    shape: str = "short"
    rounds: int = 5
    lora: int | None = None
    precisions: bool = True
    """Measure float32 and bfloat16 by name too, not only what each library does by itself."""

    @property
    def name(self) -> str:
        return f"{self.model}, {self.shape}" + (f", LoRA {self.lora}" if self.lora else "")


SMALL, LARGE = Case(model="small"), Case(model="large", rounds=2)
OTHERS = [
    Case(model="small", shape="uniform", rounds=3, precisions=False),
    Case(model="small", shape="long", rounds=3, precisions=False),
    Case(model="small", rounds=3, lora=16, precisions=False),
    Case(model="moe", rounds=2, precisions=False),
    Case(model="qwen3", rounds=1, precisions=False),
]


def trainers(task: str, case: Case) -> list[Side]:
    """Both libraries on one task: as they come, at equal precision, and TRL at its best."""
    lora = {"lora": case.lora} if case.lora else {}
    found = [
        Side(name=OURS, side="posttrain", task=task, settings=lora),
        Side(name=TRL, side="trl", task=task, settings=lora),
        Side(name=TRL_FAST, side="trl", task=task, settings=TRL_BEST | BEST_OF.get(task, {}) | lora),
    ]
    if case.precisions:
        found += [
            Side(name=OURS_32, side="posttrain", task=task, settings=FLOAT32 | lora),
            Side(name=OURS_16, side="posttrain", task=task, settings=BFLOAT16 | lora),
            Side(name=TRL_32, side="trl", task=task, settings=TRL_FLOAT32 | lora, rounds=1 if task == "grpo" else None),
        ]
    return found


BEST_OF: dict[str, dict[str, Any]] = {
    "sft": {"padding_free": True},
    "dpo": {"precompute_ref_log_probs": True},
}
"""What helps one of TRL's trainers beside `TRL_BEST`."""


def samplers(case: Case) -> list[Side]:
    """Everyone that samples, in both precisions."""

    def side(name: str, module: str, **settings: Any) -> Side:
        slow = case.model == "large" and module == "transformers"
        return Side(name=name, side=module, task="sampling_alone", settings=settings, rounds=1 if slow else None)

    return [
        side(OURS_32, "posttrain", **FLOAT32),
        side(OURS_16, "posttrain", **BFLOAT16),
        side("generate float32", "transformers", dtype="float32"),
        side("generate bfloat16", "transformers", dtype="bfloat16"),
        side("vLLM float32", "vllm", dtype="float32"),
        side("vLLM bfloat16", "vllm", dtype="bfloat16"),
    ]


TRAINER_RATIOS = [(OURS, TRL), (OURS, TRL_FAST), (OURS_32, TRL_32), (OURS_16, TRL)]
SAMPLER_RATIOS = [
    (OURS_32, "generate float32"),
    (OURS_16, "generate bfloat16"),
    (OURS_32, "vLLM float32"),
    (OURS_16, "vLLM bfloat16"),
]


def measured(case: Case, sides: Sequence[Side], compared: Sequence[tuple[str, str]], folder: Path) -> dict[str, Any]:
    """The sides of one case and the ratios of those that are compared and did not fail."""
    place = workload.write(folder, case.model, case.shape)
    work = workload.read(place)
    found = in_turns(sides, place, rounds=case.rounds)
    ratios = {
        f"{ours} / {theirs}": ratio(found[ours], found[theirs])
        for ours, theirs in compared
        if "seconds" in found.get(ours, {}) and "seconds" in found.get(theirs, {})
    }
    return {"case": case.name, "model": work["model"], "tokens": work["tokens"], "sides": found, "ratios": ratios}


def limit_rounds(rounds: int) -> None:
    """So many rounds of every case, for a quick look."""
    global SMALL, LARGE, OTHERS
    SMALL, LARGE = replace(SMALL, rounds=rounds), replace(LARGE, rounds=rounds)
    OTHERS = [replace(case, rounds=rounds) for case in OTHERS]


def grpo(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    return _trained("grpo", [SMALL, LARGE], folder, models)


def others(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """GRPO steps on other lengths, other architectures and with adapters."""
    return _trained("grpo", OTHERS, folder, models)


def dpo(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    return _trained("dpo", [SMALL, LARGE], folder, models)


def sft(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    return _trained("sft", [SMALL, LARGE], folder, models)


def sampling(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Tokens per second follow from `tokens` and `seconds`, prefill included."""
    cases = [case for case in (SMALL, LARGE) if case.model in models]
    return [measured(case, samplers(case), SAMPLER_RATIOS, folder) for case in cases]


def _trained(task: str, cases: Sequence[Case], folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    chosen = [case for case in cases if case.model in models]
    return [measured(case, trainers(task, case), TRAINER_RATIOS, folder) for case in chosen]


PARTS: dict[str, Callable[[Path, Sequence[str]], Any]] = {
    "grpo": grpo,
    "sampling": sampling,
    "dpo": dpo,
    "sft": sft,
    "others": others,
}
