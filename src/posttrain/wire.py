"""Messages between processes: 8 bytes of length, then JSON. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from posttrain.errors import DataError

if TYPE_CHECKING:
    import socket

_HEADER = 8


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as bytes. Raises DataError for a value that JSON cannot hold.

    Tuples become lists, numpy values lists and numbers, dates ISO strings. NaN and lone surrogates survive.
    """
    body = json.dumps(message, default=_portable).encode()
    return len(body).to_bytes(_HEADER, "big") + body


def decode(buffer: bytearray) -> Iterator[Any]:
    """Remove the complete messages from a buffer of received bytes and yield them. The rest stays in the buffer."""
    while len(buffer) >= _HEADER and len(buffer) >= (end := _HEADER + int.from_bytes(buffer[:_HEADER], "big")):
        yield json.loads(bytes(buffer[_HEADER:end]))
        del buffer[:end]


def messages(channel: socket.socket) -> Iterator[Any]:
    """Wait for messages on a blocking socket and yield them, until the other side closes it."""
    buffer = bytearray()
    while received := channel.recv(1 << 20):
        buffer += received
        yield from decode(buffer)


def _portable(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    raise DataError(
        given=f"a column or a message has a value of type {type(value).__name__}, which cannot be sent to a process",
        allowed="text, numbers, lists, dictionaries, dates and numpy arrays",
        fix="Convert the column, or let the function name the columns that it needs instead of taking **kwargs.",
    )
