"""Trajectories whose turns are drawn by engines of other processes: what each needs next, and what it comes to.

    controller --Open--> open()                                  Resumed: its next turn is to be drawn
    engine: a turn has ended --> drew()      Turns (episodes/)   Finished: it is over                  --> controller
    environment: a reply --> poll()

All of it happens in the thread of the driver, and nothing waits: while an environment answers, engines draw other rows,
with the weights that they have by then. Who comes back when depends on the clock. What is drawn does not, but for what
a batch of other rows changes in the last bits: each row has random numbers of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.controller.messages import Event, Finished, Resumed, Row
from posttrain.engines.sampler import SamplingSettings, rows_together
from posttrain.episodes.play import Play
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.episodes.scene import Scene


class Turn(NamedTuple):
    """What an engine is to draw."""

    context: tuple[int, ...]
    room: int
    """Tokens, at least 1."""
    drawn: int
    """Tokens of the turns before, for which the row has used its random numbers."""


def nobody(event: Event) -> None:
    raise AssertionError(f"nobody is told of {event}")


class Trajectories:
    """Implements `Conductor`; the driver asks everything else."""

    def __init__(self, scene: Scene, most: int) -> None:
        """`most` trajectories are open at a time: each may have a process of its own."""
        self.scene, self.most = scene, most
        self.tell: Callable[[Event], None] = nobody
        """Hears what the controller has to know, in this order."""
        self.waited = 0.0
        """Seconds from requests to their replies since they were taken last, summed over all."""
        self._turns = scene.turns(self)
        self._asked: deque[Play] = deque()
        """Those of an evaluation that have not begun: the trainer waits for it."""
        self._pending: deque[Play] = deque()
        """Others that have not begun."""
        self._plays: dict[Row, Play] = {}
        """Those that are open."""
        self._waiting: dict[Play, None] = {}
        """For a reply."""
        self._next: dict[Row, Turn] = {}
        self._completions: dict[Row, Completion] = {}
        """Those that are over."""

    @staticmethod
    def of(scene: Scene | None, sampling: SamplingSettings, engines: int) -> Trajectories | None:
        """As many open as so many engines draw, and as many again that wait; None where each row is one answer."""
        return None if scene is None else Trajectories(scene, 2 * rows_together(sampling) * engines)

    def __contains__(self, row: Row) -> bool:
        """Is the row a trajectory?"""
        return row in self._plays or row in self._completions

    def fileno(self) -> int:
        """The objects that become readable when `poll` has something to do; it is also called from time to time."""
        return self.scene.sessions.fileno()

    # --- what the driver asks ----------------------------------------------------------------------------------------

    def open(self, row: Row, prompt: Prompt, *, seed: int, max_turn_length: int) -> None:
        """Begin one, as soon as there is room; those of an evaluation before others."""
        play = Play(row.group, row.g, prompt, seed=seed, max_turn_length=max_turn_length)
        (self._asked if row.group < 0 else self._pending).append(play)
        self._go_on()

    def next_turn(self, row: Row) -> Turn:
        """What was told to be drawn."""
        return self._next[row]

    def drew(self, row: Row, turn: Completion) -> None:
        """An engine has ended the turn that it was asked for."""
        if row in self._plays:
            self._turns.turn_ended(self._plays[row], turn)
            self._go_on()

    def poll(self) -> None:
        """Hear environments."""
        self.scene.sessions.poll()
        self._go_on()

    def completion(self, row: Row) -> Completion:
        """What a trajectory has come to."""
        return self._completions[row]

    def forget(self, row: Row) -> None:
        """A trajectory that is over, or that nobody needs any more."""
        self._completions.pop(row, None)
        self._next.pop(row, None)
        play = self._plays.pop(row, None)
        if play is None:
            for queue in (self._asked, self._pending):
                for one in [one for one in queue if _row(one) == row]:
                    queue.remove(one)
            return
        self._waiting.pop(play, None)
        if play.session is not None:
            self.scene.sessions.kill(play.session)

    def take_waited(self) -> float:
        """Seconds that environments of rows to train have taken, since this was asked last."""
        waited, self.waited = self.waited, 0.0
        return waited

    def settle(self) -> None:
        """At the end of a run, environments are given their time to close."""
        self.scene.sessions.settle()

    # --- what trajectories need --------------------------------------------------------------------------------------

    def draw(self, play: Play, context: tuple[int, ...], room: int) -> None:
        """See `Conductor`."""
        row, drawn = _row(play), len(play.versions)
        self._plays[row], self._next[row] = play, Turn(context, room, drawn)
        self.tell(Resumed(row, anew=play.attempt > 1 and not drawn))

    def wait(self, play: Play) -> None:
        """See `Conductor`."""
        self._plays[_row(play)] = play
        self._waiting[play] = None

    def over(self, play: Play, completion: Completion) -> None:
        """See `Conductor`."""
        row = _row(play)
        del self._plays[row]
        self._next.pop(row, None)
        self._completions[row] = completion
        self.tell(Finished(row))

    def _go_on(self) -> None:
        """Until each of them waits, for an engine or for its environment."""
        while True:
            answered = [play for play in self._waiting if play.session is not None and play.session.reply is not None]
            for play in answered:
                assert play.session is not None
                assert play.session.reply is not None
                del self._waiting[play]
                if play.place >= 0:  # not of an evaluation
                    self.waited += play.session.reply.seconds
                self._turns.answered(play, play.session.reply)
            while (self._asked or self._pending) and len(self._plays) < self.most:
                play = (self._asked or self._pending).popleft()
                self._plays[_row(play)] = play
                self._turns.begin(play)
            if not answered:
                return

    # --- what a checkpoint holds -------------------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        """Those that are over and not trained, as plain JSON. The others begin anew, from their seeds."""
        over = [(row, completion) for row, completion in self._completions.items() if row.group >= 0]
        return [{"row": row, "completion": asdict(completion)} for row, completion in over]

    def load_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what `state` gave."""
        self._completions = {Row(*saved["row"]): Completion.from_json(saved["completion"]) for saved in state}


def _row(play: Play) -> Row:
    return Row(play.place, play.number)
