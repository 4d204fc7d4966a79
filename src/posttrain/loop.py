"""A loop of your own: what a run is made of, as objects, without a config and without a run folder.

    policy = Policy("Qwen/Qwen3-0.6B")                      # or Policy((model, tokenizer))
    groups = policy.sample(policy.prompts(rows), Sampling(group_size=8, max_completion_length=256), seed=step)
    experience = policy.experience(groups, rewards)         # rewards: `build_rewards([...])`
    batch = algorithm.prepare(algorithm.to_batch(experience))
    totals = count_totals(batch)
    for micro in policy.microbatches(batch, tokens=4096):
        loss, metrics = algorithm.loss(policy(micro), micro, totals)
        loss.backward()

Sampler and policy are one model: it always samples with the weights of now. What a run proves, records, resumes and
guards is in `posttrain.train`; this is for what no config says. docs/loop.md has a whole loop.
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
        """`model` is a folder, a name (`tiny:sort` too), or model and tokenizer as transformers loads them, in float32;
        its dropout is set to 0. `temperature` divides the logits in sampling and in training alike. Raises ModelError.
        """
        if isinstance(model, tuple):
            self.loaded = LoadedModel.of(*model)
            disable_dropout(self.loaded.model)
        else:
            self.loaded = load_model(resolve_model_path(ModelConfig(path=fspath(model)), 0))
        self.temperature = temperature
        self.sampler = make_sampler(self.loaded)
        compute = self.loaded.compute
        self._forward = Forward(self.model, temperature=temperature, chunk_tokens=chunk_tokens, compute=compute)

    @property
    def model(self) -> PreTrainedModel:
        """The module of transformers."""
        return self.loaded.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those that an optimizer trains."""
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def prompts(self, rows: Data, *, max_prompt_length: int | None = None) -> Sequence[Prompt]:
        """Rows with a column `prompt`, text or chat messages, as token ids; other columns go to the rewards. `rows` are
        dicts, a `datasets.Dataset`, or where to read them, as `task:sort`."""
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
        """`sampling.group_size` completions of each prompt, scored where there are `rewards`. The same seed gives the
        same completions; take another in each step."""
        at_own = sampling.model_copy(update={"temperature": self.temperature})
        completions = self.sampler.generate(prompts, at_own, group_size=sampling.group_size, seed=seed)
        return groups_of(prompts, completions, None if rewards is None else rewards.score(prompts, completions))

    def experience(self, groups: Sequence[Group], rewards: RewardSet | None = None) -> Experience:
        """The input of an algorithm: tokens, log-probabilities and, for scored groups, rewards."""
        weights = None if rewards is None else [component.weight for component in rewards.components]
        return experience_of(groups, weights=weights, pad_id=self.loaded.pad_id, version=self.sampler.version)

    def microbatches(self, batch: Batch, *, tokens: int) -> Iterator[Batch]:
        """Parts of at most so many tokens; their losses and gradients add up to those of the batch."""
        return (micro for _, micro in Split(self._forward, tokens)(batch))

    def __call__(self, batch: Batch) -> Outputs:
        """`[B, T]` log-probabilities of the trained tokens, with gradient; entropies are `outputs.entropy_BT`."""
        return self._forward(batch)

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> torch.Tensor:
        """`[B, T]` the same numbers as constants, as `old_logprobs_BT` of several updates with one batch."""
        return self._forward(batch).logprobs_BT
