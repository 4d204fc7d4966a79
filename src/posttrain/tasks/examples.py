"""Right answers of a built-in task, to be imitated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posttrain.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class ExampleTask:
    """`task:examples/NAME`: the problems of a task, each with its right answer as the completion."""

    task: Task

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt, completion and answer: a pure function of the arguments."""
        return [{**row, "completion": row["answer"]} for row in self.task.rows(n, seed=seed, split=split)]
