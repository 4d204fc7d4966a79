"""One trajectory in progress: the tokens that were sampled and given so far, and its outcome."""

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
"""The kind of the last request to the environment."""
LIMITS = ("max_completion_length", "max_turns", "max_trajectory_length", "context")
"""Reasons for which a trajectory is cut: settings of `sampling`, or the model's context window."""


@dataclass(eq=False)
class Play:
    """The state of one trajectory, except the state that its environment holds."""

    place: int
    """Index of its prompt among the requested prompts."""
    number: int
    """Index of this trajectory in its group."""
    prompt: Prompt
    seed: int = 0
    """The seed of its group's random numbers."""
    max_turn_length: int = sys.maxsize
    """Maximum tokens that the policy may sample in a turn."""
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
    """Indices in `messages` of the messages that the policy did not write."""
    opening: list[Mapping[str, Any]] | None = None
    """The messages with which the environment replaced the prompt; None if it did not."""
    turns: int = 0
    unanswered: list[Any] = field(default_factory=list)
    """The calls that the last request asks for: (name, arguments, problem)."""
    results: list[tuple[Mapping[str, Any], bool]] = field(default_factory=list)
    """Results of earlier calls of the same turn, and whether they failed; empty unless one hung or crashed."""
    calls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    text: str = ""
    """The text of the last turn without its calls, which rewards judge: a call is no answer."""
    reason: FinishReason = "stop"
    ended: str = ""
    reward: float | None = None
    turn_rewards: list[float | None] = field(default_factory=list)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def context(self) -> tuple[int, ...]:
        """Token ids that the policy sees in the next turn."""
        return tuple(self.ids[self.starts[-1] :]) if self.starts else (*self.prompt.ids, *self.ids)

    @property
    def length(self) -> int:
        """Number of tokens after the prompt, sampled and given. If each turn has a history of its own, a history counts
        each time that it is given."""
        return len(self.ids) - (len(self.prompt.ids) if self.starts[:1] == [0] else 0)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The prompt as messages."""
        return [dict(message) for message in self.prompt.messages or ()]

    @property
    def conversation(self) -> tuple[list[Mapping[str, Any]], list[int]]:
        """All messages, including the prompt's, and the indices of those that came from outside."""
        asked = self.asked if self.opening is None else self.opening
        opened = range(0 if self.opening is None else len(asked))
        return [*asked, *self.messages], [*opened, *(len(asked) + place for place in self.outside)]

    @property
    def world_seed(self) -> int:
        """The seed of the environment's random numbers."""
        return random.Random(f"{self.seed} {self.prompt.index} {self.number}").getrandbits(63)

    def anew(self) -> Play:
        """Return the same trajectory before anything was sampled, as the next attempt."""
        return Play(
            self.place,
            self.number,
            self.prompt,
            seed=self.seed,
            max_turn_length=self.max_turn_length,
            attempt=self.attempt + 1,
        )

    def hear(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Append messages from outside. Tool results get the identifiers of the calls that they answer."""
        for number, message in enumerate(messages):
            named = {"tool_call_id": call_id(number)} if message["role"] == "tool" else {}
            self.outside.append(len(self.messages))
            self.messages.append({**named, **message})

    def give(self, ids: Sequence[int], *, anew: bool = False) -> None:
        """Append context that the policy did not sample; `anew`: the next turn sees nothing of the context before."""
        begin = len(self.ids)
        if anew:
            self.starts.append(begin)
        if ids:
            self.ids += ids
            self.given.append((begin, len(self.ids)))

    def draw(self, turn: Completion, said: Said) -> None:
        """Append a turn of the policy."""
        self.ids += turn.ids
        self.logprobs += turn.logprobs
        self.versions += turn.versions
        self.turns += 1
        self.text, self.reason = turn.text if said.answer is None else said.answer, turn.finish_reason
        message: dict[str, Any] = {"role": "assistant", "content": said.content if said.calls else turn.text}
        if said.calls and said.readable:
            message["tool_calls"] = [call(one.name, one.arguments, n) for n, one in enumerate(said.calls)]
            message |= {"thinking": said.thinking} if said.thinking else {}
        self.messages.append(message)

    def earn(self, reward: float | None) -> None:
        """Record the environment's reward for the last turn."""
        if reward is not None:
            self.turn_rewards += [None] * (self.turns - 1 - len(self.turn_rewards))
            self.turn_rewards.append(reward)

    def completion(self, failure: str = "", detail: str = "", traceback: str = "") -> Completion:
        """Return the finished completion; it counts as truncated if a limit cut it."""
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
                traceback=traceback,
                opening=None if self.opening is None else tuple(self.opening),
                attempts=self.attempt,
            ),
        )

    @property
    def _turn_rewards(self) -> tuple[float | None, ...]:
        """One reward for each turn, or none at all."""
        missing = self.turns - len(self.turn_rewards) if self.turn_rewards else 0
        return (*self.turn_rewards, *[None] * missing)
