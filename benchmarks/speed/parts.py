"""The parts of the benchmark: for each part its sides, and the pairs that are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.speed import limits, workload
from benchmarks.speed.rounds import Side, Worker, alone_on_the_machine, in_turns, ratio

FLOAT32, BFLOAT16 = {"model.precision": "float32"}, {"model.precision": "bfloat16"}
TRL_FLOAT32 = {"bf16": False}
"""By default, TRL computes in bfloat16 under autocast, with weights in float32."""
TRL_BEST = {"gradient_checkpointing": False, "model_init_kwargs": {"dtype": "bfloat16"}}
"""The fastest settings in TRL's documentation for a step of this size on this kind of machine: no recomputation, and
weights in bfloat16. Larger device batches and continuous batching were slower, see `docs/speed.md`."""

TRL_WHOLE_STEP = {"per_device_train_batch_size": 64, "gradient_checkpointing": False}
"""The step as one batch, without accumulation and recomputation. For the small model in float32 it takes 2.9 GB, the
figure behind the goal for memory."""

OURS, OURS_32, OURS_16 = "posttrain", "posttrain float32", "posttrain bfloat16"
SERVED_32 = "posttrain with a server float32"
TRL, TRL_32, TRL_FAST, TRL_FAST_32 = "TRL", "TRL float32", "TRL best", "TRL best float32"
TRL_WHOLE_32, TRL_WHOLE_16 = "TRL one batch float32", "TRL one batch bfloat16"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload, and its number of rounds."""

    model: str
    shape: str = "short"
    rounds: int = 5
    lora: int | None = None
    precisions: bool = True
    """Whether float32 is measured, too, in addition to the defaults of each library and bfloat16 (TRL's default)."""
    varying: bool = False
    """Whether completions have other lengths in each step: from half of the given lengths up to all of them."""

    @property
    def name(self) -> str:
        more = [f"LoRA {self.lora}"] if self.lora else []
        return ", ".join([self.model, self.shape, *more, *(["other lengths in each step"] if self.varying else [])])


SMALL, LARGE = Case(model="small", rounds=7), Case(model="large", rounds=3)
OTHERS = [
    Case(model="small", shape="uniform", rounds=3, precisions=False),
    Case(model="small", shape="long", rounds=3, precisions=False),
    Case(model="small", rounds=3, lora=16, precisions=False),
    Case(model="small", rounds=12, varying=True, precisions=False),
    Case(model="moe", rounds=2, precisions=False),
    Case(model="qwen3", rounds=3, precisions=False),
]


def trainers(task: str, case: Case) -> list[Side]:
    """The sides of one task: both libraries with their defaults and at equal precision, and TRL at its best."""
    lora = {"lora": case.lora} if case.lora else {}

    def ours(name: str, settings: dict[str, Any]) -> Side:
        return Side(name=name, side="posttrain", task=task, settings=settings | lora, varying=case.varying)

    def trl(name: str, settings: dict[str, Any]) -> Side:
        rounds = 1 if case.model in SLOW else None
        return Side(name=name, side="trl", task=task, settings=settings | lora, rounds=rounds, varying=case.varying)

    found = [ours(OURS, {}), trl(TRL, {}), trl(TRL_FAST, TRL_BEST | BEST_OF.get(task, {})), ours(OURS_16, BFLOAT16)]
    if case.precisions:
        found += [ours(OURS_32, FLOAT32), trl(TRL_32, TRL_FLOAT32)]
        if task == "sft" and case.model not in SLOW:  # seven sides of the large model do not fit into memory
            found.append(trl(TRL_FAST_32, TRL_FLOAT32 | {"gradient_checkpointing": False} | BEST_OF[task]))
    return found


SLOW = ("large", "qwen3")
"""Models with which a step of TRL or of `generate` takes a minute or more. Such a step is measured once, and ours are
measured three times."""
BEST_OF: dict[str, dict[str, Any]] = {
    "sft": {"padding_free": True},
    "dpo": {"precompute_ref_log_probs": True},
}
"""Further settings, in addition to `TRL_BEST`, that make one of TRL's trainers faster."""


