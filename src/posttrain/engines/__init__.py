"""Sampling from the policy: engines with a common protocol, weight delivery and its proof."""

from typing import Literal

from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.local import LocalSampler
from posttrain.engines.row_stream import HasRows
from posttrain.engines.sampler import Sampler, SamplingSettings
from posttrain.models.load import LoadedModel

__all__ = ["DeliveryProof", "LocalSampler", "Sampler", "SamplingSettings", "make_sampler"]


def make_sampler(loaded: LoadedModel, weights: Literal["shared", "copied", "taken"] = "shared") -> HasRows:
    """Return the engine that samples from this model. Only this function chooses it.

    `shared`: it decodes with the trained weights themselves, as they are at the time. `copied`: it decodes with its own
    copy, which gets new versions by delivery. `taken`: nobody trains the weights, and it may change their layout.
    Raises ModelError if the copy cannot be made as `loaded.compute` says.
    """
    return LocalSampler.of(loaded, weights)
