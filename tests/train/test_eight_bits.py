"""8-bit moments: the difference of a step from float32, their memory, and a state that is restored bit for bit."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model
from tests.train.test_optimizer import ignore, settings
from torch import nn

import posttrain
from posttrain.errors import CheckpointError, ConfigError
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.roles import moment_bytes
from posttrain.store.checkpoint import load_state, save_state, size_of
from posttrain.train.optimizer import Updater

BLOCK = 256
HALF_A_GAP = {"mean": 0.9 / 64 / 2, "square": 0.9 / 128 / 2}
"""Half the gap between the largest codes, relative to the scale of the block: 64 codes with a sign, 128 without one.
They are evenly spaced between 0.1 and 1 (arXiv:2110.02861, dynamic tree quantisation)."""


@pytest.fixture(autouse=True, scope="module")
def torchao() -> None:
    pytest.importorskip("torchao", reason="the extra [cuda] is not installed")


def model() -> nn.Module:
    """A matrix that blocks divide, one that they do not divide, and tensors that are too small for a block."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(64, 96), nn.Linear(65, 65, bias=False)])


def gradients(step: int, net: nn.Module) -> list[torch.Tensor]:
    """Gradients over seven orders of magnitude, so that small ones share a block with large ones."""
    dice = torch.Generator().manual_seed(step)
    drawn = [torch.randn(parameter.shape, generator=dice) for parameter in net.parameters()]
    return [one * 10 ** torch.empty(one.shape).uniform_(-7, 0, generator=dice) for one in drawn]


def take_steps(net: nn.Module, updater: Updater, *steps: int) -> nn.Module:
    for step in steps:
        for parameter, gradient in zip(net.parameters(), gradients(step, net), strict=True):
            parameter.grad = gradient
        updater.step(step, ignore)
    return net


def trained(optimizer: str, *steps: int) -> tuple[nn.Module, Updater]:
    net = model()
    updater = Updater(net.parameters(), settings(optimizer=optimizer, weight_decay=0.1))
    return take_steps(net, updater, *steps), updater


def block_maximum(numbers: torch.Tensor) -> torch.Tensor:
    """The absolute maximum of its block, for each number."""
    blocks = numbers.abs().reshape(-1, BLOCK)
    return blocks.amax(-1, keepdim=True).expand_as(blocks).reshape(numbers.shape)


def test_the_first_step_is_that_of_float32_since_moments_are_rounded_when_it_is_done():
    (wide, _), (narrow, _) = (trained(name, 1) for name in ("adamw", "adamw_8bit"))
    for expected, actual in zip(wide.parameters(), narrow.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)


def test_the_second_step_is_within_what_rounding_the_moments_allows():
    """Interval arithmetic: each moment within half a gap of its code, times the decay, before its gradient is added."""
    (wide, _), (narrow, _) = (trained(name, 1, 2) for name in ("adamw", "adamw_8bit"))
    rate, b1, b2 = 1e-2, 0.9, 0.999
    weight, (first, *_), (second, *_) = model()[0].weight.detach(), gradients(1, model()), gradients(2, model())
    mean, square = (1 - b1) * first, (1 - b2) * first.square()
    off = b1 * HALF_A_GAP["mean"] * block_maximum(mean)
    means = [b1 * mean + (1 - b1) * second + sign * off for sign in (-1, 1)]
    off = b2 * HALF_A_GAP["square"] * block_maximum(square)
    least = (1 - b2) * second.square()
    squares = [torch.maximum(b2 * square + least + sign * off, least) for sign in (-1, 1)]
    moved = [rate * (m / (1 - b1**2)) / ((s / (1 - b2**2)).sqrt() + 1e-8) for m in means for s in squares]
    decayed = (trained("adamw", 1)[0][0].weight.detach()) * (1 - rate * 0.1)
    slack = 1e-6 * (1 + weight.abs())
    low, high = decayed - torch.stack(moved).amax(0) - slack, decayed - torch.stack(moved).amin(0) + slack
    for net in (wide, narrow):
        assert bool(((low <= net[0].weight) & (net[0].weight <= high)).all())
    assert not torch.allclose(wide[0].weight, narrow[0].weight, rtol=1e-5, atol=1e-7), "the moments have 8 bits"


