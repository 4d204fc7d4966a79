"""A step on a card equals the processor's float32 step within stated bounds; the completions are recorded.

The bounds of float32 allow for sums in another order, over two steps, so that the update between them counts. Those of
bfloat16 are about one and a half times the error of its 8 bits in the first step of any algorithm on a processor: they
find a wrong kernel, mask or scale, and no smaller error. After an update the ratios of a step differ too much for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden.runs import steps_of, write_inputs
from tests.gpu.devices import DEVICES, in_precisions, on_card
from tests.tiny import tiny_model
from torch import Tensor

from posttrain.algorithms import ALGORITHMS
from posttrain.config import ModelConfig
from posttrain.models.forward import token_logprobs
from posttrain.models.load import load_model
from posttrain.types import Tokens

FAMILIES = (
    "grpo", "ppo", "online_dpo", "distillation", "sft", "dpo", "kto", "reward_model", "reward_regression",
    "process_reward_model",
)  # fmt: skip
"""One algorithm for each kind of data, or of model in addition to the policy."""
VARIANTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "adapters": ("grpo", {"lora.rank": 4}),
    "adapters of DPO": ("dpo", {"lora.rank": 4}),
    "a shared critic": ("ppo", {"critic.kind": "shared"}),
    "a critic of adapters": ("ppo", {"critic.kind": "lora", "lora.rank": 4}),
    "recomputed activations": ("sft", {"train.gradient_checkpointing": True}),
    "small micro-batches": ("grpo", {"train.tokens_per_microbatch": 20}),
    "log-probabilities in chunks": ("dpo", {"train.logprob_chunk_tokens": 5}),
    "plain attention": ("grpo", {"model.attention": "eager"}),
}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The largest allowed differences from the processor's float32."""

    steps: int
    """Number of steps that are compared."""
    loss: float
    """Absolute difference; a hundredth of the loss is added, because some losses are in the thousands."""
    gradient: float
    """Difference relative to the gradient's norm."""
    logprob: float
    """Mean absolute difference over tokens, in nats."""


BOUNDS = {
    "float32": Bound(steps=2, loss=1e-4, gradient=1e-3, logprob=1e-5),
    "bfloat16": Bound(steps=1, loss=0.13, gradient=0.05, logprob=0.05),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def reference(folder, tmp_path_factory):
    """The processor's steps in float32, computed once for each algorithm and setting."""

    @cache
    def steps(algorithm: str, variant: str = "") -> list[dict[str, float]]:
        settings = VARIANTS[variant][1] if variant else {}
        exact = {"model.device": "cpu", "model.precision": "float32"}
        return steps_of(folder, tmp_path_factory.mktemp("run") / "run", algorithm, settings | exact, steps=2)

    return steps


@pytest.mark.parametrize(
    ("device", "algorithm", "precision"), in_precisions(on_card(ALGORITHMS, "dpo", later=FAMILIES))
)
def test_the_first_steps_are_those_of_the_processor(folder, tmp_path, reference, device, algorithm, precision):
    settings = {"model.device": device, "model.precision": precision}
    found = steps_of(folder, tmp_path / "run", algorithm, settings, steps=BOUNDS[precision].steps)
    assert_near(found, reference(algorithm), BOUNDS[precision])


@pytest.mark.parametrize(
    ("device", "variant", "precision"),
    in_precisions(on_card(VARIANTS, later=VARIANTS)),
)
def test_other_ways_to_train_take_the_steps_of_the_processor(folder, tmp_path, reference, device, variant, precision):
    algorithm, settings = VARIANTS[variant]
    settings = settings | {"model.device": device, "model.precision": precision}
    found = steps_of(folder, tmp_path / "run", algorithm, settings, steps=BOUNDS[precision].steps)
    assert_near(found, reference(algorithm, variant), BOUNDS[precision])


@pytest.mark.parametrize(("device", "precision"), in_precisions(DEVICES))
def test_log_probabilities_are_those_of_the_processor(tmp_path, device, precision):
    """Rows of different lengths, two of which share their prompt."""
    path = tiny_model(tmp_path / "model", hidden_size=128, intermediate_size=256, initializer_range=0.15)
    ids_BT = torch.randint(3, 40, (6, 48), generator=torch.Generator().manual_seed(0))
    ids_BT[1, :16] = ids_BT[0, :16]
    lengths_B, places_T = torch.tensor([48, 40, 17, 31, 24, 48]), torch.arange(48)
    mask_BT = (places_T >= 16) & (places_T < lengths_B[:, None])

    def logprobs(device: str, precision: Any) -> Tensor:
        loaded = load_model(ModelConfig(path=str(path), device=device, precision=precision))  # pyright: ignore
        tokens = Tokens(input_ids_BT=ids_BT.to(device), lengths_B=lengths_B.to(device))
        with torch.no_grad(), loaded.autocast():
            return token_logprobs(loaded.model, tokens, mask_BT.to(device), temperature=0.7).logprobs_BT.cpu()[mask_BT]

    expected, found = logprobs("cpu", "float32"), logprobs(device, precision)
    assert (found - expected).abs().mean() <= BOUNDS[precision].logprob
    assert expected.std() > 1, "tokens differ in likelihood, so a mean difference is meaningful"


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_that_is_a_tenth_too_long_is_outside_of_the_bounds(folder, tmp_path, reference, device):
    """The bounds are those of bfloat16, the wider ones."""
    settings = {"model.device": device, "model.precision": "bfloat16"}
    found = steps_of(folder, tmp_path / "run", "sft", settings, steps=1)
    longer = [{name: 1.1 * value for name, value in step.items()} for step in found]
    with pytest.raises(AssertionError):
        assert_near(longer, reference("sft"), BOUNDS["bfloat16"])


def assert_near(found: list[dict[str, float]], expected: list[dict[str, float]], bound: Bound) -> None:
    assert len(found) == bound.steps
    for ours, theirs in zip(found, expected, strict=False):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=bound.loss + 0.01 * abs(theirs["loss"]))
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=bound.gradient)
