"""From the name of a reward function to the function.

`resolve` runs in the main process and looks only at names and files; `load` imports the user's code and runs in a
worker, so that code which hangs, prints or crashes while it is imported cannot hurt the run.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain.errors import ConfigError
from posttrain.plugins import GROUPS, Plugin, published

ENTRY_POINTS = GROUPS["reward"]


MOVED = "POSTTRAIN_MOVED"
"""The variable of the environment that tells a worker on another machine where folders of the run's machine are there,
as JSON."""

IN_MEMORY = "in_memory:"
"""Begins what stands in a config for a function that Python code gave, and that no file defines."""
GIVEN: dict[str, Callable[..., Any]] = {}
"""Those functions, by what stands for them; they end with this process."""


def given_function(text: str) -> Callable[..., Any]:
    """The function that `text` stands for; ConfigError where this process was not given it."""
    if text in GIVEN:
        return GIVEN[text]
    name = text.removeprefix(IN_MEMORY)
    raise ConfigError(
        given=f"the reward function {name} was given as a Python object that no file defines",
        allowed="the function itself, once more",
        fix=f"Resume in Python: posttrain.resume(folder, functions={{{name!r}: {name}}}); a function in a module of "
        "its own is found again without that.",
    )


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a function lives: an importable module or a file, and its name in there (`Class.method` too)."""

    module: str = ""
    path: str = ""
    name: str
    package: str = ""
    """Name and version of the package that publishes the function under a name; empty for any other."""

    def __str__(self) -> str:
        return f"{self.path or self.module}:{self.name}" + (f" of the package {self.package}" if self.package else "")

    @staticmethod
    def of(text: str) -> Target:
        """Of `module:name`."""
        module, _, name = text.partition(":")
        return Target(module=module, name=name)


def resolve(function: str, folder: Path | None = None) -> Target:
    """Of `package.module.name`, or `path/to/file.py:name`, relative to the working directory or the config's folder."""
    path, colon, name = function.rpartition(":")
    if colon and path.endswith(".py"):
        return Target(path=str(_find_file(path, folder)), name=name)
    module, dot, name = function.replace(":", ".").rpartition(".")
    if function.endswith(".py") or not (dot and module and name.isidentifier()):
        builtin = f"`name: {function}` chooses a built-in reward." if function in _builtins() else ""
        raise ConfigError(
            given=f"rewards.function = {function!r}",
            allowed='"path/to/file.py:name" or "package.module.name"',
            fix=builtin or "Write the file or module, and the name of the function in it.",
        )
    return Target(module=module, name=name)


ELSEWHERE = {
    **dict.fromkeys(("accuracy", "accuracy_reward", "math_verify", "math_dapo", "prime_math"), "math"),
    **dict.fromkeys(("think_format_reward", "format_reward", "tag_count_reward"), "format"),
    **dict.fromkeys(("code_reward", "binary_code_reward", "prime_code", "sandbox_fusion"), "code"),
    **dict.fromkeys(("get_soft_overlong_punishment", "soft_overlong_punishment"), "soft_overlong"),
    "cosine_scaled_reward": "cosine",
    "len_reward": "kimi_length",
    "repetition_penalty_reward": "repetition",
    "json_format": "json_schema",
}
"""Names of rewards in TRL, open-r1 and verl, and what does the same here."""


def find_named(name: str) -> Target:
    """The reward that another package publishes under this name; ConfigError with a suggestion when there is none."""
    found = published_rewards()
    if name in found:
        plugin = found[name]
        if plugin.rival:
            plugin.load()  # says which two packages publish it
        return Target(module=plugin.module, name=plugin.attribute, package=plugin.package)
    known = sorted({*_builtins(), *found})
    meant = f"; here it is {ELSEWHERE[name]!r}" if name in ELSEWHERE else suggestion(name, known)
    raise ConfigError(
        given=f"rewards.name = {name!r}, but there is no such reward{meant}",
        allowed=", ".join(known) + f", or the name of an entry point of group {ENTRY_POINTS}",
        fix="For your own function, write `function: path/to/file.py:name`.",
    )


def published_rewards() -> dict[str, Plugin]:
    """The rewards of other packages, by name; a warning names those who publish a name of ours."""
    return published("reward", _builtins())


def load(target: Target) -> Callable[..., Any]:
    """Import the module and take the function out of it."""
    module = _import(target)
    found: Any = module
    for part in target.name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        there = _functions(module)
        what = "is not a function" if found is not None else "does not exist"
        raise ConfigError(
            given=f"{target.name!r} {what} in {_where(target)}{suggestion(target.name, there)}",
            allowed=f"one of its functions: {', '.join(there)}" if there else "a file that defines a function",
        )
    return found


def suggestion(given: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing when no known name is close."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _builtins() -> Collection[str]:
    """The names of the built-in rewards, which a worker need not import to run a function of the user's."""
    from posttrain.rewards.verifiers import BUILTINS

    return BUILTINS


def _find_file(path: str, folder: Path | None) -> Path:
    places = [Path.cwd(), *([folder] if folder else [])]
    for place in places:
        if (place / path).is_file():
            return (place / path).resolve()
    nearby = sorted({file.name for place in places for file in (place / path).parent.glob("*.py")})
    raise ConfigError(
        given=f"the reward file {path} does not exist{suggestion(Path(path).name, nearby)}",
        allowed=f"a file relative to {' or '.join(str(place) for place in dict.fromkeys(places))}",
        fix=f"Python files there: {', '.join(nearby)}." if nearby else "There is no Python file in that folder.",
    )


def _where(target: Target) -> str:
    of_package = f" of the package {target.package}" if target.package else ""
    return f"{target.path or target.module}{of_package}"


def _import(target: Target) -> ModuleType:
    try:
        return _import_file(_here(target.path)) if target.path else importlib.import_module(target.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a script without a main guard
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename.startswith((__file__, "<frozen importlib")):
            frames = frames.tb_next
        trace = "".join(traceback.format_exception(type(error), error, frames)).strip()
        raise ConfigError(
            given=f"importing {_where(target)} failed: {type(error).__name__}: {error}", fix=trace[-2000:]
        ) from None


def _here(path: str) -> Path:
    """Where a file of the run's machine is on this one."""
    moved = {Path(folder): Path(place) for folder, place in json.loads(os.environ.get(MOVED, "{}")).items()}
    for folder in sorted(moved, key=lambda one: len(one.parts), reverse=True):
        if Path(path).is_relative_to(folder):
            return moved[folder] / Path(path).relative_to(folder)
    return Path(path)


def _import_file(path: Path) -> ModuleType:
    """Run a file as a module of its own; files beside it can be imported, as when it is run as a script."""
    name = f"posttrain_reward_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _functions(module: ModuleType) -> list[str]:
    """Public functions that are defined in the module itself."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
