"""The check of options that are chosen by name: another name must not choose another formula."""

from __future__ import annotations

from collections.abc import Iterable


def require_choice(option: str, given: object, allowed: Iterable[str]) -> None:
    """Raise ValueError if `given` is none of the allowed names of an option.

    >>> require_choice("ties", "last", ["fractional", "first"])
    Traceback (most recent call last):
    ValueError: ties = 'last'; allowed: "fractional", "first"
    """
    names = list(allowed)
    if given not in names:
        quoted = ", ".join(f'"{name}"' for name in names)
        raise ValueError(f"{option} = {given!r}; allowed: {quoted}")
