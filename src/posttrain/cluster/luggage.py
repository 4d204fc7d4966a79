"""The code that is sent to the nodes with a run: posttrain itself, and the files of reward functions.

They are copied into one folder, which Ray gives every node as the working directory of everything that runs there
(`runtime_env`). Files below the present directory keep their relative paths in it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from posttrain import errors
from posttrain.config import RunConfig, functions_named, models_named
from posttrain.config.pipeline import MARK
from posttrain.errors import ConfigError
from posttrain.rewards.load import IN_MEMORY, resolve

LARGEST_FILE, LARGEST = 10 << 20, 200 << 20
"""Maximum bytes of a file that is sent, and of all files: data and models belong on storage that all nodes see."""
STAYS = {"__pycache__", "node_modules", "build", "dist", "runs", "wandb"}
"""Names of folders that are not sent. Hidden folders, environments and runs are not sent, either."""
FOREIGN = "elsewhere"
"""The folder for files that are not below the present directory."""


class Luggage:
    """A temporary folder with the copies. Use it as a context manager, which removes the folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="posttrain-luggage-"))
        self.moved: dict[str, str] = {}
        """Folders of this machine -> their paths on a node, relative to the working directory there."""
        self.files = self.bytes = 0
        try:
            self._pack(Path(errors.__file__).parent, "posttrain")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def of(config: RunConfig, *, files: bool = False) -> Luggage:
        """The files that rewards, environment and tools of a run need. Raises ConfigError if they are too large or
        missing. `files` adds the files that the config names by relative paths."""
        luggage = Luggage()
        try:
            for _, function in functions_named(config):
                if not function.startswith(IN_MEMORY):
                    luggage.add_function(function)
            for setting, path in files_named(config) if files else ():
                luggage.add_named(setting, path)
        except BaseException:
            luggage.close()
            raise
        return luggage

    def __enter__(self) -> Luggage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_function(self, function: str) -> None:
        """Add the folder of the function's file, because the function may import and read files next to it.

        For a function in a module, add its package unless that is installed."""
        target = resolve(function)
        if target.path:
            self.add_folder(Path(target.path).parent)
            return
        package = target.module.partition(".")[0]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None or is_installed(Path(spec.origin)):
            return
        origin = Path(spec.origin)
        if spec.submodule_search_locations:
            self._pack(origin.parent, package)
        else:
            self._copy(origin, self.folder / origin.name)

    def add_folder(self, folder: Path) -> None:
        """Add a folder with everything below it."""
        folder = folder.resolve()
        if str(folder) not in self.moved:
            self._pack(folder, self._place_of(folder))

    def add_named(self, setting: str, path: str) -> None:
        """Add the files that a setting names by a relative path or pattern, if they are files of this machine. Raises
        ConfigError for those that cannot be sent."""
        if Path(path).is_absolute():
            return
        literally = Path(path).exists() or setting.startswith("agent.command")  # its program reads a pattern itself
        for file in [Path(path)] if literally else map(Path, sorted(glob.glob(path))):
            if file.is_file():
                _refuse_unsent(setting, file)
                self.add_file(file)

    def add_file(self, file: Path) -> None:
        """Add a file below the present directory."""
        place = self.folder / Path(os.path.abspath(file)).relative_to(Path.cwd())
        place.parent.mkdir(parents=True, exist_ok=True)
        self._copy(file, place)

    def _place_of(self, path: Path) -> str:
        here = Path.cwd()
        if path.is_relative_to(here):
            return str(path.relative_to(here))
        return f"{FOREIGN}/{len(self.moved)}"

    def _pack(self, folder: Path, place: str) -> None:
        self.moved[str(folder)] = place
        for parent, below, names in os.walk(folder):
            below[:] = [name for name in below if goes_along(Path(parent) / name)]
            to = self.folder / place / Path(parent).relative_to(folder)
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                if not name.startswith(".") and (Path(parent) / name).is_file():
                    self._copy(Path(parent) / name, to / name)

    def _copy(self, file: Path, place: Path) -> None:
        if place.exists() or (size := file.stat().st_size) > LARGEST_FILE:
            return
        self.files, self.bytes = self.files + 1, self.bytes + size
        if self.bytes > LARGEST:
            raise ConfigError(
                given=f"the files to send to the nodes with the run exceed {LARGEST >> 20} MiB, with {file}",
                allowed="files that the config names, and folders of reward functions with what they import and read",
                fix="Put the reward function into a folder of its own, and data onto storage that the cluster sees.",
            )
        shutil.copy2(file, place)


def _refuse_unsent(setting: str, file: Path) -> None:
    size, below = file.stat().st_size, Path(os.path.abspath(file)).is_relative_to(Path.cwd())
    if below and size <= LARGEST_FILE:
        return
    why = f"a file of {size / 2**20:.1f} MiB" if below else "a file that is not below the present directory"
    raise ConfigError(
        given=f"{setting} = {file}, {why}, which is not sent to the cluster",
        allowed=f"files below the present directory of at most {LARGEST_FILE >> 20} MiB, or an absolute path on "
        "storage that the cluster sees",
        fix=f"Copy it there, and set {setting} to its absolute path.",
    )


def refuse_folders(config: RunConfig) -> None:
    """Raise ConfigError for folders that are only on this machine, because they are not sent."""
    for setting, path in files_named(config):
        if not Path(path).is_absolute() and Path(path).is_dir():
            raise ConfigError(
                given=f"{setting} = {path}, a folder on this machine that is not sent to the cluster",
                allowed="an absolute path on storage that the cluster sees, or a name on the Hub",
                fix=f"Copy it there, and set {setting} to its absolute path.",
            )


def files_named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(setting, path or name) of data, texts, templates, models, folders to search and programs."""
    data = config.data
    for setting, given in (("data.train", data.train), ("data.eval", data.eval), ("data.auxiliary", data.auxiliary)):
        for path in [given] if isinstance(given, str) else given or ():
            yield setting, path
    if config.model.chat_template is not None:
        yield "model.chat_template", config.model.chat_template
    if config.evaluation.forgetting is not None:
        yield "evaluation.forgetting", config.evaluation.forgetting
    if config.evaluation.other_prompts is not None:
        yield "evaluation.other_prompts", config.evaluation.other_prompts
    for place, tool in enumerate(config.tools):
        if tool.startswith("search:"):
            yield f"tools.{place}", tool.removeprefix("search:")
    for place, part in enumerate(config.agent.command):
        if not Path(part).is_absolute():  # an absolute path, such as an interpreter, is the node's own
            yield f"agent.command.{place}", part
    yield from (one for one in models_named(config) if not one[1].startswith(MARK))


def goes_along(folder: Path) -> bool:
    """Is this folder sent? Hidden folders, environments and runs are not."""
    if folder.name.startswith(".") or folder.name in STAYS:
        return False
    return not ((folder / "pyvenv.cfg").exists() or (folder / "events.jsonl").exists())


def is_installed(file: Path) -> bool:
    """Does this file belong to the installed environment, which nodes have as well?"""
    paths = [*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix]
    return any(file.is_relative_to(place) for place in paths)
