"""Answers of a built-in task to be imitated: the right ones, or those that were preferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posttrain.tasks.base import RowSource


@dataclass(frozen=True, kw_only=True)
class ExampleTask:
    """`task:examples/NAME`: the problems of a task, each with a good answer as the completion."""

    task: RowSource

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and completion: a pure function of the arguments."""
        rows = self.task.rows(n, seed=seed, split=split)
        return [{"prompt": row["prompt"], "completion": row["chosen" if "chosen" in row else "answer"]} for row in rows]
