"""A configuration read where torch is not imported: settings of algorithms are checked against their schemas on file.

    with without_torch():
        config = load_config("run.yaml").config

`advise/schemas.json` holds the JSON schema of each algorithm's settings, as pydantic makes it of the class;
`python -m posttrain.config.cards` writes it anew, and a test compares. Names, types and bounds are checked as ever; how
settings of an algorithm go together, which only its class can say, is left to whoever trains.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.config.algorithm import SOURCE, Declared
from posttrain.config.schema import Problem, Problems, Schema, Walker, mistyped
from posttrain.config.values import as_number
from posttrain.errors import ConfigError
from posttrain.files import write_durably
from posttrain.lab.advise.cards import card_of, cards

FILE = Path(__file__).parents[1] / "lab" / "advise" / "schemas.json"


@contextmanager
def without_torch() -> Iterator[None]:
    """Inside, algorithms are known by their cards."""
    token = SOURCE.set(FromCards())
    try:
        yield
    finally:
        SOURCE.reset(token)


class FromCards:
    """Algorithms by their cards and schemas."""

    def names(self) -> Sequence[str]:
        return list(cards())

    def walker(self, name: str) -> Walker:
        return walker_of(name)

    def complete(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting, with the defaults of those that are not given. Raises `Problems`."""
        walker = walker_of(name)
        nodes = walker.root.get("properties", {})
        read = {key: as_number(value) if "number" in _types(nodes[key]) else value for key, value in settings.items()}
        if problems := [
            p for key, value in read.items() for p in wrong_values(("algorithm", key), nodes[key], value, walker)
        ]:
            raise Problems(problems)
        defaults = {key: node.get("default") for key, node in nodes.items()}
        return defaults | {key: _completed(nodes[key], value, walker) for key, value in read.items()}

    def correction(self, name: str) -> dict[str, Any]:
        """The settings of a correction with a name; nothing for another text."""
        known = next((card.corrections for card in cards().values() if card.corrections), {})
        return dict(known.get(name, {}))

    def declared(self, name: str, settings: Mapping[str, Any]) -> Declared:
        card = card_of(name)
        return Declared(
            key=card.key,
            data_kind=card.data_kind,
            needs=card.needs_of(settings),
            group_size_needed=card.min_group_size,
            learns_from_rewards=card.learns_from_rewards,
        )


def wrong_values(path: tuple[str, ...], node: Schema, value: Any, walker: Walker) -> list[Problem]:
    """What a schema does not allow, at its most precise place."""
    if isinstance(value, Mapping):
        for variant in walker.variants(node):
            properties = variant.get("properties", {})
            if properties and value.keys() <= properties.keys():
                inner = (wrong_values((*path, key), properties[key], below, walker) for key, below in value.items())
                return [problem for problems in inner for problem in problems]
    return [] if any(_allows(v, value) for v in walker.variants(node)) else [mistyped(path, node, value, walker)]


def _allows(node: Schema, value: Any) -> bool:
    if "enum" in node or "const" in node:
        return any(value == one and type(value) is type(one) for one in node.get("enum", [node.get("const")]))
    match node.get("type"):
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str) and len(value) >= node.get("minLength", 0)
        case "integer" | "number" as kind:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            whole = is_number and (kind == "number" or float(value).is_integer())
            return whole and _within(node, value)
    return False


def _within(node: Schema, value: float) -> bool:
    lowest, highest = node.get("minimum", value), node.get("maximum", value)
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    return lowest <= value <= highest and (above is None or value > above) and (below is None or value < below)


def _types(node: Schema) -> set[str]:
    """The JSON types among the alternatives of a setting: `number` where it may be one."""
    alternatives = node.get("anyOf") or node.get("oneOf") or [node]
    return {"number" if t in ("number", "integer") else str(t) for t in (v.get("type") for v in alternatives)}


def _completed(node: Schema, value: Any, walker: Walker) -> Any:
    """A section with the defaults of what it leaves out."""
    if not isinstance(value, Mapping):
        return value
    properties = next((v["properties"] for v in walker.variants(node) if v.get("properties")), {})
    return {key: below.get("default") for key, below in properties.items()} | dict(value)


# --- the file --------------------------------------------------------------------------------------------------------


@functools.cache
def _on_file() -> Mapping[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


@functools.cache
def walker_of(name: str) -> Walker:
    """The schema of an algorithm's settings."""
    if name not in _on_file()["algorithms"]:
        raise ConfigError(given=f"there is no algorithm {name!r}", allowed=", ".join(_on_file()["algorithms"]))
    return Walker({**_on_file()["algorithms"][name], "$defs": _on_file()["$defs"]})


def schemas() -> dict[str, Any]:
    """The content of the file, read from the classes; what several schemas refer to stands in it once."""
    from pydantic import TypeAdapter

    from posttrain.algorithms import ALGORITHMS  # imports torch

    found = {key: TypeAdapter(algorithm).json_schema() for key, algorithm in ALGORITHMS.items()}
    shared: dict[str, Any] = {}
    for schema in found.values():
        for name, definition in schema.pop("$defs", {}).items():
            assert shared.setdefault(name, definition) == definition, f"two schemas mean different things by {name}"
    return {"$defs": shared, "algorithms": found}


if __name__ == "__main__":
    write_durably(FILE, (json.dumps(schemas(), indent=1) + "\n").encode())
