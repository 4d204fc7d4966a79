"""Promise 1 for preferences: the gradient of the parameters is the same packed or padded, whole or in parts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from tests.algorithms.test_preference_invariances import VARIANTS
from tests.end_to_end.test_same_gradient import forward, gradient, padded_forward
from tests.end_to_end.test_same_gradient import model as language_model  # noqa: F401  (a fixture)
from torch import Tensor

from posttrain.algorithms import Algorithm, RewardModel
from posttrain.data.collate import collate
from posttrain.types import Batch, Mismatched, Outputs, Tokens, count_totals

ROWS = 8
LENGTHS = [5, 1, 3, 8, 6, 4, 2, 7]
every_loss = pytest.mark.parametrize("algorithm", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(scope="module")
def attention() -> str:
    return "sdpa"


@pytest.fixture
def model(language_model):  # noqa: F811
    return language_model


def rows_of(seed: int) -> tuple[Tokens, Tensor, Tensor]:
    """Tokens, mask and reference of eight rows: four prompts with two answers of different lengths each."""
    dice = random.Random(seed)
    prompts = [[dice.randrange(3, 23) for _ in range(length)] for length in (3, 6, 4, 5)]
    rows = [(prompts[row % 4], [dice.randrange(3, 23) for _ in range(n)]) for row, n in enumerate(LENGTHS)]
    tokens, mask_BT = collate(rows, pad_id=0)
    noise_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return tokens, mask_BT, 0.3 * noise_BT - 3.1


def step_of(algorithm: Algorithm, model) -> Batch:
    """A whole optimizer step, with what its rows are told about each other."""
    tokens, mask_BT, ref_BT = rows_of(0)
    if algorithm.data_kind == "pairs":
        batch = Batch.from_pairs(mask_BT, ref_BT, tokens=tokens)
    else:
        other_tokens, other_mask_BT, other_ref_BT = rows_of(1)
        other = Mismatched(tokens=other_tokens, completion_mask_BT=other_mask_BT, ref_logprobs_BT=other_ref_BT)
        labels_B = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1])
        ratios_B = torch.tensor([0.4, -0.1, 0.3, 0.2, 0.0, 0.5, -0.2, 0.1], dtype=torch.float64)
        batch = Batch.from_labels(mask_BT, labels_B, ref_BT, ratios_B, mismatched=other, tokens=tokens)
    if "current" in algorithm.needs:
        batch = replace(batch, current_logprobs_BT=forward(model, batch).logprobs_BT.detach())
    return algorithm.prepare(batch)


@every_loss
def test_packed_and_padded_give_the_same_gradient(model, algorithm):
    batch = step_of(algorithm, model)
    packed, packed_loss = gradient(model, algorithm, batch, [list(range(ROWS))])
    padded, padded_loss = gradient(model, algorithm, batch, [list(range(ROWS))], way=padded_forward)
    assert packed.norm() > 1e-4, "a gradient of zero would agree with anything"
    torch.testing.assert_close(packed, padded, atol=1e-10, rtol=1e-9)
    assert packed_loss == pytest.approx(padded_loss, abs=1e-9)


@every_loss
def test_every_split_between_units_gives_the_same_gradient(model, algorithm):
    """Pairs stay together; what pairs them is decided before the split."""
    batch = step_of(algorithm, model)
    expected, expected_loss = gradient(model, algorithm, batch, [list(range(ROWS))])
    units = batch.units
    splits = {
        "one by one": units,
        "uneven": [[row for unit in units[:3] for row in unit], [row for unit in units[3:] for row in unit]],
        "backwards": [list(reversed(unit)) for unit in reversed(units)],
    }
    for name, split in splits.items():
        found, loss = gradient(model, algorithm, batch, split)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
        assert loss == pytest.approx(expected_loss, abs=1e-9)


def test_a_pair_that_is_torn_apart_is_refused(model):
    batch = step_of(VARIANTS["dpo"], model)
    with pytest.raises(ValueError, match="torn apart"):
        VARIANTS["dpo"].loss(forward(model, batch.rows([0, 5])), batch.rows([0, 5]), count_totals(batch))


def test_a_mean_of_micro_batch_means_would_be_noticed(model):
    algorithm = VARIANTS["orpo"]
    batch = step_of(algorithm, model)
    right, _ = gradient(model, algorithm, batch, [list(range(ROWS))])
    model.zero_grad()
    for unit in batch.units:
        micro = batch.rows(unit)
        loss, _ = algorithm.loss(forward(model, micro), micro, count_totals(micro))
        (loss / len(batch.units)).backward()
    wrong = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    assert (wrong - right).norm() > 0.01 * right.norm()


def test_a_reward_model_reads_its_pairs_packed_or_one_by_one():
    """The loss of the pairs by themselves adds up to that of the step."""
    scores_B = torch.tensor([1.2, -0.3, 0.8, 0.4, 0.1, 0.8], dtype=torch.float64)
    batch = Batch.from_pairs(torch.ones(6, 3, dtype=torch.bool))
    totals, zeros_BT = count_totals(batch), torch.zeros(6, 3)
    whole, _ = RewardModel().loss(Outputs(zeros_BT, scores_B=scores_B), batch, totals)
    parts = [
        RewardModel().loss(Outputs(zeros_BT[unit], scores_B=scores_B[unit]), batch.rows(unit), totals)[0]
        for unit in batch.units
    ]
    assert whole.item() == pytest.approx(0.6590876996, rel=1e-8)
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-12)
