"""Tables of the pages of `compare` and `sweep`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from posttrain.report.text import escaped


class Link(NamedTuple):
    """A cell that leads somewhere."""

    text: str
    target: str


def table(head: Sequence[str], rows: Iterable[Sequence[str | Link]]) -> str:
    """Everything in it is text; the titles are those of their columns for a screen reader, too."""
    titles = "".join(f'<th scope="col">{escaped(title)}</th>' if title else "<td></td>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{_shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{titles}</tr>{body}</table></div>'


def _shown(cell: str | Link) -> str:
    return f'<a href="{escaped(cell.target)}">{escaped(cell.text)}</a>' if isinstance(cell, Link) else escaped(cell)
