"""Frozen weights of a model on a GPU, held in the precision in which they are multiplied."""

from __future__ import annotations

from torch import nn

from posttrain.engines.decoding_path import decoding_path
from posttrain.models.footprint import holds_base
from posttrain.models.load import LoadedModel
from posttrain.models.modes import evaluating
from posttrain.models.policy import hold_in


def hold_frozen(loaded: LoadedModel, *, decodes: bool, keep: nn.Module | None = None) -> LoadedModel:
    """Return the same model; its frozen linear layers are now held in compute precision if `holds_base` says so.

    If it `decodes`, its decoding path is found before that, because the trial runs in float32. `keep` is a head that
    computes in the precision of its weights. peft still merges, and saves, in float32: bfloat16 weights plus float32
    adapters.
    """
    if not holds_base(loaded.device.type):
        return loaded
    if decodes:
        with evaluating(loaded.model):
            decoding_path(loaded.model)
    hold_in(loaded.model, loaded.compute_dtype, keep=keep)
    return loaded
