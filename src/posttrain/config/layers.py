"""Values from several places laid over each other, and who gave each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.config.schema import Path, Walker
from posttrain.config.text import leaves
from posttrain.errors import ConfigError


@dataclass(kw_only=True)
class Layers:
    """The values given so far, later ones over earlier ones."""

    expand: Callable[[str, Any], Any]
    """(section, value) -> the value, written out if it was a shorthand for a section."""
    written_out: Callable[[Path, Any], dict[str, Any]] = lambda path, value: {}
    """(path, value) -> the settings that a single value there stands for, once one of them is given by itself."""
    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    """Path of each leaf of `tree` -> who gave it."""

    def put(self, path: Path, value: Any, origin: str) -> None:
        """Mappings are merged key by key, everything else replaces what was there."""
        if len(path) == 1 or (len(path) == 2 and isinstance(path[1], int)):  # a section, or an entry of a list of them
            value = self.expand(str(path[0]), value)
        below = self.at(path)
        merges = isinstance(value, Mapping) and not isinstance(below, list) and (value or isinstance(below, dict))
        if not merges:
            self._replace(path, copy.deepcopy(value), origin)
            return
        for key, inner in value.items():
            self.put((*path, key), inner, origin)

    def at(self, path: Path) -> Any:
        """The value that stands at a path; None if there is none."""
        node: Any = self.tree
        for step in path:
            if isinstance(node, dict):
                node = node.get(step)
            else:
                node = node[step] if isinstance(node, list) and isinstance(step, int) and step < len(node) else None
        return node

    def _replace(self, path: Path, value: Any, origin: str) -> None:
        node: Any = self.tree
        for depth, step in enumerate(path[:-1], 1):
            if not isinstance(self.at(path[:depth]), (dict, list)):  # a setting below null or a scalar: a section now
                stands_for, giver = self.written_out(path[:depth], self.at(path[:depth])), self.source(path[:depth])
                self._forget(path[:depth])
                node[step] = copy.deepcopy(stands_for)
                self.origins |= {leaf: giver for leaf, _ in leaves(stands_for, path[:depth]) if stands_for}
            node = node[step]
        node[path[-1]] = value
        self._forget(path)
        whole_list = isinstance(node, list) and not isinstance(value, dict)  # a list of scalars is one leaf
        self.origins |= {leaf: origin for leaf, _ in leaves(value, path[:-1] if whole_list else path)}

    def _forget(self, path: Path) -> None:
        self.origins = {p: origin for p, origin in self.origins.items() if p[: len(path)] != path}

    def locate(self, key: str, walker: Walker) -> Path:
        """The path that the dotted key of an override names: kebab-case is allowed, list entries go by position."""
        path: Path = ()
        node = walker.root
        for name in key.split("."):
            entries = self.at(path)
            if isinstance(entries, list):
                path = (*path, _position(name, entries, key))
            else:
                path = (*path, name if walker.is_free(node) else name.replace("-", "_"))
            node = walker.child(node, path[-1]) or {}
        return path

    def source(self, path: Path) -> str:
        """Who gave the value at a path, or something in it, or the section that it stands in; "" for a default."""
        inside = next((origin for p, origin in self.origins.items() if p[: len(path)] == path), "")
        return inside or (self.source(path[:-1]) if len(path) > 1 else "")


def _position(name: str, entries: list[Any], key: str) -> int:
    if name.isdecimal() and int(name) < len(entries):
        return int(name)
    raise ConfigError(
        given=f"{key}: there is no entry {name!r} in this list",
        allowed=f"0 to {len(entries) - 1}" if entries else "an entry of a list that is not empty",
        fix="Entries are counted from 0; to add one, give the whole list: rewards=[{name: math}].",
    )
