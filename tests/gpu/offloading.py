"""A training step with `train.cpu_offload` on the stand-in for a CUDA device: the places of tensors, as JSON on stdout.

    python -m tests.gpu.offloading FOLDER

One rank of two. Messages of the other rank have no numbers either: collectives do nothing (PyTorch's `FakeStore`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import cuda_standin

if __name__ == "__main__":
    cuda_standin.load(Path(sys.argv[1]))

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # the shapes of collectives' results
from tests.gpu.program import given
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from posttrain.config import load_config
from posttrain.models.entering import whole
from posttrain.models.layout import Layout
from posttrain.models.policy import load_policy, policy_forward
from posttrain.models.sharding import shard
from posttrain.ranks.agreement import OneRank
from posttrain.train.optimizer import Updater
from posttrain.types import Batch


@dataclass(frozen=True)
class FirstOfTwo(OneRank):
    size: int = 2

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


class Stream:
    """A stream of a device that finishes all work immediately; also serves as an event."""

    def __init__(self, *args: Any, **how: Any) -> None: ...

    def record_event(self, *args: Any) -> Stream:
        return self

    record = record_event

    def wait(self, *args: Any) -> None: ...

    wait_stream = wait_event = synchronize = wait

    def is_capturing(self) -> bool:
        return False


@contextmanager
def streams() -> Iterator[None]:
    """A context in which FSDP finds the streams that it requests from a device."""
    answers = {
        (torch.cuda, "Stream"): Stream,
        (torch.cuda, "Event"): Stream,
        (torch.cuda, "current_stream"): Stream,
        (torch.cuda, "stream"): lambda stream: nullcontext(),
        (torch.accelerator, "current_stream"): Stream,
    }
    before = {place: getattr(*place) for place in answers}
    for (module, name), answer in answers.items():
        setattr(module, name, answer)
    try:
        yield
    finally:
        for (module, name), answer in before.items():
            setattr(module, name, answer)


def main(folder: Path) -> dict[str, Any]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    config = load_config(
        {
            "algorithm": "sft",
            "data": {"train": str(folder / "unread.jsonl")},
            "train": {"steps": 2, "cpu_offload": True},
            "model": {"path": str(folder / "llama")},
        }
    ).config
    with cuda_standin.a_device() as device, streams(), torch.autograd.set_multithreading_enabled(False):
        loaded = load_policy(config, in_parts=True)
        shard("policy", loaded.model, Layout.of(config.train, FirstOfTwo()), torch.bfloat16)
        forward = policy_forward(config, loaded, config.algorithm.build())
        updater = Updater(loaded.model.parameters(), config.train)
        batch = given(config)
        assert isinstance(batch, Batch)
        with device.counting() as account:
            outputs = forward(batch)
            outputs.logprobs_BT.sum().backward()
        gradients = places(parameter.grad for parameter in updater.parameters)
        updater.step(1, on_norm=lambda norm: None)
        states = updater.adamw.state.values()
        return {
            "weights": places(updater.parameters),
            "gradients": gradients,
            "moments": places(moment for state in states for moment in state.values()),
            "outputs": outputs.logprobs_BT.device.type,
            "products": account.operations["aten.mm.default"],
            "casts": account.casts["torch.float32 -> torch.bfloat16"],
            "whole": whole(updater.parameters[0]).device.type,
            "bytes": sum(parameter.to_local().nbytes for parameter in updater.parameters),
            "copied": dict(account.copies),
        }


def places(tensors: Any) -> list[str]:
    return sorted({(one.to_local() if isinstance(one, DTensor) else one).device.type for one in tensors})


if __name__ == "__main__":
    json.dump(main(Path(sys.argv[1])), sys.stdout)
