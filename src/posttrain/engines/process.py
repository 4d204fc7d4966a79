"""A local sampler in a separate process, as its driver sees it. Implements `EnginePort`.

driver    EngineProcess    Child                          posttrain.engines.worker
------------------------>  channel: messages (wire.py)    ------------------------>
          publications --  bring: weights  -------------> memory that it reads
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import torch

from posttrain import wire
from posttrain.child import EngineChild, LocalEngine, last_words
from posttrain.config.sections import ENGINES
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.port import Answer, EngineGone, EnginePort, GivenBack, Piece, Ready, RowName, Task, WeightsLoaded
from posttrain.engines.sampler import Digest
from posttrain.plugins import published


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """The settings that an engine gets when it starts, as plain JSON."""

    model: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    sampling: Mapping[str, Any]
    seed: int
    compute: Mapping[str, Any]
    """The trainer's compute settings, which the engine uses, too."""
    keep_cache: bool
    threads: int
    url: str = ""
    """The URL of the server that the engine is or uses, if the config names one."""


class StartEngine(Protocol):
    """Starts an engine: `EngineProcess`, or a plugin of another package in the group `posttrain.engines`."""

    def __call__(
        self,
        name: str,
        setup: EngineSetup,
        files: Sequence[int],
        numbers: Mapping[int, int],
        proof: DeliveryProof,
        log: Path,
    ) -> EnginePort:
        """Start the engine without waiting for it. `files` hold the published weights (`engines.published.Published`),
        `numbers` maps versions to publications, and `log` takes the engine's output."""
        ...


def published_engine(name: str) -> StartEngine:
    """Return another package's start function for engines of that name. Raises PluginError, which names the package."""
    plugin = published("engine", ENGINES)[name]
    start: Any = plugin.load()
    if not callable(start):
        plugin.refuse(f"is {start!r}", "a callable as posttrain.engines.process.StartEngine describes")
    return cast("StartEngine", start)


class EngineProcess:
    """The process of one engine. No method waits for it, so an engine that hangs blocks nobody."""

    program: ClassVar[str] = "posttrain.engines.worker"
    """The module that the process runs."""

    def __init__(
        self,
        name: str,
        setup: EngineSetup,
        files: Sequence[int],
        numbers: Mapping[int, int],
        proof: DeliveryProof,
        log: Path,
        *,
        start: Callable[..., EngineChild] = LocalEngine,
    ) -> None:
        """`files` hold the published weights, `numbers` maps versions to publications, and `log` takes the output.
        `start` starts the process, with the arguments of `LocalEngine`."""
        self.name, self.proof, self.log = name, proof, log
        self._numbers = numbers
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self.child = start(self.program, output.fileno(), files=files, threads=setup.threads)
        self.channel = self.child.channel
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._say(vars(setup))

    def fileno(self) -> int:
        return self.channel.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        """See `EnginePort`."""
        self._say({"submit": [vars(task) for task in tasks]})

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        """See `EnginePort`."""
        self._say({"interrupt": rows})

    def load(self, version: int) -> None:
        """See `EnginePort`."""
        proof = self.proof
        probe = {
            "prompt_ids": proof.prompt_ids,
            "completion_ids": proof.completion_ids,
            "temperature": proof.temperature,
        }
        number = self._numbers[version]
        self.child.bring(number)
        self._say({"load": {"version": version, "number": number, "probe": probe}})

    def answers(self) -> list[Answer]:
        """See `EnginePort`."""
        ended = False
        try:
            while received := self.channel.recv(1 << 20):
                self._incoming += received
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        try:
            found = [answer for message in wire.decode(self._incoming) for answer in _answers(message)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineGone(f"it sent a message that cannot be read ({type(error).__name__}: {error})") from error
        if ended and not found:
            raise EngineGone(self.death())
        return found

    def push(self) -> bool:
        """See `EnginePort`."""
        with suppress(BlockingIOError, OSError):
            while self._outgoing:
                sent = self.channel.send(self._outgoing)
                del self._outgoing[:sent]
        return bool(self._outgoing)

    def death(self) -> str:
        """Return how the process ended, and the last line of its output."""
        end = self.child.end(patience=1.0)
        return "it closed its connection" if end is None else last_words(end, self.log)

    def work(self) -> float:
        """See `EnginePort`."""
        return self.child.work()

    def kill(self) -> None:
        """See `EnginePort`."""
        self.child.kill()

    def _say(self, message: Mapping[str, Any]) -> None:
        self._outgoing += wire.encode(message)
        self.push()


def _answers(message: Mapping[str, Any]) -> list[Answer]:
    if "pieces" in message:
        return [Piece.from_json(piece) for piece in message["pieces"]]
    if "loaded" in message:
        loaded = message["loaded"]
        digests = {name: Digest(getattr(torch, dtype), sha) for name, (dtype, sha) in loaded["digests"].items()}
        return [WeightsLoaded(**{**loaded, "digests": digests})]
    if "given_back" in message:
        return [GivenBack(row=tuple(row), attempt=attempt) for row, attempt in message["given_back"]]
    if "ready" in message:
        ready = message["ready"]
        tensors = {name: (dtype, tuple(shape)) for name, (dtype, shape) in ready["tensors"].items()}
        return [Ready(**{**ready, "tensors": tensors})]
    if "failed" in message:
        raise EngineGone(message["failed"])
    raise ValueError(f"an unknown message: {', '.join(message)}")
