"""Completions of several turns, one by one as a sampler gives them: who draws, who waits, and who comes back when."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posttrain.data.dropped import Unusable
from posttrain.engines.engine import Request
from posttrain.engines.row_stream import RowStream
from posttrain.engines.sampler import rows_together
from posttrain.episodes.calls import CallFormat, Said
from posttrain.episodes.play import Play, Stage
from posttrain.episodes.sessions import Reply
from posttrain.episodes.tools import UNKNOWN
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.engines.local import LocalSampler
    from posttrain.engines.sampler import SamplingSettings
    from posttrain.episodes.bridge import Bridge
    from posttrain.episodes.sessions import Sessions
    from posttrain.types import Completion, Prompt

DRAWING = 0.5
"""Share of the open trajectories that is drawn: when no more are, the one that has waited longest comes back. So a tool
may take as long as a turn is drawn before anybody waits for it, and a step with fewer trajectories than rows is drawn
in batches of half of them."""
MOST_CHARACTERS = 64
"""Of each token that a trajectory may have."""


@dataclass
class Waits:
    """Seconds since they were taken last."""

    blocked: float = 0.0
    """In which nothing was drawn, because of an environment or a tool."""
    asked: float = 0.0
    """From requests to their replies, summed over trajectories that wait side by side."""

    def __add__(self, other: Waits | None) -> Waits:
        return self if other is None else Waits(self.blocked + other.blocked, self.asked + other.asked)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a trajectory goes."""

    max_turns: int
    """Of the policy."""
    max_length: int | None = None
    """Tokens behind the prompt, drawn and given; None: the context window."""
    attempts: int = 3
    """How often one is begun whose environment fails."""


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Implements `Answers`."""

    sampler: LocalSampler
    bridge: Bridge
    sessions: Sessions
    limits: Limits
    calls: CallFormat | None = None
    """None where there are no tools."""
    waits: Waits = field(default_factory=Waits)

    @property
    def has_environment(self) -> bool:
        """Is there more than tools, which remember nothing?"""
        return self.sessions.setup.environment is not None or self.sessions.setup.agent is not None

    @property
    def context_length(self) -> int | None:
        """That of the sampler."""
        return self.sampler.context_length

    @property
    def patient(self) -> bool:
        """Who comes back when is found by counting, not by the clock: see the package."""
        return self.sampler.device.type == "cpu"

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """(place of the prompt, number in its group, completion), as soon as it has ended. See `Sampler.each`."""
        if group_size < 1:
            raise ConfigError(
                given=f"group_size = {group_size}", allowed="at least 1", fix="Set sampling.group_size = 8."
            )
        order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place].ids))
        plays = [Play(place, g, prompts[place]) for place in order for g in range(group_size)]
        yield from self.round(plays, sampling, seed).run()

    def round(self, plays: Sequence[Play], sampling: SamplingSettings, seed: int) -> Round:
        """What conducts them."""
        return Round(self, plays, sampling, seed)

    def take_waits(self) -> Waits:
        """Those since the last call."""
        taken = Waits(self.waits.blocked, self.waits.asked)
        self.waits.blocked = self.waits.asked = 0.0
        return taken


class Round:
    """All trajectories of one call of `each`."""

    def __init__(self, episodes: Episodes, plays: Sequence[Play], sampling: SamplingSettings, seed: int) -> None:
        self.own, self.sampling, self.seed = episodes, sampling, seed
        self.sessions, self.bridge = episodes.sessions, episodes.bridge
        self.stream: RowStream[Play] = RowStream(episodes.sampler, sampling, seed=seed)
        self.pending = deque(plays)
        self.waiting: deque[Play] = deque()
        """For what they need to go on, the longest first."""
        self.finishing: list[Play] = []
        """For their reward, which nothing else waits for."""
        self.done: list[tuple[int, int, Completion]] = []

    def run(self) -> Iterator[tuple[int, int, Completion]]:
        try:
            while self.pending or self.waiting or self.finishing or len(self.stream):
                self._begin()
                self._take_back()
                yield from self._taken()
                if len(self.stream):
                    for play, turn in self.stream.step():
                        self._turn_ended(play, turn)
                    self._look()
                elif self.finishing and not self.waiting:
                    finishing, self.finishing = self.finishing, []
                    for play in finishing:
                        self._finish(play, self._wait(play))
                yield from self._taken()
            self.sessions.settle()
        finally:
            self.sessions.kill_all()

    def _taken(self) -> list[tuple[int, int, Completion]]:
        taken, self.done = self.done, []
        return taken

    # --- who comes when ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin as many as there is room for: rows that are drawn, and as many again that wait."""
        rows = rows_together(self.sampling)
        while self.pending and len(self.stream) < rows and len(self.stream) + len(self.waiting) < 2 * rows:
            play = self.pending.popleft()
            if self.own.has_environment:
                self._ask(play, "reset", row=_row(play.prompt), prompt=play.asked)
            else:
                self._submit(play)

    def _take_back(self) -> None:
        while self.waiting and self._due():
            play = self.waiting.popleft()
            self._resume(play, self._wait(play))
        if not self.own.patient:
            for play in [play for play in self.waiting if play.session is not None and play.session.reply is not None]:
                if len(self.stream) < rows_together(self.sampling):
                    self.waiting.remove(play)
                    self._resume(play, self._wait(play))

    def _due(self) -> bool:
        """Does the one that has waited longest come back now? One that has not begun does as soon as there is room."""
        drawing = len(self.stream)
        if drawing >= rows_together(self.sampling):
            return False
        return self.waiting[0].stage == "reset" or drawing <= DRAWING * (drawing + len(self.waiting))

    def _look(self) -> None:
        """Move messages, and finish those whose reward is there.

        One whose environment failed is begun anew, and when that is must be counted, too: after all others.
        """
        self.sessions.poll()
        replies = [(play, play.session.reply) for play in self.finishing if play.session is not None]
        for play in [p for p, reply in replies if reply and not (self.own.patient and reply.kind != "value")]:
            self.finishing.remove(play)
            self._finish(play, self._wait(play))

    def _wait(self, play: Play) -> Reply:
        assert play.session is not None, "only what was asked is waited for"
        began = time.monotonic()
        reply = self.sessions.wait(play.session)
        self.own.waits.blocked += time.monotonic() - began
        self.own.waits.asked += reply.seconds
        return reply

    # --- turns -------------------------------------------------------------------------------------------------------

    def _submit(self, play: Play) -> None:
        """Draw the next turn, if there is room for one token."""
        context = play.context
        play.ended, room = self._room(play, len(context))  # where the turn fills all of it
        if room < 1:
            self._end(play)
            return
        request = Request(prompt_ids=context, max_new_tokens=room, stream=(play.prompt.index, play.number))
        self.stream.submit(play, request, drawn=len(play.versions))

    def _room(self, play: Play, used: int, more: int = 0) -> tuple[str, int]:
        """Which limit the next turn would run into, and after how many tokens, behind a context of `used` tokens, of
        which `more` are not in the trajectory yet."""
        rooms = {"max_completion_length": self.sampling.max_completion_length}
        if self.own.limits.max_length is not None:
            rooms["max_trajectory_length"] = self.own.limits.max_length - play.length - more
        if self.own.sampler.context_length is not None:
            rooms["context"] = self.own.sampler.context_length - used
        return min(rooms.items(), key=lambda item: item[1])

    def _turn_ended(self, play: Play, turn: Completion) -> None:
        said = self._read(turn)
        play.draw(turn, said)
        play.calls += [self._known(one.name) for one in said.calls]
        if turn.truncated:
            self._end(play)
            return
        play.ended = ""
        if self.own.has_environment or said.calls:
            self._ask(play, "step", message=play.messages[-1], calls=[list(one) for one in said.calls])
        else:
            play.ended = "done"
            self._complete(play)

    def _read(self, turn: Completion) -> Said:
        """The calls in it; the template that writes one result gets the first."""
        if self.own.calls is None:
            return Said(turn.text, [])
        tokenizer, ids = self.bridge.renderer.tokenizer, list(turn.ids)
        if ids and ids[-1] in self.bridge.eos_ids:
            ids.pop()
        said = self.own.calls.read(str(tokenizer.decode(ids, skip_special_tokens=False)))
        return said._replace(calls=said.calls[:1]) if self.bridge.one_result else said

    def _known(self, name: str) -> str:
        return name if any(name == tool["function"]["name"] for tool in self.bridge.tools) else UNKNOWN

    def _ask(self, play: Play, do: Stage, **arguments: Any) -> None:
        if play.session is None:
            play.session = self.sessions.open(play.seed(self.seed))
        play.stage = do
        self.sessions.ask(play.session, do, **arguments)
        (self.finishing if do == "finish" else self.waiting).append(play)

    def _resume(self, play: Play, reply: Reply) -> None:
        """Go on with what came back."""
        value = reply.value
        if reply.kind != "value":
            if self.own.has_environment or reply.kind == "exception":
                self._failed(play, reply.kind, reply.message)
                return
            value = self._late(play, reply)  # tools remember nothing: another process goes on
        play.earn(value.get("turn_reward"))
        if value.get("done"):
            play.ended = "done"
            self._worth(play, value)
            return
        messages = value["messages"]
        play.errors += [one["name"] for one, wrong in zip(messages, value.get("errors", ()), strict=False) if wrong]
        if play.stage == "reset" and value.get("prompt", play.asked) != play.asked:
            play.opening = messages = value["prompt"]
        elif play.stage == "reset" and not messages:
            self._submit(play)
            return
        else:
            play.hear(messages)
        if play.turns >= self.own.limits.max_turns:
            play.ended = "max_turns"
            self._end(play)
            return
        try:
            self._give(play, messages)
        except Unusable as refused:
            self._failed(play, "template", str(refused))

    def _give(self, play: Play, messages: Sequence[Mapping[str, Any]]) -> None:
        """The ids of what came back, and then the next turn; neither where there is no room for both.

        Unusable where the chat template cannot write it."""
        anew = play.stage == "reset" or self.bridge.history == "split"
        if self._is_too_long(play, messages):
            self._end(play)
            return
        if messages is not play.opening:  # which is a prompt, and stands behind no answer
            self.bridge.check(messages)
        if anew:
            ids = self.bridge.whole(*play.conversation)
        else:
            ids = self.bridge.between(play.messages[-len(messages) :], last=play.ids[-1] if play.ids else None)
        self._enter(play, ids, anew=anew)

    def _enter(self, play: Play, ids: Sequence[int], *, anew: bool) -> None:
        """Context, and the next turn behind it, where there is room for both."""
        more = len(ids) - (len(play.prompt.ids) if anew and not play.ids else 0)
        play.ended, room = self._room(play, (0 if anew else len(play.context)) + len(ids), more)
        if room < 1:
            self._end(play)
            return
        play.give(ids, anew=anew)
        self._submit(play)

    def _is_too_long(self, play: Play, messages: Sequence[Mapping[str, Any]]) -> bool:
        """More cannot fit, and is not tokenised."""
        play.ended = "max_trajectory_length" if self.own.limits.max_length is not None else "context"
        limits = (self.own.limits.max_length, self.own.sampler.context_length)
        most = MOST_CHARACTERS * min((limit for limit in limits if limit is not None), default=math.inf)
        return sum(len(one["content"]) for one in messages) > most

    def _late(self, play: Play, reply: Reply) -> dict[str, Any]:
        """What the model is told of tools that hung or took their process down."""
        self._leave(play)
        names = [self._known(name) for name in play.called]
        messages = [{"role": "tool", "name": name, "content": f"error: {reply.message}"} for name in names]
        return {"messages": messages, "errors": [True] * len(names)}

    # --- ends --------------------------------------------------------------------------------------------------------

    def _end(self, play: Play) -> None:
        """A limit has cut it; its environment says what it was worth so far."""
        if play.session is not None and self.own.has_environment:
            self._ask(play, "finish")
        else:
            self._complete(play)

    def _finish(self, play: Play, reply: Reply) -> None:
        if reply.kind != "value":
            self._failed(play, reply.kind, reply.message)
            return
        self._worth(play, reply.value)

    def _worth(self, play: Play, value: Mapping[str, Any]) -> None:
        """What its environment made of it."""
        play.reward, play.metrics = value.get("reward"), value.get("metrics", {})
        self._complete(play)

    def _failed(self, play: Play, kind: str, message: str) -> None:
        """Begin it anew, or give it up without a reward."""
        self._leave(play, kill=True)
        if play.attempt >= self.own.limits.attempts:
            self.done.append((play.place, play.number, play.completion(kind, message)))
            return
        again = play.anew()
        if self.own.has_environment:
            self._ask(again, "reset", row=_row(again.prompt), prompt=again.asked)
        else:
            self._submit(again)

    def _complete(self, play: Play) -> None:
        self._leave(play)
        self.done.append((play.place, play.number, play.completion()))

    def _leave(self, play: Play, *, kill: bool = False) -> None:
        if play.session is not None:
            (self.sessions.kill if kill else self.sessions.end)(play.session)
            play.session = None


def _row(prompt: Prompt) -> dict[str, Any]:
    """The row of the data, as the environment sees it."""
    asked = prompt.plain if prompt.plain is not None else [dict(message) for message in prompt.messages or ()]
    return {**prompt.columns, "prompt": asked}
