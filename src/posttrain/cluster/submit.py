"""A run as a Ray job: the command `posttrain train` on the cluster, with its config, its rewards and its data files.

Files that the config names by a relative path are sent along. An absolute path must be on storage that the cluster
sees, and so must the folder of the run, from which a resumed job continues.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.bundles import needs_cluster, ranks_of
from posttrain.cluster.luggage import Luggage, refuse_folders
from posttrain.config import RunConfig, functions_named
from posttrain.config.urls import is_url, wrong_url
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to submit."""

    config: str
    """Path of the config file."""
    overrides: Sequence[str]
    output: str
    """The folder of the run, as the cluster sees it."""
    resume: bool = False
    """Whether to resume the run in `output`."""
    cpus: int = 1
    """Number of processors for the trainer."""
    gpus: int = 0
    python: str = sys.executable
    """Path of the interpreter on the cluster. A plain `python` may be another interpreter there, without Ray."""

    def command(self, config: RunConfig) -> list[str]:
        """The command of the job, run in the folder that is sent along."""
        if self.resume:
            return [self.python, "-m", "posttrain", "resume", self.output, "--quiet"]
        on_cluster = ["--cluster", "auto"] if needs_cluster(config) else []
        verb = ["-m", "posttrain", "train", self.config, *self.overrides, *on_cluster, "--output", self.output]
        return [self.python, *verb, "--quiet"]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submitted job."""

    client: JobSubmissionClient
    name: str

    def follow(self, say: Callable[[str], None]) -> int:
        """Pass the output of the job to `say` until it ends; returns its exit code."""

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
    """Submit a job to the cluster whose dashboard is at `address` (http://HOST:8265, or auto).

    Raises ConfigError for files that the job would not find there, and if there is no such cluster.
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
    luggage = Luggage.of(config, files=True)
    try:
        luggage.add_file(Path(job.config))
    except BaseException:
        luggage.close()
        raise
    return luggage


def refuse_what_stays(job: Job, config: RunConfig) -> None:
    """Raise ConfigError for paths that the job would not find, or that would be lost with the job's own folder."""
    if job.gpus and ranks_of(config):
        raise ConfigError(
            given=f"--gpus {job.gpus} with train.devices = {config.train.devices}, whose ranks get GPUs of their own",
            allowed="no GPU for the process that watches the ranks",
            fix="Leave --gpus out.",
        )
    if is_url(job.output):
        _refuse_url(job, config)
    elif not Path(job.output).is_absolute():
        raise ConfigError(
            given=f"output = {job.output}, which would be in the job's own folder and removed with it",
            allowed="an absolute path on storage that the cluster and this machine see, or a URL",
            fix="--output /shared/runs/first, or --output s3://bucket/runs/first",
        )
    if Path(job.config).is_absolute() or ".." in Path(job.config).parts:
        raise ConfigError(
            given=f"{job.config} is not below the present directory",
            allowed="a config below it; everything that the config names by relative paths must be below it, too",
            fix="Change to the folder of the config first.",
        )
    refuse_folders(config)
    for setting, function in functions_named(config):
        file = function.rpartition(":")[0]
        if file.endswith(".py") and (Path(file).is_absolute() or ".." in Path(file).parts):
            raise ConfigError(
                given=f"{setting} = {function}, whose file is not sent to the cluster",
                allowed="a path below the present directory",
                fix="Write it relative to the present directory.",
            )


def _refuse_url(job: Job, config: RunConfig) -> None:
    if ranks_of(config):
        raise ConfigError(
            given=f"output = {job.output} with train.devices = {config.train.devices}: ranks on several machines write "
            "one checkpoint together",
            allowed="an absolute path on storage that the cluster and this machine see",
            fix="--output /shared/runs/first",
        )
    if (wrong := wrong_url("output", job.output)) is not None:
        raise wrong


def _client(address: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(None if address == "auto" else address)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise ConfigError(
            given=f"--cluster {address}, but no dashboard of a Ray cluster answers there ({error})",
            allowed="http://HOST:8265, or auto on a machine of the cluster",
            fix="`ray start --head --dashboard-host 0.0.0.0` starts one; a tunnel to port 8265 is enough.",
        ) from error
