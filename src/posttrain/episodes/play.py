"""One trajectory while it goes on: what was drawn and given so far, and what became of it."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from posttrain.episodes.bridge import call, call_id
from posttrain.types import Completion, Episode, FinishReason, Prompt

if TYPE_CHECKING:
    from posttrain.episodes.calls import Said
    from posttrain.episodes.sessions import Session

Stage = Literal["reset", "step", "finish"]
"""What its environment was asked last."""
LIMITS = ("max_completion_length", "max_turns", "max_trajectory_length", "context")
"""Why a trajectory is cut: settings of `sampling`, or the model's context window."""


@dataclass(eq=False)
class Play:
    """Everything about a trajectory but what its environment remembers."""

    place: int
    """The place of its prompt among the requested ones."""
    number: int
    """In its group."""
    prompt: Prompt
    seed: int = 0
    """The seed of its group's random numbers."""
    max_turn_length: int = sys.maxsize
    """Tokens that the policy may draw in a turn."""
    attempt: int = 1
    stage: Stage = "reset"
    session: Session | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)
    """Places in `messages` of those that the policy did not write."""
    opening: list[Mapping[str, Any]] | None = None
    """The messages with which its environment replaced the prompt's."""
    turns: int = 0
    called: list[str] = field(default_factory=list)
    """The calls of the last turn, as it named them."""
    calls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    text: str = ""
    reason: FinishReason = "stop"
    ended: str = ""
    reward: float | None = None
    turn_rewards: list[float | None] = field(default_factory=list)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def context(self) -> tuple[int, ...]:
        """What the next turn sees."""
        return tuple(self.ids[self.starts[-1] :]) if self.starts else (*self.prompt.ids, *self.ids)

    @property
    def length(self) -> int:
        """Tokens behind the prompt: all that were drawn and given. Where each turn has a history of its own, histories
        count as often as they are given."""
        return len(self.ids) - (len(self.prompt.ids) if self.starts[:1] == [0] else 0)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The prompt as messages."""
        return [dict(message) for message in self.prompt.messages or ()]

    @property
    def conversation(self) -> tuple[list[Mapping[str, Any]], list[int]]:
        """All messages, the prompt's among them, and the places of those that came from outside."""
        asked = self.asked if self.opening is None else self.opening
        opened = range(0 if self.opening is None else len(asked))
        return [*asked, *self.messages], [*opened, *(len(asked) + place for place in self.outside)]

    @property
    def world_seed(self) -> int:
        """The seed of its environment's random numbers."""
        return random.Random(f"{self.seed} {self.prompt.index} {self.number}").getrandbits(63)

    def anew(self) -> Play:
        """The same trajectory before anything was drawn, once more."""
        return Play(
            self.place,
            self.number,
            self.prompt,
            seed=self.seed,
            max_turn_length=self.max_turn_length,
            attempt=self.attempt + 1,
        )

    def hear(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """The reply, with the identifiers of the calls that it answers."""
        for number, message in enumerate(messages):
            named = {"tool_call_id": call_id(number)} if message["role"] == "tool" else {}
            self.outside.append(len(self.messages))
            self.messages.append({**named, **message})

    def give(self, ids: Sequence[int], *, anew: bool = False) -> None:
        """Context that the policy did not draw; `anew`: the next turn sees nothing of what stands before it."""
        begin = len(self.ids)
        if anew:
            self.starts.append(begin)
        if ids:
            self.ids += ids
            self.given.append((begin, len(self.ids)))

    def draw(self, turn: Completion, said: Said) -> None:
        """A turn of the policy."""
        self.ids += turn.ids
        self.logprobs += turn.logprobs
        self.versions += turn.versions
        self.turns += 1
        self.text, self.reason = turn.text, turn.finish_reason
        self.called = [one.name for one in said.calls]
        message: dict[str, Any] = {"role": "assistant", "content": said.content if said.calls else turn.text}
        if said.calls and said.readable:
            message["tool_calls"] = [call(one.name, one.arguments, n) for n, one in enumerate(said.calls)]
            message |= {"thinking": said.thinking} if said.thinking else {}
        self.messages.append(message)

    def earn(self, reward: float | None) -> None:
        """The environment's reward for the last turn."""
        if reward is not None:
            self.turn_rewards += [None] * (self.turns - 1 - len(self.turn_rewards))
            self.turn_rewards.append(reward)

    def completion(self, failure: str = "", detail: str = "") -> Completion:
        """The finished completion; if it was cut short, it is truncated."""
        return Completion(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish_reason="length" if self.ended in LIMITS and not failure else self.reason,
            text=self.text,
            given=tuple(self.given),
            starts=tuple(self.starts),
            episode=Episode(
                messages=tuple(self.messages),
                turns=self.turns,
                ended="failed" if failure else self.ended,
                reward=self.reward,
                turn_rewards=self._turn_rewards,
                metrics=self.metrics,
                calls=tuple(self.calls),
                errors=tuple(self.errors),
                failure=failure,
                detail=detail,
                attempts=self.attempt,
            ),
        )

    @property
    def _turn_rewards(self) -> tuple[float | None, ...]:
        """One for each turn, or none at all."""
        missing = self.turns - len(self.turn_rewards) if self.turn_rewards else 0
        return (*self.turn_rewards, *[None] * missing)
