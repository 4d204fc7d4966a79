"""The controller's events and commands: plain records without tensors, token ids or clocks.

A group is one prompt with its completions. Its number counts from 0 in the order of creation and decides which prompt
of the data it is (`experience/schedule.py`). Groups below 0 are answers of an evaluation, which are never trained. A
row is one completion: `(group, g)`. An attempt counts how often a row was given to an engine, from 1. Messages about
an earlier attempt are ignored.

Messages of one engine process arrive in the order in which they were sent. After a `Restart` no message of the earlier
process arrives, except perhaps `Drew`, `Ended` and `Returned`, whose attempts tell them apart.

    trainer  -> Asked, Trained, Published, Evaluate          Publish, Deliver, Evaluated -> trainer
    engines  -> Joined, Loaded, Slept, Drew, Ended,          Submit, Interrupt, Load, Sleep, End,
                Paused, Returned, Lost                       Restart, Dismiss       -> engines
    environments -> Resumed, Finished                        Open                   -> environments
    rewards  -> Scored, ScoringLost                          Score                  -> rewards
    clock    -> Late                                         GiveUp, Stop           -> run
    pace     -> Lead
    user     -> Ending
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Row(NamedTuple):
    """One completion of a group."""

    group: int
    g: int


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """An engine has started. It has no weights yet."""

    engine: str


@dataclass(frozen=True)
class Loaded:
    """An engine has proven that it decodes with these weights. Its rows continue without a further command."""

    engine: str
    version: int


@dataclass(frozen=True)
class Slept:
    """An engine sleeps: it has dropped its weights, and has proven that the memory of its device is free."""

    engine: str


@dataclass(frozen=True)
class Drew:
    """The next `count` tokens of a row were drawn with the weights of `version`."""

    engine: str
    row: Row
    attempt: int
    version: int
    count: int


@dataclass(frozen=True)
class Ended:
    """A row has ended regularly. All its tokens were reported before."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Paused:
    """A turn of a row has ended. All its tokens were reported before. The row is now away, with its environment."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Resumed:
    """The next turn of a row that is away is to be drawn. `anew`: the row starts over, without its earlier tokens."""

    row: Row
    anew: bool = False


@dataclass(frozen=True)
class Finished:
    """A row that is away has ended."""

    row: Row


@dataclass(frozen=True)
class Returned:
    """A row came back unfinished, because of an `Interrupt`. All its tokens were reported before."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Lost:
    """An engine is gone or faulty: it was killed, hung, failed to load, or reported a wrong version."""

    engine: str
    cause: str


@dataclass(frozen=True)
class Scored:
    """The rewards of a whole group are known. `trains`: False for a group that another prompt must replace."""

    group: int
    trains: bool = True


@dataclass(frozen=True)
class ScoringLost:
    """The worker that computed the rewards of a group is gone."""

    group: int
    cause: str


@dataclass(frozen=True)
class Asked:
    """The trainer waits for the batch of its next step."""


@dataclass(frozen=True)
class Trained:
    """The trainer has made the weights of `version`."""

    version: int


@dataclass(frozen=True)
class Published:
    """Engines can read the weights of `version`. They stay readable until the publication after the next one."""

    version: int


@dataclass(frozen=True)
class Evaluate:
    """The trainer waits until these rows are answered with the weights that it has just published."""

    group: int
    """A number below 0 that is not in use."""
    rows: int
    turns: bool = False
    """Do the rows have several turns, like the trained rows under `Limits.turns`?"""


@dataclass(frozen=True)
class Late:
    """The deadline of a wait has passed."""

    wait: Wait


@dataclass(frozen=True)
class Lead:
    """From now on sampling may be `run_ahead` steps ahead of training."""

    run_ahead: int


@dataclass(frozen=True)
class Ending:
    """The run is to end, and nothing new is begun."""

    cause: str


AboutEngines = Joined | Loaded | Slept | Drew | Ended | Paused | Returned | Lost
AboutEnvironments = Resumed | Finished
Event = (
    AboutEngines
    | AboutEnvironments
    | Scored
    | ScoringLost
    | Asked
    | Trained
    | Published
    | Evaluate
    | Late
    | Lead
    | Ending
)


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """Decode a row from its present end: earlier attempts have delivered `drawn` of its tokens."""

    engine: str
    row: Row
    attempt: int
    drawn: int


