"""A forward pass shows which tensors it reads; a model that reads every parameter is not run for this again."""

from __future__ import annotations

from typing import Any

from tests.catalogue import catalogue
from tests.engines.policies import CONFIGS, lora_model, tiny_model
from torch import nn

from posttrain.engines.reads import read_by_forward
from posttrain.engines.weights import named_tensors, plain_copy

IDS = [1, 5, 7, 9]


class Calls:
    """Counts the calls of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        model.register_forward_pre_hook(lambda *_: self._note())

    def _note(self) -> None:
        self.count += 1


@catalogue("name", sorted(name for name in CONFIGS if "experts" not in name))
def test_a_model_that_reads_every_parameter_is_run_once(name):
    model = tiny_model(name)
    calls = Calls(model)
    first = read_by_forward(model, IDS)
    assert {name for name, _ in model.named_parameters(remove_duplicate=False)} <= first
    assert read_by_forward(model, [3, 4]) == first
    assert calls.count == 1


def test_a_model_with_something_unread_is_run_every_time():
    """Another token may read a tensor that this token leaves unread: nothing can be known beforehand."""
    model = tiny_model("llama")
    model.register_parameter("beside", nn.Parameter(model.lm_head.weight.detach()[:1].clone()))
    calls = Calls(model)
    assert "beside" not in read_by_forward(model, IDS)
    assert "beside" not in read_by_forward(model, IDS)
    assert calls.count == 2


def test_an_adapter_that_is_off_is_not_read_and_is_read_once_it_is_on():
    model = lora_model()
    adapted = {name for name, _ in named_tensors(model) if "lora_" in name}
    with model.disable_adapter():
        assert not adapted & read_by_forward(model, IDS)
    assert adapted <= read_by_forward(model, IDS)


def test_a_model_that_gains_a_parameter_is_run_again():
    model = tiny_model("llama")
    calls = Calls(model)
    read_by_forward(model, IDS)
    model.register_parameter("beside", nn.Parameter(model.lm_head.weight.detach()[:1].clone()))
    assert "beside" not in read_by_forward(model, IDS)
    assert calls.count == 2


def test_asking_leaves_the_mode_of_the_model():
    model = tiny_model("llama").train()
    read_by_forward(model, IDS)
    assert model.training


def test_a_packed_layer_that_did_not_run_is_asked_for_again():
    """Its weight is no parameter. Experts, for example, are modules that run for some tokens only."""
    model = plain_copy(tiny_model("llama"), None, packed=True)
    mlp: Any = model.model.layers[1].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x))
    assert "model.layers.1.mlp.up_proj.weight" not in read_by_forward(model, IDS)
    del mlp.forward
    assert "model.layers.1.mlp.up_proj.weight" in read_by_forward(model, IDS)


def test_what_is_asked_anew_is_what_is_read_now():
    model = lora_model()
    adapted = {name for name, _ in named_tensors(model) if "lora_" in name}
    assert adapted <= read_by_forward(model, IDS)
    with model.disable_adapter():
        assert not adapted & read_by_forward(model, IDS, anew=True)
