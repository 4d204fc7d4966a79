"""Groups wait here between sampling and training, the oldest first. What waits is part of a checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.errors import GuardStop
from posttrain.experience.group import Group
from posttrain.types import Prompt


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
            raise ValueError(f"{count} groups are asked for, and {len(self)} wait")
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
                given=f"a completion of prompt {group.prompt.index} has tokens of policy version {min(versions)}, and "
                f"version {version} would learn from them",
                allowed=f"tokens of version {version - self.max_lag} or later",
                fix="Publish the trained weights to the sampler before it samples again.",
            )

    def state(self) -> list[dict[str, Any]]:
        """What waits, as plain JSON for a checkpoint."""
        return [group.to_json() for group in self._groups]

    def load_state(self, state: Sequence[Mapping[str, Any]], prompts: Mapping[int, Prompt]) -> None:
        """Go on with what `state` gave; `prompts` are those of the data by their index."""
        self._groups = deque(Group.from_json(saved, prompts[saved["prompt"]]) for saved in state)
