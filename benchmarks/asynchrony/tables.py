"""Put tables of a benchmark into a hand-written page of docs/, each between two comments with its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *lines))


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables in place of the old ones."""
    for name, text in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"the page has no place for the table {name}: {begin} and {end}")
        page = re.sub(f"{begin}.*?{end}", lambda _, new=f"{begin}\n{text}\n{end}": new, page, flags=re.DOTALL)
    return page
