"""The parts of a run as objects, for your own training loop: without a config and without a run folder.

    policy = Policy("Qwen/Qwen3-0.6B")                      # or Policy((model, tokenizer))
    groups = policy.sample(policy.prompts(rows), Sampling(group_size=8, max_completion_length=256), seed=step)
    experience = policy.experience(groups, rewards)         # rewards: `build_rewards([...])`
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
from os import PathLike, fspath

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.config import DataConfig, ModelConfig
from posttrain.config import SamplingConfig as Sampling
from posttrain.data.given import Data, given_rows
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.engines import make_sampler
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
        float32. Its dropout is set to 0. `temperature` divides the logits in both sampling and training. Raises
        ConfigError or ModelError."""
        if isinstance(model, str | PathLike):
            self.loaded = load_model(resolve_model_path(ModelConfig(path=fspath(model)), 0))
        else:
            self.loaded = LoadedModel.of(*model_and_tokenizer(model))
            disable_dropout(self.loaded.model)
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
        at_own = sampling.model_copy(update={"temperature": self.temperature})
        completions = self.sampler.generate(prompts, at_own, group_size=sampling.group_size, seed=seed)
        return groups_of(prompts, completions, None if rewards is None else rewards.score(prompts, completions))

    def experience(self, groups: Sequence[Group], rewards: RewardSet | None = None) -> Experience:
        """The input of an algorithm: tokens, log-probabilities and, for scored groups, rewards."""
        weights = None if rewards is None else [component.weight for component in rewards.components]
        return experience_of(groups, weights=weights, pad_id=self.loaded.pad_id, version=self.sampler.version)

    def microbatches(self, batch: Batch, *, tokens: int) -> Iterator[Batch]:
        """Split a batch into parts of at most `tokens` tokens. The losses and gradients of the parts add up to those of
        the batch."""
        return (micro for _, micro in Split(self._forward, tokens)(batch))

    def __call__(self, batch: Batch) -> Outputs:
        """Log-probabilities `[B, T]` of the trained tokens, with gradient. The entropies are `outputs.entropy_BT`."""
        return self._forward(batch)

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> torch.Tensor:
        """The log-probabilities `[B, T]` without gradient, for `old_logprobs_BT` in several updates on one batch."""
        return self._forward(batch).logprobs_BT
