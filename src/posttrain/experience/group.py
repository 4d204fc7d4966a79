"""A group: one prompt, its completions, and what they were worth. The one record from sampling to assembly.

Groups wait here between sampling and training, the oldest first. What waits is part of a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.errors import GuardStop
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
        """The tokens of all rows, with the prompt counted in each of them."""
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
        """Reads the output of `to_json`; `prompt` is the one that it names."""
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


class GroupQueue:
    """First in, first out. What it gives out depends on versions and on the order of the calls, never on the clock.

    `max_lag` is how many policy versions a token may be behind the policy that learns from it. 0 is synchronous
    training: only what the present policy sampled is learned from.
    """

    def __init__(self, max_lag: int) -> None:
        if max_lag < 0:
            raise ValueError(f"max_lag = {max_lag}, but a token cannot be newer than the policy that learns from it")
        self.max_lag = max_lag
        self._groups: deque[Group] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: Group) -> None:
        self._groups.append(group)

    def take(self, count: int, version: int) -> list[Group]:
        """The `count` oldest groups, for the policy of this version.

        Raises ValueError for a token of a version that does not exist yet, GuardStop for one that is too old.
        """
        if count > len(self):
            raise ValueError(f"{count} groups are requested, but only {len(self)} wait")
        groups = [self._groups.popleft() for _ in range(count)]
        for group in groups:
            self._check(group, version)
        return groups

    def _check(self, group: Group, version: int) -> None:
        versions = group.versions
        if versions and max(versions) > version:
            raise ValueError(f"a token of policy version {max(versions)} cannot exist yet at version {version}")
        if versions and version - min(versions) > self.max_lag:
            raise GuardStop(
                given=f"a completion of prompt {group.prompt.index} has tokens of policy version {min(versions)}, "
                f"but version {version} would learn from them",
                allowed=f"tokens of version {version - self.max_lag} or later",
                fix="Publish the trained weights to the sampler before it samples again.",
            )

    def state(self) -> list[dict[str, Any]]:
        """The waiting groups, as plain JSON for a checkpoint."""
        return [group.to_json() for group in self._groups]

    def load_state(self, state: Sequence[Mapping[str, Any]], prompts: Mapping[int, Prompt]) -> None:
        """Go on with what `state` gave; `prompts` are those of the data by their index."""
        self._groups = deque(Group.from_json(saved, prompts[saved["prompt"]]) for saved in state)
