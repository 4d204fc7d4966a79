"""Promise 1 for preferences: the gradient of the parameters is the same packed or padded, whole or in parts."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.algorithms.test_preference_invariances import VARIANTS
from tests.catalogue import few
from tests.end_to_end.test_same_gradient import model as language_model  # noqa: F401  (a fixture)
from torch import Tensor

from posttrain.algorithms import KTO, Algorithm, OnlineDPO, RewardModel
from posttrain.algorithms.kto import reference_point
from posttrain.data.collate import collate
from posttrain.models.compute import Compute
from posttrain.models.microbatches import Split
from posttrain.models.policy import Forward
from posttrain.testing.on_a_model import forward, gradient, padded_forward
from posttrain.train.passes import MismatchedLogRatios
from posttrain.types import Batch, Experience, Mismatched, Outputs, Tokens, count_totals

ROWS = 8
LENGTHS = [5, 1, 3, 8, 6, 4, 2, 7]
ONLINE = {f"online_dpo-{pairs}": OnlineDPO(pairs=pairs) for pairs in ("best_worst", "all")}
LOSSES: dict[str, Algorithm] = VARIANTS | ONLINE
OF_EACH_KIND = ("dpo", "ipo", "rpo", "simpo", "orpo", "kto", "bco", "aot", *ONLINE)
"""Losses with and without a reference, likelihood, length, mismatched answers and matched pairs. The others read the
same log-probabilities. For each of them test_preference_invariances.py tears the step apart without a model."""
every_loss = pytest.mark.parametrize("name", few(LOSSES, *OF_EACH_KIND))
SPLIT = ("dpo", "simpo", "kto", "aot", "online_dpo-all")
"""A loss of each kind of unit, with and without a reference."""


@pytest.fixture(scope="module")
def attention() -> str:
    return "sdpa"


@pytest.fixture
def model(language_model):  # noqa: F811
    return language_model


def rows_of(seed: int) -> tuple[Tokens, Tensor, Tensor]:
    """Return tokens, mask and reference of eight rows: four prompts, each with two answers of different lengths."""
    dice = random.Random(seed)
    prompts = [[dice.randrange(3, 23) for _ in range(length)] for length in (3, 6, 4, 5)]
    rows = [(prompts[row % 4], [dice.randrange(3, 23) for _ in range(n)]) for row, n in enumerate(LENGTHS)]
    tokens, mask_BT = collate(rows, pad_id=0)
    noise_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return tokens, mask_BT, 0.3 * noise_BT - 3.1


def sampled() -> Experience:
    """Return two prompts with four completions each. One completion has no score."""
    dice = random.Random(2)
    prompts = [[dice.randrange(3, 23) for _ in range(length)] for length in (3, 6)]
    rows = [(prompts[row // 4], [dice.randrange(3, 23) for _ in range(n)]) for row, n in enumerate(LENGTHS)]
    tokens, mask_BT = collate(rows, pad_id=0)
    noise_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    scores = [[1.0, 0.0, 0.5, float("nan")], [0.2, 0.9, 0.1, 0.4]]
    return Experience.from_rewards(
        torch.tensor(scores, dtype=torch.float64),
        completion_mask_BT=mask_BT,
        ref_logprobs_BT=0.3 * noise_BT - 3.1,
        tokens=tokens,
    )


def step_of(algorithm: Algorithm, model) -> Batch:
    """Return a whole optimizer step, with the statistics that its rows share."""
    tokens, mask_BT, ref_BT = rows_of(0)
    if isinstance(algorithm, OnlineDPO):
        return algorithm.prepare(algorithm.to_batch(sampled()))
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
def test_packed_and_padded_give_the_same_gradient(model, name):
    algorithm = LOSSES[name]
    batch = step_of(algorithm, model)
    whole = [list(range(batch.num_rows))]
    packed, packed_loss = gradient(model, algorithm, batch, whole)
    padded, padded_loss = gradient(model, algorithm, batch, whole, way=padded_forward)
    assert packed.norm() > 1e-4, "a gradient of zero would pass any comparison"
    torch.testing.assert_close(packed, padded, atol=1e-10, rtol=1e-9)
    assert packed_loss == pytest.approx(padded_loss, abs=1e-9)


@pytest.mark.parametrize("name", few(LOSSES, *SPLIT))
def test_every_split_between_units_gives_the_same_gradient(model, name):
    """The split keeps pairs together, and pairs are matched before it."""
    algorithm = LOSSES[name]
    batch = step_of(algorithm, model)
    expected, expected_loss = gradient(model, algorithm, batch, [list(range(batch.num_rows))])
    units = batch.units
    most = len(units) - 1
    splits = {
        "one by one": units,
        "uneven": [[row for unit in units[:most] for row in unit], units[most]],
        "backwards": [list(reversed(unit)) for unit in reversed(units)],
    }
    for way, split in splits.items():
        found, loss = gradient(model, algorithm, batch, split)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9, msg=lambda m, n=way: f"{n}: {m}")
        assert loss == pytest.approx(expected_loss, abs=1e-9)


def test_a_pair_that_is_torn_apart_is_refused(model):
    batch = step_of(VARIANTS["dpo"], model)
    with pytest.raises(ValueError, match="torn apart"):
        VARIANTS["dpo"].loss(forward(model, batch.rows([0, 5])), batch.rows([0, 5]), count_totals(batch))


def test_the_reference_point_of_kto_is_the_same_packed_or_padded_whole_or_in_parts(model):
    """The mismatched answers go through the real forward pass. One row has none."""
    batch = step_of(KTO(), model)
    other = batch.mismatched
    assert other is not None
    mask_BT = other.completion_mask_BT.clone()
    mask_BT[2] = False
    batch = replace(batch, mismatched=replace(other, completion_mask_BT=mask_BT), offsets_B=None)

    def ratios(way: Any, tokens_at_once: int) -> Tensor:
        found = MismatchedLogRatios(way, Split(way, tokens_at_once))(batch, moved=False).mismatched_log_ratios_B
        assert found is not None
        return found

    policy = Forward(model, temperature=0.7, chunk_tokens=5, compute=Compute())
    expected_B = ratios(partial(padded_forward, model), 10_000)
    assert expected_B.isnan().tolist() == [row == 2 for row in range(ROWS)]
    for tokens_at_once in (10_000, 20, 1):
        found_B = ratios(policy, tokens_at_once)
        torch.testing.assert_close(found_B, expected_B, atol=1e-5, rtol=1e-5, equal_nan=True)  # stored in float32
    point = reference_point(replace(batch, mismatched_log_ratios_B=expected_B))
    assert float(point) == pytest.approx(max(0.0, float(expected_B[~expected_B.isnan()].mean())), rel=1e-12)


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
    """The losses of single pairs add up to the loss of the step."""
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
