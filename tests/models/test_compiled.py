"""torch.compile on decoder layers: the same numbers, compiled once for all layers and lengths, or refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.models.tiny_architectures import tiny_model
from tests.tiny import tiny_model as tiny_folder
from tests.tiny import write_prompts
from torch import Tensor, nn
from torch._dynamo.utils import counters

import posttrain
from posttrain.config import LoRAConfig
from posttrain.errors import ConfigError
from posttrain.models import modes
from posttrain.models.adapters import apply_lora
from posttrain.models.compiled import compile_layers, layers_compiled
from posttrain.models.forward import token_logprobs
from posttrain.types import Tokens

SHAPES = [(4, 9), (5, 12), (3, 7), (8, 20), (2, 33), (6, 11)]
"""Number of rows and longest row of each micro-batch."""
PIECES = 4
"""Number of compiled pieces of a layer: before its attention module, inside it before and after the kernel, and after
it."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Keep the compilations of this test away from other tests of the process."""
    counters.clear()
    yield
    torch._dynamo.reset()
    modes.compiled.clear()


def ragged(rows: int, longest: int) -> tuple[Tokens, Tensor]:
    """Random rows of random lengths, scored from their third token on."""
    dice = torch.Generator().manual_seed(longest)
    tokens = Tokens(
        input_ids_BT=torch.randint(3, 30, (rows, longest), generator=dice),
        lengths_B=torch.randint(4, longest + 1, (rows,), generator=dice),
    )
    places = torch.arange(longest)
    return tokens, (places >= 2) & (places < tokens.lengths_B[:, None])


def numbers_of(model: nn.Module) -> list[Tensor]:
    """Log-probabilities of every micro-batch, and the gradient of the sum of each."""
    found = []
    for shape in SHAPES:
        tokens, mask_BT = ragged(*shape)
        logprobs_BT = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
        found += [logprobs_BT.detach(), *torch.autograd.grad(logprobs_BT.sum(), trained(model))]
    return found


def off(numbers: list[Tensor], exact: list[Tensor]) -> float:
    """The distance of all numbers from those in float64, relative to their norm."""
    ours, theirs = (torch.cat([one.double().flatten() for one in some]) for some in (numbers, exact))
    return float((ours - theirs).norm() / theirs.norm())


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
def test_numbers_are_those_of_the_layers_as_written_and_no_micro_batch_is_compiled_for(lora):
    model = tiny_model("llama, grouped heads").float()
    policy = apply_lora(model, LoRAConfig(rank=2)) if lora else model
    if lora:
        torch.manual_seed(0)
        for parameter in trained(policy):
            nn.init.normal_(parameter, std=0.1)
    policy.train()
    exact = numbers_of(copy.deepcopy(policy).double())
    as_written, classes = numbers_of(policy), [type(module) for module in policy.modules()]
    compile_layers(policy)
    assert layers_compiled(policy) == 2
    # the layers as written are off by 2.6e-6 with AVX2 and by 5.5e-6 with AVX512
    assert 0 < off(numbers_of(policy), exact) < 2 * off(as_written, exact) < 3e-5
    pieces = counters["stats"]["unique_graphs"]
    assert pieces <= (2 * PIECES if lora else PIECES), "the pieces serve both layers and all six shapes"
    assert [type(module) for module in policy.modules()] == classes
    with torch.no_grad():
        policy.eval()
        tokens, mask_BT = ragged(*SHAPES[0])
        scored = token_logprobs(policy, tokens, mask_BT, temperature=1.0).logprobs_BT
    torch.testing.assert_close(scored, as_written[0], rtol=1e-5, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 2 * pieces, "without gradient, the pieces are compiled once more"


@pytest.mark.slow
def test_who_evaluates_runs_layers_as_they_are_written():
    """The compiler of this test fails when it is called, which only a pass outside evaluation mode does."""

    def refusing(graph: object, inputs: object) -> None:
        raise AssertionError("asked to compile")

    model = tiny_model("llama, grouped heads").float()
    compile_layers(model, backend=refusing)
    ids_1T = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        with modes.evaluating(model):
            model(input_ids=ids_1T)
        with pytest.raises(Exception, match="asked to compile"):
            model(input_ids=ids_1T)


@pytest.mark.slow
def test_a_run_learns_the_same_and_samples_as_before(tmp_path):
    tiny_folder(tmp_path / "model")
    config = {
        "model": str(tmp_path / "model"),
        "algorithm": "grpo",
        "data": {"train": str(write_prompts(tmp_path / "prompts.jsonl", count=8)), "eval_fraction": 0.0},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-3, "tokens_per_microbatch": 60},
        "evaluation": {"writing": 0, "samples": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
    }
    plain = posttrain.train(config, output=str(tmp_path / "plain"))
    compiled = posttrain.train(config, output=str(tmp_path / "compiled"), **{"train.compile": True})
    assert PIECES <= counters["stats"]["unique_graphs"] <= 3 * PIECES
    for name in ("reward", "grad_norm", "loss", "completions/mean_length"):
        values = [[row[name] for row in run.metrics] for run in (plain, compiled)]
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-6), name
    assert "torch.compile generates code for 2 decoder layers" in (compiled.folder / "events.jsonl").read_text()


# --- refused ---------------------------------------------------------------------------------------------------------


def test_a_mixture_of_experts_is_refused():
    with pytest.raises(ConfigError, match=r"Qwen3MoeForCausalLM is a mixture of experts(.|\n)*Leave train.compile out"):
        compile_layers(tiny_model("qwen3-moe, experts"))


def test_a_machine_without_a_compiler_is_refused(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"this machine has no C\+\+ compiler"):
        compile_layers(tiny_model("llama, grouped heads"))


def test_a_model_whose_layers_are_not_marked_is_refused(monkeypatch):
    model = tiny_model("llama, grouped heads")
    model.model.layers = nn.ModuleList(Unmarked(layer) for layer in model.model.layers)
    with pytest.raises(ConfigError, match="no layers that transformers marks"):
        compile_layers(model)


class Unmarked(nn.Module):
    """A layer whose class is unknown to transformers."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(dict(layer.named_children()))
