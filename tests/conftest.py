"""Setup that all tests share: how they are collected, what they keep, and how hypothesis draws (the same in every run).

This module must not import torch at its top. The process that hands out tests to the others does not need torch, and
the others wait until it has started.
"""

import contextlib
import fcntl
import gc
import importlib
import itertools
import os
import signal
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.catalogue import examples
from tests.processes import ForkedEngine, serve_workers

from posttrain.files import PATIENCE

hypothesis.settings.register_profile(
    "reproducible",
    examples(30, 100),  # `make test`, `make test-slow`
    derandomize=True,
    deadline=None,  # a busy machine is not a failure
)
hypothesis.settings.load_profile("reproducible")


LESS_OFTEN = (20_000, 20, 20)
"""Thresholds of the garbage collector. With Python's own it takes every fortieth second of the tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden runs anew (tests/golden)")


def pytest_configure(config: pytest.Config) -> None:
    """Restore the handler of Ctrl-C: a shell's background jobs ignore it, and so would every run that a test starts.
    With xdist, start the process that its workers fork others from, which has the environment of this process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["POSTTRAIN_DISK_PATIENCE"], PATIENCE.seconds = "0", 0.0  # no test waits for space on a full disk
    if getattr(config.option, "numprocesses", None) and not config.option.collectonly:
        serve_workers()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep imported and collected objects out of garbage collection, now and later: none of them becomes garbage."""
    gc.disable()
    try:
        if "PYTEST_XDIST_WORKER" in os.environ:
            import_a_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*LESS_OFTEN)
        gc.enable()


def import_a_share(config: pytest.Config) -> None:
    """Import this worker's share of the test files before collection, because each worker collects all of them. It then
    finds the other files already compiled by its siblings: rewriting all asserts takes longer than importing."""
    worker, count = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    named = (config.invocation_params.dir / argument for argument in config.args)
    files = sorted({file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [])})
    for file in files[worker::count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection reports the error
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the cache of runs inside the test session, also for processes that a test starts.

    Parallel test processes share it, because each of them would need seconds to build a tiny model.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"
    folder.mkdir(exist_ok=True)
    before = os.environ.get("POSTTRAIN_CACHE")
    os.environ["POSTTRAIN_CACHE"] = str(folder)
    yield folder
    os.environ.pop("POSTTRAIN_CACHE") if before is None else os.environ.update(POSTTRAIN_CACHE=before)


@pytest.fixture(scope="session", autouse=True)
def built_once(own_cache: Path) -> Iterator[None]:
    """Let one test process build a tiny model while the others wait, instead of all of them."""
    from posttrain.tasks import tiny

    path_of = tiny.tiny_model_path

    def one_after_the_other(*names: Any, **options: Any) -> Path:
        with own_cache.with_name("building").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return path_of(*names, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "tiny_model_path", one_after_the_other)
        yield


MODULES = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """Every 20 modules, freeze the objects that they imported and keep, so that later garbage collections skip them."""
    if next(MODULES) % 20 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def forked_engines() -> Iterator[None]:
    """Fork the engines of this process's runs from a process that has imported their modules, which takes seconds."""
    from posttrain.engines.process import EngineProcess
    from posttrain.train.fleet import Fleet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "start", partial(EngineProcess, start=ForkedEngine))
        yield


TRIED_ANEW = (
    *("cpu", "models", "test_trials.py"),
    *("engines/test_delivery.py", "engines/test_engine.py", "engines/test_reads.py"),
    *("engines/test_second_device.py", "engines/test_standing_alone.py"),
    *("gpu/test_offloading.py", "gpu/test_training_path.py", "gpu/test_varlen.py"),
)
"""Where every model is tried: folders and files of tests that are about the trials, that replace kernels or devices, or
that watch which tensors are read."""


@pytest.fixture(scope="module", autouse=True)
def remembered_trials(request: pytest.FixtureRequest) -> Iterator[None]:
    """Try equal models only once, except in the tests of the trials."""
    from tests import trials

    with pytest.MonkeyPatch.context() as patch:
        if not any(map(request.path.relative_to(Path(__file__).parent).is_relative_to, TRIED_ANEW)):
            trials.remember(patch)
        yield


CHILDREN_OF_A_RUN = (
    "rewards/audit",
    "rewards/test_hostile.py",
    "rewards/test_pool.py",
    "rewards/test_scoring.py",
    "rewards/test_threads.py",
    "verify/programs/test_code.py",
    *(f"faults/test_{name}.py" for name in ("engines", "kill_and_resume", "kill_pipeline", "stalls")),
)
"""Where reward workers and hosts of environments start as in a run: the tests of the workers themselves, of kills and
leaks, and the audit, whose rewards do harm."""


@pytest.fixture(scope="module", autouse=True)
def forked_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork reward workers and hosts of environments, except in the tests that need those of a run."""
    from tests.forked import fork_hosts, fork_workers

    with pytest.MonkeyPatch.context() as patch:
        if not any(map(request.path.relative_to(Path(__file__).parent).is_relative_to, CHILDREN_OF_A_RUN)):
            fork_workers(patch)
            fork_hosts(patch)
        yield


@pytest.fixture
def own_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start engines the way a user's run starts them."""
    from posttrain.engines.process import EngineProcess
    from posttrain.train.fleet import Fleet

    monkeypatch.setattr(Fleet, "start", EngineProcess)


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """Skip flushing to disk. No test cuts the power, and written data survives a kill without a flush. The tests of
    checkpoints check which files are flushed, and in which order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
