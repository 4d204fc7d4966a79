"""A run as a Ray job: the command `posttrain train` on the cluster, with its config, its rewards and its data files.

What the config names by a relative path goes along; an absolute path is on storage that the cluster sees. So is the
folder of the run, which a resume goes on from.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cluster.luggage import Luggage
from posttrain.config import RunConfig, functions_named, models_named
from posttrain.config.pipeline import MARK
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be run, and with what."""

    config: str
    """The file."""
    overrides: Sequence[str]
    output: str
    """The folder of the run, as the cluster sees it."""
    resume: bool = False
    """Go on with the run that is there."""
    cpus: int = 1
    """Processors of the trainer."""
    gpus: int = 0
    python: str = sys.executable
    """The interpreter of the cluster: `python` alone may be another one there, without Ray."""

    def command(self, config: RunConfig) -> list[str]:
        """What the job runs, in the folder that goes along."""
        if self.resume:
            return [self.python, "-m", "posttrain", "resume", self.output, "--quiet"]
        on_cluster = ["--cluster", "auto"] if config.rollout.engines else []
        verb = ["-m", "posttrain", "train", self.config, *self.overrides, *on_cluster, "--output", self.output]
        return [self.python, *verb, "--quiet"]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that the cluster has."""

    client: JobSubmissionClient
    name: str

    def follow(self, say: Callable[[str], None]) -> int:
        """Pass on what it prints until it ends; its exit code."""

        async def tail() -> None:
            async for text in self.client.tail_job_logs(self.name):
                say(text)

        asyncio.run(tail())
        found = self.client.get_job_info(self.name)
        if str(found.status) == "SUCCEEDED":
            return 0
        if found.driver_exit_code is None:
            say(f"{found.status}: {found.message}\n")
        return found.driver_exit_code or 1


def hand_in(job: Job, config: RunConfig, address: str) -> Submitted:
    """Hand a job to the cluster whose dashboard is at `address` (http://HOST:8265, or auto).

    Raises ConfigError for what the job would not find there, and where there is no such cluster.
    """
    refuse_what_stays(job, config)
    with luggage_of(job, config) as luggage:
        client = _client(address)
        name = client.submit_job(
            entrypoint=shlex.join(job.command(config)),
            runtime_env={"working_dir": str(luggage.folder)},
            entrypoint_num_cpus=job.cpus,
            entrypoint_num_gpus=job.gpus,
        )
    return Submitted(client=client, name=name)


def luggage_of(job: Job, config: RunConfig) -> Luggage:
    """The config, the files that it names by relative paths, and the folders of its reward functions."""
    luggage = Luggage.of(config)
    try:
        for file in (Path(job.config), *(Path(path) for _, path in files_named(config) if Path(path).is_file())):
            if not file.is_absolute():
                luggage.add_file(file)
    except BaseException:
        luggage.close()
        raise
    return luggage


def refuse_what_stays(job: Job, config: RunConfig) -> None:
    """Raise ConfigError for what is only on this machine: it would be missed, or lost with the job's own folder."""
    if not Path(job.output).is_absolute():
        raise ConfigError(
            given=f"output = {job.output}, which would be a folder of the job's own, removed with it",
            allowed="an absolute path on storage that the cluster and this machine see",
            fix="--output /shared/runs/first",
        )
    if Path(job.config).is_absolute() or ".." in Path(job.config).parts:
        raise ConfigError(
            given=f"{job.config} does not lie below the present directory",
            allowed="a config below it, with what it names by relative paths",
            fix="Change to the folder of the config first.",
        )
    for setting, path in files_named(config):
        if not Path(path).is_absolute() and Path(path).is_dir():
            raise ConfigError(
                given=f"{setting} = {path}, a folder of this machine, which does not go to the cluster",
                allowed="an absolute path on storage that the cluster sees, or a name on the Hub",
                fix=f"Copy it there, and set {setting} to its absolute path.",
            )
    for setting, function in functions_named(config):
        file = function.rpartition(":")[0]
        if file.endswith(".py") and (Path(file).is_absolute() or ".." in Path(file).parts):
            raise ConfigError(
                given=f"{setting} = {function}, whose file does not go to the cluster",
                allowed="a path below the present directory",
                fix="Write it relative to the present directory.",
            )


def files_named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(setting, path or name) of data, texts, templates, models, folders to search and programs."""
    data = config.data
    for setting, given in (("data.train", data.train), ("data.eval", data.eval), ("data.auxiliary", data.auxiliary)):
        for path in [given] if isinstance(given, str) else given or ():
            yield setting, path
    if config.model.chat_template is not None:
        yield "model.chat_template", config.model.chat_template
    if config.evaluation.forgetting is not None:
        yield "evaluation.forgetting", config.evaluation.forgetting
    if config.evaluation.other_prompts is not None:
        yield "evaluation.other_prompts", config.evaluation.other_prompts
    for place, tool in enumerate(config.tools):
        if tool.startswith("search:"):
            yield f"tools.{place}", tool.removeprefix("search:")
    for place, part in enumerate(config.agent.command):
        if not Path(part).is_absolute():  # an interpreter is that of the node
            yield f"agent.command.{place}", part
    yield from (one for one in models_named(config) if not one[1].startswith(MARK))


def _client(address: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(None if address == "auto" else address)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise ConfigError(
            given=f"--cluster {address}, and no dashboard of a Ray cluster answers there ({error})",
            allowed="http://HOST:8265, or auto on a machine of the cluster",
            fix="`ray start --head --dashboard-host 0.0.0.0` starts one; a tunnel to port 8265 is enough.",
        ) from error
