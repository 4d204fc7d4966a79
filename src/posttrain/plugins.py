"""Extensions that other packages publish. They are looked up by name and imported only on request.

    [project.entry-points."posttrain.algorithms"]
    spo = "acme_rl.spo:SPO"

A package cannot replace a name of posttrain's own: a warning names the package, and its extension is not used. If two
packages publish the same name, neither is used. docs/plugins.md shows a complete package.
"""

from __future__ import annotations

import functools
import importlib
import sys
import traceback
import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from posttrain.errors import PluginError

Kind = Literal["algorithm", "reward", "task", "engine"]
GROUPS: dict[Kind, str] = {
    "algorithm": "posttrain.algorithms",
    "reward": "posttrain.rewards",
    "task": "posttrain.tasks",
    "engine": "posttrain.engines",
}
"""Kind of extension -> group of entry points."""


class PluginWarning(UserWarning):
    """A package publishes a name that posttrain itself uses."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One name that a package publishes."""

    kind: Kind
    name: str
    module: str
    attribute: str
    package: str
    """Name and version of the distribution: `acme-rl 1.2`."""
    rival: str = ""
    """Another package that publishes the same name; neither of the two is then used."""

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of the package {self.package} ({self.module}:{self.attribute})"

    def load(self) -> Any:
        """Import the extension. Raises PluginError, which names the package, if that fails."""
        if self.rival:
            raise PluginError(
                given=f"two packages publish the {self.kind} {self.name!r}: {self.package} and {self.rival}",
                allowed=f"each {self.kind} from one package",
                fix="Uninstall one of the two.",
            )
        try:
            found: Any = importlib.import_module(self.module)
            for part in self.attribute.split("."):
                found = getattr(found, part)
        except Exception as error:
            frames = error.__traceback__
            while frames and frames.tb_frame.f_code.co_filename.startswith((__file__, importlib.__file__, "<frozen")):
                frames = frames.tb_next
            trace = "".join(traceback.format_exception(type(error), error, frames)).strip()
            raise PluginError(
                given=f"{self} cannot be loaded: {type(error).__name__}: {error}",
                fix=f"Update or uninstall {self.package.split()[0]}, or tell its author:\n{trace[-2000:]}",
            ) from error
        return found

    def refuse(self, given: str, allowed: str = "", fix: str = "") -> NoReturn:
        """Raise a PluginError that says what is wrong with the loaded extension."""
        author = f"Update or uninstall {self.package.split()[0]}, or tell its author."
        raise PluginError(given=f"{self} {given}", allowed=allowed, fix=f"{fix} {author}".strip())


def published(kind: Kind, ours: Collection[str]) -> dict[str, Plugin]:
    """The published extensions of this kind, by name. None of them is imported.

    `ours` are posttrain's own names. A package that publishes one of them is named in a warning, once.
    """
    found: dict[str, Plugin] = {}
    for plugin in _all(tuple(sys.path)):
        if plugin.kind != kind:
            continue
        if plugin.name in ours:
            _warn(f"the package {plugin.package} publishes the {kind} {plugin.name!r}; posttrain's own is used")
        elif plugin.name in found:
            found[plugin.name] = replace(found[plugin.name], rival=plugin.package)
        else:
            found[plugin.name] = plugin
    return found


def all_published() -> tuple[Plugin, ...]:
    """All extensions that packages publish for posttrain, sorted by kind and name. None of them is imported."""
    return tuple(sorted(_all(tuple(sys.path)), key=lambda plugin: (list(GROUPS).index(plugin.kind), plugin.name)))


@functools.lru_cache(maxsize=4)
def _all(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """The published extensions on a search path, read once for each path: 4 ms with a hundred packages."""
    from importlib.metadata import entry_points  # 20 ms if nothing has imported it yet

    return tuple(
        Plugin(
            kind=kind,
            name=point.name,
            module=point.module,
            attribute=point.attr,
            package=f"{point.dist.name} {point.dist.version}" if point.dist else "?",
        )
        for kind, group in GROUPS.items()
        for point in entry_points(group=group)
    )


@functools.cache
def _warn(message: str) -> None:
    warnings.warn(message, PluginWarning, stacklevel=4)
