"""How torch and transformers are imported: not before they are needed, and then without the garbage collector.

    defer("torch")                                    the command line, before anything imports torch
    from posttrain.algorithms.grpo import GRPO        runs `import torch`; loads nothing
    GRPO(...).loss(...)                               asks torch for something, and so loads it

A deferred module is an entry of `sys.modules` that runs its code when one of its attributes is asked for. The standard
library's LazyLoader runs it with the second `import torch` already, since the import statement asks each known module
for its `__spec__`.
"""

from __future__ import annotations

import _thread
import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_KNOWN_UNLOADED = frozenset(
    ("__cached__", "__class__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__")
)
"""What import statements, `find_spec` and `inspect` ask of modules that nobody uses. `__path__` is not among them:
whoever wants a submodule needs the package."""
SOON = 0.05
"""Seconds after which a finaliser has ended."""
_LOADING = threading.RLock()
_loading: list[ModuleType] = []


class Deferred(ModuleType):
    """A module that has not run yet."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _KNOWN_UNLOADED:
            _load(self)
        return ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__class__":
            _load(self)
        ModuleType.__setattr__(self, name, value)


def defer(name: str) -> None:
    """Put off what `import name` does until the module is used; nothing for one that is loaded or not installed.

    The module loads in the thread that asks first, and others wait for it: load it before threads that import its
    submodules are started. An import that fails raises where the module is used, and again at each further use.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = Deferred
    sys.modules[name] = module


def _load(module: ModuleType) -> None:
    with _LOADING:
        if type(module) is not Deferred or module in _loading:  # loaded meanwhile; or its own code asks
            return
        _loading.append(module)
        try:
            spec: Any = module.__spec__
            with uninterrupted():
                spec.loader.exec_module(module)
            ModuleType.__setattr__(module, "__class__", ModuleType)
        finally:
            _loading.remove(module)


@contextmanager
def uncollected() -> Iterator[None]:
    """Import large libraries in here: they make a million objects and hardly any garbage, and the collector, which
    looks at all of them again and again, would take a fifth of the time. Afterwards it is what it was, and has looked
    once if there was anything to import. Ctrl-C waits for the end.

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
                    gc.collect()  # which swallows a Ctrl-C as well


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C is heard at the end of this block. Within an import somebody may catch it as one more reason why an
    optional library is not there, and goes on; and a library of which half was run can crash when the process ends.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    heard = list[int]()
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            signal.raise_signal(signal.SIGINT)  # also where an import has failed, which somebody may have expected


def hear_interrupts_again() -> None:
    """Where the exception of a Ctrl-C ends in a finaliser, which nothing can leave, send it once more."""
    before = sys.unraisablehook

    def again(told: sys.UnraisableHookArgs) -> None:
        if issubclass(told.exc_type, KeyboardInterrupt):
            threading.Timer(SOON, _thread.interrupt_main).start()
        else:
            before(told)

    sys.unraisablehook = again


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""What says how the threads of OpenMP wait for each other; whichever is set by the user is obeyed."""


def wait_passively() -> None:
    """Let threads that wait for others spin shortly and then sleep.

    By default they spin ten times as long, which on a busy machine costs more than the work; threads that sleep at once
    take nearly twice the time on an idle one.

    OpenMP reads this once, when torch is imported; where that has happened, nothing changes.
    """
    unloaded = type(sys.modules.get("torch")) in (type(None), Deferred)
    if unloaded and not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = "30000"