def test_memory_is_what_is_foreseen_and_asked_for_before_the_first_step():
    net, updater = trained("adamw_8bit")
    foreseen = updater.bytes_to_come()
    assert sum(one.nbytes for one in updater.memory_to_come()) == foreseen
    take_steps(net, updater, 1)
    counters = 4 * len(list(net.parameters()))
    assert size_of(updater.tensors()) - counters == foreseen
    assert updater.bytes_to_come() == 0
    in_blocks, others = 64 * 96, 96 + 65 * 65
    assert foreseen == 2 * (in_blocks + in_blocks // BLOCK * 4 + BLOCK * 4) + 8 * others
    assert updater.memory_of_a_step().nbytes == 53 * in_blocks
    assert trained("adamw")[1].memory_of_a_step().nbytes == 0


def test_the_plan_counts_what_a_large_matrix_takes():
    net = nn.Linear(1024, 4096, bias=False, device="meta")
    updater = Updater(net.parameters(), settings(optimizer="adamw_8bit"))
    workload = Workload(architecture=None, algorithm="sft", needs=frozenset(), optimizer_bits=8)
    assert updater.bytes_to_come() == pytest.approx(moment_bytes(workload, 1024 * 4096), rel=1e-3)


def test_a_state_that_was_saved_goes_on_bit_for_bit(tmp_path):
    net, updater = trained("adamw_8bit", 1, 2, 3)
    save_state(tmp_path, {"optimizer": updater.tensors()}, None)
    twin = model()
    twin.load_state_dict(net.state_dict())
    resumed = Updater(twin.parameters(), settings(optimizer="adamw_8bit", weight_decay=0.1))
    resumed.restore(load_state(tmp_path)[0]["optimizer"])
    for one, its in ((net, updater), (twin, resumed)):
        take_steps(one, its, 4, 5, 6)
    for parameter, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert parameter.equal(other)
    for number, state in updater.tensors().items():
        assert all(value.equal(resumed.tensors()[number][name]) for name, value in state.items())


@pytest.mark.parametrize(("saved", "asked"), [("adamw", "adamw_8bit"), ("adamw_8bit", "adamw")])
def test_moments_of_other_bits_are_refused(saved, asked):
    tensors = trained(saved, 1)[1].tensors()
    with pytest.raises(CheckpointError, match=rf"the moments of train.optimizer = {saved}(.|\n)*asks for {asked}"):
        trained(asked)[1].restore(tensors)


def test_a_rate_of_its_own_for_a_critic_is_a_rate_here_too():
    net, updater = trained("adamw_8bit", 1)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    updater._set_rate(updater.adamw.param_groups, 0.0)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    updater.adamw.step()
    assert all(parameter.equal(old) for parameter, old in zip(net.parameters(), before, strict=True))


# --- runs ------------------------------------------------------------------------------------------------------------


def run_of(folder: Path, name: str, **changes):
    if not (folder / "model").exists():
        tiny_model(folder / "model", hidden_size=64)  # its square matrices have 4,096 numbers
        (folder / "rows.jsonl").write_text('{"prompt": "abc ", "completion": "cba"}\n' * 8)
    config = {
        "model": str(folder / "model"),
        "algorithm": "sft",
        "data": {"train": str(folder / "rows.jsonl"), "eval_fraction": 0.0},
        "evaluation": {"writing": 0},
        "train": {"steps": 4, "prompts_per_step": 4, "learning_rate": 1e-2, "optimizer": "adamw_8bit"},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **changes)


def test_a_resumed_run_ends_with_the_weights_of_the_one_that_was_not_stopped(tmp_path):
    whole, plain = run_of(tmp_path, "whole"), run_of(tmp_path, "plain", **{"train.optimizer": "adamw"})
    stopped = run_of(tmp_path, "stopped", **{"train.steps": 2})
    resumed = posttrain.resume(stopped.folder, steps=4)
    ends = [(run.model_path / "model.safetensors").read_bytes() for run in (whole, resumed, plain)]
    assert ends[0] == ends[1] != ends[2]
    assert math.isfinite(whole.metrics[-1]["loss"])


def test_without_torchao_a_run_is_refused_before_it_makes_a_folder(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r'needs torchao(.|\n)*pip install "posttrain\[cuda\]"'):
        run_of(tmp_path, "refused")
    assert not (tmp_path / "refused").exists()
