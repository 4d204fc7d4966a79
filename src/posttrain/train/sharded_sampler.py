"""A sampler for a sharded policy: a whole copy of the model in the process of the first rank.

The copy is read from the model's folder when it is first needed, and receives the trained weights tensor by tensor. So
a run on several devices needs no further settings if one process has room for the model in the precision in which it
decodes. With engines (`rollout.engines`, `rollout.engine: vllm`) there is no such copy, and all devices sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from posttrain.engines.local import LocalSampler
from posttrain.engines.sampler import Receipt, SamplingSettings
from posttrain.engines.weights import merged_tensors
from posttrain.models.compute import Compute
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.named import resolve_model_path
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.config import RunConfig


class ShardedPolicySampler:
    """Samples from a whole copy of a sharded policy. Implements `Sampler` and `HasRows`."""

    owns_weights = True

    def __init__(self, config: RunConfig, policy: LoadedModel, *, present: bool) -> None:
        """`present`: it samples with the present weights, and copies them before each call."""
        self.config, self.policy, self.present = config, policy, present
        self.tokenizer, self.version = policy.tokenizer, 0

    @cached_property
    def copy(self) -> LocalSampler:
        """The sampler's own copy of the whole model."""
        loaded = load_model(resolve_model_path(self.config.model, self.config.seed), device=self.policy.device)
        loaded.model.requires_grad_(False)
        compute = Compute(dtype=self.policy.compute_dtype, precision=self.policy.compute.precision)
        return LocalSampler.of(replace(loaded, compute=compute), "taken")

    @property
    def context_length(self) -> int | None:
        return self.policy.context_length

    @property
    def context_reason(self) -> str:
        return self.policy.context_reason

    @property
    def note(self) -> str:
        return self.copy.note

    def up_to_date(self) -> LocalSampler:
        """See `HasRows`."""
        if self.present:
            self.copy.overwrite(merged_tensors(self.policy.model), self.version)
        return self.copy

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """See `Sampler`."""
        return self.up_to_date().generate(prompts, sampling, group_size=group_size, seed=seed)

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """See `Sampler`."""
        return self.up_to_date().each(prompts, sampling, group_size=group_size, seed=seed)

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """See `Sampler`."""
        return self.up_to_date().score(prompt_ids, completion_ids, temperature=temperature)

    def deliver(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Receipt:
        """See `Sampler`."""
        self.version = version
        return self.copy.overwrite(tensors, version)

    def probe(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """See `Sampler`."""
        return self.copy.probe(prompt_ids, completion_ids, temperature=temperature)

    def routes(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[Tensor]:
        """See `Sampler`."""
        return self.copy.routes(prompt_ids, completion_ids)

    def held(self) -> Iterator[tuple[str, Tensor]]:
        """See `Sampler`."""
        return self.copy.held()
