"""What all tests share: how they are collected, what they keep, and how hypothesis draws: the same in every run.

Nothing here imports torch at once. The process that only hands out tests to others has no need of it, and those wait
for it to start.
"""

import contextlib
import gc
import importlib
import os
import signal
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import hypothesis
import pytest
from tests.catalogue import examples
from tests.processes import ForkedEngine

from posttrain.files import PATIENCE
from posttrain.importing import uncollected

hypothesis.settings.register_profile(
    "reproducible",
    examples(40, 100),  # `make test`, `make test-slow`
    derandomize=True,
    deadline=None,  # a busy machine is no failure
)
hypothesis.settings.load_profile("reproducible")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden runs anew (tests/golden)")


def pytest_configure() -> None:
    """Background jobs of a shell ignore Ctrl-C, and so would all runs that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Nothing of what is imported and collected becomes garbage: the collector need not look at it, now or later."""
    with uncollected():
        if "PYTEST_XDIST_WORKER" in os.environ:
            import_a_share(session.config)
        collected = yield
    gc.freeze()
    return collected


def import_a_share(config: pytest.Config) -> None:
    """Each worker collects all tests. First it imports those of its share, so that it finds on file what the others
    have compiled of theirs: to rewrite the asserts of all takes longer than to import them."""
    worker, count = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    named = (config.invocation_params.dir / argument for argument in config.args)
    files = sorted({file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [])})
    for file in files[worker::count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it says what is wrong
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What runs keep for each other stays inside of the test session, processes that it starts included.

    Processes that test side by side have it together: to build a tiny model takes each of them seconds.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"
    folder.mkdir(exist_ok=True)
    before = os.environ.get("POSTTRAIN_CACHE")
    os.environ["POSTTRAIN_CACHE"] = str(folder)
    yield folder
    os.environ.pop("POSTTRAIN_CACHE") if before is None else os.environ.update(POSTTRAIN_CACHE=before)


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """What earlier modules have imported and keep is not looked at again by each collection of a later one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def forked_engines() -> Iterator[None]:
    """Engines of runs in this process have their modules from another: to import them takes each engine seconds."""
    from posttrain.engines.process import EngineProcess
    from posttrain.train.fleet import Fleet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "start", partial(EngineProcess, start=ForkedEngine))
        yield


@pytest.fixture
def own_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are started as a user's run starts them."""
    from posttrain.engines.process import EngineProcess
    from posttrain.train.fleet import Fleet

    monkeypatch.setattr(Fleet, "start", EngineProcess)


@pytest.fixture(scope="session", autouse=True)
def no_patience() -> None:
    """A test of a full disk does not wait for room, nor does a process that it starts."""
    os.environ["POSTTRAIN_DISK_PATIENCE"], PATIENCE.seconds = "0", 0.0


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """No test turns the power off, and what was written survives a kill without it. Which files are flushed, and in
    which order, is tested where checkpoints are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
