"""One test over a catalogue, in place of one test for each of its cases: collecting and reporting costs more than many
cases do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def over(
    names: str | Sequence[str], cases: Iterable[Any], **_: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but the cases run one after the other, in one test; the one that fails is noted."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    known = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def loop(**given: Any) -> None:
            for case in known:
                values = dict(zip(wanted, [case] if len(wanted) == 1 else case, strict=True))
                try:
                    test(**given, **values)
                except BaseException as error:
                    error.add_note(f"case: {values}")
                    raise

        others = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        loop.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del loop.__wrapped__
        return loop

    return decorate
