"""The engines that serve a model outside this process: how each is started or attached to, the first time and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.engines.port import EnginePort
from posttrain.engines.process import EngineSetup, StartEngine

if TYPE_CHECKING:
    from posttrain.config import JudgeConfig, RolloutConfig, SamplingConfig
    from posttrain.engines.vllm.port import ServerSetup
    from posttrain.engines.vllm.sleeping import SharedDevice
    from posttrain.experience.deliveries import Deliveries
    from posttrain.models.load import LoadedModel

START_DEADLINE = 300.0
"""Seconds in which an engine has to load the model. Imports alone take many seconds on a busy machine."""
INSTRUCTIONS = 2048
"""Maximum tokens of the instructions in a judge's question, also if it asks again for a verdict. Longer questions are
not scored, and the reason says so."""
STARTS = 5
"""Multiples of `rollout.deadline` that loading the model may take, if that is more than `START_DEADLINE`."""


def engine_starts(
    start: StartEngine, rollout: RolloutConfig, setup: EngineSetup, deliveries: Deliveries, folder: Path
) -> dict[str, Callable[[], EnginePort]]:
    """Return the start function of each engine that loads published files, by name. `folder` takes their logs."""

    def started(name: str, place: int) -> EnginePort:
        own = replace(setup, url=rollout.url[place]) if rollout.url else setup
        return start(name, own, deliveries.files, deliveries.numbers, deliveries.proof, log_of(folder, name))

    return {name: partial(started, name, place) for place, name in enumerate(engine_names(rollout.num_engines))}


@dataclass(frozen=True)
class Servers:
    """The vLLM servers that the section `rollout` names or starts."""

    rollout: RolloutConfig
    sampling: SamplingConfig
    """Sampling parameters, except the temperature and the length, which each request has."""
    loaded: LoadedModel
    folder: Path
    """Folder for their logs and start files, below engines/."""
    _: KW_ONLY
    longest: int
    """Tokens of the longest row, including its prompt."""
    threads: int
    """Threads of each server on a CPU."""
    device: SharedDevice | None = None
    """The trainer's GPU, if a server shares it."""

    def starts(self, deliveries: Deliveries) -> dict[str, Callable[[], EnginePort]]:
        """Return the start function of each server, by name. Raises the errors of `server_setup` before any start.
        For a shared GPU, it raises them only at the start, when the free memory is known."""
        from posttrain.engines.vllm.served import server_setup  # with httpx, which only servers need

        found = dict[str, Callable[[], EnginePort]]()
        for place, name in enumerate(engine_names(self.rollout.num_engines)):
            setup = cache(
                partial(
                    server_setup,
                    self.rollout,
                    self.sampling,
                    self.loaded,
                    self.folder,
                    place,
                    longest=self.longest,
                    threads=self.threads,
                    device=self.device,
                )
            )
            if self.device is None:
                setup()
            found[name] = partial(self._start, name, setup, deliveries)
        return found

    def _start(self, name: str, made: Callable[[], ServerSetup], deliveries: Deliveries) -> EnginePort:
        """Start or attach to a server. Wait longer for a server that was there before, because it may come back."""
        from posttrain.engines.vllm.port import VllmEngine

        setup = made()
        if deliveries.driver is not None and deliveries.driver.ready is not None:
            setup = replace(setup, patience=START_DEADLINE)
        log = log_of(self.folder, name)
        return VllmEngine(name, setup, deliveries.files, deliveries.numbers, deliveries.proof, log)


def room_for_judges(longest: int, judges: Iterable[JudgeConfig], loaded: LoadedModel) -> int:
    """Return the tokens of the longest row if the policy also judges answers. A question holds at most two answers, the
    prompt, the instructions and perhaps a first reply. `longest` counts an answer with its prompt."""
    lengths = [judge.max_tokens for judge in judges if judge.url is None and judge.model == "policy"]
    if not lengths:
        return longest
    wanted = 2 * longest + INSTRUCTIONS + 2 * max(lengths)
    return min(wanted, loaded.context_length or wanted)


def engine_names(count: int) -> list[str]:
    """
    >>> engine_names(2)
    ['engine 0', 'engine 1']
    """
    return [f"engine {number}" for number in range(count)]


def log_of(folder: Path, name: str) -> Path:
    """Return the log file of an engine; `folder` is the folder of the run."""
    return folder / "engines" / f"{name.replace(' ', '-')}.log"


def start_deadline(rollout: RolloutConfig) -> float:
    """Return the seconds in which an engine has to start."""
    return max(START_DEADLINE, STARTS * rollout.deadline)
