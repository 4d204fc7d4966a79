"""The advisor's input: the data, the reward, the model, the machine, and the user's priorities.

Every fact is optional. `assumed` fills in what follows from other facts, and the advice lists these assumptions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from posttrain.config.schema import Walker, combine, explain
from posttrain.config.values import as_number, as_whole
from posttrain.errors import ConfigError, PosttrainError
from posttrain.lab.plan.architecture import read_architecture, size_classes

Data = Literal["verifier", "pairs", "thumbs", "ratings", "steps", "demonstrations", "nothing"]
Reward = Literal["exact", "noisy", "judge", "model"]
Priority = Literal["quality", "memory", "speed", "stability"]
Goal = Literal["reasoning", "style", "format", "chat", "scorer"]
Turns = Literal["tools", "environment", "agent"]
Trouble = Literal["unstable", "entropy", "length", "likelihood", "overfitting"]

GIGABYTE = 2**30
"""Bytes in a gigabyte, as GPU makers count them."""
WORDS: Mapping[str, Mapping[str, Any]] = {
    "answers": {"data": "verifier", "reward": "exact"},
    "function": {"data": "nothing", "reward": "noisy"},
    "environment": {"data": "verifier", "reward": "exact", "turns": "environment"},
}
"""Values for `data` that come from `posttrain init`: reference answers to compare with, the user's scoring function,
and an environment, which also answers turns."""
TRAINED_BYTES = 16
"""Bytes per trained parameter: weights, gradients and both moments of AdamW in float32."""
FROZEN_BYTES = 4
"""Bytes per parameter of a frozen model."""
USABLE = 0.8
"""Share of the devices' memory for weights and optimizer states. The rest holds activations and caches."""


def _listed(value: Any) -> Any:
    """Return a tuple from a list, or from one string with comma-separated values."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _expanded(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values of `data` that stand for several facts by these facts. Facts given explicitly take precedence."""
    data = _listed(given.get("data") or ())
    if not isinstance(data, tuple) or not any(isinstance(word, str) and word in WORDS for word in data):
        return dict(given)
    meant = {word: WORDS.get(word, {"data": word}) for word in data}
    kinds = dict.fromkeys(facts["data"] for facts in meant.values())
    named = tuple(kind for kind in kinds if kind != "nothing") or ("nothing",)
    return {name: value for facts in meant.values() for name, value in facts.items()} | {**given, "data": named}


def _billions(value: Any) -> Any:
    """Convert `7b`, `500m` or a number to billions of parameters."""
    match = re.fullmatch(r"([0-9.]+)\s*([bm])", value.strip().lower()) if isinstance(value, str) else None
    return float(match[1]) * (1 if match[2] == "b" else 1e-3) if match else as_number(value)


def _share(value: Any) -> Any:
    """Convert a score to a number from 0 to 1. `37%` is 0.37."""
    if isinstance(value, str) and (text := value.strip()).endswith("%"):
        number = as_number(text[:-1].strip())
        return number / 100 if isinstance(number, (int, float)) else value
    return as_number(value)


Size = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_billions)]
Score = Annotated[float, Field(ge=0, le=1), BeforeValidator(_share)]


