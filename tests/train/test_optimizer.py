"""AdamW: which weights decay, the learning rate of a step, clipping, and a state that is restored bit for bit."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from posttrain.errors import CheckpointError, ModelError, NonFiniteError
from posttrain.store.checkpoint import load_state, save_state
from posttrain.train.optimizer import Updater, build_optimizer, clip_gradients, learning_rate_at


def settings(**changes) -> SimpleNamespace:
    defaults = {
        "steps": 10,
        "learning_rate": 1e-2,
        "schedule": "constant",
        "warmup_steps": 0,
        "min_learning_rate_ratio": 0.0,
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-8,
        "max_grad_norm": 0.0,
        "optimizer": "adamw",
    }
    return SimpleNamespace(**defaults | changes)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3))


def set_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def ignore(norm: float) -> None:
    pass


# --- the update ------------------------------------------------------------------------------------------------------


def test_the_first_step_of_adamw_moves_each_weight_by_the_rate_against_the_sign_of_its_gradient():
    """m / (sqrt(v) + eps) is g / |g| at step 1, after the bias correction; decay subtracts rate * decay * weight."""
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    weight.grad = torch.tensor([[0.3, -7.0]])
    Updater([weight], settings(learning_rate=0.1, weight_decay=0.5)).step(1, ignore)
    expected = torch.tensor([[1.0 - 0.1 * 0.5 * 1.0 - 0.1, -2.0 + 0.1 * 0.5 * 2.0 + 0.1]])
    torch.testing.assert_close(weight.data, expected, atol=1e-6, rtol=0)
    assert weight.grad is None


def test_only_matrices_decay():
    net = model()
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Updater(net.parameters(), settings(learning_rate=0.1, weight_decay=0.5)).step(1, ignore)
    for name, parameter in net.named_parameters():
        factor = 0.95 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.data, factor * before[name], msg=lambda text, name=name: f"{name}: {text}")


def test_a_frozen_weight_is_left_alone():
    net = model()
    net[0].weight.requires_grad_(False)
    assert len(Updater(net.parameters(), settings()).parameters) == 4


def test_betas_and_eps_are_those_of_the_config():
    optimizer = build_optimizer(model().parameters(), settings(adam_beta1=0.8, adam_beta2=0.95, adam_eps=1e-5))
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["fused"]) == ((0.8, 0.95), 1e-5, True)


def test_a_guard_that_raises_on_the_norm_leaves_every_weight_as_it_was():
    net = model()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    set_gradients(net, 0)
    net[1].weight.grad[0, 0] = float("nan")

    def stop(norm: float) -> None:
        assert math.isnan(norm)
        raise NonFiniteError(given="the gradient norm is nan")

    with pytest.raises(NonFiniteError):
        Updater(net.parameters(), settings(max_grad_norm=1.0)).step(1, stop)
    assert all(parameter.equal(old) for parameter, old in zip(net.parameters(), before, strict=True))


def test_the_metrics_are_the_norm_before_clipping_and_the_rate_of_the_step():
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    metrics = Updater([weight], settings(max_grad_norm=1.0, schedule="linear")).step(6, ignore)
    assert {name: float(metric) for name, metric in metrics.items()} == {"grad_norm": 5.0, "learning_rate": 0.005}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_weights_below_float32_are_refused(dtype):
    with pytest.raises(ModelError, match=rf"of shape \[2, 3\] is {dtype}; allowed: float32 master weights"):
        build_optimizer([nn.Parameter(torch.zeros(2, 3, dtype=dtype))], settings())


def test_a_model_without_trainable_weights_is_refused():
    with pytest.raises(ModelError, match=r"no trainable parameter(.|\n)*lora.target_modules"):
        build_optimizer([nn.Parameter(torch.zeros(2), requires_grad=False)], settings())


# --- the rate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 3}, [0.25, 0.5, 0.75, 1.0]),
        ({"schedule": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "warmup_steps": 1, "min_learning_rate_ratio": 0.4}, [0.5, 1.0, 0.8, 0.6]),
        ({"schedule": "cosine"}, [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ({"min_learning_rate_ratio": 0.5}, [1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 7}, [0.125, 0.25, 0.375, 0.5]),
    ],
    ids=[
        "constant",
        "warm-up",
        "linear",
        "linear to a floor",
        "cosine",
        "constant has no end",
        "warm-up beyond the end",
    ],
)
def test_the_rate_of_each_of_four_steps(changes, expected):
    config = settings(steps=4, learning_rate=2.0, **changes)
    assert [learning_rate_at(step, config) / 2.0 for step in range(1, 5)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_no_step_of_a_run_is_wasted_on_the_rate_0(schedule):
    config = settings(steps=20, schedule=schedule, warmup_steps=5)
    rates = [learning_rate_at(step, config) for step in range(1, 21)]
    assert min(rates) > 0
    assert max(rates) == config.learning_rate == rates[5]


# --- clipping --------------------------------------------------------------------------------------------------------


def clipped(max_norm: float, *gradients: list[float]) -> tuple[float, list[list[float]]]:
    weights = [nn.Parameter(torch.zeros(len(gradient))) for gradient in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = torch.tensor(gradient)
    norm = clip_gradients(iter(weights), max_norm)
    return norm, [weight.grad.tolist() for weight in weights]


def test_gradients_are_scaled_together_to_the_norm():
    norm, gradients = clipped(1.0, [3.0, 0.0], [4.0])
    assert norm == 5.0
    assert gradients[0] == pytest.approx([0.6, 0.0], rel=1e-5)
    assert gradients[1] == pytest.approx([0.8], rel=1e-5)


@pytest.mark.parametrize("max_norm", [0.0, 5.0, 10.0], ids=["off", "just long enough", "short"])
def test_gradients_within_the_norm_are_not_touched(max_norm):
    assert clipped(max_norm, [3.0], [4.0]) == (5.0, [[3.0], [4.0]])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_shows_in_the_norm_and_is_not_spread_by_scaling(value):
    norm, gradients = clipped(1.0, [3.0], [value])
    assert not math.isfinite(norm)
    assert gradients[0] == [3.0]


def test_no_gradient_at_all_has_norm_0():
    assert clip_gradients([nn.Parameter(torch.zeros(2))], 1.0) == 0.0


# --- resume ----------------------------------------------------------------------------------------------------------


def test_an_optimizer_that_was_saved_and_loaded_goes_on_bit_for_bit(tmp_path):
    config = settings(weight_decay=0.1, max_grad_norm=1.0, schedule="cosine")
    net, twin = model(), model()
    optimizer, resumed = (Updater(one.parameters(), config) for one in (net, twin))
    for step in range(1, 4):
        set_gradients(net, step)
        optimizer.step(step, ignore)
    save_state(tmp_path, {"optimizer": optimizer.tensors()}, None)
    twin.load_state_dict(net.state_dict())
    resumed.restore(load_state(tmp_path)[0]["optimizer"])
    for step in range(4, 8):
        for one, its_optimizer in ((net, optimizer), (twin, resumed)):
            set_gradients(one, step)
            its_optimizer.step(step, ignore)
    for parameter, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert parameter.equal(other)
    assert resumed.tensors()["0"]["step"] == 7.0


def test_an_optimizer_that_never_stepped_has_a_state_too(tmp_path):
    save_state(tmp_path, {"optimizer": Updater(model().parameters(), settings()).tensors()}, None)
    Updater(model().parameters(), settings()).restore(load_state(tmp_path)[0]["optimizer"])


@pytest.mark.parametrize(
    "other", [nn.Linear(4, 2), nn.Linear(2, 1, bias=False)], ids=["other shapes", "fewer parameters"]
)
def test_the_state_of_another_model_is_refused(other):
    net = nn.Linear(4, 3)
    optimizer = Updater(net.parameters(), settings())
    set_gradients(net, 0)
    optimizer.step(1, ignore)
    with pytest.raises(
        CheckpointError, match=r"does not fit parameter(.|\n)*Resume with the config that the run was started with"
    ):
        Updater(other.parameters(), settings()).restore(optimizer.tensors())
