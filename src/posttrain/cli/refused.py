"""Errors of the operating system about a file that the user named. They are reported as mistakes to correct, and not
as bugs of posttrain."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from posttrain.errors import ConfigError, DoesNotFit, PosttrainError
from posttrain.files import NO_ROOM

_ANOTHER = "name another place"
FIXES = {
    errno.EACCES: f"Change its permissions, or {_ANOTHER}.",
    errno.EPERM: f"Change its permissions, or {_ANOTHER}.",
    errno.EROFS: f"That disk is read-only: {_ANOTHER}.",
    errno.ENOTDIR: f"A file is where a folder should be: {_ANOTHER}.",
    errno.EISDIR: "It is a folder: name a file in it.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: f"Its links lead in a circle: {_ANOTHER}.",
    errno.ENOENT: f"Its folder is missing or cannot be written to: create it, or {_ANOTHER}.",
    errno.EEXIST: f"A file is where a folder should be: {_ANOTHER}.",
}
"""How to correct each kind of error that a user can cause."""
_OURS_AS_WELL = (errno.ENOENT, errno.EEXIST)
"""Errors that our own bugs cause as easily. They count as the user's only at, or above, a path on the command line."""


def refusal(error: OSError, arguments: Sequence[str]) -> PosttrainError | None:
    """Return the message for a system error that a user can correct; None if the error may be a bug of posttrain."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    if error.errno in NO_ROOM:
        return DoesNotFit(
            given=f"{path or 'The output'} cannot be written: {error.strerror}",
            allowed="a disk with room for it",
            fix=f"Free some space, or {_ANOTHER}, on another disk.",
        )
    if path is None or error.errno not in FIXES:
        return None
    if error.errno in _OURS_AS_WELL and not _is_named(path, arguments):
        return None
    return ConfigError(
        given=f"{path} cannot be read or written: {error.strerror}",
        allowed="a path that can be read and written",
        fix=FIXES[error.errno],
    )


def _is_named(path: str, arguments: Sequence[str]) -> bool:
    """Is the path an argument, the value of `output=PATH` or `--out=PATH`, or a folder above one of them?"""
    named = [text for argument in arguments for text in (argument, argument.partition("=")[2]) if text]
    above = os.path.join(os.path.abspath(path), "")
    return any(os.path.join(os.path.abspath(text), "").startswith(above) for text in named)
