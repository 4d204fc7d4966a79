"""The examiner of a mismatch, on a policy as a GPU holds it: float32 adapters on a bfloat16 base."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.engines.policies import lora_model, random_prompts, tiny_tokenizer
from torch import nn

from posttrain.engines.weights import merged_tensors, plain_copy
from posttrain.experience.deliveries import TrainerScores
from posttrain.experience.group import Group
from posttrain.models.compute import Compute
from posttrain.models.load import LoadedModel
from posttrain.models.policy import Forward, hold_in
from posttrain.train.mismatch import Examiner, whole_logprobs
from posttrain.types import Completion
from posttrain.watch.bisection import Row
from posttrain.watch.rounding import LEVELS

LEVEL = LEVELS[torch.bfloat16]


def examiner(model: Any, **asked: Any) -> Examiner:
    compute = Compute(dtype=torch.bfloat16)
    loaded = LoadedModel(
        model=model,
        tokenizer=tiny_tokenizer(),
        eos_ids=frozenset({2}),
        pad_id=0,
        context_length=96,
        device=torch.device("cpu"),
        compute=compute,
    )
    forward = Forward(model, temperature=1.0, chunk_tokens=64, compute=compute)
    return Examiner(loaded, forward, TrainerScores(forward, 0), 4096, **asked)


def drawn(model: nn.Module, version: int) -> list[Group]:
    """Groups of one completion each. An engine with this model reports that `version` drew them."""
    groups = []
    for prompt, answer in zip(random_prompts((3, 9, 5, 4)), random_prompts((16,) * 4, seed=1), strict=True):
        row = Row(prompt_ids=prompt.ids, ids=answer.ids, logprobs=(), places=tuple(range(len(answer.ids))))
        logprobs_TV = whole_logprobs(model, [row])
        said = logprobs_TV.gather(1, torch.tensor(answer.ids)[:, None])[:, 0].tolist()
        completion = Completion(
            ids=answer.ids, logprobs=tuple(said), versions=(version,) * len(said), finish_reason="length", text=""
        )
        groups.append(Group(prompt=prompt, completions=(completion,)))
    return groups


@pytest.mark.slow
@torch.no_grad()
def test_older_weights_are_found_beside_a_base_that_is_held_in_half_precision():
    model = hold_in(lora_model(), torch.bfloat16)
    older = {name: tensor.clone() for name, tensor in merged_tensors(model)}
    groups = drawn(plain_copy(model, torch.float32), version=2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.neg_()
    cause = examiner(model, published=lambda version: {1: older.items()})(groups, 2, LEVEL)
    assert (cause.kind, cause.evidence["value"]) == ("versions", 1), cause.text
    assert cause.evidence["left"]["version 1"] < 1e-5, "published tensors are float32, and are scored in float32"
