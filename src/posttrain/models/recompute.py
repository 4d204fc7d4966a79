"""Activations that are computed again in the backward pass, in place of being kept."""

from __future__ import annotations

from typing import Any

from torch import nn


def recompute_activations(model: nn.Module, **settings: Any) -> None:
    """Keep of each layer its input alone; `settings` go to `torch.utils.checkpoint`.

    The switch got another name in transformers 5.23, and the former one goes with version 6; adapters pass both on.
    """
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, **settings})
