"""Folders in commands that messages print, so that the commands can be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import PurePath


def shown(place: PurePath | str) -> str:
    """Return a folder or URL as a shell reads it: quoted if it must be, and never like an option.

    >>> print(shown("runs/tiny 1"), shown("-k5"), shown("s3://b/run"))
    'runs/tiny 1' ./-k5 s3://b/run
    """
    text = str(place)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
