"""Models that score steps: a decoder with a linear head that gives a logit at the last token of each step.

They are transformers' own token classifiers with one label (`AutoModelForTokenClassification`): every token gets a
logit, and only those at the ends of steps mean anything. Loaded and saved as reward_head.py does it.

B rows, T tokens, L packed tokens, N ends of steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import HeadForm, load_reward_model, scores_at
from posttrain.types import Tokens

if TYPE_CHECKING:
    from posttrain.config import ModelConfig

STEP_SCORES = HeadForm(
    suffix="ForTokenClassification",
    opened_by=AutoModelForTokenClassification,
    architectures=MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    gives="score of steps",
    trained_by="algorithm process_reward_model",
)


def load_step_model(
    config: ModelConfig, *, seed: int = 0, trained: bool = False, device: str | torch.device | None = None
) -> LoadedModel:
    """As `load_reward_model`, with a head that is read at every step."""
    return load_reward_model(config, seed=seed, trained=trained, device=device, form=STEP_SCORES)


def scores_steps(place: str) -> bool:
    """Whether a folder, or a name on the Hub, holds such a model; False also for what is no model."""
    try:
        declared = AutoConfig.from_pretrained(place).architectures or []
    except (OSError, ValueError):
        return False
    return any(name.endswith(STEP_SCORES.suffix) for name in declared)


def step_scores(model: nn.Module, tokens: Tokens, ends_BT: Tensor) -> Tensor:
    """`[B, T]` logits with gradient where `ends_BT` is True, 0 elsewhere.

    The logit of a token is computed from the hidden state of that very token, which has seen all of its step.
    """
    ends_N = ends_BT.flatten().nonzero()[:, 0].cpu()
    scores_N = scores_at(model, tokens, ends_N)
    scores_BT = scores_N.new_zeros(ends_BT.numel()).index_put((ends_N.to(scores_N.device),), scores_N)
    return scores_BT.unflatten(0, ends_BT.shape)
