"""What a model may imitate of a built-in task: right answers, those that were preferred, judgements of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posttrain.tasks.base import RowSource
from posttrain.tasks.preferences import PreferenceTask


@dataclass(frozen=True, kw_only=True)
class ExampleTask:
    """`task:examples/NAME`: the problems of a task, each with a good answer as the completion."""

    task: RowSource

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and completion: a pure function of the arguments."""
        rows = self.task.rows(n, seed=seed, split=split)
        return [{"prompt": row["prompt"], "completion": row["chosen" if "chosen" in row else "answer"]} for row in rows]


@dataclass(frozen=True, kw_only=True)
class JudgementTask:
    """`task:judgements/NAME`: a problem and an answer to it, to be followed by points, as a judge is asked for them.

    The reply is `score: 5` for the right answer and `score: 0` for a wrong one: what a small model can learn to say.
    """

    task: PreferenceTask

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` rows with the columns prompt and completion, right and wrong answers in turn."""
        rows = self.task.rows(n, seed=seed, split=split)
        kinds = [("chosen", "score: 5"), ("rejected", "score: 0")] * n
        return [
            {"prompt": f"{row['prompt']}{row[which]}:\n", "completion": reply}
            for row, (which, reply) in zip(rows, kinds, strict=False)
        ]