def samplers(case: Case) -> list[Side]:
    """All sides that sample, in both precisions."""

    def side(name: str, module: str, **settings: Any) -> Side:
        slow = case.model in SLOW and module == "transformers"
        return Side(name=name, side=module, task="sampling_alone", settings=settings, rounds=1 if slow else None)

    return [
        side(OURS_32, "posttrain", **FLOAT32),
        side(OURS_16, "posttrain", **BFLOAT16),
        side("generate float32", "transformers", dtype="float32"),
        side("generate bfloat16", "transformers", dtype="bfloat16"),
        side("vLLM float32", "vllm", dtype="float32"),
        side("vLLM bfloat16", "vllm", dtype="bfloat16"),
    ]


TRAINER_RATIOS = [
    (OURS, TRL),
    (OURS, TRL_FAST),
    (OURS_32, TRL_32),
    (OURS_16, TRL),
    (OURS_16, TRL_FAST),
    (OURS_32, TRL_FAST_32),
]
WHOLE_STEP_RATIOS = [(OURS_32, TRL_WHOLE_32), (OURS_16, TRL_WHOLE_16)]
SAMPLER_RATIOS = [
    (OURS_32, "generate float32"),
    (OURS_16, "generate bfloat16"),
    (OURS_32, "vLLM float32"),
    (OURS_16, "vLLM bfloat16"),
]


def measured(case: Case, sides: Sequence[Side], compared: Sequence[tuple[str, str]], folder: Path) -> dict[str, Any]:
    """Measure the sides of one case; return them, and the ratios of the compared sides that did not fail."""
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
    """Limit every case to this number of rounds, for a quick test."""
    global SMALL, LARGE, OTHERS
    SMALL, LARGE = replace(SMALL, rounds=rounds), replace(LARGE, rounds=rounds)
    OTHERS = [replace(case, rounds=rounds) for case in OTHERS]


