"""Log-probabilities in less than float32: every algorithm computes with them in float32 (RULE 2)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.algorithms.test_preference_invariances import VARIANTS as PREFERENCES
from tests.algorithms.variants import VARIANTS as POLICIES
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import ALGORITHMS, GSPO, SFT, Algorithm, RewardModel
from posttrain.functional import kl, ratios
from posttrain.testing.steps import make_batch, make_outputs, raw_step, rows_of
from posttrain.types import Batch, Experience, Outputs, count_totals

NOT_AS_IT_IS = ("dr_grpo", "pass_at_k")
"""Algorithms whose default settings do not fit the step: one needs a length, one a group of five."""
EVERY: dict[str, Algorithm] = (
    {f"{key} as it is": one() for key, one in ALGORITHMS.items() if key not in NOT_AS_IT_IS} | POLICIES | PREFERENCES
)
NARROW = [torch.bfloat16, torch.float16]


def changed(record: Any, change: Any) -> Any:
    """Return the record with `change` applied to every tensor of real numbers."""
    found = {field.name: getattr(record, field.name) for field in fields(record)}
    real = {name: x for name, x in found.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return replace(record, **{name: change(x) for name, x in real.items()})


def learnt(algorithm: Algorithm, raw: Any, given: Outputs, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict]:
    """Return the loss, its gradient with respect to log-probabilities in `dtype`, and the metrics."""
    batch = make_batch(algorithm, raw)
    assert batch.row_ids_B is not None
    rows = rows_of(given, batch.row_ids_B)
    leaf_BT = rows.logprobs_BT.detach().to(dtype).requires_grad_()
    loss, metrics = algorithm.loss(replace(rows, logprobs_BT=leaf_BT), batch, count_totals(batch))
    (gradient_BT,) = torch.autograd.grad(loss, leaf_BT, allow_unused=True, materialize_grads=True)
    return loss, gradient_BT, {name: float(metric) for name, metric in metrics.items()}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@catalogue("algorithm", EVERY.values(), ids=EVERY)
def test_narrow_inputs_give_the_numbers_of_the_same_inputs_in_float32(algorithm: Algorithm, dtype: torch.dtype):
    """The gradient is rounded to the type of the input, and nothing before it."""
    raw = raw_step(algorithm)
    outputs = make_outputs(raw, scores=True)
    narrow = [changed(x, lambda x: x.to(dtype)) for x in (raw, outputs)]
    loss, gradient_BT, metrics = learnt(algorithm, *narrow, dtype)
    wide = [changed(x, lambda x: x.to(dtype).float()) for x in (raw, outputs)]
    same, same_BT, same_metrics = learnt(algorithm, *wide, torch.float32)
    assert loss.dtype == same.dtype
    assert loss.dtype in (torch.float32, torch.float64)
    expected = (same, same_BT.to(dtype), same_metrics)
    torch.testing.assert_close((loss, gradient_BT, metrics), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("record", [Outputs, Experience, Batch])
def test_records_keep_float64_and_widen_less(record):
    def made(dtype: torch.dtype) -> Any:
        x, mask_BT = torch.ones(2, 3, dtype=dtype), torch.ones(2, 3, dtype=torch.bool)
        if record is Outputs:
            return Outputs(x, entropy_BT=x)
        given = Experience.from_rewards(x[:1, :2], completion_mask_BT=mask_BT, old_logprobs_BT=x, values_BT=x)
        return given if record is Experience else Batch.from_experience(given, advantages_BT=x)

    def dtypes(made: Any) -> set[torch.dtype]:
        tensors = (getattr(made, field.name) for field in fields(made))
        return {x.dtype for x in tensors if isinstance(x, Tensor) and x.is_floating_point()}

    assert dtypes(made(torch.float64)) == {torch.float64}
    assert dtypes(made(torch.float32)) == {torch.float32}
    assert all(dtypes(made(dtype)) == {torch.float32} for dtype in NARROW)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        ratios.log_ratio,
        ratios.token_ratio,
        lambda x_BT, y_BT: ratios.sequence_log_ratio(x_BT, y_BT, torch.ones_like(x_BT)),
        lambda x_BT, y_BT: ratios.sequence_product_ratio(x_BT, y_BT, torch.ones_like(x_BT)),
        lambda x_BT, y_BT: ratios.sequence_ratio(x_BT, y_BT, torch.ones_like(x_BT)),
        lambda x_BT, y_BT: ratios.sequence_token_ratio(x_BT, y_BT, torch.ones_like(x_BT)),
        *kl.KL_ESTIMATORS.values(),
    ],
)
def test_functions_of_two_policies_compute_in_float32(function, dtype):
    x_BT, y_BT = -torch.rand(2, 4, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(function(x_BT, y_BT), function(x_BT.float(), y_BT.float()))
    assert function(x_BT.double(), y_BT.double()).dtype == torch.float64


def test_the_trust_region_of_gspo_holds_in_bfloat16():
    """It clips at 1 + 4e-4, which bfloat16 rounds to 1: nothing was clipped, and nothing was learnt."""
    old_BT = -torch.rand(4, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    logprobs_BT = (old_BT.float() * 0.99).bfloat16().requires_grad_()
    algorithm = GSPO(correction="none")
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.0, 1.0]]),
        completion_mask_BT=torch.ones(4, 200, dtype=torch.bool),
        old_logprobs_BT=old_BT,
    )
    batch = algorithm.to_batch(experience)
    loss, metrics = algorithm.loss(logprobs_BT, batch, count_totals(batch))
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    assert float(metrics["clip_ratio/high_mean"]) == 0.5
    assert not gradient_BT[[0, 3]].any()
    assert gradient_BT[[1, 2]].all()


def test_all_kinds_of_data_are_in_it():
    assert {one.data_kind for one in EVERY.values()} == {ALGORITHMS[key].data_kind for key in ALGORITHMS}
    assert {SFT.key, RewardModel.key} <= {one.key for one in EVERY.values()}
