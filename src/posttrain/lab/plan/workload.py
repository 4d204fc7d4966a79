"""From a configuration to what a step of it has to hold and to compute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posttrain.config import REWARD_MODEL
from posttrain.lab.plan.architecture import Architecture, architecture_of, read_architecture
from posttrain.lab.plan.lengths import RowLengths
from posttrain.lab.plan.records import Adapters, CriticKind, DataKind, Engine, Workload
from posttrain.models.compute import SMALL
from posttrain.tasks.base import EXPERTS
from posttrain.tasks.catalogue import find_builtin

if TYPE_CHECKING:
    from posttrain.config import RunConfig

ASSUMED_PROMPT = 256
"""Tokens of the longest prompt where neither the configuration nor the caller says."""
ASSUMED_ROW = 512
"""The same for rows of given data, prompt and answer together."""


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How products run, which on a CPU is measured when a run begins (models/compute.py)."""

    precision: Literal["float32", "bfloat16"]
    onednn: bool = False
    packed: bool = False
    """The sampler decodes with a copy whose weights are packed."""

    @staticmethod
    def read(path: Path) -> Computing:
        """Of the compute.json in the folder of a run."""
        saved = json.loads(path.read_text(encoding="utf-8"))
        packed, onednn = saved["sampler"] == "packed", saved["matmul"] == "onednn"
        return Computing(precision=saved["dtype"], onednn=onednn, packed=packed)

    @staticmethod
    def assumed(config: RunConfig, parameters: int, device: str, *, bfloat16: bool = True) -> Computing:
        """What a run chooses mostly: bfloat16 where the device has it (`bfloat16`). On a CPU only for models that are
        worth a measurement, which decode from a copy, and whose float32 products go through oneDNN."""
        asked, on_cpu = config.model.precision, device == "cpu"
        measured = on_cpu and parameters >= SMALL
        half = asked == "bfloat16" or (asked == "auto" and bfloat16 and (measured or not on_cpu))
        return Computing(precision="bfloat16" if half else "float32", onednn=measured and not half, packed=measured)


def workload_of(
    config: RunConfig,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    computing: Computing | None = None,
    bfloat16: bool = True,
    lengths: RowLengths | None = None,
    **known: Any,
) -> Workload:
    """What this configuration asks of one device, which has instructions for `bfloat16` or not; `known` are fields of
    `Workload` that the caller knows better.

    Lengths are those of the data where they are known, else the longest that the configuration admits; where it names
    none, they are assumed. Raises as `read_architecture` does.
    """
    algorithm, train, sampling = config.algorithm.build(), config.train, config.sampling
    architecture = known.pop("architecture", None) or model_architecture(config.model.path)
    computing = computing or Computing.assumed(config, architecture.parameters, device, bfloat16=bfloat16)
    algorithm = algorithm.with_decided_correction(exact=train.samples_exactly(computing.precision))
    kind: DataKind = "pairs" if config.sampled_pairs is not None else algorithm.data_kind
    online = kind == "prompts"
    prompt, completion = _lengths(config, architecture, lengths, online=online)
    fields: dict[str, Any] = {
        "algorithm": algorithm.key,
        "needs": algorithm.needs,
        "data_kind": kind,
        "old_pass": online and algorithm.needs_old_pass(updates=train.updates_per_batch, dropout=config.has_dropout),
        "prompts_per_step": train.prompts_per_step,
        "group_size": sampling.group_size if online else 1,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "mean_prompt_tokens": None if lengths is None else min(prompt, lengths.mean_prompt),
        "mean_completion_tokens": None if lengths is None or online else min(completion, lengths.mean_completion),
        "minibatches": train.minibatches,
        "epochs": train.epochs,
        "tokens_per_microbatch": train.tokens_per_microbatch,
        "logprob_chunk_tokens": train.logprob_chunk_tokens,
        "max_batch_rows": sampling.max_batch_rows,
        "steps": train.steps,
        "device": device,
        "precision": computing.precision,
        "attention": config.model.attention,
        "packed_sampler": online and computing.packed,
        "onednn": computing.onednn,
        "gradient_checkpointing": train.gradient_checkpointing,
        "lora": _adapters(config),
        "critic": _critic(config),
        "engine": _engine(config, computing) if online else "shared",
        **_other_models(config, architecture, online=online),
    }
    return Workload(architecture=architecture, **(fields | known))


def model_architecture(path: str) -> Architecture:
    """As `read_architecture`, and of the built-in tiny models, which may not have been built yet."""
    form, colon, name = path.partition(":")
    experts = {"tiny": 0, "tiny-moe": EXPERTS}
    if not colon or form not in experts:
        return read_architecture(path)
    recipe = replace(find_builtin(name).tiny, experts=experts[form])
    return architecture_of({"model_type": recipe.model_type, **recipe.shape()}, name=path)


def _lengths(
    config: RunConfig, architecture: Architecture, lengths: RowLengths | None, *, online: bool
) -> tuple[int, int]:
    """(prompt, completion) of the longest row."""
    context = architecture.context or 2**31
    if lengths is not None and not online:
        row = min(lengths.prompt + lengths.completion, config.data.max_length or context, context)
        completion = min(lengths.completion, max(1, row - 1))
        return max(1, row - completion), completion
    if online:
        completion = min(config.sampling.max_completion_length, context - 1)
        prompt = lengths.prompt if lengths is not None else config.data.max_prompt_length or ASSUMED_PROMPT
        return min(prompt, context - completion), completion
    row = min(config.data.max_length or ASSUMED_ROW, context)
    return row // 2, row - row // 2


def _adapters(config: RunConfig) -> Adapters | None:
    """Targets by the last part of their names, in the words of `Linear`."""
    if config.lora is None:
        return None
    named = config.lora.target_modules
    targets = None if named == "all-linear" else tuple(name.rpartition(".")[2].removesuffix("_proj") for name in named)
    return Adapters(rank=config.lora.rank, targets=targets, dropout=config.lora.dropout > 0)


def _critic(config: RunConfig) -> CriticKind:
    if "values" not in config.algorithm.declared.needs:
        return "none"
    from posttrain.config import CriticConfig

    return (config.critic or CriticConfig()).kind_beside(config.lora)


def _engine(config: RunConfig, computing: Computing) -> Engine:
    return "copy" if computing.packed or config.train.publish_every > 1 else "shared"


def _other_models(config: RunConfig, policy: Architecture, *, online: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    critic = config.critic
    if critic is not None:
        found["critic_rank"] = critic.rank
        if critic.path is not None and critic.path != REWARD_MODEL:
            found["critic_architecture"] = model_architecture(critic.path)
    if config.reference is not None:
        found["reference"] = model_architecture(config.reference.path)
    if config.teacher is not None:
        found["teacher"] = model_architecture(config.teacher.path)
    if online:
        found["reward_models"] = tuple(_reward_models(config, policy))
    return found


def _reward_models(config: RunConfig, policy: Architecture) -> Iterator[Architecture]:
    """Those that score answers in this process; one that the run trains first is made from the policy's model."""
    for entry in config.rewards:
        if entry.model is not None:
            yield policy if entry.model == REWARD_MODEL else model_architecture(entry.model)
