"""The critic: a linear head that reads the value of a state from a hidden state, and the trunk that computes it.

separate   a model of its own: a second set of all weights
lora       a second adapter on the policy's frozen base: policy, reference and critic in little more than one model
shared     the policy's own trunk: no second pass, but both losses train the same weights
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from peft import PeftModel
from torch import Tensor, nn

from posttrain.functional.masks import masked
from posttrain.models.adapters import active_adapter, adapter_scope, add_adapter
from posttrain.models.entering import enter
from posttrain.models.forward import token_values
from posttrain.models.forward_path import ForwardPath, body_path, causal_lm, forward_path
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import body_of, score_head
from posttrain.models.unread import device_of
from posttrain.types import Tokens

ADAPTER = "critic"


@dataclass
class Offset:
    """A constant that is added to every value. A head without a bias cannot learn it quickly."""

    value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Critic:
    """`critic(tokens, mask) -> [B, T]`: the value of the state before each scored token, with gradient."""

    kind: str
    head: nn.Linear
    parameters: dict[str, nn.Parameter]
    """The critic's own parameters, by name; a shared trunk's are not included."""
    trunk: nn.Module
    """The model whose hidden states the head reads."""
    path: Callable[[], ForwardPath]
    """Returns the forward path of the trunk."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context manager for every pass; it switches to the critic's adapter."""
    offset: Offset = field(default_factory=Offset)

    @property
    def in_policy_pass(self) -> bool:
        """Whether the policy's own pass computes the values, if it is given the head."""
        return self.kind == "shared"

    def describe(self) -> str:
        """Return the kind and the size, for the screen."""
        return f"{self.kind}, {sum(p.numel() for p in self.parameters.values()):,} trained parameters"

    def __call__(self, tokens: Tokens, mask_BT: Tensor) -> Tensor:
        with self.scope():
            values_BT = enter(self.trunk, lambda: token_values(self.path(), self.head, tokens, mask_BT))
        return masked(values_BT + self.offset.value, mask_BT) if self.offset.value else values_BT


def separate_critic(scoring: LoadedModel) -> Critic:
    """Return a critic with a model of its own. A reward model scores whole answers; here it gives a value per token."""
    model = scoring.model
    model.requires_grad_(True)

    def scope() -> AbstractContextManager[object]:
        model.train(torch.is_grad_enabled())  # without dropout, this only switches gradient checkpointing
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
    """Return a critic that is a head on the policy's trunk."""
    head = value_head(policy, seed=seed)
    return Critic(
        kind="shared",
        head=head,
        parameters=_named(head),
        trunk=policy,
        path=lambda: forward_path(causal_lm(policy)),
    )


def lora_critic(policy: PeftModel, *, rank: int, alpha: int, seed: int) -> Critic:
    """Return a critic on the policy's frozen base, with a second adapter that is active only in the critic's passes."""
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
    """Return a head from a hidden state of the policy's trunk to one number; float32, N(0, 1 / (D + 1)^2).

    So a new head gives values near 0, the first advantages nearly equal the returns, and the trunk still gets a
    gradient.
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
    """For `torch.utils.checkpoint`: use the critic's adapter when the backward pass recomputes a pass of the critic,
    although the pass itself is over by then."""
    active = active_adapter(policy)
    return nullcontext(), adapter_scope(policy, active) if active == ADAPTER else nullcontext()


def _named(head: nn.Linear) -> dict[str, nn.Parameter]:
    return {f"value_head.{name}": parameter for name, parameter in head.named_parameters()}
