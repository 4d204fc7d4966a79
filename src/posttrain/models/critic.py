"""The critic: a linear head that reads the value of a state from a hidden state, and the trunk that computes it.

separate   a model of its own: a second set of all weights
lora       a second adapter on the policy's frozen base: policy, reference and critic in little more than one model
shared     the policy's own trunk: no second pass, but both losses pull at the same weights
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from peft import PeftModel
from torch import Tensor, nn

from posttrain.models.adapters import active_adapter, adapter_scope, add_adapter
from posttrain.models.entering import enter
from posttrain.models.forward import token_values
from posttrain.models.forward_path import ForwardPath, body_path, causal_lm, forward_path
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import body_of, score_head
from posttrain.models.unread import device_of
from posttrain.types import Tokens

ADAPTER = "critic"


@dataclass(frozen=True, kw_only=True)
class Critic:
    """`critic(tokens, mask) -> [B, T]`: the value of the state before each scored token, with gradient."""

    kind: str
    head: nn.Linear
    parameters: dict[str, nn.Parameter]
    """The critic's own parts, by name; a shared trunk is not one of them."""
    trunk: nn.Module
    """The model whose hidden states the head reads."""
    path: Callable[[], ForwardPath]
    """How the trunk is run."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered around every pass: switches to the critic's adapter."""

    @property
    def in_policy_pass(self) -> bool:
        """The policy's own pass gives the values, when it is given the head."""
        return self.kind == "shared"

    def describe(self) -> str:
        """In words, with its size."""
        return f"{self.kind}, {sum(p.numel() for p in self.parameters.values()):,} trained parameters"

    def __call__(self, tokens: Tokens, mask_BT: Tensor) -> Tensor:
        with self.scope():
            return enter(self.trunk, lambda: token_values(self.path(), self.head, tokens, mask_BT))


def separate_critic(scoring: LoadedModel) -> Critic:
    """A model of its own: what scores whole answers, such as a reward model, reads a value before each token here."""
    model = scoring.model
    model.requires_grad_(True)

    def scope() -> AbstractContextManager[object]:
        model.train(torch.is_grad_enabled())  # without dropout this decides about gradient checkpointing alone
        return nullcontext()

    return Critic(
        kind="separate",
        head=score_head(model),
        parameters=dict(model.named_parameters()),
        trunk=model,
        path=lambda: body_path(model, body_of(model)),
        scope=scope,
    )


def shared_critic(policy: nn.Module, *, seed: int) -> Critic:
    """A head on the policy's trunk."""
    head = value_head(policy, seed=seed)
    return Critic(
        kind="shared",
        head=head,
        parameters=_named(head),
        trunk=policy,
        path=lambda: forward_path(causal_lm(policy)),
    )


def lora_critic(policy: PeftModel, *, rank: int, alpha: int, seed: int) -> Critic:
    """A head on the policy's frozen base with a second adapter, which is active in the passes of the critic only."""
    head = value_head(policy, seed=seed)
    adapter = add_adapter(policy, ADAPTER, rank=rank, alpha=alpha, seed=(seed + 1) % 2**63)
    return Critic(
        kind="lora",
        head=head,
        parameters=adapter | _named(head),
        trunk=policy,
        path=lambda: forward_path(causal_lm(policy)),
        scope=partial(adapter_scope, policy, ADAPTER),
    )


def value_head(policy: nn.Module, *, seed: int) -> nn.Linear:
    """One number from each hidden state that the head of the language model reads; float32, N(0, 1 / (D + 1)^2).

    So a new head gives values near 0, the first advantages are nearly the returns, and yet the trunk gets a gradient.
    """
    lm = causal_lm(policy)
    width: int = lm.get_output_embeddings().weight.shape[1]  # type: ignore[union-attr,assignment]
    dtype = torch.promote_types(lm.dtype, torch.float32)
    head: nn.Linear = nn.utils.skip_init(nn.Linear, width, 1, dtype=dtype)  # type: ignore[assignment]  # draws nothing
    nn.init.normal_(head.weight, std=1 / (width + 1), generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(head.bias)
    return head.to(device_of(lm))


def recompute_with_its_adapter(
    policy: PeftModel,
) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """For `torch.utils.checkpoint`: what a pass of the critic recomputes in the backward pass has the critic's adapter,
    although the pass itself is over by then."""
    active = active_adapter(policy)
    return nullcontext(), adapter_scope(policy, active) if active == ADAPTER else nullcontext()


def _named(head: nn.Linear) -> dict[str, nn.Parameter]:
    return {f"value_head.{name}": parameter for name, parameter in head.named_parameters()}
