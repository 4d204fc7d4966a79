"""A deferred module behaves like an imported one, except that it runs later."""

import importlib.util
import inspect
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from posttrain.importing import Deferred, defer, uninterrupted
from posttrain.stopping import terminated_as_interrupted


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that counts how often it runs, refers to itself while it runs, and has a submodule."""
    (folder := tmp_path / "slow_package").mkdir()
    (folder / "__init__.py").write_text(
        "import sys, time\nruns = getattr(sys, 'slow_package_runs', 0) + 1\nsys.slow_package_runs = runs\n"
        "import slow_package\nslow_package.early = 1\nfrom slow_package.inner import value\ntime.sleep(0.05)\n"
        "def __getattr__(name):\n    if name == 'made': return 'made'\n    raise AttributeError(name)\nlast = True\n"
    )
    (folder / "inner.py").write_text("import slow_package\nvalue = slow_package.early + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "slow_package"
    for name in [name for name in sys.modules if name.partition(".")[0] == "slow_package"]:
        del sys.modules[name]
    if hasattr(sys, "slow_package_runs"):
        del sys.slow_package_runs


def runs() -> int:
    return getattr(sys, "slow_package_runs", 0)


def test_what_imports_and_inspect_ask_of_every_module_does_not_run_it(package):
    defer(package)
    module = importlib.import_module(package)
    exec(f"import {package}\nimport {package} as again", {})
    assert importlib.util.find_spec(package) is module.__spec__
    inspect.getmodule(inspect.currentframe())  # reads the file of each module in sys.modules
    assert isinstance(module, Deferred)
    assert runs() == 0


@pytest.mark.parametrize(
    "use",
    [
        "import slow_package; slow_package.last",
        "from slow_package import last",
        "import slow_package.inner",
        "from slow_package import inner",
        "from slow_package.inner import value; assert value == 2",
        "import slow_package; assert slow_package.made == 'made'",
        "import slow_package; assert 'last' in dir(slow_package)",
        "import slow_package; slow_package.last = 3; assert slow_package.last == 3",
    ],
)
def test_every_use_runs_it_once_and_then_it_is_a_plain_module(package, use):
    defer(package)
    before = sys.modules[package]
    exec(use, {})
    exec(use, {})
    module = sys.modules[package]
    assert runs() == 1
    assert module is before
    assert type(module) is type(sys)
    assert module.inner is sys.modules["slow_package.inner"]
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018


def test_threads_that_ask_at_once_all_get_the_whole_module(package):
    defer(package)
    module, seen, start = sys.modules[package], [], threading.Barrier(8)

    def ask() -> None:
        start.wait()
        seen.append(module.last)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8
    assert runs() == 1


def test_an_import_that_fails_raises_at_each_use(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libbroken.so is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    defer("broken_package")
    module = sys.modules["broken_package"]
    try:
        for _ in range(2):
            with pytest.raises(ImportError, match="libbroken"):
                module.anything  # noqa: B018
    finally:
        del sys.modules["broken_package"]


def test_a_module_that_is_loaded_or_missing_is_left_alone():
    defer("json")
    assert type(sys.modules["json"]) is type(sys)
    defer("no_such_package")
    assert "no_such_package" not in sys.modules


@pytest.mark.slow
def test_a_deferred_torch_computes_and_its_submodules_are_found():
    code = """
import sys
from posttrain.importing import defer
defer("torch")
import torch
assert "torch._C" not in sys.modules
from torch import nn
import torch.nn.functional as F
assert F.relu(nn.Linear(2, 1, bias=False)(torch.zeros(3, 2))).shape == (3, 1)
assert type(torch) is type(sys) and sys.modules["torch"] is torch and torch.nn is nn
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupt_that_ends_in_a_finaliser_is_heard_after_it(tmp_path, sent, code):
    program = """
import os, signal, time
from posttrain.importing import hear_interrupts_again
from posttrain.stopping import terminated_as_interrupted

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SENT)
        for _ in range(1000):
            pass

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
hear_interrupts_again()
try:
    with terminated_as_interrupted():
        del [Finalised()][0]
        for _ in range(50):
            time.sleep(0.1)
except KeyboardInterrupt as stop:
    print("heard", getattr(stop, "exit_code", 130))
"""
    program = program.replace("SENT", sent)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (f"heard {code}\n", 0), done.stderr


@pytest.fixture
def interruptible():
    """Make Ctrl-C work in this test, also if the tests run as a background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with terminated_as_interrupted():
        yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_end_of_the_import(interruptible, sent):
    lines = []
    with pytest.raises(KeyboardInterrupt) as stop, uninterrupted():
        lines += [signal.raise_signal(sent), "goes on"]
    assert getattr(stop.value, "exit_code", 130) == 128 + sent
    assert lines == [None, "goes on"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_module_whose_import_was_interrupted_does_not_run_again(interruptible, package, tmp_path, sent):
    """torch cannot run twice in a process, and its finalisers use it."""
    with (tmp_path / package / "__init__.py").open("a") as code:
        code.write(f"import signal\nsignal.raise_signal({int(sent)})\n")
    defer(package)
    module = sys.modules[package]
    with pytest.raises(KeyboardInterrupt):
        module.last  # noqa: B018
    assert module.last
    assert runs() == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_heard_where_the_import_fails(interruptible, sent):
    def fails():
        with suppress(ImportError), uninterrupted():
            signal.raise_signal(sent)
            raise ImportError("an optional library is not there")

    with pytest.raises(KeyboardInterrupt):
        fails()
