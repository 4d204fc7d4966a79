"""Named checks: all of them run, and all failures are reported together."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping

Check = Callable[[], None]
"""Function that raises AssertionError if its check fails."""


class ChecksFailed(AssertionError):
    """An algorithm or a reward has a flaw that would spoil a run. `failed` maps each failed check to its message."""

    def __init__(self, subject: str, failed: Mapping[str, str], of: int) -> None:
        self.failed = dict(failed)
        lines = [f"- {name}: {said}" for name, said in failed.items()]
        super().__init__(f"{subject} fails {len(failed)} of {of} checks\n" + "\n".join(lines))


def run_checks(subject: str, checks: Mapping[str, Check]) -> tuple[str, ...]:
    """Run all checks, even after failures. Return the names of the checks that passed, or raise ChecksFailed."""
    failed = dict[str, str]()
    for name, check in checks.items():
        try:
            check()
        except AssertionError as error:
            failed[name] = str(error)
        except Exception as error:  # any error, because the other checks must still be reported
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed[name] = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    if failed:
        raise ChecksFailed(subject, failed, of=len(checks))
    return tuple(checks)
