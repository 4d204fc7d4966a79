"""A row whose context restarts: the model sees several sequences, all other code sees one row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model
from transformers import AutoModelForCausalLM

from posttrain.functional.reductions import sequence_mean
from posttrain.models.forward import token_logprobs
from posttrain.models.microbatches import microbatches
from posttrain.models.restarts import needed_in_parts
from posttrain.types import Batch, Tokens

IDS_BT = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 20, 21, 22, 0, 0, 0]])
LENGTHS_B = torch.tensor([9, 6])
SCORED_BT = torch.tensor([[0, 0, 1, 1, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0]]).bool()
STARTS_BT = torch.zeros(2, 9, dtype=torch.bool)
STARTS_BT[0, 4] = True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tiny_model(tmp_path_factory.mktemp("model"))
    return AutoModelForCausalLM.from_pretrained(folder).double().eval()


def tokens(starts_BT: torch.Tensor | None) -> Tokens:
    return Tokens(input_ids_BT=IDS_BT, lengths_B=LENGTHS_B, starts_BT=starts_BT)


def test_each_part_is_scored_as_a_row_of_its_own(model):
    found_BT = token_logprobs(model, tokens(STARTS_BT), SCORED_BT, temperature=1.0).logprobs_BT
    parts = [IDS_BT[0, :4], IDS_BT[0, 4:], IDS_BT[1, :6]]
    with torch.no_grad():
        alone = [model(part[None]).logits[0].log_softmax(-1)[:-1].gather(-1, part[1:, None])[:, 0] for part in parts]
    expected_BT = torch.zeros(2, 9, dtype=torch.float64)
    expected_BT[0, 1:4], expected_BT[0, 5:], expected_BT[1, 1:6] = alone
    torch.testing.assert_close(found_BT, torch.where(SCORED_BT, expected_BT, 0.0), atol=1e-10, rtol=0)


def test_without_a_new_beginning_the_row_sees_all_of_itself(model):
    whole_BT = token_logprobs(model, tokens(None), SCORED_BT, temperature=1.0).logprobs_BT
    cut_BT = token_logprobs(model, tokens(STARTS_BT), SCORED_BT, temperature=1.0).logprobs_BT
    assert torch.equal(whole_BT[1], cut_BT[1])
    assert torch.equal(whole_BT[0, :4], cut_BT[0, :4])
    assert (whole_BT[0, 7:] - cut_BT[0, 7:]).abs().min() > 1e-6


def test_the_gradient_is_the_same_however_rows_are_split(model):
    """The mean of each row is taken over all of its parts, as in a loss, which treats the row as one sequence."""
    batch = Batch.from_examples(SCORED_BT, tokens=tokens(STARTS_BT))
    gradients = []
    for budget in (1, 1000):
        model.zero_grad()
        for _, part in microbatches(batch, budget):
            assert part.tokens is not None
            logprobs_BT = token_logprobs(model, part.tokens, part.completion_mask_BT, temperature=1.0).logprobs_BT
            sequence_mean(logprobs_BT, part.completion_mask_BT, 2).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-12, rtol=0)


def test_the_tokens_that_are_computed_are_those_of_the_parts_before_their_last_scored_ones():
    assert needed_in_parts(tokens(STARTS_BT), SCORED_BT).tolist() == [3 + 4, 5]
