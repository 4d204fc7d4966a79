"""Frozen weights of a model on a GPU: held in the precision in which they are multiplied."""

from __future__ import annotations

from torch import nn

from posttrain.engines.decoding_path import decoding_path
from posttrain.models.footprint import holds_base
from posttrain.models.load import LoadedModel
from posttrain.models.modes import evaluating
from posttrain.models.policy import hold_in


def hold_frozen(loaded: LoadedModel, *, decodes: bool, keep: nn.Module | None = None) -> LoadedModel:
    """The same model, whose frozen linear layers are now held so where `holds_base` says it.

    How it `decodes` is found before, like all that is tried in float32. `keep` is a head that computes in the precision
    of its weights. What peft merges and what is saved is float32 all the same: bfloat16 numbers plus float32 adapters.
    """
    if not holds_base(loaded.device.type):
        return loaded
    if decodes:
        with evaluating(loaded.model):
            decoding_path(loaded.model)
    hold_in(loaded.model, loaded.compute_dtype, keep=keep)
    return loaded
