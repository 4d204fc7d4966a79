"""A run as a job of several ranks. This process joins it as the leader or as a follower, or launches it."""

from __future__ import annotations

import math
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from posttrain.config import ModelConfig, check_over, models_named, to_yaml
from posttrain.errors import ConfigError, RankLost
from posttrain.models import acceleration
from posttrain.models.named import resolve_model_path
from posttrain.ranks.agreement import ONE, Ranks
from posttrain.ranks.environment import place_of_process
from posttrain.ranks.group import ProcessRanks
from posttrain.report.store import RunRecord, read_run
from posttrain.report.verdict import in_brief
from posttrain.rewards.load import IN_MEMORY
from posttrain.store.run_store import require_unused
from posttrain.train import objects
from posttrain.train.carrying import refuse_several_machines
from posttrain.train.followers import END, Follower
from posttrain.train.hosts import CLUSTERS, RankHosts
from posttrain.train.job_folder import job_folder
from posttrain.train.launch import CONFIG, GIVEN, Job, devices_of
from posttrain.train.local_ranks import LocalRanks, file_of
from posttrain.train.memory import within_memory

if TYPE_CHECKING:
    from posttrain.config import Resolved, RunConfig
    from posttrain.report.terminal import TerminalView


def join(config: RunConfig) -> Ranks:
    """The ranks of the job that this process belongs to; a single rank if it belongs to none."""
    place = place_of_process()
    if place is None or dist.is_initialized():  # an inner run, such as the reward model's, has one rank
        return ONE
    if config.train.devices not in ("auto", 1, place.size):
        raise ConfigError(
            given=f"train.devices = {config.train.devices} in a job of {place.size} processes",
            allowed=f"{place.size}, or auto",
            fix="Set train.devices = auto, which uses all processes of the job.",
        )
    check_over(config, place.size)
    refuse_several_machines(config.output, place)
    for _, path in models_named(
        config
    ):  # before this process becomes a rank, because transformers saves models on the first rank only
        resolve_model_path(ModelConfig(path=path), config.seed)
    acceleration.register(None)  # CPU kernels read whole weights, without the modules that gather sharded ones
    ranks = ProcessRanks(place, config.train.rank_deadline, on_cpu=config.model.device == "cpu")
    try:
        refuse_neighbours_apart(config.train.tensor, ranks.gather(socket.gethostname()))
    except ConfigError:
        ranks.close()
        raise
    return ranks


def refuse_neighbours_apart(tensor: int, machines: Sequence[str]) -> None:
    """Raise ConfigError if ranks that share a matrix are on two machines. `machines` has one entry per rank."""
    for first in range(0, len(machines), tensor):
        here = machines[first : first + tensor]
        if len(set(here)) > 1:
            counts = Counter(machines)
            allowed, told = math.gcd(*counts.values()), ", ".join(f"{n} on {name}" for name, n in counts.items())
            raise ConfigError(
                given=f"train.tensor = {tensor}, but ranks {first} to {first + tensor - 1} share matrices and some are "
                f"on {here[0]}, some on {here[-1]} (ranks: {told})",
                allowed=f"a divisor of the ranks per machine ({allowed}): only ranks on one machine share a matrix",
                fix=f"Set train.tensor = {math.gcd(allowed, tensor)}.",
            )


@contextmanager
def leading(ranks: Ranks) -> Iterator[None]:
    """A context that tells the other ranks when the run ends, unless they are in the middle of an operation."""
    try:
        yield
    finally:
        if isinstance(ranks, ProcessRanks) and not ranks.broken:
            with suppress(RankLost), ranks.together(END):
                pass
            ranks.close()


def follow(ranks: Ranks) -> FinishedRun:
    """Take part in the run until it is over. Only the first rank decides when a run stops."""
    assert isinstance(ranks, ProcessRanks)
    with suppress(ValueError):  # not in the main thread: the caller handles signals
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    follower = Follower(ranks)
    with within_memory():
        follower.run()
    ranks.close()
    return FinishedRun(follower.folder or Path(), followed=True)


def launch(
    resolved: Resolved,
    folder: Path,
    view: TerminalView | None,
    *,
    files: Mapping[str, objects.Content] = MappingProxyType({}),
    resumed: Mapping[str, Any] | None = None,
) -> FinishedRun:
    """Train in one new process per rank. `resumed` holds the settings that a resumed run changes.

    Raises ConfigError for a new run in a folder that already holds one, before anything is reserved or started.
    """
    config = resolved.config
    if resumed is None:
        require_unused(folder)
    folder = folder if config.cluster is None else folder.absolute()
    in_memory = [
        f"{part}.{number}"
        for part in ("rewards", "check")
        for number, entry in enumerate(getattr(config, part))
        if str(entry.function or "").startswith(IN_MEMORY)
    ]
    if in_memory:
        raise ConfigError(
            given=f"{in_memory[0]} is a function that no file defines, and train.devices = {config.train.devices}",
            allowed="functions in a module or file, which each process can import",
            fix="Put it into a file, and write it as path.py:function.",
        )
    with _machines(config, folder, view) as (ranks, place):
        (place / CONFIG).write_text(to_yaml(resolved), encoding="utf-8")
        (place / GIVEN).mkdir()
        objects.put_files(files, place / GIVEN)
        Job(
            config=config,
            place=place,
            folder=folder,
            size=devices_of(config),
            ranks=ranks,
            restarts=config.train.restarts,
            view=view,
            resumed=resumed,
        ).run()
    return FinishedRun(folder)


@contextmanager
def _machines(config: RunConfig, folder: Path, view: TerminalView | None) -> Iterator[tuple[RankHosts, Path]]:
    """The machines on which ranks are started, and a folder that all ranks see. Both last as long as the job."""
    output = file_of(view.stream) if view else None
    with ExitStack() as stack:
        ranks: RankHosts = LocalRanks(output)
        if config.cluster is not None:
            ranks = stack.enter_context(CLUSTERS["ray"].ranks(config, devices_of(config), output))
        yield ranks, stack.enter_context(job_folder(folder.absolute()))


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run that other processes have trained, read from its folder."""

    folder: Path
    followed: bool = False
    """Whether this process was a follower. Another process led the run and reports its result."""

    def __fspath__(self) -> str:
        return str(self.folder)

    @cached_property
    def record(self) -> RunRecord:
        return read_run(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per step, as in metrics.jsonl."""
        return self.record.metrics

    @property
    def evaluation(self) -> dict[str, Any]:
        """The content of evaluation.json."""
        return dict(self.record.evaluation)

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def model_path(self) -> Path | None:
        """The folder `model/` of the newest checkpoint, which `from_pretrained` opens."""
        return self.record.last_model

    @property
    def stop_asked(self) -> int:
        """Always 0: a signal ends the launcher with a KeyboardInterrupt."""
        return 0

    def summary(self) -> dict[str, Any]:
        report = self.folder / "report.html"
        return {
            "folder": str(self.folder),
            "model_path": str(self.model_path),
            "report": str(report) if report.exists() else None,
            "steps": self.step,
            "verdict": in_brief(self.record),
            "evaluation": self.evaluation,
        }

    def __repr__(self) -> str:
        return f"<FinishedRun {self.folder}, {self.step} steps>"
