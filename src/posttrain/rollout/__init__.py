"""Sampling from the policy: engines behind one protocol, weight delivery and its proof, the experience queue."""

from posttrain.rollout.local import LocalSampler
from posttrain.rollout.publish import DeliveryProof
from posttrain.rollout.queue import ExperienceQueue
from posttrain.rollout.sampler import Sampler, SamplingSettings

__all__ = ["DeliveryProof", "ExperienceQueue", "LocalSampler", "Sampler", "SamplingSettings"]
