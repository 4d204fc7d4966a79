"""A group: one prompt, its completions, and what they were worth. The one record from sampling to assembly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.rewards.scores import Scores
from posttrain.types import Completion, Prompt


@dataclass(frozen=True, kw_only=True)
class Group:
    """G completions of one prompt. It is made when all of them have ended and been scored, and never changes."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    """Each with the log-probability and the policy version of every token that was drawn."""
    scores: Scores | None = None
    """The rewards, parts and verdicts of these completions; None where nothing scores them."""

    @property
    def num_tokens(self) -> int:
        """Of all rows, the prompt in each of them."""
        return sum(len(self.prompt.ids) + len(completion.ids) for completion in self.completions)

    @property
    def versions(self) -> list[int]:
        """The policy version of each drawn token, completion after completion."""
        return [version for completion in self.completions for version in completion.versions]

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint. The prompt is named by its row in the data."""
        return {
            "prompt": self.prompt.index,
            "completions": [asdict(completion) for completion in self.completions],
            "scores": None if self.scores is None else self.scores.to_json(),
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any], prompt: Prompt) -> Group:
        """What `to_json` gave; `prompt` is the one that it names."""
        scores = saved["scores"]
        return Group(
            prompt=prompt,
            completions=tuple(map(Completion.from_json, saved["completions"])),
            scores=None if scores is None else Scores.from_json(scores),
        )


def groups_of(
    prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], scores: Scores | None
) -> list[Group]:
    """Completions `[P][G]` and their scores, prompt by prompt."""
    each = [None] * len(prompts) if scores is None else scores.each([prompt.index for prompt in prompts])
    return [
        Group(prompt=prompt, completions=tuple(own), scores=one)
        for prompt, own, one in zip(prompts, completions, each, strict=True)
    ]


def scores_of(groups: Sequence[Group]) -> Scores | None:
    """Those of all groups as one record `[P][G]`; None where nothing scores them."""
    scores = [group.scores for group in groups if group.scores is not None]
    return Scores.joined(scores) if scores else None


def completions_of(groups: Sequence[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def rewards_of(groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """`[P, G]` rewards, NaN where a completion has none, and `[P, G]` whether it has one; needs groups of one size."""
    scores = scores_of(groups)
    assert scores is not None, "rewards are asked of groups that were scored"
    return torch.tensor(scores.rewards_PG, dtype=torch.float32), torch.tensor(scores.scored_PG, dtype=torch.bool)
