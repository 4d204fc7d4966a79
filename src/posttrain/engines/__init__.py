"""Sampling from the policy: engines behind one protocol, weight delivery and its proof."""

from typing import Literal

from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.local import LocalSampler
from posttrain.engines.row_stream import HasRows
from posttrain.engines.sampler import Sampler, SamplingSettings
from posttrain.models.load import LoadedModel

__all__ = ["DeliveryProof", "LocalSampler", "Sampler", "SamplingSettings", "make_sampler"]


def make_sampler(loaded: LoadedModel, weights: Literal["shared", "copied", "taken"] = "shared") -> HasRows:
    """The engine that answers prompts with this model. Only this function chooses it.

    `shared`: it decodes with the weights that are trained, as they are at the time. `copied`: with a copy of its own,
    new versions of which are delivered. `taken`: nobody trains them, and it may lay them out anew. Raises ModelError
    for a copy that cannot be made as `loaded.compute` says.
    """
    return LocalSampler.of(loaded, weights)
