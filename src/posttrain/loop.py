"""The parts of a run as objects, for your own training loop: without a config and without a run folder.

    policy = Policy("Qwen/Qwen3-0.6B")                      # or Policy((model, tokenizer))
    rewards = build_rewards(["exact_match"])
    sampling = Sampling(group_size=8, max_completion_length=256)
    groups = policy.sample(policy.prompts(rows), sampling, rewards, seed=step)
    experience = policy.experience(groups, rewards)
    batch = algorithm.prepare(algorithm.to_batch(experience))
    totals = count_totals(batch)
    for micro in policy.microbatches(batch, tokens=4096):
        loss, metrics = algorithm.loss(policy(micro), micro, totals)
        loss.backward()

Sampler and policy are one model, so it always samples with the current weights. The proofs, records, checkpoints and
guards of a run are in `posttrain.train`; use this module for a loop that no config can express. docs/loop.md has a
complete loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.config import DataConfig, ModelConfig
from posttrain.config import SamplingConfig as Sampling
from posttrain.config.rules import cut_distribution
from posttrain.data.given import Data, given_rows
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.engines import make_sampler
from posttrain.errors import ConfigError
from posttrain.experience.assemble import experience_of
from posttrain.experience.group import Group, groups_of
from posttrain.models.given import model_and_tokenizer
from posttrain.models.load import LoadedModel, disable_dropout, load_model
from posttrain.models.microbatches import Split
from posttrain.models.named import resolve_model_path
from posttrain.models.policy import Forward
from posttrain.rewards import Reward, RewardSet, build_rewards
from posttrain.types import Batch, Experience, Outputs, Prompt, count_totals

__all__ = ["Group", "Policy", "Reward", "RewardSet", "Sampling", "build_rewards", "count_totals"]


@dataclass(frozen=True, kw_only=True)
class Sampled(Group):
    """A group that remembers how it was sampled: answers to evaluate may be sampled in ways that training excludes."""

    sampling: Sampling


class Policy:
    """A language model that samples and is trained."""

    def __init__(
        self,
        model: str | PathLike[str] | tuple[PreTrainedModel, PreTrainedTokenizerBase],
        *,
        temperature: float = 1.0,
        chunk_tokens: int = 1024,
    ) -> None:
        """`model` is a folder, a name (also `tiny:sort`), or a model and a tokenizer as transformers loads them, in
        float32. It is put into evaluation mode, and its dropout is set to 0. `temperature` divides the logits in both
        sampling and training. Raises ConfigError or ModelError."""
        if isinstance(model, str | PathLike):
            self.loaded = load_model(resolve_model_path(ModelConfig(path=fspath(model)), 0))
        else:
            self.loaded = LoadedModel.of(*model_and_tokenizer(model))
            disable_dropout(self.loaded.model.eval())
        self.temperature = temperature
        self.sampler = make_sampler(self.loaded)
        compute = self.loaded.compute
        self._forward = Forward(self.model, temperature=temperature, chunk_tokens=chunk_tokens, compute=compute)

    @property
    def model(self) -> PreTrainedModel:
        """The transformers model."""
        return self.loaded.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that an optimizer trains."""
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def prompts(self, rows: Data, *, max_prompt_length: int | None = None) -> Sequence[Prompt]:
        """Render and tokenise the column `prompt` of rows, which holds text or chat messages. The other columns go to
        the rewards. `rows` are dicts, a `datasets.Dataset`, or a source such as `task:sort`."""
        data = DataConfig(train="rows")
        longest = max_prompt_length or self.loaded.context_length or 2**31
        renderer = Renderer.of(data, self.tokenizer, {})
        rendered = render_prompts(
            given_rows(rows), data, renderer, max_prompt_length=longest, what=self.loaded.named("the rows")
        )
        return rendered.prompts

    def sample(
        self, prompts: Sequence[Prompt], sampling: Sampling, rewards: RewardSet | None = None, *, seed: int
    ) -> list[Group]:
        """Sample `sampling.group_size` completions of each prompt, and score them if `rewards` are given. The same seed
        gives the same completions: use another one in each step."""
        _require_built(rewards, "None")
        at_own = self._at_own_temperature(sampling)
        completions = self.sampler.generate(prompts, at_own, group_size=sampling.group_size, seed=seed)
        groups = groups_of(prompts, completions, None if rewards is None else rewards.score(prompts, completions))
        return [Sampled(**vars(group), sampling=at_own) for group in groups]

    def experience(self, groups: Sequence[Group], rewards: RewardSet | Tensor | None = None) -> Experience:
        """The input of an algorithm: tokens, log-probabilities and rewards.

        `rewards` scored the groups, or are your own numbers `[P, G]`, NaN for a completion without a reward. If the
        groups have no scores and there are no `rewards`, all rewards are NaN, and algorithms that learn from rewards
        refuse the experience. Raises ConfigError if groups and rewards do not belong together, or if training excludes
        how they were sampled.
        """
        for group in groups:
            if isinstance(group, Sampled) and (error := cut_distribution(group.sampling)) is not None:
                raise error
        if not isinstance(rewards, Tensor):
            _require_built(rewards, "a tensor of your own numbers [P, G]")
            _require_same(groups, rewards)
        weights = [one.weight for one in rewards.components] if isinstance(rewards, RewardSet) else None
        made = experience_of(groups, weights=weights, pad_id=self.loaded.pad_id, version=self.sampler.version)
        if isinstance(rewards, Tensor):
            return replace(made, rewards_PG=rewards.float(), scored_PG=~rewards.isnan())
        return made if rewards is not None else replace(made, rewards_PG=torch.full_like(made.rewards_PG, torch.nan))

    def _at_own_temperature(self, sampling: Sampling) -> Sampling:
        """Return the settings with the policy's temperature. Refuse settings that would change nothing here."""
        if "temperature" in sampling.model_fields_set and sampling.temperature != self.temperature:
            raise ConfigError(
                given=f"sampling.temperature = {sampling.temperature}, but the policy samples and trains at "
                f"{self.temperature}",
                allowed="the temperature of the policy",
                fix=f"Set Policy(model, temperature={sampling.temperature}), or leave it out of Sampling."
                if sampling.temperature > 0
                else "Leave it out of Sampling. posttrain.evaluate gives greedy answers.",
            )
        for name in ("max_turns", "max_trajectory_length"):
            if getattr(sampling, name) != Sampling.model_fields[name].default:
                raise ConfigError(
                    given=f"sampling.{name} = {getattr(sampling, name)}, but a policy answers in one turn",
                    fix=f"Leave {name} out. posttrain.train samples trajectories of several turns.",
                )
        return sampling.model_copy(update={"temperature": self.temperature})

    def microbatches(self, batch: Batch, *, tokens: int) -> Iterator[Batch]:
        """Split a batch into parts of at most `tokens` tokens. The losses and gradients of the parts add up to those of
        the batch."""
        return (micro for _, micro in Split(self._forward, tokens)(batch))

    def __call__(self, batch: Batch) -> Outputs:
        """Log-probabilities `[B, T]` of the trained tokens, with gradient. The entropies are `outputs.entropy_BT`."""
        return self._forward(batch)

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """The log-probabilities `[B, T]` without gradient, for `old_logprobs_BT` in several updates on one batch."""
        return self._forward(batch).logprobs_BT


def _require_built(rewards: Any, otherwise: str) -> None:
    """Raise ConfigError unless these are built rewards or None. `otherwise` names what is allowed besides."""
    if rewards is not None and not isinstance(rewards, RewardSet):
        raise ConfigError(
            given=f"rewards of type {type(rewards).__name__}",
            allowed=f"what build_rewards([...]) returns, or {otherwise}",
            fix='Build them: with build_rewards(["exact_match"]) as rewards. For experience, make a tensor of numbers: '
            "torch.tensor(numbers).",
        )


def _require_same(groups: Sequence[Group], rewards: RewardSet | None) -> None:
    """Raise ConfigError unless these rewards, or none, scored all groups."""
    given = () if rewards is None else rewards.labels
    for group in groups:
        found = () if group.scores is None else tuple(group.scores.parts)
        if found != given:
            raise ConfigError(
                given=f"groups with scores by {_listed(found)}, and experience(groups, rewards) with {_listed(given)}",
                allowed="the rewards with which the groups were sampled",
                fix="Pass the same rewards to sample(prompts, sampling, rewards, seed=...) and experience(groups, "
                "rewards).",
            )


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "no reward"
