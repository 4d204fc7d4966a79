"""Twenty steps of each algorithm give the numbers on file, and so does every equivalent way to compute them.

The completions are recorded and not sampled. A rounding difference could flip a sampled token, and two equivalent runs
would then learn from different data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.catalogue import few
from tests.golden.runs import STEPS, UPDATES, steps_of, write_inputs

from posttrain.train.run import Run
from posttrain.types import Batch, Experience

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
BEGUN = 2
"""Steps in which the quick tests follow an algorithm: enough to show its loss, updates and state."""
QUICK = ("grpo", "ppo", "dpo", "reward_model")
ONE_OF_EACH_MODEL = few(UPDATES, *QUICK)
"""Every algorithm. One that samples, one with a critic, one with given data, and one without a policy are not slow."""
NOTICED = (*QUICK, "online_dpo", "sft", "kto", "reward_regression", "process_reward_model")
"""Algorithms of every kind of data, for a test of two steps."""
FEW_AND_ALL_STEPS = pytest.mark.parametrize("steps", [BEGUN, pytest.param(STEPS, marks=pytest.mark.slow)])


# --- runs that must agree with the golden runs ------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [key for key in UPDATES if key not in QUICK])
def test_an_algorithm_begins_as_its_golden_run(train, golden, algorithm):
    golden(algorithm).compare(train(algorithm, steps=BEGUN), first=BEGUN, **CLOSE)


@pytest.mark.parametrize("algorithm", ONE_OF_EACH_MODEL)
def test_an_algorithm_follows_its_golden_run(train, golden, algorithm):
    golden(algorithm).check(train(algorithm), **CLOSE)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.tokens_per_microbatch": 40},  # three or four parts
        pytest.param({"train.logprob_chunk_tokens": 5}, marks=pytest.mark.slow),
        pytest.param({"train.gradient_checkpointing": True}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: next(iter(settings)),
)
@FEW_AND_ALL_STEPS
def test_a_setting_of_memory_and_speed_leaves_the_golden_run_as_it_is(train, golden, settings, steps):
    golden("grpo").compare(train("grpo", settings, steps=steps), first=steps, **CLOSE)


@FEW_AND_ALL_STEPS
def test_the_order_of_the_rows_leaves_the_golden_run_as_it_is(train, golden, steps):
    golden("grpo").compare(train("grpo", change=permute_rows, steps=steps), first=steps, **CLOSE)


@pytest.mark.parametrize("algorithm", few(UPDATES, *NOTICED))
def test_one_percent_more_loss_is_noticed(train, golden, algorithm):
    """Adam takes the same steps if the loss is scaled by a factor. The golden run notices it anyway."""
    begun = train(algorithm, change=one_percent_more_loss, steps=2)
    with pytest.raises(AssertionError, match=r"of step [12] is .*, on file"):
        golden(algorithm).compare(begun, first=2, no_drift=False, **CLOSE)


def test_a_small_error_to_one_side_is_noticed(golden):
    """Each number is off by half of its tolerance, but always upwards."""
    series = json.loads(golden("sft").file.read_text())
    steps = [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]
    golden("sft").compare(steps, **CLOSE)
    with pytest.raises(AssertionError, match=r"loss drifts by \+0\.00017"):
        golden("sft").compare([{name: value * (1 + 5e-5) for name, value in step.items()} for step in steps], **CLOSE)


@pytest.mark.parametrize("algorithm", UPDATES)
def test_every_step_of_a_golden_run_learns(golden, algorithm):
    """Rewards vary, gradients are not zero, and the entropy shows that the policy still explores."""
    numbers = json.loads(golden(algorithm).file.read_text())
    assert all(len(values) == STEPS for values in numbers.values())
    assert all(norm > 1e-2 for norm in numbers["grad_norm"])
    assert all(entropy > 1 for entropy in numbers.get("entropy", ()))  # reward models have no entropy
    assert len(set(numbers["loss"])) == STEPS
    assert len(set(numbers.get("reward", numbers["loss"]))) > STEPS / 2


@pytest.fixture
def train(folder, tmp_path) -> Callable[..., list[dict[str, float]]]:
    """Return a function `train(algorithm, settings, change=..., steps=...)` that calls `steps_of`."""

    def run_steps(algorithm: str, settings: Mapping[str, Any] | None = None, **how: Any) -> list[dict[str, float]]:
        return steps_of(folder, tmp_path / "run", algorithm, settings or {}, **how)

    return run_steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("golden"))


# --- changes to a run -------------------------------------------------------------------------------------------------


def permute_rows(run: Run) -> None:
    weigh, generator = run.trainer.advantages, torch.Generator().manual_seed(1)

    class Permuted:
        """Computes the run's advantages with the rows in a different order."""

        def __getattr__(self, name: str) -> Any:
            return getattr(weigh, name)

        def __call__(self, experience: Experience | Batch) -> Batch:
            batch = weigh(experience)
            return batch.rows(torch.randperm(batch.num_rows, generator=generator))

    run.trainer.advantages = Permuted()  # pyright: ignore[reportAttributeAccessIssue]


def one_percent_more_loss(run: Run) -> None:
    algorithm = run.trainer.algorithm

    class Longer:
        """The algorithm of the run, with a small error in its loss."""

        def __getattr__(self, name: str) -> Any:
            return getattr(algorithm, name)

        def loss(self, *args: Any) -> Any:
            loss, metrics = algorithm.loss(*args)
            return 1.01 * loss, metrics

    run.trainer.algorithm = Longer()  # pyright: ignore[reportAttributeAccessIssue]
