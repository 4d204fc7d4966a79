"""Docstrings as Markdown: examples become blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> .*\n(?:(?!\s*$).*\n?)*", re.MULTILINE)


class Doctests(Extension):
    """Fences each example, up to the next empty line."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
