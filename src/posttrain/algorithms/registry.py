"""The mapping from the name to the class of an algorithm. A file is imported on first access.

    ALGORITHMS["grpo"](clip_high=0.28)          imports only grpo.py and its dependencies
    ALGORITHMS["mine"] = Mine                   registers "mine" like the built-in algorithms

A package publishes an algorithm for all processes with an entry point of the group `posttrain.algorithms`; see
`posttrain.plugins`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING

from posttrain.errors import ConfigError, PluginError
from posttrain.plugins import GROUPS, Plugin, published

if TYPE_CHECKING:
    from posttrain.algorithms.algorithm import Algorithm

ENTRY_POINTS = GROUPS["algorithm"]


class UnknownAlgorithm(ConfigError, KeyError):
    """Error for a name that no algorithm has."""

    def __str__(self) -> str:  # a KeyError shows the repr of its text
        return self.args[0]


class Registry(MutableMapping[str, "type[Algorithm]"]):
    """The built-in algorithms in their order, then those of other packages, then those set in this process."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = places
        self._set: dict[str, type[Algorithm]] = {}

    @property
    def published(self) -> dict[str, Plugin]:
        """Algorithms of other packages, by key. None of them is imported."""
        return published("algorithm", self.places)

    def __getitem__(self, key: str) -> type[Algorithm]:
        if key in self._set:
            return self._set[key]
        others = self.published
        if key in self.places:
            module, _, name = self.places[key].partition(":")
            return getattr(importlib.import_module(f"posttrain.algorithms.{module}"), name)
        if key in others:
            return _loaded(others[key])
        close = difflib.get_close_matches(str(key), self)
        raise UnknownAlgorithm(
            given=f"there is no algorithm {key!r}",
            fix=f"Did you mean {min(close, key=lambda name: sorted(name) != sorted(key))!r}?"
            if close
            else "Use list(ALGORITHMS) or posttrain explain to list all of them.",
        )

    def __setitem__(self, key: str, algorithm: type[Algorithm]) -> None:
        if key in self.places:
            raise ConfigError(given=f"an algorithm {key!r}, which exists already", fix="Give it another key.")
        self._set[key] = _checked(key, algorithm)

    def __delitem__(self, key: str) -> None:
        """Remove an algorithm. Only algorithms that were set in this process can be removed."""
        del self._set[key]

    def __contains__(self, key: object) -> bool:
        return key in self.places or key in self._set or key in self.published

    def __iter__(self) -> Iterator[str]:
        return iter({**self.places, **self.published, **self._set})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"ALGORITHMS({', '.join(self)})"

    def that_load(self) -> Iterator[tuple[str, type[Algorithm]]]:
        """Yield every key with its class, except those of packages that fail to load."""
        for key in self:
            try:
                yield key, self[key]
            except PluginError:
                continue


def _loaded(plugin: Plugin) -> type[Algorithm]:
    """Return the class that a package publishes. If it is no algorithm, raise a PluginError that names the package."""
    from posttrain.algorithms.algorithm import Algorithm

    cls = plugin.load()
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        plugin.refuse(f"is {cls!r}", "a class derived from posttrain.algorithms.Algorithm")
    try:
        _checked(plugin.name, cls).card  # noqa: B018  (a class without a card raises)
    except ConfigError as error:
        plugin.refuse(f"is {error.given}", error.allowed, error.fix)
    except AttributeError as error:
        plugin.refuse(f"has no card: {error}", "a class that declares card = Card(...)")
    return cls


def _checked(key: str, algorithm: type[Algorithm]) -> type[Algorithm]:
    """Return the class if it is an algorithm whose own key is `key`: configs, records and errors name it by that."""
    from posttrain.algorithms.algorithm import Algorithm

    own = getattr(algorithm, "key", None)
    if own != key or not isinstance(algorithm, type) or not issubclass(algorithm, Algorithm):
        raise ConfigError(
            given=f"{algorithm!r} as algorithm {key!r}, with key = {own!r}",
            allowed="a class derived from posttrain.algorithms.Algorithm with the same key",
            fix=f'Write class {getattr(algorithm, "__name__", "Mine")}(Algorithm) with key: ClassVar[str] = "{key}".',
        )
    return algorithm
