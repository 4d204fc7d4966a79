"""Trajectories whose turns are sampled by engines in other processes: the next step of each, and its result.

    controller --Open--> open()                                  Resumed: its next turn is to be sampled
    engine: a turn has ended --> drew()      Turns (episodes/)   Finished: it is over                  --> controller
    environment: a reply --> poll()

All of this happens in the driver's thread, and nothing blocks. While an environment answers, engines sample other rows,
with the weights that they have by then. The order in which trajectories return depends on the clock. The samples do
not, except for the last bits that other rows in a batch may change: each row has random numbers of its own.
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
    """The next turn that an engine has to sample."""

    context: tuple[int, ...]
    room: int
    """Maximum tokens of the turn, at least 1."""
    drawn: int
    """Tokens of the turns before, which have already used the row's random numbers."""


def nobody(event: Event) -> None:
    raise AssertionError(f"no receiver is set for {event}")


class Trajectories:
    """The trajectories of a run with engines. Implements `Conductor`; the driver calls all other methods."""

    def __init__(self, scene: Scene, most: int) -> None:
        """At most `most` trajectories are open at a time, because each may have a process of its own."""
        self.scene, self.most = scene, most
        self.tell: Callable[[Event], None] = nobody
        """Takes the events for the controller, in their order."""
        self.waited = 0.0
        """Seconds between requests and replies since the last `take_waited`, summed over trajectories to be trained."""
        self._turns = scene.turns(self)
        self._asked: deque[Play] = deque()
        """Trajectories of an evaluation that have not begun. They come first, because the trainer waits for them."""
        self._pending: deque[Play] = deque()
        """Other trajectories that have not begun."""
        self._plays: dict[Row, Play] = {}
        """Open trajectories."""
        self._waiting: dict[Play, None] = {}
        """Trajectories that wait for a reply, in order."""
        self._next: dict[Row, Turn] = {}
        self._completions: dict[Row, Completion] = {}
        """Results of the trajectories that are over."""

    @staticmethod
    def of(scene: Scene | None, sampling: SamplingSettings, engines: int) -> Trajectories | None:
        """Return room for as many open trajectories as the engines sample together, and as many again that wait; None
        if each row is a single answer."""
        return None if scene is None else Trajectories(scene, 2 * rows_together(sampling) * engines)

    def __contains__(self, row: Row) -> bool:
        """Return whether the row is a trajectory."""
        return row in self._plays or row in self._completions

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when `poll` has work; `poll` is also called regularly."""
        return self.scene.sessions.fileno()

    # --- for the driver ----------------------------------------------------------------------------------------------

    def open(self, row: Row, prompt: Prompt, *, seed: int, max_turn_length: int) -> None:
        """Begin a trajectory as soon as there is room, trajectories of an evaluation first."""
        play = Play(row.group, row.g, prompt, seed=seed, max_turn_length=max_turn_length)
        (self._asked if row.group < 0 else self._pending).append(play)
        self._go_on()

    def next_turn(self, row: Row) -> Turn:
        """Return the turn that the engine has to sample next."""
        return self._next[row]

    def drew(self, row: Row, turn: Completion) -> None:
        """Take a turn that an engine has finished."""
        if row in self._plays:
            self._turns.turn_ended(self._plays[row], turn)
            self._go_on()

    def poll(self) -> None:
        """Receive the replies of environments."""
        self.scene.sessions.poll()
        self._go_on()

    def completion(self, row: Row) -> Completion:
        """Return the result of a trajectory that is over."""
        return self._completions[row]

    def forget(self, row: Row) -> None:
        """Drop a trajectory, whether it is over or no longer needed."""
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
        """Return the seconds for which environments of rows to train have been waited for since the last call."""
        waited, self.waited = self.waited, 0.0
        return waited

    def settle(self) -> None:
        """Give environments time to close, at the end of a run."""
        self.scene.sessions.settle()

    # --- for the rules of trajectories -------------------------------------------------------------------------------

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
        """Advance the trajectories until each of them waits for an engine or for its environment."""
        while True:
            answered = [play for play in self._waiting if play.session is not None and play.session.reply is not None]
            for play in answered:
                assert play.session is not None
                assert play.session.reply is not None
                del self._waiting[play]
                if play.place >= 0:  # not part of an evaluation
                    self.waited += play.session.reply.seconds
                self._turns.answered(play, play.session.reply)
            while (self._asked or self._pending) and len(self._plays) < self.most:
                play = (self._asked or self._pending).popleft()
                self._plays[_row(play)] = play
                self._turns.begin(play)
            if not answered:
                return

    # --- the state in a checkpoint -----------------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        """Return trajectories that are over and not trained, as plain JSON. All others begin again from their seeds."""
        over = [(row, completion) for row, completion in self._completions.items() if row.group >= 0]
        return [{"row": row, "completion": asdict(completion)} for row, completion in over]

    def load_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the output of `state`."""
        self._completions = {Row(*saved["row"]): Completion.from_json(saved["completion"]) for saved in state}


def _row(play: Play) -> Row:
    return Row(play.place, play.number)
