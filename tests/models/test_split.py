"""No pass exceeds its token budget, with or without shared prefixes, in any kind of call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.models.tiny_architectures import VOCAB, tiny_model

from posttrain.data.collate import collate
from posttrain.evaluate.row_scores import score_rows
from posttrain.models.compute import Compute
from posttrain.models.critic import shared_critic
from posttrain.models.forward_path import forward_path
from posttrain.models.microbatches import Split
from posttrain.models.packing import needed_tokens
from posttrain.models.policy import Forward
from posttrain.types import Batch, Example, Outputs

SHARES, DOES_NOT = "llama, grouped heads", "lfm2, convolutions"
BUDGET, PROMPT, ANSWERS = 64, 20, 8


def rows() -> list[tuple[list[int], list[int]]]:
    ids = torch.randint(3, VOCAB, (PROMPT + 3 * ANSWERS,), generator=torch.Generator().manual_seed(0)).tolist()
    return [(ids[:PROMPT], ids[PROMPT + 3 * n :][:3]) for n in range(ANSWERS)]


def group() -> Batch:
    tokens, mask_BT = collate(rows(), pad_id=0)
    return Batch(completion_mask_BT=mask_BT, groups_B=torch.zeros(ANSWERS, dtype=torch.long), tokens=tokens)


def policy(name: str) -> Forward:
    model = tiny_model(name, dtype=torch.float32)
    return Forward(model, temperature=1.0, chunk_tokens=64, compute=Compute())


def test_a_group_goes_together_where_its_prompt_is_computed_once_and_is_split_where_it_is_not():
    assert len(list(Split(policy(SHARES), BUDGET)(group()))) == 1
    parts = [micro for _, micro in Split(policy(DOES_NOT), BUDGET)(group())]
    assert max(int(needed_tokens(part.completion_mask_BT).sum()) for part in parts) <= BUDGET
    assert sum(part.num_rows for part in parts) == ANSWERS


def test_the_trunk_of_a_critic_that_cannot_share_decides_as_well():
    own, other = policy(SHARES), policy(DOES_NOT)
    critic = shared_critic(own.model, seed=0)
    assert own.under(own.model, critic=critic).shares_prefixes
    elsewhere = replace(critic, path=lambda: forward_path(other.model))
    assert not own.under(own.model, critic=elsewhere).shares_prefixes


@pytest.mark.parametrize("name", [SHARES, DOES_NOT])
def test_an_evaluation_pass_keeps_to_the_budget(name):
    forward, computed = policy(name), []

    class Counted(Forward):
        def __call__(self, batch: Batch) -> Outputs:
            assert batch.tokens is not None
            computed.append(forward_path(self.model).pack(batch.tokens, batch.completion_mask_BT).num_tokens)
            return super().__call__(batch)

    examples = [
        Example(index=n, input_ids=(*prompt, *answer), completion_mask=(False,) * len(prompt) + (True,) * len(answer))
        for n, (prompt, answer) in enumerate(rows())
    ]
    counted = Counted(forward.model, temperature=1.0, chunk_tokens=64, compute=Compute())
    with torch.no_grad():
        score_rows(counted, examples, pad_id=0, tokens_per_microbatch=BUDGET)
    assert max(computed) <= BUDGET
    assert len(computed) == (1 if name == SHARES else 4)
