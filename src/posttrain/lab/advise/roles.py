"""The models that an algorithm holds in memory, by role, from its class: what it costs before a byte is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posttrain.algorithms import Algorithm
from posttrain.lab.advise.facts import Facts


@dataclass(frozen=True, kw_only=True)
class Role:
    """A model, what is done with it, and when it is no second copy."""

    name: str
    trained: bool
    counts: bool
    """Is it a model of its own in memory?"""
    note: str = ""

    def __str__(self) -> str:
        kind = "trained" if self.trained else "frozen"
        return f"{self.name} ({kind}{', ' + self.note if self.note else ''})"


def roles_of(algorithm: Algorithm, facts: Facts, *, lora: bool) -> Iterator[Role]:
    """The policy first; what is on another machine or on disk is told, and does not count."""
    needs, online = algorithm.needs, algorithm.data_kind == "prompts"
    scored = online and algorithm.learns_from_rewards
    yield Role(name="model with a scalar head" if "scores" in needs else "policy", trained=True, counts=True)
    if "values" in needs:
        note = "a second adapter on the policy's base" if lora else ""
        yield Role(name="critic", trained=True, counts=not lora, note=note)
    if "reference" in needs:
        yield _reference(online, lora)
    if "teacher" in needs:
        yield Role(name="teacher", trained=False, counts=True)
    if scored and _scored_by_a_model(facts):
        yield Role(name="reward model", trained=False, counts=True)
    if scored and facts.reward == "judge":
        yield Role(name="judge", trained=False, counts=False, note="behind an endpoint")


def _reference(online: bool, lora: bool) -> Role:
    if not online:
        return Role(
            name="reference", trained=False, counts=False, note="asked once before the first step, kept on disk"
        )
    return Role(
        name="reference",
        trained=False,
        counts=not lora,
        note="the base model itself, under the adapters" if lora else "",
    )


def _scored_by_a_model(facts: Facts) -> bool:
    return facts.reward == "model" or (facts.reward is None and bool({"pairs", "ratings", "steps"} & set(facts.data)))
