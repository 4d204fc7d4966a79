"""Recomputed activations: fewer values are stored, the gradient is the same."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.models.tiny_architectures import tiny_model
from torch import Tensor

from posttrain.config import LoRAConfig
from posttrain.models.adapters import apply_lora
from posttrain.models.forward import token_logprobs
from posttrain.models.modes import recompute_activations
from posttrain.types import Tokens


@pytest.mark.parametrize("lora", [False, True])
def test_less_is_kept_the_gradient_stays_and_nothing_deprecated_is_called(lora):
    model = tiny_model("llama, grouped heads")
    trained = apply_lora(model, LoRAConfig(rank=2)) if lora else model
    tokens = Tokens(input_ids_BT=torch.arange(3, 35).reshape(2, 16) % 20, lengths_B=torch.tensor([16, 11]))
    mask_BT = (torch.arange(16) >= 4) & (torch.arange(16) < tokens.lengths_B[:, None])

    def step() -> tuple[int, list[Tensor]]:
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            loss = token_logprobs(trained.train(), tokens, mask_BT, temperature=1.0).logprobs_BT.sum()
        return sum(kept), list(torch.autograd.grad(loss, [p for p in trained.parameters() if p.requires_grad]))

    kept, expected = step()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*checkpointing_enable.*")
        recompute_activations(trained)
    kept_now, actual = step()
    assert kept_now < kept / 2
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
