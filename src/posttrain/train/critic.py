"""The critic of a run: how it is built from the config, and how its weights are updated next to the policy's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel

from posttrain.config import CriticConfig, ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.critic import (
    Critic,
    lora_critic,
    recompute_with_its_adapter,
    separate_critic,
    shared_critic,
)
from posttrain.models.load import LoadedModel
from posttrain.models.modes import recompute_activations
from posttrain.models.named import resolve_model_path
from posttrain.models.reading import called
from posttrain.models.reward_head import load_reward_model
from posttrain.rewards.model import distribution, facts_of, find_model, wants_normalized
from posttrain.train.optimizer import CriticUpdates

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import RunConfig

TIMES_FASTER = 10
"""Default ratio of the critic's learning rate to the policy's."""


def build_critic(
    config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, folder: Path, *, in_parts: bool = False
) -> Critic | None:
    """Build the critic from the section `critic` or its defaults; None if the algorithm has no critic.

    `folder` is the run's folder. It holds the reward model if the run trains one first. `in_parts`: the weights of a
    separate critic stay in their files until they are sharded.
    """
    if "values" not in algorithm.needs:
        return None
    settings = config.critic or CriticConfig()
    kind = settings.kind_beside(config.lora)
    if kind == "shared":
        return shared_critic(loaded.model, seed=config.seed)
    if kind == "separate":
        return load_critic(config, settings, loaded, folder, in_parts=in_parts)
    policy = loaded.model
    assert isinstance(policy, PeftModel), "config rules: an adapter critic needs a policy with an adapter"
    if config.train.gradient_checkpointing:
        recompute_activations(policy, context_fn=partial(recompute_with_its_adapter, policy))
    return lora_critic(policy, rank=settings.rank, alpha=settings.alpha, seed=config.seed)


def load_critic(
    config: RunConfig, settings: CriticConfig, policy: LoadedModel, folder: Path, *, in_parts: bool = False
) -> Critic:
    """A separate critic, loaded from `model.path` or `critic.path`; raises ConfigError for another tokenizer."""
    model = config.model
    if settings.path is not None:
        path = find_model(settings.path, folder)
        model = ModelConfig(path=path, trust_remote_code=model.trust_remote_code, attention=model.attention)
    with called("model.path" if settings.path is None else "critic.path"):
        scoring = load_reward_model(
            resolve_model_path(model, config.seed), seed=config.seed, device=policy.device, in_parts=in_parts
        )
    if scoring.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            given=f"critic.path = {settings.path}, whose tokenizer differs from the policy's",
            allowed="a model with the policy's vocabulary: the critic reads the sampled token ids themselves",
            fix="Train a reward model from the policy's model, or leave critic.path out.",
        )
    if config.train.gradient_checkpointing:
        recompute_activations(scoring.model)
    return separate_critic(scoring)


@torch.no_grad()
def rescale_to_reward(critic: Critic, config: RunConfig, folder: Path) -> None:
    """Convert the values of a critic that begins as a reward model from that model's scores to the rewards of the run.

    The reward normalises and weighs the score, and the head predicts the score itself. Its first values would be wrong
    by a factor and a constant.
    """
    scale, critic.offset.value = affine_to_reward(config, folder)
    if scale != 1.0:
        critic.head.weight.mul_(scale)
        if critic.head.bias is not None:
            critic.head.bias.mul_(scale)


def affine_to_reward(config: RunConfig, folder: Path) -> tuple[float, float]:
    """Return a and b with which a * z + b is what an output z of the head of `critic.path` adds to the run's reward.

    They are 1 and 0 if no reward with a weight uses that model, or if its scores are not linear in z. A gate is not
    considered.
    """
    path = None if config.critic is None else config.critic.path
    if path is None:
        return 1.0, 0.0
    place = find_model(path, folder)
    facts = facts_of(place)
    own = [
        one
        for one in config.rewards
        if one.weight and one.model is not None and same_place(find_model(one.model, folder), place)
    ]
    if not own or facts.link != "identity":
        return 1.0, 0.0
    scales = [distribution(facts) if wants_normalized(one.settings) else (0.0, 1.0) for one in own]
    weighed = [(one.weight / deviation, center) for one, (center, deviation) in zip(own, scales, strict=True)]
    return (
        sum(weight * facts.target_std for weight, _ in weighed),
        sum(weight * (facts.target_mean - center) for weight, center in weighed),
    )


def same_place(one: str, other: str) -> bool:
    """Are two paths, or names on the Hub, the same model?"""
    return one == other or Path(one).resolve() == Path(other).resolve()


def critic_updates(config: RunConfig, critic: Critic | None) -> CriticUpdates | None:
    """The critic's learning rate, gradient bound and warm-up; None without a critic."""
    if critic is None:
        return None
    settings = config.critic or CriticConfig()
    rate = TIMES_FASTER * config.train.learning_rate if settings.learning_rate is None else settings.learning_rate
    return CriticUpdates(
        parameters=list(critic.parameters.values()),
        learning_rate=rate,
        max_grad_norm=settings.max_grad_norm,
        warmup_steps=settings.warmup_steps,
    )
