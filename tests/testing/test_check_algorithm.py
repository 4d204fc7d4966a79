"""`check_algorithm` passes all our algorithms, and the right check finds each fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import Field
from tests.catalogue import few
from tests.plugins.conftest import SOURCE

from posttrain.algorithms import ALGORITHMS, DPO, GRPO, RLOO, Algorithm
from posttrain.algorithms.settings import NonNegative, settings
from posttrain.algorithms.shared import advantages_of, per_completion
from posttrain.errors import ConfigError
from posttrain.testing import ChecksFailed, algorithm_checks, check_algorithm
from posttrain.types import Outputs, count_totals

SETTINGS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"max_completion_length": 9},
    "pass_at_k": {"k": 2, "correct_at": 0.5},
}
"""Settings of algorithms that require some, or learn nothing from the test's step without them."""
SKIPPED = {"deepseek_v32": ["every setting changes something"]}
"""Algorithms whose mask depends on the distance from policy to sampler, which the step does not vary."""


@pytest.mark.parametrize("key", few(ALGORITHMS, "dpo"))
def test_every_algorithm_of_ours_passes(key):
    algorithm = ALGORITHMS[key](**SETTINGS.get(key, {}))
    passed = check_algorithm(algorithm, seeds=1, skip=SKIPPED.get(key, ()))
    assert {"micro-batches", "order of rows", "padding", "totals of ranks", "what the mask hides"} <= set(passed)


def test_the_algorithm_of_another_package_passes(monkeypatch):
    monkeypatch.syspath_prepend(SOURCE / "src")
    from acme_rl.tanh_grpo import TanhGRPO  # pyright: ignore[reportMissingImports]

    passed = check_algorithm(TanhGRPO)
    assert "packing, shared prompts and micro-batches on a model" in passed
    assert passed == tuple(algorithm_checks(TanhGRPO))


# --- algorithms with one fault each ----------------------------------------------------------------------------------


def faulty(loss_of, base: type[Algorithm] = GRPO, **members: Any) -> type[Algorithm]:
    """GRPO, or another algorithm, with another loss."""

    def loss(self, outputs, batch, totals):
        return loss_of(self, outputs, batch, totals, super(cls, self).loss)

    cls: Any = settings(type("Faulty", (base,), {"loss": loss, "__doc__": base.__doc__, **members}))
    return cls


def own_denominator(self, outputs, batch, totals, right):
    return right(outputs, batch, count_totals(batch))


