"""A group: one prompt, its completions, and their scores. This one record goes from sampling to assembly.

`GroupQueue` holds groups between sampling and training, the oldest first. Its content is part of a checkpoint.
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
    """G completions of one prompt. It is made when all of them have ended and have been scored, and never changes."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    """Completions, each with the log-probability and the policy version of every sampled token."""
    scores: Scores | None = None
    """The rewards, parts and verdicts of these completions; None if nothing scores them."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all rows; the prompt counts in each of them."""
        return sum(len(self.prompt.ids) + len(completion.ids) for completion in self.completions)

    @property
    def versions(self) -> list[int]:
        """The policy version of each sampled token, completion after completion."""
        return [version for completion in self.completions for version in completion.versions]

    def to_json(self) -> dict[str, Any]:
        """Return the group for a checkpoint. It names the prompt by its row in the data."""
        return {
            "prompt": self.prompt.index,
            "completions": [asdict(completion) for completion in self.completions],
            "scores": None if self.scores is None else self.scores.to_json(),
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any], prompt: Prompt) -> Group:
        """Restore the output of `to_json`; `prompt` is the prompt that it names."""
        scores = saved["scores"]
        return Group(
            prompt=prompt,
            completions=tuple(map(Completion.from_json, saved["completions"])),
            scores=None if scores is None else Scores.from_json(scores),
        )


def groups_of(
    prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], scores: Scores | None
) -> list[Group]:
    """Return one group per prompt, from completions `[P][G]` and their scores."""
    each = [None] * len(prompts) if scores is None else scores.each([prompt.index for prompt in prompts])
    return [
        Group(prompt=prompt, completions=tuple(own), scores=one)
        for prompt, own, one in zip(prompts, completions, each, strict=True)
    ]


def scores_of(groups: Sequence[Group]) -> Scores | None:
    """Return the scores of all groups as one record `[P][G]`; None if nothing scores them."""
    scores = [group.scores for group in groups if group.scores is not None]
    return Scores.joined(scores) if scores else None


def completions_of(groups: Sequence[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def rewards_of(groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """Return `[P, G]` rewards, NaN for none, and `[P, G]` whether there is one. All groups must have the same size."""
    scores = scores_of(groups)
    assert scores is not None, "only scored groups have rewards"
    return torch.tensor(scores.rewards_PG, dtype=torch.float32), torch.tensor(scores.scored_PG, dtype=torch.bool)


class GroupQueue:
    """A queue of groups: first in, first out. Its output depends on versions and call order, never on the clock.

    `max_lag` is the maximum number of policy versions by which a token may be older than the policy that learns from
    it. 0 is synchronous training: only samples of the present policy are trained.
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
        """Return the `count` oldest groups, for the policy of this version.

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
        """Return the waiting groups, as plain JSON for a checkpoint."""
        return [group.to_json() for group in self._groups]

    def load_state(self, state: Sequence[Mapping[str, Any]], prompts: Mapping[int, Prompt]) -> None:
        """Restore the output of `state`; `prompts` maps the data's indices to prompts."""
        self._groups = deque(Group.from_json(saved, prompts[saved["prompt"]]) for saved in state)
