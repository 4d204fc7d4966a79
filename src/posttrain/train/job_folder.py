"""A folder of a job's in that of its run, for ranks on other machines: who sees the one sees the other.

    .job-k3x9/       settings of the run, and what ranks say that end; gone with the job
    .launcher        the lock of the process that has started the ranks, as long as it lives

A launcher that is killed leaves its folder behind. Whoever goes on with the run removes it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posttrain.errors import ConfigError
from posttrain.store.run_store import RunLock

PREFIX, LAUNCHER = ".job-", ".launcher"


@contextmanager
def job_folder(run: Path) -> Iterator[Path]:
    """As long as the job lasts. Raises ConfigError where another process has started ranks for this run."""
    run.mkdir(parents=True, exist_ok=True)
    lock = RunLock(run, name=LAUNCHER)
    try:
        _remove(run)
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=run) as made:
            yield Path(made)
    finally:
        lock.release()


def remove_left(run: Path) -> None:
    """Those of launchers that were killed; nothing where one lives, such as that of this process."""
    if not any(run.glob(f"{PREFIX}*")):
        return
    try:
        lock = RunLock(run, name=LAUNCHER)
    except ConfigError:
        return
    _remove(run)
    lock.release()


def _remove(run: Path) -> None:
    for left in run.glob(f"{PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)  # storage of a network keeps open files a little longer
