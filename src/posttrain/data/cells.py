"""The cells of a row: each function gives the value of a column in the form that is asked for, or raises `Unusable`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posttrain.data.dropped import Unusable, a_type
from posttrain.data.messages import Messages, Text, as_messages, as_tools

Values = Mapping[str, Any]
"""The columns of a row, or what a reader makes of them."""


def cell(values: Values, column: str) -> Any:
    """The value of a column that has to have one."""
    if values.get(column) is None:
        raise Unusable(f"no value in column {column!r}")
    return values[column]


def conversation(values: Values, column: str, *, system: Any = None) -> Messages:
    try:
        return as_messages(cell(values, column), system=system)
    except Unusable as reason:
        raise reason if "no value" in str(reason) else Unusable(f"{column}: {reason}") from None


def text(values: Values, column: str) -> str:
    if not isinstance(cell(values, column), str):
        raise Unusable(f"{column}: {a_type(values[column])}, not text")
    return values[column]


def text_or_messages(values: Values, column: str) -> Text:
    value = cell(values, column)
    return value if isinstance(value, str) else conversation(values, column)


def prompt_cell(values: Values, column: str) -> Text:
    value = text_or_messages(values, column)
    if isinstance(value, str) and not value.strip():
        raise Unusable("empty prompt")
    return value


def answer_cell(values: Values, column: str) -> Text:
    """Text, one message of the assistant, or a conversation that ends with one."""
    value = text_or_messages(values, column)
    if not isinstance(value, str) and value[-1]["role"] != "assistant":
        raise Unusable(f"{column}: messages that do not end with an assistant turn")
    return value


def answer_cells(values: Values, chosen: str = "chosen", rejected: str = "rejected") -> tuple[Text, Text]:
    return answer_cell(values, chosen), answer_cell(values, rejected)


def with_tools(found: dict[str, Any], values: Values) -> dict[str, Any]:
    tools = as_tools(values.get("tools"))
    return found if tools is None else found | {"tools": tools}


def number(values: Values, column: str) -> float:
    value = cell(values, column)
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise Unusable(f"{column} is not a finite number")
    return found


def boolean(values: Values, column: str) -> bool:
    """True or false, 1 or 0, or the words, as CSV has them."""
    value = cell(values, column)
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
    if found is None or isinstance(value, float):
        raise Unusable(f"{column} is neither true nor false")
    return found
