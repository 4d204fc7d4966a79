"""A remembered trial has the result of a new one, for a model of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests import trials
from tests.tiny import tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from posttrain.engines.decoding_path import decoding_path
from posttrain.models.forward_path import forward_path


def found(model: nn.Module) -> tuple[object, object]:
    """Return both paths, the forward path without its body."""
    forward = forward_path(model)
    assert forward.body is model.get_submodule("model")
    return replace(forward, body=nn.Identity()), decoding_path(model)


@pytest.mark.slow
def test_a_remembered_path_is_that_of_a_new_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tiny_model(tmp_path)
    load = AutoModelForCausalLM.from_pretrained
    tried = [0, 0]
    for place, module in enumerate((trials.forward, trials.decoding)):
        find = module._find_path

        def counted(*given, find=find, place=place):
            tried[place] += 1
            return find(*given)

        monkeypatch.setattr(module, "_find_path", counted)
    new_forward, new_decoding = found(load(folder))
    monkeypatch.setattr(trials, "_forward", {})
    monkeypatch.setattr(trials, "_decoding", {})
    trials.remember(monkeypatch)
    found(load(folder))
    assert tried == [2, 2]
    forward, decoding = found(load(folder))
    assert tried == [2, 2], "the second equal model is not tried"
    assert vars(forward) | {"body": None} == vars(new_forward) | {"body": None}
    assert vars(decoding) | {"decoder": None} == vars(new_decoding) | {"decoder": None}
    assert (decoding.decoder is None) == (new_decoding.decoder is None)
    other = load(folder)
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    found(other)
    assert tried == [3, 3], "other weights are tried"