def divides_by_columns(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    return loss / batch.completion_mask_BT.shape[1], metrics


def weighs_by_place(self, outputs, batch, totals, right):
    places_B1 = torch.arange(batch.num_rows, dtype=torch.float64)[:, None]
    return right(outputs, replace(batch, advantages_BT=advantages_of(batch) * places_B1), totals)


def multiplies_by_the_mask(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    return loss + 0.1 * (Outputs.of(outputs).logprobs_BT * batch.completion_mask_BT).sum() / totals.tokens, metrics


def counts_rows(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    return loss * totals.tokens / totals.rows, metrics


def zero_by_zero(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    return loss * (totals.tokens / batch.completion_mask_BT.sum().clamp(min=0) * totals.tokens**0), metrics


def unclamped(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    far_BT = (10 * (Outputs.of(outputs).logprobs_BT - batch.old_logprobs_BT)).exp()
    return loss + torch.where(batch.completion_mask_BT, far_BT, 0).sum() / totals.tokens, metrics


def hides_nan(self, outputs, batch, totals, right):
    return right(Outputs.of(outputs).each(torch.nan_to_num), batch, totals)


def learns_the_reference(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    return loss + torch.where(batch.completion_mask_BT, batch.ref_logprobs_BT, 0).sum() / totals.tokens, metrics


def writes_into_its_batch(self, outputs, batch, totals, right):
    batch.old_logprobs_BT.nan_to_num_()
    batch.old_logprobs_BT.mul_(1.01)
    return right(outputs, batch, totals)


def broadcasts(self, outputs, batch, totals, right):
    logprobs_BT = Outputs.of(outputs).logprobs_BT
    loss_BT = torch.where(batch.completion_mask_BT, -advantages_of(batch) * logprobs_BT, 0.0)
    return loss_BT.sum() / max(1, totals.tokens), {}


def has_one_advantage_for_all(self, outputs, batch, totals, right):
    mean_B1 = per_completion(advantages_of(batch), batch.completion_mask_BT)
    return right(outputs, replace(batch, advantages_BT=mean_B1.expand(batch.completion_mask_BT.shape)), totals)


def logs_what_nobody_knows(self, outputs, batch, totals, right):
    loss, metrics = right(outputs, batch, totals)
    return loss, metrics | {"policy/mystery": torch.zeros(())}


FAULTS = {
    "micro-batches": own_denominator,
    "padding": divides_by_columns,
    "order of rows": weighs_by_place,
    "what the mask hides": multiplies_by_the_mask,
    "rows that train nothing": counts_rows,
    "a step without tokens": zero_by_zero,
    "log-ratios of 100": unclamped,
    "nan is not hidden": hides_nan,
    "gradient through the outputs alone": learns_the_reference,
    "arguments are left alone": writes_into_its_batch,
    "outputs of another shape": broadcasts,
    "advantages of tokens": has_one_advantage_for_all,
    "each metric has a formula": logs_what_nobody_knows,
}


@pytest.mark.parametrize("check", FAULTS)
def test_each_fault_is_found_by_the_check_that_is_meant_for_it(check):
    with pytest.raises(AssertionError):
        algorithm_checks(faulty(FAULTS[check]), seeds=2)[check]()
    algorithm_checks(GRPO, seeds=2)[check]()


def by_place(self, experience, state=None):
    return GRPO.advantages(self, experience) * torch.arange(experience.completion_mask_BT.shape[0])[:, None]


def test_advantages_that_follow_the_place_of_a_row_are_found():
    cls = settings(type("Faulty", (GRPO,), {"advantages": by_place, "__doc__": "A fault.\n\n    A = ?\n"}))
    with pytest.raises(AssertionError, match="the advantages of the same completions in another order"):
        algorithm_checks(cls)["advantages follow their completions"]()


def test_the_order_of_pairs_is_tried_too():
    with pytest.raises(AssertionError, match="sum of the parts' losses"):
        algorithm_checks(faulty(own_denominator, DPO))["micro-batches"]()


@settings
class Dead(RLOO):
    """A setting that nothing reads, beside few others: all pairs with it are tried.

    L = that of RLOO
    """

    nothing: NonNegative = 0.0
    """Is not read."""


@settings
class Silent(GRPO):
    """A setting without a text.

    L = that of GRPO
    """

    nothing: NonNegative = 0.0


@settings
class Unhashable(GRPO):
    """A setting that cannot be compared as a key.

    L = that of GRPO
    """

    nothing: list[float] = Field(default_factory=list)
    """Is a list."""


@pytest.mark.slow
def test_what_an_algorithm_says_of_itself_is_held_against_it():
    with pytest.raises(AssertionError, match="no value changes anything for nothing"):
        algorithm_checks(Dead)["every setting changes something"]()
    with pytest.raises(AssertionError, match="no docstring under the settings nothing"):
        algorithm_checks(Silent)["the card is complete"]()
    others = algorithm_checks(Unhashable).keys() - {"settings are a frozen record"}
    with pytest.raises(ChecksFailed, match="settings are a frozen record: TypeError: unhashable"):
        check_algorithm(Unhashable, seeds=1, skip=others)


@pytest.mark.slow
def test_all_that_failed_is_told_at_once_and_checks_can_be_left_out():
    wrong = faulty(own_denominator)
    with pytest.raises(ChecksFailed) as told:
        check_algorithm(wrong, seeds=1)
    assert str(told.value).startswith(f"grpo fails {len(told.value.failed)} of 21 checks\n- ")
    assert {"micro-batches", "packing, shared prompts and micro-batches on a model"} <= told.value.failed.keys()
    skip = {*told.value.failed, "every setting changes something"}
    assert set(check_algorithm(wrong, seeds=1, skip=skip)) == set(algorithm_checks(wrong)) - skip
    with pytest.raises(ConfigError, match=r"skip = 'paddings'; allowed: settings are a frozen record"):
        check_algorithm(GRPO, skip=["paddings"])
    with pytest.raises(ConfigError, match="a class derived from"):
        check_algorithm(int)  # type: ignore[arg-type]
