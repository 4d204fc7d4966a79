"""Models that score: their heads, and the pass from a batch to a score per row or per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.models.adapters import apply_lora
from posttrain.models.forward_path import shares_prefixes
from posttrain.models.load import LoadedModel
from posttrain.models.modes import recompute_activations
from posttrain.models.named import resolve_model_path
from posttrain.models.reward_head import load_reward_model, load_step_model, row_scores, score_head, step_scores
from posttrain.types import Batch, Outputs

if TYPE_CHECKING:
    from posttrain.config import RunConfig

Score = Callable[[LoadedModel, Batch], dict[str, Tensor]]
"""Returns fields of `Outputs`."""


def scores_of_rows(loaded: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    assert batch.tokens is not None, "a batch without token ids cannot go through the model"
    return {"scores_B": row_scores(loaded.model, batch.tokens)}


def scores_of_steps(loaded: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    assert batch.tokens is not None, "a batch without token ids cannot go through the model"
    return {"scores_BT": step_scores(loaded.model, batch.tokens, batch.completion_mask_BT)}


class ScoringForward:
    """Batch -> Outputs with a score per row or per step. There are no log-probabilities; these fields are 0."""

    def __init__(self, loaded: LoadedModel, score: Score) -> None:
        self.loaded, self.score = loaded, score

    @property
    def shares_prefixes(self) -> bool:
        """Whether the common beginning of rows is computed once."""
        return shares_prefixes(self.loaded.model)

    def __call__(self, batch: Batch) -> Outputs:
        with self.loaded.compute.scope(), self.loaded.autocast():
            scores = self.score(self.loaded, batch)
        device = next(iter(scores.values())).device
        return Outputs(logprobs_BT=torch.zeros(batch.completion_mask_BT.shape, device=device), **scores)


@dataclass(frozen=True, kw_only=True)
class Head:
    """The load function and the score function of one kind of scoring model."""

    load: Callable[..., LoadedModel]
    score: Score


HEADS = {
    "pairs": Head(load=load_reward_model, score=scores_of_rows),
    "ratings": Head(load=load_reward_model, score=scores_of_rows),
    "steps": Head(load=load_step_model, score=scores_of_steps),
}
"""Heads by the kind of the data."""


def load_scoring_model(config: RunConfig, head: Head, *, in_parts: bool = False) -> LoadedModel:
    """Return the model to train. Its head is new unless the folder holds a trained one of its kind."""
    loaded = head.load(resolve_model_path(config.model, config.seed), seed=config.seed, in_parts=in_parts)
    if config.lora is not None:
        adapted = apply_lora(loaded.model, config.lora, seed=config.seed, head=score_head(loaded.model))
        loaded = replace(loaded, model=adapted)
    loaded.model.eval()
    if config.train.gradient_checkpointing:
        recompute_activations(loaded.model)
    return loaded
