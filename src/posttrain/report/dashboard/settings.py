"""The settings in which several runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from posttrain.report.document import table
from posttrain.report.text import cut, escaped

MOST_ROWS = 500
LONGEST = 200
"""Maximum number of characters of a value."""
NOT_THERE = "not set"


class Difference(NamedTuple):
    """The path of a setting, and its value in each run as text."""

    key: str
    values: Sequence[str]


def differences(configs: Sequence[Mapping[str, Any]]) -> tuple[list[Difference], int]:
    """Return the settings that differ, in the order of the files, and the number of settings that are the same.

    >>> differences([{"seed": 1, "train": {"steps": 9}}, {"seed": 2, "train": {"steps": 9}, "check": []}])
    ([Difference(key='seed', values=['1', '2']), Difference(key='check', values=['not set', '[]'])], 1)
    """
    flat = [dict(_flat(config)) for config in configs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    found = [Difference(key, [one.get(key, NOT_THERE) for one in flat]) for key in keys]
    differing = [one for one in found if len(set(one.values)) > 1]
    return differing, len(found) - len(differing)


def differences_html(configs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the settings that differ as an HTML table with a column for each run."""
    found, same = differences(list(configs.values()))
    rest = f"{same} other setting{' is' if same == 1 else 's are'} the same."
    if not found:
        return f'<h2>Settings</h2><p class="lead">No setting differs. {rest}</p>'
    rows = [(one.key, *(cut(value, LONGEST)[0] for value in one.values)) for one in found[:MOST_ROWS]]
    if len(found) > MOST_ROWS:
        rest += f" The first {MOST_ROWS} of {len(found)} that differ are shown."
    shown = table(("setting", *configs), rows)
    return f'<h2>Settings that differ</h2><p class="lead">{escaped(rest)}</p><div class="differs">{shown}</div>'


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, value) of every leaf: (`train.steps`, `20`), (`rewards[0].weight`, `1.0`)."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{place}]")
    elif path:
        yield path, value if isinstance(value, str) else json.dumps(value, default=str)
