"""What devices that work together tell each other: bytes that each of them receives, of n that divide something.

    gathering what is divided     (n - 1) / n of it                   all-gather; scattering sums of gradients the same
    summing what each one has     2 (n - 1) / n of it                 all-reduce: scatter, then gather

With the weights divided (FSDP, arXiv:2304.11277) every pass gathers them, sampling and scoring included, and each
backward pass gathers them again and scatters its gradients. With gradients divided (ZeRO's second stage,
arXiv:1910.02054) each backward pass scatters them, and the updated weights are gathered. With moments divided, or
nothing, gradients are summed once per update. An engine that divides its matrices sums the output of attention and of
the MLP of every layer (arXiv:1909.08053).
"""

from __future__ import annotations

from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.arithmetic import Step
from posttrain.lab.plan.cost import MASTER_BYTES, Work, bytes_of
from posttrain.lab.plan.records import Workload


def with_gathering(work: Work, model: Architecture, workload: Workload) -> Work:
    """Passes without gradient, with the weights that each of them has to gather."""
    if workload.sharding != "full":
        return work
    passes = work.layer_calls / model.layers
    return work + Work(link_bytes=passes * _share(workload.ranks) * _weights(model, workload))


def updates(model: Architecture, trained_parameters: int, step: Step, workload: Workload) -> Work:
    """Of all updates of a step, whose share of one device `step` is."""
    passes, gradients = step.epochs * step.microbatches, MASTER_BYTES * trained_parameters
    received = {
        "none": step.updates * 2 * gradients,
        "optimizer": step.updates * 2 * gradients,
        "gradients": (passes + step.updates) * gradients,
        "full": passes * (2 * _weights(model, workload) + gradients),
    }[workload.sharding]
    return Work(link_bytes=_share(workload.ranks) * received)


def engine(model: Architecture, tokens: int, workload: Workload) -> Work:
    """Of an engine of its own, which divides its matrices, for so many tokens that go through it."""
    sums = 2 * model.layers * tokens * model.hidden * bytes_of(workload.precision)
    return Work(link_bytes=2 * _share(workload.engine_ranks) * sums)


def publishing(model: Architecture, workload: Workload) -> Work:
    """The trained weights on their way to the sampler: gathered where they are divided, or sent to its devices."""
    sent = _weights(model, workload)
    if workload.engine == "separate":
        return Work(link_bytes=sent / workload.engine_ranks)
    return Work(link_bytes=_share(workload.ranks) * sent if workload.sharding == "full" else 0.0)


def _weights(model: Architecture, workload: Workload) -> int:
    return model.parameters * bytes_of(workload.precision)


def _share(devices: int) -> float:
    return (devices - 1) / devices
