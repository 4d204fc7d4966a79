"""docs/supported-models.md agrees with a trial of every family. Families that took a step in it still do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks import supported_models as trial
from benchmarks.supported_models import YES, Found

TRANSFORMERS, ON_FILE = trial.on_file()


def test_the_page_is_that_of_the_results():
    assert trial.PAGE.read_text(encoding="utf-8") == trial.page(TRANSFORMERS, ON_FILE)


def test_a_family_takes_both_steps_or_is_named_with_the_reason():
    for one in ON_FILE:
        assert one.built != YES or all((one.grpo, one.dpo, one.lora)), one.family
    text = trial.page("5", [Found(family="a", model="A", grpo=YES, dpo="ValueError: no weight moved", rows="packed")])
    assert "**0 of the 1 families" in text
    assert "| `a` | yes | `ValueError: no weight moved` |" in text


def test_a_mixture_and_a_state_space_model_take_a_step():
    mixture, mamba = trial.found("qwen3_moe"), trial.found("mamba")
    assert (mixture.trains, mixture.experts, mixture.rows, mixture.devices) == (True, True, "packed", True)
    assert (mamba.trains, mamba.experts, mamba.rows, mamba.devices) == (True, False, "padded", False)


def test_a_step_that_moves_nothing_is_none():
    policy = trial.Policy((trial.tiny("qwen3"), trial.build_tokenizer()))
    batch = trial.sampled(policy)
    without = replace(batch, advantages_BT=batch.completion_mask_BT * 0.0)
    with pytest.raises(ValueError, match="the norm of the gradient is 0"):
        trial.step(policy.model, policy, trial.GRPO(), without)


@pytest.mark.slow
@pytest.mark.parametrize("family", [one.family for one in ON_FILE if one.trains])
def test_what_took_both_steps_still_does(family):
    assert trial.found(family).trains
