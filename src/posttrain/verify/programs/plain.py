"""Plain data across a process boundary: Python values as JSON that keeps their types, and only values.

    >>> unpack(pack({(1, 2): [3.0, None]}))
    {(1, 2): [3.0, None]}
    >>> pack(True), pack(1), pack(1.0), pack((1,))
    (True, 1, {'f': '0x1.0000000000000p+0'}, {'t': [1]})

An object of a subclass is packed as the plain value of its built-in type, which is read with that type's methods.
Overridden methods (`__eq__`, `__iter__`, `__class__`) have no effect. Objects of other classes cannot be packed.

This file is also sent into the sandbox as source, before the programs that run there. It imports nothing of posttrain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

MAX_DEPTH, MAX_NODES = 100, 300_000
"""Maximum nesting depth of a value, and maximum number of its parts."""
MAX_COLLISIONS = 200
"""Maximum number of set members, or keys, with the same hash. With n of them, building takes n^2 steps, and a program
can choose the hashes of numbers and tuples."""
BIG = 10**1000
"""Larger integers are packed in hexadecimal, because Python does not read decimal numbers of more than 4,300 digits."""

LAZY: tuple[type, ...] = (GeneratorType, map, filter, zip, enumerate, reversed)
LAZY += tuple(type(iter(view)) for view in ([], (), "", {}, set(), {}.values(), {}.items()))
LAZY += tuple(type(view) for view in ({}.keys(), {}.values(), {}.items()))
"""Types that are read once and have no equality. They are packed as a list of items and unpacked as an iterator."""


class NotPlain(TypeError):
    """A value that cannot be packed. The message names its type, depth or size."""


def pack(value: Any) -> Any:
    """The value as JSON. NotPlain if it is not plain data."""
    return _Packer().pack(value, MAX_DEPTH)


def unpack(data: Any) -> Any:
    """The value that was packed. NotPlain for anything that `pack` does not write."""
    try:
        return _Unpacker().unpack(data, MAX_DEPTH)
    except NotPlain:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError) as error:
        raise NotPlain(f"not a packed value: {type(error).__name__}") from None


def dump(message: dict[str, Any]) -> bytes:
    """The frame of a message."""
    return json.dumps(message, separators=(",", ":")).encode()


def load(frame: bytes) -> dict[str, Any]:
    """Read a frame from another process. NotPlain unless it is one JSON object of finite numbers.

    Objects are counted before they are created: half a million of them would block all other threads for a second.
    """

    def refuse(word: str) -> Any:
        raise NotPlain(f"a frame that holds {word}")

    if frame.count(b"[") + frame.count(b"{") > MAX_NODES + MAX_DEPTH:
        raise NotPlain("a value of too many parts")
    try:
        message = json.loads(frame, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise NotPlain("a frame that is not JSON") from None
    if not isinstance(message, dict):
        raise NotPlain("a frame that is not an object")
    return message


class _Packer:
    def __init__(self) -> None:
        self._left = MAX_NODES

    def pack(self, value: Any, depth: int) -> Any:
        """Pack a value. An object cannot override `issubclass(type(value), ...)` or the methods of built-in types."""
        self._left -= 1
        if depth < 0 or self._left < 0:
            raise NotPlain("a value that is nested too deep" if depth < 0 else "a value of too many parts")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return str.__getitem__(value, slice(None))
        if issubclass(kind, int):
            number = int.__add__(value, 0)
            return number if -BIG < number < BIG else {"x": hex(number)}
        if issubclass(kind, float):
            return {"f": float.hex(value)}
        if issubclass(kind, complex):
            return {"c": [float.hex(complex.__pos__(value).real), float.hex(complex.__pos__(value).imag)]}
        if issubclass(kind, bytes):
            return {"b": bytes.hex(value)}
        if issubclass(kind, bytearray):
            return {"y": bytearray.hex(value)}
        return self._pack_many(value, kind, depth - 1)

    def _pack_many(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, list):
            return self._items(list.__iter__(value), depth)
        if issubclass(kind, tuple):
            return {"t": self._items(tuple.__iter__(value), depth)}
        if issubclass(kind, dict):
            return {"d": [self._items(iter(pair), depth) for pair in dict.items(value)]}
        if issubclass(kind, set):
            return {"s": self._items(set.__iter__(value), depth)}
        if issubclass(kind, frozenset):
            return {"z": self._items(frozenset.__iter__(value), depth)}
        if kind is range:
            return {"r": [value.start, value.stop, value.step]}
        if kind in LAZY:
            return {"g": self._items(iter(value), depth)}
        raise NotPlain(f"a value of type {kind.__name__[:60]}, which is not plain data")

    def _items(self, items: Iterator[Any], depth: int) -> list[Any]:
        return [self.pack(item, depth) for item in items]


class _Unpacker:
    """Has the same limits as the packer: every value that it reads can be packed again."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def unpack(self, data: Any, depth: int) -> Any:
        self._left -= 1
        if depth < 0 or self._left < 0:
            raise NotPlain("a value that is nested too deep" if depth < 0 else "a value of too many parts")
        if data is None or isinstance(data, bool | int | str):
            return data
        if isinstance(data, list):
            return self._items(data, depth)
        if not isinstance(data, dict) or len(data) != 1:
            raise NotPlain("not a packed value")
        [(tag, content)] = data.items()
        if tag in ("x", "f", "b", "y"):
            return {"x": _hexadecimal, "f": float.fromhex, "b": bytes.fromhex, "y": bytearray.fromhex}[tag](content)
        if tag == "c":
            return complex(float.fromhex(content[0]), float.fromhex(content[1]))
        if tag == "r":
            return range(*content)
        items = [self._items(pair, depth) for pair in content] if tag == "d" else self._items(content, depth)
        if tag in ("s", "z", "d"):
            _check_hashes([hash(item[0] if tag == "d" else item) for item in items])
        return {"t": tuple, "s": set, "z": frozenset, "d": dict, "g": iter}[tag](items)

    def _items(self, items: list[Any], depth: int) -> list[Any]:
        return [self.unpack(item, depth - 1) for item in items]


def _check_hashes(hashes: list[int]) -> None:
    hashes.sort()
    if any(mine == other for mine, other in zip(hashes, hashes[MAX_COLLISIONS:])):  # noqa: B905 - one is shorter
        raise NotPlain("a set or a dictionary whose members share one hash")


def _hexadecimal(text: str) -> int:
    return int(text, 16)
