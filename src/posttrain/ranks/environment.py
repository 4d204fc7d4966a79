"""Which rank this process is: said by `torchrun`, by Slurm or by the launcher of `train.devices`.

RANK, WORLD_SIZE, LOCAL_RANK              torchrun, and the launchers of this library
SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID srun, inside of an allocation

How many ranks this machine has say LOCAL_WORLD_SIZE for the first form and SLURM_STEP_TASKS_PER_NODE for the second: a
job that torchrun starts inside of a Slurm step has other ranks than that step has tasks.
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
"""A variable with the rank of a process -> the variable with the number of processes."""
MEETING = ("MASTER_ADDR", "MASTER_PORT")
"""Where ranks meet; PyTorch reads both."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a process in its job."""

    rank: int
    size: int
    local: int
    """Its number on this machine: which GPU it has."""
    beside: int | None = None
    """Ranks on this machine, itself among them, where whoever started it says so."""


def place_of_process(environment: Mapping[str, str] = os.environ) -> Place | None:
    """None where nobody has said so: then this process is a job of its own.

    Raises ConfigError for an environment that says half of it.

    >>> place_of_process({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"})
    Place(rank=1, size=4, local=1, beside=None)
    """
    for form, count in _FORMS.items():
        if form[0] not in environment or environment.get(form[1]) == "1":
            continue
        if form[1] not in environment and MEETING[0] not in environment:
            continue  # alone, a variable of this name says nothing
        environment = meeting_of_slurm(environment)
        missing = [name for name in (*form[1:], *MEETING) if name not in environment]
        numbers = [environment.get(name, "") for name in form]
        if missing or not all(number.isdigit() for number in numbers):
            said = ", ".join(f"{name}={environment[name]}" for name in (*form, *MEETING) if name in environment)
            raise ConfigError(
                given=f"this process is said to be a rank of a job, by {said}"
                + (f" and without {', '.join(missing)}" if missing else ""),
                allowed=f"{', '.join((*form, *MEETING))} together, as torchrun and srun set them",
                fix=f"Start the job with torchrun, or unset {form[0]} to train in this process alone.",
            )
        rank, size, local = map(int, numbers)
        return (
            Place(rank=rank, size=size, local=local, beside=_beside(environment.get(count, ""))) if size > 1 else None
        )
    return None


def leave(code: int) -> NoReturn:
    """End this process with that exit code: a rank that has nothing left to do.

    A thread of gloo lets go of the tensors of the last message when it comes to it. If the interpreter is being taken
    apart by then, the thread is refused its lock, and the process ends by SIGABRT: a run that is over would count as
    lost. So what is registered for the exit runs, and the interpreter is not taken apart.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def told_to(place: Place, address: str, port: int) -> dict[str, str]:
    """The environment variables of a rank; `address` and `port` are those of the first rank.

    >>> place = Place(rank=1, size=4, local=1, beside=2)
    >>> place_of_process(told_to(place, "10.0.0.1", 29_500)) == place
    True
    """
    told = (place.rank, place.size, place.local, address, port)
    beside = {"LOCAL_WORLD_SIZE": "" if place.beside is None else str(place.beside)}
    return {name: str(one) for name, one in zip((*_TORCHRUN, *MEETING), told, strict=True)} | beside


def _beside(told: str) -> int | None:
    """Of Slurm, where each machine has as many: it writes `8(x2)` for 8 on each of two. Empty: nobody knows."""
    found = re.fullmatch(r"(\d+)(\(x\d+\))?", told)
    return int(found[1]) if found else None


def meeting_of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with where the tasks of a step meet, where nothing else says it.

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
