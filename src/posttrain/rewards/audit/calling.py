"""The calls that a probe makes, in any thread or process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.rewards.calls import Outcome, run_calls
from posttrain.rewards.load import Target


@dataclass(frozen=True, kw_only=True)
class Calling:
    """A loaded reward and the keyword arguments of its calls."""

    function: Callable[..., Any]
    target: Target
    calls: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    is_async: bool
    batch: bool
    """True for a function that answers for all completions in one call."""
    timeout: float
    options: Mapping[str, Any]

    def run(self, runner: asyncio.Runner) -> list[Outcome]:
        """Make the calls like a reward worker and return one outcome per call."""
        outcomes: dict[int, Outcome] = {}
        run_calls(
            self.function,
            list(enumerate(self.calls)),
            self.settings,
            is_async=self.is_async,
            timeout=self.timeout,
            emit=outcomes.__setitem__,
            runner=runner,
        )
        return [outcomes[number] for number in range(len(self.calls))]

    def values(self, outcome: Outcome) -> list[Any]:
        """The values of one call, one per completion. One with a number for each token is a list."""
        if not self.batch:
            return [outcome.value]
        if isinstance(outcome.value, list):
            return list(outcome.value)
        completions = self.calls[0].get("completions")
        size = len(completions) if isinstance(completions, list) else 1
        return [outcome.value] * size