class Facts(BaseModel):
    """Facts about a task, a model and a machine. None means unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    data: Annotated[tuple[Data, ...], BeforeValidator(_listed)] = ()
    """What tells good answers from bad: verifier (a program checks them), pairs (one of two answers was preferred),
    thumbs (single answers, up or down), ratings (single answers with a number), steps (each step of an answer is
    marked right or wrong), demonstrations (answers to imitate), nothing (prompts alone). You can give several."""
    reward: Reward | None = None
    """What can score a new answer, and how well: exact (a verifier without errors), noisy (a verifier that is sometimes
    wrong, or a heuristic), judge (a language model that compares or grades), model (a trained reward model)."""
    goal: Goal | None = None
    """What should improve: reasoning (mathematics, code, anything with a result), style (tone, persona), format, chat
    (general helpfulness), or a scorer (the reward model itself)."""
    turns: Turns | None = None
    """What comes between the model's turns, if an answer has several: tools (functions that the model calls),
    environment (a program that answers each turn and scores), agent (a program of yours that calls the model). If
    unknown, an answer has one turn."""
    calls_tools: bool | None = None
    """Does the current model call the tools at all?"""
    online: bool | None = None
    """Can you sample from the model while it trains?"""
    sft_done: bool | None = None
    """Is the model already fine-tuned on instructions?"""
    model: str | None = None
    """Folder or name of the model, for the suggested config."""
    size: Size | None = None
    """Parameters in billions: 7, 7b or 500m. For a mixture of experts, the total, or 30b-a3b."""
    moe: bool | None = None
    """Is it a mixture of experts?"""
    gpus: Annotated[int, Field(ge=0), BeforeValidator(as_whole)] | None = None
    """Number of GPUs; 0 means CPU only."""
    gpu_memory: Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(as_number)] | None = None
    """Memory of each GPU, in gigabytes."""
    priority: Annotated[tuple[Priority, ...], BeforeValidator(_listed)] = ()
    """What matters most: quality, memory, speed, stability, or several of them."""
    answer_length: Annotated[int, Field(ge=1), BeforeValidator(as_whole)] | None = None
    """Length of a long answer, in tokens. If an answer has several turns, the length of a long turn."""
    rollout_bound: bool | None = None
    """Does sampling take most of a step's time?"""
    heterogeneous: bool | None = None
    """Do the prompts differ widely, in kind or in the scale of their rewards?"""
    dense_rewards: bool | None = None
    """Are there rewards within an answer (per token, step or turn) in addition to the one at its end?"""
    several_rewards: bool | None = None
    """Should training raise several rewards together?"""
    one_answer: bool | None = None
    """Can you afford only one answer per prompt, so that there is no group to compare it with?"""
    teacher: bool | None = None
    """Is there a better model with the same tokenizer to learn from?"""
    attempts: Annotated[int, Field(ge=1), BeforeValidator(as_whole)] | None = None
    """Number of answers that the deployed model may try, if one right answer is enough."""
    base_score: Score | None = None
    """Share of the current model's answers that are right (pass@1)."""
    base_pass_at_k: Score | None = None
    """Share of prompts for which at least one of k answers of the current model is right (pass@k)."""
    noisy_labels: bool | None = None
    """Are some of the preferences or thumbs wrong?"""
    evaluation: bool | None = None
    """Are there held-out rows, and a check on them that training does not use?"""
    trouble: Annotated[tuple[Trouble, ...], BeforeValidator(_listed)] = ()
    """What went wrong before, or might: unstable (long runs collapse), entropy (answers lose diversity), length
    (answers get longer but not better), likelihood (good answers become less likely), overfitting (the model memorises
    pairs)."""

    def __init__(self, /, **given: Any) -> None:
        given = _expanded(given)
        mixture = size_classes().get(str(given.get("size")).lower()) if "-a" in str(given.get("size")) else None
        if mixture is not None:  # 30b-a3b
            given = {"moe": True} | given | {"size": mixture["parameters"] / 1e9}
        try:
            super().__init__(**given)
        except ValidationError as error:
            problems = explain(error, _walker(type(self)), lambda: list(Facts.model_fields))
            raise combine(problems, "the facts") from None

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        for fault, given, allowed, fix in FAULTS:
            if fault(self):
                raise ConfigError(given=given.format(facts=self), allowed=allowed, fix=fix)
        return self

    @property
    def memory(self) -> float | None:
        """Memory of all GPUs together, in gigabytes."""
        return None if self.gpus is None or self.gpu_memory is None else self.gpus * self.gpu_memory

    def _holds(self, bytes_per_parameter: float) -> bool | None:
        """Do models with this many bytes per policy parameter fit on the GPUs?"""
        if self.size is None or not self.memory:
            return None
        return self.size * 1e9 * bytes_per_parameter <= USABLE * self.memory * GIGABYTE

    @property
    def full_training_fits(self) -> bool | None:
        """Is there enough memory to train all weights of the policy?"""
        return self._holds(TRAINED_BYTES)

    @property
    def critic_fits(self) -> bool | None:
        """Do a policy and a critic of the same size, both fully trained, and a frozen reference fit in memory?"""
        return self._holds(2 * TRAINED_BYTES + FROZEN_BYTES)

    def known(self) -> Mapping[str, Any]:
        """Map each fact to its value, including the facts derived from others."""
        return dict(self) | {name: getattr(self, name) for name in DERIVED}

    def shaped(self) -> tuple[Self, list[str]]:
        """Fill in size and kind of the named model if its architecture is known. Also return the additions in words."""
        if self.model is None or None not in (self.size, self.moe):
            return self, []
        try:
            shape = read_architecture(self.model)
        except PosttrainError:
            return self, []
        mixture = any(block.mixture is not None for _, block in shape.blocks)
        change = {"size": round(shape.parameters / 1e9, 3), "moe": mixture}
        missing = {name: value for name, value in change.items() if getattr(self, name) is None}
        told = ", ".join(f"{name} = {str(value).lower()}" for name, value in missing.items())
        return self.model_copy(update=missing), [f"{self.model} has its published architecture ({told})"]

    @property
    def credits_turns(self) -> bool | None:
        """Are there rewards for single turns? Only an environment can give them."""
        return (self.turns == "environment" and self.dense_rewards) or None

    def assumed(self) -> tuple[Self, tuple[str, ...]]:
        """Fill in what follows from these facts. Also return the additions in words."""
        from posttrain.lab.advise.guides import guides, met  # imports the algorithms, which the flags do not need

        facts, said = self.shaped()
        for told in guides().assumptions:
            if met(told["when"], facts.known()):
                facts = facts.model_copy(update={name: _frozen(value) for name, value in told["then"].items()})
                said.append(told["says"])
        return facts, tuple(said)


@functools.cache
def _walker(kind: type[Facts]) -> Walker:
    return Walker(kind.model_json_schema())


DERIVED = ("memory", "full_training_fits", "critic_fits", "credits_turns")
"""Properties that conditions can refer to."""

FAULTS = (
    (
        lambda f: "nothing" in f.data and len(f.data) > 1,
        "data = {facts.data}: nothing together with other data",
        "nothing alone, or the data that exist",
        "Remove `nothing` from data.",
    ),
    (
        lambda f: f.reward == "exact" and f.data and "verifier" not in f.data,
        "reward = exact, but data = {facts.data} has no verifier",
        "data with a verifier, or another reward",
        "Add verifier to data, or set reward to judge, model or noisy.",
    ),
    (
        lambda f: f.calls_tools is not None and f.turns != "tools",
        "calls_tools with turns = {facts.turns}: there are no tools to call",
        "turns = tools",
        "Set turns = tools, or omit calls_tools.",
    ),
    (
        lambda f: None not in (f.base_score, f.base_pass_at_k) and f.base_pass_at_k < f.base_score,
        "base_pass_at_k = {facts.base_pass_at_k} below base_score = {facts.base_score}",
        "base_pass_at_k at least as high as base_score: one of k answers is right at least as often as one of one",
        "Swap the two values.",
    ),
)
"""Contradictory facts: (test, given, allowed, fix)."""
