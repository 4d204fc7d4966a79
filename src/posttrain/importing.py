"""Import torch and transformers only when they are needed, and without the garbage collector.

    defer("torch")                                    the command line, before anything imports torch
    from posttrain.algorithms.grpo import GRPO        runs `import torch`; loads nothing
    GRPO(...).loss(...)                               uses torch, and so loads it

A deferred module is an entry of `sys.modules` that runs its code at the first access to one of its attributes. The
LazyLoader of the standard library would already run it at the second `import torch`, because the import statement reads
the `__spec__` of every known module.
"""

from __future__ import annotations

import _thread
import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from posttrain.stopping import SIGNALS, signal_of

_KNOWN_UNLOADED = frozenset(
    ("__cached__", "__class__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__")
)
"""Attributes that import statements, `find_spec` and `inspect` read from modules that nobody uses. `__path__` is not
among them: the import of a submodule needs the package."""
SOON = 0.05
"""Time after which a finaliser has ended, in seconds."""
_LOADING = threading.RLock()
_loading: list[ModuleType] = []


class Deferred(ModuleType):
    """A module whose code has not run yet."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _KNOWN_UNLOADED:
            _load(self)
        return ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__class__":
            _load(self)
        ModuleType.__setattr__(self, name, value)


def defer(name: str) -> None:
    """Delay the work of `import name` until the module is used. Do nothing if it is loaded or not installed.

    The module loads in the thread that uses it first, and other threads wait for it. Load it before you start threads
    that import its submodules. If the import fails, it raises where the module is used, at every use.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = Deferred
    sys.modules[name] = module


def _load(module: ModuleType) -> None:
    with _LOADING:
        if type(module) is not Deferred or module in _loading:  # loaded meanwhile, or used by its own code
            return
        _loading.append(module)
        try:
            spec: Any = module.__spec__
            with uninterrupted():
                spec.loader.exec_module(module)
                ModuleType.__setattr__(module, "__class__", ModuleType)  # before an interrupt that waits is raised
        finally:
            _loading.remove(module)


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off while large libraries are imported. They make a million objects and hardly any
    garbage; the collector would traverse them again and again and take a fifth of the time. Afterwards the collector
    is restored, and has run once if anything was imported. Ctrl-C waits for the end.

    >>> with uncollected():
    ...     import wave
    >>> gc.isenabled()
    True
    """
    was_enabled, imported = gc.isenabled(), len(sys.modules)
    gc.disable()
    with uninterrupted():
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
                if len(sys.modules) != imported:
                    gc.collect()  # it would swallow a Ctrl-C, too


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of this block. During an import, a library may catch them, conclude that an
    optional library is missing, and continue. A library that was interrupted halfway can also crash at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    heard = list[int]()
    for number in handlers:
        signal.signal(number, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])  # also after a failed import, which the caller may expect and catch


def hear_interrupts_again() -> None:
    """Send a Ctrl-C or SIGTERM again if its exception was raised inside a finaliser: none can escape from there."""
    before = sys.unraisablehook

    def again(told: sys.UnraisableHookArgs) -> None:
        if issubclass(told.exc_type, KeyboardInterrupt):
            threading.Timer(SOON, _thread.interrupt_main, [signal_of(told.exc_value)]).start()
        else:
            before(told)

    sys.unraisablehook = again


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables that control how OpenMP threads wait for each other. A value that the user set is kept."""


def wait_passively() -> None:
    """Let OpenMP threads that wait for others spin for a short time and then sleep.

    By default they spin ten times as long, which costs more than the work on a busy machine. Threads that sleep
    immediately take nearly twice the time on an idle machine.

    OpenMP reads the setting once, when torch is imported. If torch is already loaded, nothing changes.
    """
    unloaded = type(sys.modules.get("torch")) in (type(None), Deferred)
    if unloaded and not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = "30000"


def names_on_first_use(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports the module of each of these names on first use."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *places})
