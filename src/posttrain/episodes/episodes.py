"""Completions with several turns, yielded one by one as a sampler does, and the schedule of their trajectories."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from posttrain.engines.engine import Request
from posttrain.engines.row_stream import HasRows, RowStream
from posttrain.engines.sampler import rows_together
from posttrain.episodes.play import Play
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.engines.sampler import SamplingSettings
    from posttrain.episodes.scene import Scene
    from posttrain.episodes.sessions import Reply
    from posttrain.types import Completion, Prompt

DRAWING = 0.5
"""If a count decides which trajectory returns: the share of the open trajectories that may still be decoding when the
one that has waited longest returns. So a tool may take as long as a turn takes to sample before anybody waits for it.
A step with fewer trajectories than rows is sampled in batches of half of them."""


@dataclass
class Waits:
    """Waiting times, in seconds, since the last call of `take_waits`."""

    blocked: float = 0.0
    """Seconds in which nothing was sampled, because of an environment or a tool."""
    asked: float = 0.0
    """Seconds between requests and their replies, summed over trajectories, also over those that wait in parallel."""

    def __add__(self, other: Waits | None) -> Waits:
        return self if other is None else Waits(self.blocked + other.blocked, self.asked + other.asked)


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """A sampler of completions that may have several turns. Implements `Answers`."""

    sampler: HasRows
    scene: Scene
    waits: Waits = field(default_factory=Waits)

    @property
    def context_length(self) -> int | None:
        """The sampler's context length, in tokens."""
        return self.scene.context_length

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yield (index of the prompt, index in its group, completion) as each one ends. See `Sampler.each`."""
        if group_size < 1:
            raise ConfigError(
                given=f"group_size = {group_size}", allowed="at least 1", fix="Set sampling.group_size = 8."
            )
        longest_first = sorted(range(len(prompts)), key=lambda place: -len(prompts[place].ids))
        plays = [
            Play(place, g, prompts[place], seed=seed, max_turn_length=sampling.max_completion_length)
            for place in longest_first
            for g in range(group_size)
        ]
        yield from Round(self, plays, sampling, seed).run()

    def take_waits(self) -> Waits:
        """Return the waiting times since the last call, and reset them."""
        taken = Waits(self.waits.blocked, self.waits.asked)
        self.waits.blocked = self.waits.asked = 0.0
        return taken


class Round:
    """All trajectories of one call of `each`. Implements `Conductor`."""

    def __init__(self, episodes: Episodes, plays: Sequence[Play], sampling: SamplingSettings, seed: int) -> None:
        self.own, self.sampling = episodes, sampling
        self.turns, self.sessions = episodes.scene.turns(self), episodes.scene.sessions
        sampler = episodes.sampler.up_to_date()
        self.stream: RowStream[Play] = RowStream(sampler, sampling, seed=seed)
        self.counted = sampler.device.type == "cpu" and not self.stream.stand_alone
        """If true, a count decides which trajectory returns to the batch, and not the clock. See the package."""
        self.pending = deque(plays)
        self.waiting: deque[Play] = deque()
        """Trajectories that wait for a reply in order to continue, the longest wait first."""
        self.finishing: list[Play] = []
        """Trajectories that have ended and wait for their reward. They hold up no other trajectory."""
        self.done: list[tuple[int, int, Completion]] = []

    def run(self) -> Iterator[tuple[int, int, Completion]]:
        try:
            while self.pending or self.waiting or self.finishing or len(self.stream):
                self._begin()
                self._take_back()
                yield from self._taken()
                if len(self.stream):
                    for play, turn in self.stream.step():
                        self.turns.turn_ended(play, turn)
                    self._look()
                elif self.finishing and not self.waiting:
                    finishing, self.finishing = self.finishing, []
                    for play in finishing:
                        self.turns.answered(play, self._reply(play))
                yield from self._taken()
            self.sessions.settle()
        finally:
            self.sessions.kill_all()

    def _taken(self) -> list[tuple[int, int, Completion]]:
        taken, self.done = self.done, []
        return taken

    # --- what trajectories ask for -----------------------------------------------------------------------------------

    def draw(self, play: Play, context: tuple[int, ...], room: int) -> None:
        """See `Conductor`."""
        request = Request(prompt_ids=context, max_new_tokens=room, stream=(play.prompt.index, play.number))
        self.stream.submit(play, request, drawn=len(play.versions))

    def wait(self, play: Play) -> None:
        """See `Conductor`."""
        (self.finishing if play.stage == "finish" else self.waiting).append(play)

    def over(self, play: Play, completion: Completion) -> None:
        """See `Conductor`."""
        self.done.append((play.place, play.number, completion))

    # --- which trajectory returns, and when --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin as many trajectories as there is room for: a batch of decoding rows, and as many again that wait."""
        rows = rows_together(self.sampling)
        while self.pending and len(self.stream) < rows and len(self.stream) + len(self.waiting) < 2 * rows:
            self.turns.begin(self.pending.popleft())

    def _take_back(self) -> None:
        while self.waiting and len(self.stream) < rows_together(self.sampling):
            play = self._by_count() if self.counted else self._by_clock()
            if play is None:
                return
            self.waiting.remove(play)
            self.turns.answered(play, self._reply(play))

    def _by_count(self) -> Play | None:
        """Return the trajectory that has waited longest, if it is due. One that has not begun is always due."""
        drawing = len(self.stream)
        due = self.waiting[0].stage == "reset" or drawing <= DRAWING * (drawing + len(self.waiting))
        return self.waiting[0] if due else None

    def _by_clock(self) -> Play | None:
        """Return the first trajectory that has its reply. If no row is decoding, wait until one has."""
        if not len(self.stream):
            began = time.monotonic()
            self.sessions.wait_for_any([play.session for play in self.waiting if play.session is not None])
            self.own.waits.blocked += time.monotonic() - began
        return next((play for play in self.waiting if play.session and self.sessions.has_replied(play.session)), None)

    def _look(self) -> None:
        """Exchange messages with the environments, and finish each trajectory whose reward has arrived.

        A trajectory whose environment failed begins again. If a count decides the order, that happens only after all
        other trajectories.
        """
        self.sessions.poll()
        replies = [(play, play.session.reply) for play in self.finishing if play.session is not None]
        for play in [p for p, reply in replies if reply and not (self.counted and reply.kind != "value")]:
            self.finishing.remove(play)
            self.turns.answered(play, self._reply(play))

    def _reply(self, play: Play) -> Reply:
        """Wait for the reply of the trajectory's session and return it."""
        assert play.session is not None, "a trajectory waits only after a request"
        began = time.monotonic()
        reply = self.sessions.wait(play.session)
        self.own.waits.blocked += time.monotonic() - began
        self.own.waits.asked += reply.seconds
        return reply
