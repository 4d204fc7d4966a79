"""The advisor's input: the data, the reward, the model, the machine, and the user's priorities.

Everything may be left out. What follows from something else is filled in by `assumed`, and said with the advice.
"""

from __future__ import annotations

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
"""As the makers of GPUs count."""
WORDS: Mapping[str, Mapping[str, Any]] = {
    "answers": {"data": "verifier", "reward": "exact"},
    "function": {"data": "nothing", "reward": "noisy"},
    "environment": {"data": "verifier", "reward": "exact", "turns": "environment"},
}
"""Words of `posttrain init` for data: right answers to compare with, a function of one's own that scores, and an
environment, which answers turns as well."""
TRAINED_BYTES = 16
"""Per parameter: weights, gradients and both moments of AdamW in float32."""
FROZEN_BYTES = 4
"""Per parameter of a model that is only asked."""
USABLE = 0.8
"""Share of the devices' memory for weights and their optimizer; the rest is activations and caches."""


def _listed(value: Any) -> Any:
    """A list, one value, or several in a text with commas between them."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _expanded(given: Mapping[str, Any]) -> dict[str, Any]:
    """Words for data that stand for several facts, written out; what is said beside them goes first."""
    data = _listed(given.get("data") or ())
    if not isinstance(data, tuple) or not any(isinstance(word, str) and word in WORDS for word in data):
        return dict(given)
    meant = {word: WORDS.get(word, {"data": word}) for word in data}
    kinds = dict.fromkeys(facts["data"] for facts in meant.values())
    named = tuple(kind for kind in kinds if kind != "nothing") or ("nothing",)
    return {name: value for facts in meant.values() for name, value in facts.items()} | {**given, "data": named}


def _billions(value: Any) -> Any:
    """`7b`, `500m` or a number of billions."""
    match = re.fullmatch(r"([0-9.]+)\s*([bm])", value.strip().lower()) if isinstance(value, str) else None
    return float(match[1]) * (1 if match[2] == "b" else 1e-3) if match else as_number(value)


def _share(value: Any) -> Any:
    """A score from 0 to 1; `37%` is 0.37."""
    if isinstance(value, str) and (text := value.strip()).endswith("%"):
        number = as_number(text[:-1].strip())
        return number / 100 if isinstance(number, (int, float)) else value
    return as_number(value)


Size = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_billions)]
Score = Annotated[float, Field(ge=0, le=1), BeforeValidator(_share)]


class Facts(BaseModel):
    """Facts about a task, a model and a machine; None is: not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    data: Annotated[tuple[Data, ...], BeforeValidator(_listed)] = ()
    """What says that an answer is good: verifier (a program checks it), pairs (one of two answers was preferred),
    thumbs (single answers, up or down), ratings (single answers with a number), steps (each step of an answer right or
    wrong), demonstrations (answers to imitate), nothing (prompts alone). Several are possible."""
    reward: Reward | None = None
    """What can score a new answer, and how well: exact (a verifier that is right), noisy (a verifier that is wrong at
    times, or a heuristic), judge (a language model that compares or grades), model (a trained reward model)."""
    goal: Goal | None = None
    """What is to get better: reasoning (mathematics, code, anything with a result), style (tone, persona), format, chat
    (helpfulness in general), or a scorer (the reward model itself)."""
    turns: Turns | None = None
    """What stands between the turns of the model, where an answer has several: tools (functions that it calls),
    environment (a program that answers each turn, and scores), agent (a program of yours that asks the model). Not
    known: an answer has one turn."""
    calls_tools: bool | None = None
    """Does the present model call the tools at all?"""
    online: bool | None = None
    """Can the model be sampled from while it trains?"""
    sft_done: bool | None = None
    """Was the model fine-tuned on instructions already?"""
    model: str | None = None
    """Folder or name of the model, for the config that comes with the advice."""
    size: Size | None = None
    """Parameters in billions: 7, 7b or 500m; of a mixture of experts all of them, or 30b-a3b."""
    moe: bool | None = None
    """Is it a mixture of experts?"""
    gpus: Annotated[int, Field(ge=0), BeforeValidator(as_whole)] | None = None
    """How many GPUs there are; 0 is a CPU."""
    gpu_memory: Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(as_number)] | None = None
    """Gigabytes of each GPU."""
    priority: Annotated[tuple[Priority, ...], BeforeValidator(_listed)] = ()
    """What matters most: quality, memory, speed, stability, or several of them."""
    answer_length: Annotated[int, Field(ge=1), BeforeValidator(as_whole)] | None = None
    """Tokens of a long answer; of several turns, of a long turn."""
    rollout_bound: bool | None = None
    """Does sampling take most of the time of a step?"""
    heterogeneous: bool | None = None
    """Do the prompts differ much, in kind or in the scale of their rewards?"""
    dense_rewards: bool | None = None
    """Are there rewards within an answer, per token, per step or per turn, beside the one at its end?"""
    several_rewards: bool | None = None
    """Are several rewards to be raised together?"""
    one_answer: bool | None = None
    """Is only one answer per prompt affordable, so that there is no group to compare it with?"""
    teacher: bool | None = None
    """Is there a better model with the same tokenizer to learn from?"""
    attempts: Annotated[int, Field(ge=1), BeforeValidator(as_whole)] | None = None
    """How many answers will be tried where the model is used, one of which has to be right."""
    base_score: Score | None = None
    """Share of answers of the present model that are right (pass@1)."""
    base_pass_at_k: Score | None = None
    """Share of prompts for which one of k answers of the present model is right."""
    noisy_labels: bool | None = None
    """Is a part of the preferences or thumbs wrong?"""
    evaluation: bool | None = None
    """Are there held-out rows, and a check of them that training does not see?"""
    trouble: Annotated[tuple[Trouble, ...], BeforeValidator(_listed)] = ()
    """What went wrong before, or is feared: unstable (long runs that break down), entropy (answers stop differing),
    length (answers grow without getting better), likelihood (good answers become less likely), overfitting (pairs are
    learnt by heart)."""

    def __init__(self, /, **given: Any) -> None:
        given = _expanded(given)
        mixture = size_classes().get(str(given.get("size")).lower()) if "-a" in str(given.get("size")) else None
        if mixture is not None:  # 30b-a3b
            given = {"moe": True} | given | {"size": mixture["parameters"] / 1e9}
        try:
            super().__init__(**given)
        except ValidationError as error:
            problems = explain(error, Walker(type(self).model_json_schema()), lambda: list(Facts.model_fields))
            raise combine(problems, "the facts") from None

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        for fault, given, allowed, fix in FAULTS:
            if fault(self):
                raise ConfigError(given=given.format(facts=self), allowed=allowed, fix=fix)
        return self

    @property
    def memory(self) -> float | None:
        """Gigabytes of all GPUs."""
        return None if self.gpus is None or self.gpu_memory is None else self.gpus * self.gpu_memory

    def _holds(self, bytes_per_parameter: float) -> bool | None:
        """Do models of so many bytes per parameter of the policy leave room in the GPUs?"""
        if self.size is None or not self.memory:
            return None
        return self.size * 1e9 * bytes_per_parameter <= USABLE * self.memory * GIGABYTE

    @property
    def full_training_fits(self) -> bool | None:
        """Is there room for training all weights of the policy?"""
        return self._holds(TRAINED_BYTES)

    @property
    def critic_fits(self) -> bool | None:
        """Is there room for a critic of the policy's size, with both trained whole, and for a frozen reference?"""
        return self._holds(2 * TRAINED_BYTES + FROZEN_BYTES)

    def known(self) -> Mapping[str, Any]:
        """Fact -> value, those included that follow from others."""
        return dict(self) | {name: getattr(self, name) for name in DERIVED}

    def shaped(self) -> tuple[Self, list[str]]:
        """These facts with the size and the kind of the model that is named, where its shape is known, and in words."""
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
        return self.model_copy(update=missing), [f"{self.model} is what its published shape says ({told})"]

    @property
    def credits_turns(self) -> bool | None:
        """Are there rewards of single turns? Only an environment says what a turn was worth."""
        return (self.turns == "environment" and self.dense_rewards) or None

    def assumed(self) -> tuple[Self, tuple[str, ...]]:
        """These facts with what follows from them filled in, and what that was, in words."""
        from posttrain.lab.advise.guides import guides, met  # algorithms are read there, which the flags do not need

        facts, said = self.shaped()
        for told in guides().assumptions:
            if met(told["when"], facts.known()):
                facts = facts.model_copy(update={name: _frozen(value) for name, value in told["then"].items()})
                said.append(told["says"])
        return facts, tuple(said)


DERIVED = ("memory", "full_training_fits", "critic_fits", "credits_turns")
"""Properties that conditions may ask for."""

FAULTS = (
    (
        lambda f: "nothing" in f.data and len(f.data) > 1,
        "data = {facts.data}: nothing, and something",
        "nothing by itself, or what there is",
        "Leave nothing out.",
    ),
    (
        lambda f: f.reward == "exact" and f.data and "verifier" not in f.data,
        "reward = exact, but data = {facts.data} has no verifier",
        "data with a verifier, or another reward",
        "Add verifier to data, or set reward = judge, model or noisy.",
    ),
    (
        lambda f: f.calls_tools is not None and f.turns != "tools",
        "calls_tools with turns = {facts.turns}: there are no tools to call",
        "turns = tools",
        "Set turns = tools, or leave calls_tools out.",
    ),
    (
        lambda f: None not in (f.base_score, f.base_pass_at_k) and f.base_pass_at_k < f.base_score,
        "base_pass_at_k = {facts.base_pass_at_k} below base_score = {facts.base_score}",
        "at least the share of single answers that are right: one of k is right at least as often as one of one",
        "Exchange them.",
    ),
)
"""(what cannot be meant, given, allowed, fix)."""
