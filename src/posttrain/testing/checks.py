"""Checks by name: all are run, and all that failed are told."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping

Check = Callable[[], None]
"""Raises AssertionError where it does not hold."""


class ChecksFailed(AssertionError):
    """A flaw of an algorithm or a reward that would make a run wrong; `failed` has each check and its finding."""

    def __init__(self, subject: str, failed: Mapping[str, str], of: int) -> None:
        self.failed = dict(failed)
        lines = [f"- {name}: {said}" for name, said in failed.items()]
        super().__init__(f"{subject} fails {len(failed)} of {of} checks\n" + "\n".join(lines))


def run_checks(subject: str, checks: Mapping[str, Check]) -> tuple[str, ...]:
    """Run all of them, whatever fails; the names of those that passed, or ChecksFailed."""
    failed = dict[str, str]()
    for name, check in checks.items():
        try:
            check()
        except AssertionError as error:
            failed[name] = str(error)
        except Exception as error:  # whatever it is: the other checks are told, too
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed[name] = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    if failed:
        raise ChecksFailed(subject, failed, of=len(checks))
    return tuple(checks)
