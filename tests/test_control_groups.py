"""The limits of a container are read from its control groups, version 1 or 2. A machine without groups has no limit."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import run_code

from posttrain.control_groups import cores, memory_left
from posttrain.models.load import hold_to_quota


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A stand-in for /proc/self/cgroup, with one group inside another."""
    file = tmp_path / "own"
    file.write_text("0::/outer/inner\n")
    return file


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def can_use(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(number)), raising=False)


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("max 100000", "max 100000", 64),
        ("400000 100000", "max 100000", 4),
        ("max 100000", "250000 100000", 2),
        ("800000 100000", "300000 100000", 3),
        ("50000 100000", "max 100000", 1),
        ("9000000 100000", "max 100000", 64),
        ("nonsense", "max", 64),
    ],
)
def test_the_smallest_quota_of_the_groups_around_a_process_counts(inner, outer, expected, own, tmp_path, monkeypatch):
    can_use(64, monkeypatch)
    group(tmp_path / "outer" / "inner", cpu__max=inner)
    group(tmp_path / "outer", cpu__max=outer)
    assert cores(tmp_path, own) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 1), ("600000", 6)])
def test_quotas_of_version_1_are_read_too(quota, expected, tmp_path, monkeypatch):
    can_use(8, monkeypatch)
    group(tmp_path / "cpu" / "job", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    own = tmp_path / "own"
    own.write_text("5:cpuset:/other\n4:cpu,cpuacct:/job\n")
    assert cores(tmp_path, own) == expected


def test_controllers_that_are_mounted_together_are_found(tmp_path, monkeypatch):
    can_use(8, monkeypatch)
    files = {"cpu__cfs_quota_us": "200000", "cpu__cfs_period_us": "100000"}
    group(tmp_path / "cpu,cpuacct" / "job", **files)
    own = tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/job\n")
    assert cores(tmp_path, own) == 2


def test_the_cores_are_those_that_this_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    assert run_code(code + "from posttrain.control_groups import cores; print(cores())").printed == "1\n"


def test_without_control_groups_the_cores_are_those_that_a_process_may_run_on(tmp_path, monkeypatch):
    can_use(3, monkeypatch)
    assert cores(tmp_path / "none", tmp_path / "nothing") == 3


@given(st.text())
def test_no_text_in_a_group_is_too_odd_to_go_on(text):
    with TemporaryDirectory() as name:
        folder = group(Path(name), own="0::/\n")
        (folder / "cpu.max").write_text(text, encoding="utf-8", errors="replace")
        assert cores(folder, folder / "own") >= 1


def test_the_limits_of_all_groups_are_told_and_the_file_cache_is_free(own, tmp_path):
    stat = "anon 400000\ninactive_file 50000\nactive_file 100000\nshmem 50000\n"
    for folder, limit in (("outer/inner", "1000000"), ("outer", "max")):
        group(tmp_path / folder, memory__max=limit, memory__current="600000", memory__stat=stat)
    assert list(memory_left(tmp_path, own)) == [550_000]


def test_memory_of_version_1_is_read_too(tmp_path):
    stat = "inactive_file 0\nactive_file 0\ntotal_inactive_file 70\ntotal_active_file 30\n"
    files = {"memory__limit_in_bytes": "2000", "memory__usage_in_bytes": "500", "memory__stat": stat}
    group(tmp_path / "memory" / "job", **files)
    own = tmp_path / "own"
    own.write_text("5:cpuset:/other\n4:memory:/job\n")
    assert list(memory_left(tmp_path, own)) == [1600]


@pytest.mark.parametrize(("quota", "threads"), [(1, "1 thread"), (3, "3 threads")])
def test_pytorch_starts_no_more_threads_than_the_quota_has_cores(quota, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr("posttrain.models.load.cores", lambda: quota)
        assert hold_to_quota() == [f"{threads}, not 4: this container may not use more of the processor"]
        assert torch.get_num_threads() == quota
        assert hold_to_quota() == []
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        torch.set_num_threads(4)
        assert hold_to_quota() == [], "a number that the user sets is kept"
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
