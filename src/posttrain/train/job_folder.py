"""The folder of a job of several ranks inside the folder of its run: a machine that can read the run can read both.

    .job-k3x9/       settings of the run, and the errors of ranks; removed when the job ends
    .launcher        the lock of the process that started the ranks, held while it lives

A launcher that is killed leaves its folder behind. The next process that continues the run removes it.
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
    """A folder that lasts as long as the job. Raises ConfigError if another process has started ranks for this run."""
    run.mkdir(parents=True, exist_ok=True)
    lock = RunLock(run, name=LAUNCHER)
    try:
        _remove(run)
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=run) as made:
            yield Path(made)
    finally:
        lock.release()


def remove_left(run: Path) -> None:
    """Remove job folders of killed launchers. Does nothing while a launcher lives, such as this process's own."""
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
        shutil.rmtree(left, ignore_errors=True)  # network storage keeps open files for a while
