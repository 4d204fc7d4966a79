"""The forward pass of a run: a model with its temperature, its precision and its critic, from a batch to outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from posttrain.models.adapters import apply_lora
from posttrain.models.compute import Compute
from posttrain.models.critic import Critic
from posttrain.models.forward import TokenLogprobs
from posttrain.models.forward_path import shares_prefixes
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.modes import recompute_activations
from posttrain.models.named import resolve_model_path
from posttrain.types import Batch, Outputs

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import RunConfig


class Forward:
    """Batch -> Outputs through one model: the trainer's one definition of a log-probability.

    `scope` is entered around every pass: for the reference it is what switches the adapters off. With a `critic` the
    outputs have its values, too; with `top1`, whether each token is the most likely one.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        chunk_tokens: int,
        compute: Compute,
        entropy: Literal["none", "value", "gradient"] = "none",
        scope: Callable[[], AbstractContextManager[object]] = nullcontext,
        critic: Critic | None = None,
        top1: bool = False,
    ) -> None:
        self.model, self.temperature, self.chunk_tokens = model, temperature, chunk_tokens
        self.compute, self.entropy, self.scope, self.critic = compute, entropy, scope, critic
        self.top1, self.logprobs = top1, TokenLogprobs(model)

    def __call__(self, batch: Batch) -> Outputs:
        assert batch.tokens is not None, "a batch without token ids cannot go through the model"
        critic = self.critic
        with self.scope(), self.computing():
            outputs = self.logprobs(
                batch.tokens,
                batch.completion_mask_BT,
                temperature=self.temperature,
                with_entropy=self.entropy != "none",
                with_top1=self.top1,
                value_head=critic.head if critic is not None and critic.in_policy_pass else None,
                chunk_tokens=self.chunk_tokens,
            )
        if critic is not None and not critic.in_policy_pass:
            outputs = replace(outputs, values_BT=self.values(batch))
        if outputs.entropy_BT is None or self.entropy == "gradient":
            return outputs
        return replace(outputs, entropy_BT=outputs.entropy_BT.detach())

    def values(self, batch: Batch) -> Tensor:
        """`[B, T]` the critic's values alone, in a pass of its trunk and no other."""
        assert batch.tokens is not None, "a batch without token ids cannot go through the model"
        assert self.critic is not None, "values are asked of a forward pass that has a critic"
        with self.computing():
            return self.critic(batch.tokens, batch.completion_mask_BT)

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.compute.dtype

    @property
    def shares_prefixes(self) -> bool:
        """What rows have in common is computed once, by the critic as well where there is one."""
        return shares_prefixes(self.model) and (self.critic is None or self.critic.path().shares_prefixes)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the precision and the way that were chosen."""
        dtype, device = self.compute_dtype, next(self.model.parameters()).device
        with self.compute.scope(), torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            yield

    def under(
        self,
        model: nn.Module,
        scope: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        temperature: float | None = None,
        critic: Critic | None = None,
    ) -> Forward:
        """The same log-probabilities, without entropy, of another model, within a scope or at another temperature.

        Without values, unless a critic is given."""
        return Forward(
            model,
            temperature=self.temperature if temperature is None else temperature,
            chunk_tokens=self.chunk_tokens,
            compute=self.compute,
            scope=scope,
            critic=critic,
        )


def load_policy(config: RunConfig) -> LoadedModel:
    """The model to train: master weights in float32, adapters when configured."""
    loaded = load_model(resolve_model_path(config.model, config.seed))
    if config.lora is not None:
        loaded = replace(loaded, model=apply_lora(loaded.model, config.lora, seed=config.seed))
    loaded.model.eval()  # new adapters start in training mode; dropout is for the update alone
    if config.train.gradient_checkpointing:
        recompute_activations(loaded.model)
    return loaded


def policy_forward(
    config: RunConfig, loaded: LoadedModel, algorithm: Algorithm, critic: Critic | None = None
) -> Forward:
    return Forward(
        loaded.model,
        temperature=config.sampling.temperature if algorithm.data_kind == "prompts" else 1.0,
        chunk_tokens=config.train.logprob_chunk_tokens,
        compute=loaded.compute,
        entropy="gradient" if "entropy" in algorithm.needs else "value",
        critic=critic,
        top1=algorithm.data_kind == "examples",
    )
