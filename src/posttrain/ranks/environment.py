"""Which rank this process is, from the variables that torchrun, Slurm or the launcher of `train.devices` set.

RANK, WORLD_SIZE, LOCAL_RANK              torchrun, and the launchers of this library
SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID   srun, inside an allocation

The number of ranks on this machine is in LOCAL_WORLD_SIZE for the first form, and in SLURM_STEP_TASKS_PER_NODE for the
second. The two may differ: torchrun inside a Slurm step may start more ranks than the step has tasks.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from posttrain.errors import ConfigError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_FORMS = {
    _TORCHRUN: "LOCAL_WORLD_SIZE",
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"): "SLURM_STEP_TASKS_PER_NODE",
}
"""Variables with rank, size and local rank -> the variable with the number of processes on this machine."""
MEETING = ("MASTER_ADDR", "MASTER_PORT")
"""Variables with the address at which ranks meet. PyTorch reads both."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a process in its job."""

    rank: int
    size: int
    local: int
    """The number of the rank on this machine, which selects its GPU."""
    beside: int | None = None
    """Number of ranks on this machine, including this one; None if the launcher does not tell."""


def place_of_process(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place of this process in its job; None if it is a job of its own.

    Raises ConfigError for an environment with only some of the variables.

    >>> place_of_process({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"})
    Place(rank=1, size=4, local=1, beside=None)
    """
    for form, count in _FORMS.items():
        if form[0] not in environment or environment.get(form[1]) == "1":
            continue
        if form[1] not in environment and MEETING[0] not in environment:
            continue  # this variable on its own does not make the process a rank
        environment = meeting_of_slurm(environment)
        missing = [name for name in (*form[1:], *MEETING) if name not in environment]
        numbers = [environment.get(name, "") for name in form]
        if missing or not all(number.isdigit() for number in numbers):
            said = ", ".join(f"{name}={environment[name]}" for name in (*form, *MEETING) if name in environment)
            raise ConfigError(
                given=f"the environment makes this process a rank of a job, with {said}"
                + (f" and without {', '.join(missing)}" if missing else ""),
                allowed=f"{', '.join((*form, *MEETING))} together, as torchrun and srun set them",
                fix=f"Start the job with torchrun, or unset {form[0]} to train in this process only.",
            )
        rank, size, local = map(int, numbers)
        return (
            Place(rank=rank, size=size, local=local, beside=_beside(environment.get(count, ""))) if size > 1 else None
        )
    return None


def leave(code: int) -> NoReturn:
    """End this process, a rank that has finished, with an exit code.

    A gloo thread releases the tensors of the last message some time later. If the interpreter is being finalised by
    then, the thread cannot get its lock, and the process ends by SIGABRT: a finished run would count as lost. So this
    function runs the exit handlers, but does not finalise the interpreter.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader of the stream may be gone
            stream.flush()
    os._exit(code)


def told_to(place: Place, address: str, port: int) -> dict[str, str]:
    """The environment variables of a rank; `address` and `port` belong to the first rank.

    >>> place = Place(rank=1, size=4, local=1, beside=2)
    >>> place_of_process(told_to(place, "10.0.0.1", 29_500)) == place
    True
    """
    told = (place.rank, place.size, place.local, address, port)
    beside = {"LOCAL_WORLD_SIZE": "" if place.beside is None else str(place.beside)}
    return {name: str(one) for name, one in zip((*_TORCHRUN, *MEETING), told, strict=True)} | beside


def _beside(told: str) -> int | None:
    """Number of ranks per machine; None if it is unknown or differs. Slurm writes `8(x2)` for 8 on each of two."""
    found = re.fullmatch(r"(\d+)(\(x\d+\))?", told)
    return int(found[1]) if found else None


def meeting_of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the address at which the tasks of a Slurm step meet, unless it has one already.

    >>> step = {"SLURM_STEP_NODELIST": "gpu[03-04,9],cpu1", "SLURM_JOB_ID": "1234567"}
    >>> [meeting_of_slurm(step)[name] for name in MEETING]
    ['gpu03', '24567']
    """
    first = re.match(r"([^\[,]+)(?:\[(\d+))?", environment.get("SLURM_STEP_NODELIST", ""))
    job = environment.get("SLURM_JOB_ID", "")
    if first is None or not job.isdigit() or "MASTER_ADDR" in environment:
        return dict(environment)
    meeting = {"MASTER_ADDR": first[1] + (first[2] or ""), "MASTER_PORT": str(20_000 + int(job) % 10_000)}
    return {**environment, **meeting}
