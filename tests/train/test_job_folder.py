"""A job's folder inside the run's folder: removed with the job, or by the next job if the launcher was killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.catalogue import few
from tests.processes import Code

from posttrain.errors import ConfigError
from posttrain.train.job_folder import job_folder, remove_left

LAUNCHER = """
import sys, time
from pathlib import Path
from posttrain.train.job_folder import job_folder
with job_folder(Path(sys.argv[1])) as made:
    Path(sys.argv[2]).touch()
    time.sleep(600)
"""


@pytest.fixture
def launcher(tmp_path):
    """A process that holds a job in the folder `run`, and the name of the job's folder."""
    started = Code(LAUNCHER, str(tmp_path / "run"), str(tmp_path / "made"))
    while not (tmp_path / "made").exists():
        assert started.returncode is None
        time.sleep(0.01)
    [name] = jobs(tmp_path / "run")
    yield started, name
    if started.returncode is None:
        started.send_signal(signal.SIGKILL)
    started.communicate()


def jobs(run: Path) -> list[str]:
    return [folder.name for folder in run.glob(".job-*")]


def test_a_job_takes_its_folder_with_it(tmp_path):
    with job_folder(tmp_path / "run") as made:
        assert jobs(tmp_path / "run") == [made.name]
        remove_left(tmp_path / "run")
        assert made.is_dir(), "its launcher is alive"
    assert jobs(tmp_path / "run") == []


def test_one_launcher_at_a_time_has_a_job_in_a_run_and_nobody_else_removes_it(tmp_path, launcher):
    started, name = launcher
    told = f"is being written by another process .pid {started.pid} "
    with pytest.raises(ConfigError, match=told), job_folder(tmp_path / "run"):
        pass
    remove_left(tmp_path / "run")
    assert jobs(tmp_path / "run") == [name]


@pytest.mark.parametrize("how", few(["launched again", "resumed in one process"], "launched again"))
def test_what_a_killed_launcher_leaves_is_removed_by_whoever_goes_on(tmp_path, launcher, how):
    started, name = launcher
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert jobs(tmp_path / "run") == [name]
    if how == "launched again":
        with job_folder(tmp_path / "run") as made:
            assert jobs(tmp_path / "run") == [made.name] != [name]
    else:
        remove_left(tmp_path / "run")
    assert jobs(tmp_path / "run") == []