def grpo(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    return _trained("grpo", [SMALL, LARGE], folder, models)


def others(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """GRPO steps with other lengths, other architectures and adapters."""
    return _trained("grpo", OTHERS, folder, models)


def one_batch(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """GRPO steps that TRL takes as one batch, without recomputation, to compare memory.

    All sides stay loaded, and those of the large model leave each other little memory, so the times mean nothing.
    """
    cases = [case for case in (SMALL, LARGE) if case.model in models]
    return [measured(case, whole_steps(case), WHOLE_STEP_RATIOS, folder) for case in cases]


def whole_steps(case: Case) -> list[Side]:
    rounds = 1 if case.model in SLOW else None
    theirs = {TRL_WHOLE_32: TRL_WHOLE_STEP | TRL_FLOAT32, TRL_WHOLE_16: TRL_WHOLE_STEP}
    return [
        Side(name=OURS_32, side="posttrain", task="grpo", settings=FLOAT32),
        Side(name=OURS_16, side="posttrain", task="grpo", settings=BFLOAT16),
        *(Side(name=name, side="trl", task="grpo", settings=given, rounds=rounds) for name, given in theirs.items()),
    ]


def served(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """GRPO steps whose completions a vLLM server samples. Its CPU build can serve only the large model."""
    sides = [
        Side(name=SERVED_32, side="posttrain", task="grpo", settings=FLOAT32 | {"rollout.engine": "vllm"}),
        Side(name=TRL_32, side="trl", task="grpo", settings=TRL_FLOAT32, rounds=1),
        Side(name=TRL_FAST, side="trl", task="grpo", settings=TRL_BEST, rounds=1),
    ]
    compared = [(SERVED_32, TRL_32), (SERVED_32, TRL_FAST)]
    return [measured(case, sides, compared, folder) for case in [LARGE] if case.model in models]


def dpo(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    return _trained("dpo", [SMALL, LARGE], folder, models)


def sft(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    return _trained("sft", [SMALL, LARGE], folder, models)


def sampling(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Sampling alone. Tokens per second follow from `tokens` and `seconds`, which include the prefill."""
    cases = [case for case in (SMALL, LARGE) if case.model in models]
    return [measured(case, samplers(case), SAMPLER_RATIOS, folder) for case in cases]


def _trained(task: str, cases: Sequence[Case], folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    chosen = [case for case in cases if case.model in models]
    return [measured(case, trainers(task, case), TRAINER_RATIOS, folder) for case in chosen]


def machine_limits(folder: Path, models: Sequence[str]) -> dict[str, float]:
    with alone_on_the_machine():
        return limits.rates()


def training_pass(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """The training pass of a GRPO step alone: its share of matrix products, and a profile of the rest."""
    cases = [case for case in (SMALL, LARGE) if case.model in models]
    return [shared_out(measured(case, passes(), [], folder)) for case in cases]


def passes() -> list[Side]:
    """The sides: matrix products alone and the whole pass, in both precisions, and the pass under the profiler."""
    return [
        Side(name="products bfloat16", side="limits", task="matrix_products", settings={"dtype": "bfloat16"}),
        Side(name="products float32", side="limits", task="matrix_products", settings={"dtype": "float32"}),
        Side(name=OURS_16, side="posttrain", task="training_pass", settings=BFLOAT16),
        Side(name=OURS_32, side="posttrain", task="training_pass", settings=FLOAT32),
        Side(name="profiled bfloat16", side="profiled", task="training_pass", settings=BFLOAT16, rounds=1),
    ]


def shared_out(found: dict[str, Any]) -> dict[str, Any]:
    """Add the share of each pass that its matrix products alone would take, and the profile as shares of its sum."""
    sides = found["sides"]
    share = {
        precision: round(sides[f"products {precision}"]["products"] / sides[f"posttrain {precision}"]["seconds"], 3)
        for precision in ("bfloat16", "float32")
        if "seconds" in sides[f"products {precision}"] and "seconds" in sides[f"posttrain {precision}"]
    }
    kinds = {
        name.removeprefix("kind/"): n for name, n in sides["profiled bfloat16"].items() if name.startswith("kind/")
    }
    whole = sum(kinds.values())
    profile = {name: round(n / whole, 3) for name, n in sorted(kinds.items(), key=lambda kind: -kind[1])}
    return found | {"share_of_matmul_rate": share, "profile": profile}


def check(folder: Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Check both libraries in float32 on the same tokens: loss and gradient norm of the first step must agree.

    For GRPO both get the same completions and rewards. DPO and SFT learn from given answers anyway.
    """
    cases = [("grpo_check", case) for case in (SMALL, *OTHERS) if case.lora is None] + [("dpo", SMALL), ("sft", SMALL)]
    results = []
    for task, case in [(task, case) for task, case in cases if case.model in models]:
        place = workload.write(folder, case.model, case.shape)
        ours, theirs = (
            first_step(Side(name=name, side=side, task=task, settings=settings), place)
            for name, side, settings in ((OURS_32, "posttrain", FLOAT32), (TRL_32, "trl", TRL_FLOAT32))
        )
        results.append({"task": task.removesuffix("_check"), "case": case.name, "ours": ours, "trl": theirs})
        off = abs(ours["grad_norm"] / theirs["grad_norm"] - 1), abs(ours["loss"] - theirs["loss"])
        if not (off[0] <= SAME_GRADIENT and off[1] <= SAME_LOSS):
            raise SystemExit(f"the two sides do not compute the same: {results[-1]}")
    return results


def first_step(side: Side, place: Path) -> dict[str, float]:
    """Loss and gradient norm of a side's first step."""
    (place / "logs").mkdir(exist_ok=True)
    with alone_on_the_machine():
        worker = Worker(side, place, place / "logs" / f"check-{side.side}.log")
        worker.close()
    return {name: worker.ready[name] for name in ("loss", "grad_norm")}


SAME_GRADIENT, SAME_LOSS = 1e-3, 1e-4
"""Largest differences: relative for the gradient norm, in nats for the loss. TRL adds 1e-4 to the standard deviation of
a group's rewards; we add 1e-6."""

PARTS: dict[str, Callable[[Path, Sequence[str]], Any]] = {
    "machine_limits": machine_limits,
    "check": check,
    "grpo": grpo,
    "one_batch": one_batch,
    "served": served,
    "sampling": sampling,
    "training_pass": training_pass,
    "dpo": dpo,
    "sft": sft,
    "others": others,
}
