"""Separate processes that start fast: each is forked from a process that has imported everything and done nothing else.

Importing torch takes seconds, and a test of a kill does not depend on where the killed process got its modules from.
Forked processes share one hash seed, while independent processes do not. A test that compares two runs bit by bit
therefore runs one of them with `run_anew`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import ClassVar

from posttrain import begin
from posttrain.child import LocalEngine, work_of

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = [
    *("posttrain.train.api", "posttrain.engines.local", "transformers.models.llama.modeling_llama"),
    *("posttrain.pipeline.run", "posttrain.evaluate.trained", "posttrain.export.api", "posttrain.lab.plan.before_run"),
    *("posttrain.algorithms.grpo", "posttrain.cli"),
    "pandas",  # pyarrow imports it when the first rollouts are written
    *("pytest", "tests.ranks.scenarios"),  # for ranks that take a step with every algorithm
]
"""Modules that a run imports, including those that it imports only after it has started."""
_ADDRESS = "POSTTRAIN_TESTS_FORK_FROM"
"""Environment variable with the address of the process that all processes with tests fork from."""


@dataclass(frozen=True)
class Ended:
    """The result of a process that has ended."""

    exit_code: int | None
    """0, 1 after an exception, minus the signal number if a signal killed it, or None if it took too long."""
    errors: str
    """The text that the process wrote to stderr."""
    printed: str = ""
    """The text that the process wrote to stdout."""


def run_alone(function: Callable[..., None], *arguments: str, seconds: float = 900) -> Ended:
    """Call a function of an importable module in a new process. Kill the process if it takes longer than `seconds`."""
    with tempfile.NamedTemporaryFile("r") as printed, tempfile.NamedTemporaryFile("r") as errors:
        given = ((printed.name, errors.name), dict(os.environ), function, arguments)
        process = _server().Process(target=_into_files, args=given)
        process.start()
        process.join(seconds)
        exit_code = process.exitcode
        if exit_code is None:
            process.kill()
            process.join()
        return Ended(exit_code=exit_code, errors=errors.read(), printed=printed.read())


def run_anew(function: Callable[..., None], *arguments: str, seconds: float = 900) -> Ended:
    """Call the function in a new interpreter, which has its own hash seed."""
    code = f"from {function.__module__} import {function.__name__}\n{function.__name__}(*{arguments!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    return Ended(exit_code=done.returncode, errors=done.stderr, printed=done.stdout)


class Command:
    """`posttrain ARGUMENT ...` in a forked process, without a terminal and with its own signals."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._start(_command, str(cwd), arguments)

    def _start(
        self, function: Callable[..., None], *given: object, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._printed = [tempfile.NamedTemporaryFile("r", suffix=suffix) for suffix in (".stdout", ".stderr")]  # noqa: SIM115
        files = [file.name for file in self._printed]
        self._process = _server().Process(target=_into_files, args=(files, dict(environment), function, given))
        self._process.start()
        weakref.finalize(self, self._process.kill)  # ends the process if the test fails before it does

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Wait until the process ends, and return its stdout and stderr."""
        self._process.join(timeout)
        if self.returncode is None:
            self._process.kill()
            self._process.join()
        return self._printed[0].read(), self._printed[1].read()


class Module(Command):
    """`python -m MODULE ARGUMENT ...` in a forked process, with the given environment variables."""

    def __init__(self, module: str, *arguments: str, environment: dict[str, str]) -> None:
        self._start(_module, module, arguments, environment=environment)


class Code(Command):
    """`python -c CODE ARGUMENT ...` in a forked process."""

    def __init__(self, code: str, *arguments: str) -> None:
        self._start(execute, code, *arguments)


class Forked:
    """What a forked child says of its process, and how it is sent a signal, in place of those of `LocalChild`."""

    _forked: BaseProcess

    @property
    def pid(self) -> int:
        assert self._forked.pid is not None
        return self._forked.pid

    def end(self, patience: float = 0.0) -> int | None:
        self._forked.join(patience)
        return self._forked.exitcode

    def signal(self, number: int) -> None:
        if self.end() is None:
            os.kill(self.pid, number)

    def work(self) -> float:
        return work_of(self.pid)


class ForkedEngine(Forked, LocalEngine):
    """An engine on this machine that is forked instead of importing everything again. It otherwise equals
    `LocalEngine`."""

    _begun: ClassVar[weakref.WeakSet[ForkedEngine]] = weakref.WeakSet()

    def __init__(self, program: str, output: int, *, files: Sequence[int], threads: int) -> None:
        self.channel, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with theirs:
            descriptors = [Descriptor(number) for number in (theirs.fileno(), *files)]
            self._forked = _server().Process(
                target=_engine, args=(program, environment, sys.path, Descriptor(output), descriptors), daemon=True
            )
            self._forked.start()
        self.channel.setblocking(False)
        self._begun.add(self)

    @classmethod
    def there(cls) -> list[int]:
        """Return the process ids of the engines that were started here and have not ended, oldest first."""
        return sorted(each.pid for each in cls._begun if each.end() is None)

    def kill(self) -> None:
        self._forked.kill()
        self._forked.join()
        self.channel.close()


def run_code(code: str, *arguments: str) -> Ended:
    """Run code like `python -c CODE ARGUMENT ...`, in a new process."""
    return run_alone(execute, code, *arguments)


def run_script(command: Sequence[str], *, env: Mapping[str, str], **_: object) -> subprocess.CompletedProcess[str]:
    """Stand in for `subprocess.run([PYTHON, "-P", SCRIPT, ARGUMENT ...])`, offline and in an environment of its own."""
    assert list(command[:2]) == [sys.executable, "-P"]
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env.keys() >= os.environ.keys()
    ended = run_alone(_run_path, *command[2:])
    return subprocess.CompletedProcess(command, 1 if ended.exit_code is None else ended.exit_code, "", ended.errors)


def _run_path(*command: str) -> None:
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")


def execute(code: str, *arguments: str) -> None:
    """Run code in this process like `python -c CODE ARGUMENT ...`."""
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


@cache
def _server() -> ForkServerContext:
    """Return the context that forks: from the process that `serve_workers` has started, or else from one's own."""
    context = multiprocessing.get_context("forkserver")
    if address := os.environ.get(_ADDRESS):
        forkserver.connect_to_new_process = _Shared(address).connect_to_new_process
    else:
        context.set_forkserver_preload(IMPORTED)
    return context


def serve_workers() -> None:
    """Start one process to fork from, for all processes that run tests: each would import everything once more.

    Its forks get the environment of their caller, but what a module reads from the environment when it is imported is
    from here.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    forkserver.ensure_running()
    os.environ[_ADDRESS] = forkserver._forkserver._forkserver_address


class _Shared(forkserver.ForkServer):
    """The process to fork from that another process has started, which lives as long as that one."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._forkserver_address = address
        self._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)  # it is sent to each fork

    def ensure_running(self) -> None:
        resource_tracker.ensure_running()

    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]:
        """Fork from an own process if the shared one has died."""
        try:
            return super().connect_to_new_process(fds)
        except (ConnectionRefusedError, FileNotFoundError):
            warnings.warn("the process that all tests fork from has died; this one starts its own", stacklevel=2)
            own = forkserver.ForkServer()
            own.set_forkserver_preload(IMPORTED)
            forkserver.connect_to_new_process = own.connect_to_new_process
            return own.connect_to_new_process(fds)


def _command(cwd: str, arguments: tuple[str, ...]) -> None:
    from posttrain.cli import main

    os.chdir(cwd)
    sys.argv = ["posttrain", *arguments]
    main()


def _module(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@dataclass(frozen=True)
class Descriptor:
    """A file descriptor. The receiving process gets a different number for it."""

    number: int

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (DupFd(self.number),)


def _received(sent: DupFd) -> int:
    return sent.detach()


def _engine(
    program: str, environment: dict[str, str], path: list[str], output: int, descriptors: Sequence[int]
) -> None:
    gc.freeze()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    sys.argv = [begin.__file__, program, *map(str, descriptors)]
    runpy.run_path(begin.__file__, run_name="__main__")


def _into_files(
    files: Sequence[str], environment: dict[str, str], function: Callable[..., None], arguments: Sequence[object]
) -> None:
    """Call a function in this environment, without a terminal: its stdout and stderr are two files. First freeze all
    imported objects."""
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, file in enumerate(files, start=1):
        with open(file, "w") as written:
            os.dup2(written.fileno(), descriptor)
    function(*arguments)
