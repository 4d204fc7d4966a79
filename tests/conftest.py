"""The fixtures that worked examples are computed on, and how hypothesis draws: the same examples in every run."""

import contextlib
import gc
import importlib
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import hypothesis
import pytest
import torch
from tests.catalogue import examples
from tests.processes import ForkedEngine
from torch import Tensor

from posttrain.engines.process import EngineProcess
from posttrain.files import PATIENCE
from posttrain.importing import uncollected
from posttrain.train.fleet import Fleet
from posttrain.types import Batch, Totals, count_totals

hypothesis.settings.register_profile(
    "reproducible",
    examples(40, 100),  # `make test`, `make test-slow`
    derandomize=True,
    deadline=None,  # a busy machine is no failure
)
hypothesis.settings.load_profile("reproducible")

Ragged = Sequence[Sequence[float]]


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "start", partial(EngineProcess, start=ForkedEngine))
        yield


@pytest.fixture
def own_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are started as a user's run starts them."""
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


@dataclass(frozen=True)
class TokenFixture:
    """Fixture T of the algorithm reference: four completions of 3, 2, 4 and 1 tokens, in float64.

    Padding holds nan: whoever reads it is found out.
    """

    ragged_logprobs: Ragged = ((-0.45, -0.90, -0.40), (-2.40, -0.60), (-0.08, -1.75, -0.75, -0.40), (-0.80,))
    ragged_old: Ragged = ((-0.50, -1.20, -0.30), (-2.00, -0.70), (-0.10, -1.50, -0.90, -0.40), (-2.10,))
    ragged_ref: Ragged = ((-0.60, -1.00, -0.35), (-1.90, -0.80), (-0.20, -1.40, -1.10, -0.40), (-1.50,))
    advantages: Sequence[float] = (1.2, -0.7, 0.4, -1.5)

    @property
    def mask_BT(self) -> Tensor:
        return ~pad(self.ragged_old).isnan()

    @property
    def logprobs_BT(self) -> Tensor:
        """A new leaf with gradient each time."""
        return pad(self.ragged_logprobs).requires_grad_()

    @property
    def old_BT(self) -> Tensor:
        return pad(self.ragged_old)

    @property
    def ref_BT(self) -> Tensor:
        return pad(self.ragged_ref)

    @property
    def advantages_BT(self) -> Tensor:
        return pad([[a] * len(row) for a, row in zip(self.advantages, self.ragged_old, strict=True)])

    def batch(self, *, without_rows: Sequence[int] = ()) -> Batch:
        mask_BT = self.mask_BT
        mask_BT[list(without_rows)] = False
        return Batch(
            completion_mask_BT=mask_BT,
            advantages_BT=self.advantages_BT,
            old_logprobs_BT=self.old_BT,
            ref_logprobs_BT=self.ref_BT,
            groups_B=torch.zeros(4, dtype=torch.long),
        )

    @property
    def totals(self) -> Totals:
        return count_totals(self.batch())


def pad(ragged: Ragged, fill: float = float("nan")) -> Tensor:
    longest = max(map(len, ragged))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in ragged], dtype=torch.float64)


@pytest.fixture
def t() -> TokenFixture:
    return TokenFixture()


@pytest.fixture
def assert_ragged():
    """Compare `[B, T]` with the numbers of a worked example, printed with 10 digits; outside of them all must be 0."""

    def check(actual_BT: Tensor, expected: Ragged) -> None:
        torch.testing.assert_close(actual_BT.detach(), pad(expected, fill=0.0), rtol=1e-8, atol=1e-12)

    return check


@pytest.fixture
def rewards_PG() -> Tensor:
    """Fixture R of the algorithm reference: three prompts, four completions each."""
    return torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.5, 0.4], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)


@pytest.fixture
def lengths_PG() -> Tensor:
    """Fixture L of the algorithm reference: the lengths of those completions."""
    return torch.tensor([[3, 2, 4, 1], [2, 2, 3, 5], [1, 4, 2, 3]])
