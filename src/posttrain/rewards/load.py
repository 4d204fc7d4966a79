"""Find a reward function by its name and import it.

`resolve` runs in the main process and reads only names and files. `load` imports the user's code and runs in a worker,
so that code which hangs, prints or crashes during its import cannot hurt the run.
"""

from __future__ import annotations

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
"""Environment variable for a worker on another machine. As JSON, it maps folders of the run's machine to their places
on the worker's machine."""

IN_MEMORY = "in_memory:"
"""Prefix of the text that represents, in a config, a function that Python code passed and no file defines."""
GIVEN: dict[str, Callable[..., Any]] = {}
"""These functions, by the text that represents them. They exist only in this process."""


def given_function(text: str) -> Callable[..., Any]:
    """The function that `text` represents. ConfigError if this process did not receive it."""
    if text in GIVEN:
        return GIVEN[text]
    name = text.removeprefix(IN_MEMORY)
    raise ConfigError(
        given=f"the reward function {name} was given as a Python object that no file defines",
        allowed="the function itself, once more",
        fix=f"Resume in Python: posttrain.resume(folder, functions={{{name!r}: {name}}}). A function in its own module "
        "is found again without this.",
    )


@dataclass(frozen=True, kw_only=True)
class Target:
    """The location of a function: an importable module or a file, and the name in it (`Class.method` too)."""

    module: str = ""
    path: str = ""
    name: str
    package: str = ""
    """Name and version of the package that publishes the function as an entry point; empty for other functions."""

    def __str__(self) -> str:
        return f"{self.path or self.module}:{self.name}" + (f" of the package {self.package}" if self.package else "")

    @staticmethod
    def of(text: str) -> Target:
        """The target that `module:name` means."""
        module, _, name = text.partition(":")
        return Target(module=module, name=name)


def resolve(function: str, folder: Path | None = None) -> Target:
    """The target of `package.module.name` or `path/to/file.py:name`, in the working directory or the config folder."""
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
"""Names of rewards in TRL, open-r1 and verl, and the equivalent reward here."""


def find_named(name: str) -> Target:
    """The reward that another package publishes under this name. ConfigError with a suggestion if there is none."""
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
    """The rewards of other packages, by name. A warning names the packages that publish a name of a built-in."""
    return published("reward", _builtins())


def load(target: Target) -> Callable[..., Any]:
    """Import the module and return the function."""
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
    """The text `; did you mean "x"?`, or an empty text if no known name is similar."""
    import difflib  # only for an error

    close = difflib.get_close_matches(given, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _builtins() -> Collection[str]:
    """The names of the built-in rewards. Imported on demand: a worker that runs user functions does not need them."""
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
    """The path on this machine of a file of the run's machine."""
    moved = {Path(folder): Path(place) for folder, place in json.loads(os.environ.get(MOVED, "{}")).items()}
    for folder in sorted(moved, key=lambda one: len(one.parts), reverse=True):
        if Path(path).is_relative_to(folder):
            return moved[folder] / Path(path).relative_to(folder)
    return Path(path)


def _import_file(path: Path) -> ModuleType:
    """Run a file as its own module. It can import the files of its folder, as if it ran as a script."""
    import hashlib  # takes 4 ms, and the built-in rewards are no files

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
