"""Sampling from the policy: engines behind one protocol, weight delivery and its proof."""

from posttrain.engines.local import LocalSampler
from posttrain.engines.publish import DeliveryProof
from posttrain.engines.sampler import Sampler, SamplingSettings

__all__ = ["DeliveryProof", "LocalSampler", "Sampler", "SamplingSettings"]