@dataclass(frozen=True)
class Open:
    """Open the environment of a row of several turns, up to the row's first turn."""

    row: Row


@dataclass(frozen=True)
class Interrupt:
    """Stop decoding a row between two tokens and return it."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Load:
    """Stop between two tokens, load the published weights of `version`, and continue with the same rows."""

    engine: str
    version: int


@dataclass(frozen=True)
class Sleep:
    """Free the memory of the device, including the weights, until the next `Load`. The engine has no rows."""

    engine: str


@dataclass(frozen=True)
class End:
    """End the processes of an engine. It is restarted when the trainer no longer needs its memory."""

    engine: str


@dataclass(frozen=True)
class Restart:
    """End the processes of an engine and restart it. It joins again."""

    engine: str


@dataclass(frozen=True)
class Dismiss:
    """End the processes of an engine for good."""

    engine: str


@dataclass(frozen=True)
class Score:
    """Compute the rewards of a group, because all its rows have ended."""

    group: int


@dataclass(frozen=True)
class Publish:
    """Write the weights of `version` over the older of the two publications, which no engine reads any more."""

    version: int


@dataclass(frozen=True)
class Deliver:
    """Train version `version` into the next one with these groups, in this order."""

    version: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Evaluated:
    """All rows of a group below 0 have ended."""

    group: int


@dataclass(frozen=True)
class GiveUp:
    """A group is not trained, and another prompt takes its place. A group below 0 stays unanswered."""

    group: int
    cause: str


@dataclass(frozen=True)
class Stop:
    """The run ends, and no command follows. `failed`: it ends because it cannot continue."""

    cause: str
    failed: bool
    voided: bool = False
    """Whether the run ends because too few groups train."""


ToEngines = Submit | Interrupt | Load | Sleep | End | Restart | Dismiss
Command = ToEngines | Open | Score | Publish | Deliver | Evaluated | GiveUp | Stop


# --- waits -----------------------------------------------------------------------------------------------------------

WaitKind = Literal["join", "load", "draw", "act", "sleep", "score", "ask", "train", "publish"]


class Wait(NamedTuple):
    """The run waits for `owner`, which must act before the deadline of this kind of wait.

    With any progress it becomes another wait: `progress` changes, and the deadline starts again. `Controller._late`
    decides what happens when a wait is late.
    """

    kind: WaitKind
    owner: str
    """The name of an engine, "environments", "rewards" or "trainer"; "engines" while no engine is known."""
    progress: int
    """The progress counter of an engine, the version that it loads, the group whose rows are away, the group that is
    scored, or the version that the trainer makes, publishes or needs a batch for."""
    attempt: int = 0
    """Number of consecutive losses of an engine, of moves of the group's rows to and from environments, or of earlier
    requests for the group's rewards."""


# --- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that the controller obeys."""

    prompts_per_step: int
    """P: number of groups per step."""
    group_size: int
    """G: number of rows per group."""
    last_version: int
    """The run ends when the trainer has made this version."""
    run_ahead: int = 0
    """D: number of steps by which sampling may be ahead of training."""
    max_staleness: int = 0
    """S: the largest age of a token that enters a loss. The controller neither waits nor drops groups because of it."""
    publish_every: int = 1
    """Only versions that are multiples of this number are published."""
    in_turns: bool = False
    """Whether trainer and engines share the memory of one device. Engines then sleep from the end of sampling until the
    next publication. It requires a fixed `run_ahead` of 0 and that every version is published."""
    turns: bool = False
    """Whether trained rows have several turns. Between turns they are away, with their environments, and no engine
    holds them. An environment does not outlive the run, so in a resumed run an unfinished row starts over."""
    max_groups: int = 1 << 30
    """C: largest number of groups in flight."""
    max_given_up: int = 16
    """The run ends as failed after this many groups were given up in a row, with none scored in between."""
    max_voided: int = 10_000
    """The run ends as failed after this many voided groups between two batches: too little is left to learn from."""
    attempts: int = 3
    """Number of failures after which nothing is tried again. It applies to losses of a row since its last token and to
    losses of a group's rewards, after which the group is given up, and to losses of an engine since its last answer,
    after which the engine is dismissed."""

    def __post_init__(self) -> None:
        if self.in_turns and (self.run_ahead or self.publish_every > 1):
            raise ValueError("engines on the trainer's device sleep while it trains: they cannot be ahead of it")
