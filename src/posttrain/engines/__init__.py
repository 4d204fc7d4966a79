"""Sampling from the policy: engines behind one protocol, weight delivery and its proof, the experience queue."""

from posttrain.engines.local import LocalSampler
from posttrain.engines.publish import DeliveryProof
from posttrain.engines.sampler import Sampler, SamplingSettings
from posttrain.experience.queue import ExperienceQueue

__all__ = ["DeliveryProof", "ExperienceQueue", "LocalSampler", "Sampler", "SamplingSettings"]
