"""The process in which an engine decodes: `python -m posttrain.engines.worker FD BUFFER BUFFER`.

It talks over the socket FD. First it receives one message with the setup and sends `Ready`. Then it receives tasks,
interruptions and loads, and sends pieces. It ends when its parent is gone. Its output goes to a file of the run.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from posttrain import wire
from posttrain.config import ModelConfig, SamplingConfig
from posttrain.config.sections import LoRAConfig
from posttrain.engines.continuous import ContinuousSampler
from posttrain.engines.delivery import digests_of
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Piece, Task
from posttrain.engines.published import Published
from posttrain.engines.weights import named_tensors
from posttrain.errors import PosttrainError
from posttrain.models.adapters import apply_lora
from posttrain.models.compute import Compute, dtype_name
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path

FLUSH_SECONDS = 0.1
"""Maximum seconds until new tokens are sent, so that another engine can continue from them."""


def main(kind: Callable[[socket.socket, Sequence[int]], Worker]) -> None:
    """Serve until the parent is gone, then end the process."""
    try:
        _serve(kind)
    finally:
        sys.stdout.flush()
        os._exit(1 if sys.exc_info()[0] else 0)  # threads of kernels must not delay the exit


def _serve(kind: Callable[[socket.socket, Sequence[int]], Worker]) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a run ends
    channel = socket.socket(fileno=int(sys.argv[1]))
    worker = kind(channel, [int(file) for file in sys.argv[2:4]])
    try:
        worker.serve()
    except (BrokenPipeError, ConnectionResetError):
        return  # nobody listens any more
    except PosttrainError as error:
        worker.say({"failed": f"{type(error).__name__}: {error}"})
        raise
    except Exception as error:
        worker.say({"failed": f"{type(error).__name__}: {error}"})
        raise


class Worker:
    """One engine, from its first message to its last."""

    def __init__(self, channel: socket.socket, files: Sequence[int]) -> None:
        self.channel, self.files = channel, files
        self._buffer = bytearray()
        self._flushed = time.monotonic()

    def serve(self) -> None:
        """Serve until the parent closes the channel."""
        setup = self._wait_for_setup()
        if setup is None:
            return
        torch.set_num_threads(setup["threads"])
        sampler = make(setup)
        sampling = SamplingConfig.model_validate(setup["sampling"])
        self.rows = self.open(sampler, sampling, keep_cache=setup["keep_cache"])
        held = {n: (dtype_name(x.dtype), tuple(x.shape)) for n, x in named_tensors(sampler.model)}
        self.published: Published | None = None
        self.say({"ready": {"tensors": held, "merged": sampler.owns_weights, "note": sampler.note}})
        self.held = held
        while (messages := self._receive(wait=not self.rows)) is not None:
            for message in messages:
                self._hear(message)
            if self.rows:
                self._tell(self.rows.step())

    def open(self, sampler: LocalSampler, sampling: SamplingConfig, *, keep_cache: bool) -> ContinuousSampler:
        """Return the object that decodes the rows."""
        return ContinuousSampler(sampler, sampling, keep_cache=keep_cache)

    def _wait_for_setup(self) -> Any:
        while (messages := self._receive(wait=True)) is not None:
            if messages:
                return messages[0]
        return None

    def _receive(self, *, wait: bool) -> list[Any] | None:
        """Return the messages that have arrived; None when the parent is gone."""
        ready, _, _ = select.select([self.channel], [], [], None if wait else 0)
        if ready:
            received = self.channel.recv(1 << 20)
            if not received:
                return None
            self._buffer += received
        return list(wire.decode(self._buffer))

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "submit" in message:
            self.rows.submit(map(_task, message["submit"]))
        elif "interrupt" in message:
            told, left = self.rows.interrupt([(tuple(row), attempt) for row, attempt in message["interrupt"]])
            self._tell(told, now=True)
            self.say({"given_back": [(task.row, task.attempt) for task in left]})
        elif "load" in message:
            self._load(**message["load"])

    def _tell(self, ended: Sequence[Piece], *, now: bool = False) -> None:
        """Send the end of rows immediately; send tokens of other rows with `now`, or from time to time."""
        late = time.monotonic() - self._flushed > FLUSH_SECONDS
        pieces = [*ended, *(self.rows.told() if now or late else ())]
        if now or late:
            self._flushed = time.monotonic()
        if pieces:
            self.say({"pieces": [piece.to_json() for piece in pieces]})

    def _load(self, version: int, number: int, probe: Mapping[str, Any]) -> None:
        """Send the tokens of the old weights, load the new weights, and send their digests and probe scores."""
        started = time.perf_counter()
        self._tell((), now=True)
        if self.published is None:
            self.published = Published(self.files, self.held, write=False)
        receipt = self.rows.load(self.published.read(number), version)
        sampler = self.rows.sampler
        scores = sampler.probe(probe["prompt_ids"], probe["completion_ids"], temperature=probe["temperature"])
        self.say(
            {
                "loaded": {
                    "version": receipt.version,
                    "digests": {
                        name: (str(d.dtype).removeprefix("torch."), d.sha256) for name, d in digests_of(receipt).items()
                    },
                    "probe": scores,
                    "seconds": time.perf_counter() - started,
                }
            }
        )

    def say(self, message: Mapping[str, Any]) -> None:
        self.channel.sendall(wire.encode(message))


def make(setup: Mapping[str, Any]) -> LocalSampler:
    """Return a sampler that decodes as the sampler in the trainer's process would: from a packed copy, or with the
    model itself, which nobody trains here."""
    loaded = load_model(resolve_model_path(ModelConfig.model_validate(setup["model"]), setup["seed"]))
    if setup["lora"] is not None:
        lora = LoRAConfig.model_validate(setup["lora"])
        loaded = replace(loaded, model=apply_lora(loaded.model, lora, seed=setup["seed"]))
    loaded.model.eval()
    loaded = replace(loaded, compute=Compute.from_json(setup["compute"]))
    return LocalSampler.of(loaded, "copied" if loaded.compute.sampler == "packed" else "taken")


def _task(saved: Mapping[str, Any]) -> Task:
    lists = {name: tuple(saved[name]) for name in ("row", "prompt_ids", "drawn_ids", "stream")}
    return Task(**{**saved, **lists})


if __name__ == "__main__":
    main(Worker)
