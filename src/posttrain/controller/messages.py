"""The controller's inputs and orders. Plain records: no tensor, no token id, no clock.

A group is one prompt with its completions and has a number, counted from 0 in the order of creation; which prompt of
the data it is follows from the number (`experience/schedule.py`). Groups below 0 are answers of an evaluation, which
nobody trains. A row is one completion: `(group, g)`. An attempt counts how often a row was given to an engine, from 1:
what an engine says of an earlier attempt is ignored.

What one process of an engine says arrives in the order in which it was said. After a `Restart` nothing of the earlier
process is passed on, save perhaps `Drew`, `Ended` and `Returned`, which attempts tell apart.

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
    """An engine is there. It has no weights yet."""

    engine: str


@dataclass(frozen=True)
class Loaded:
    """An engine has proven that it decodes with these weights. Its rows go on by themselves."""

    engine: str
    version: int


@dataclass(frozen=True)
class Slept:
    """An engine sleeps: it has no weights any more, and has proven that the memory of its device is free."""

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
    """A row has ended by itself; all its tokens were told before."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Paused:
    """A turn of a row has ended; all its tokens were told before. From now on the row is away, with its environment."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Resumed:
    """The next turn of a row that is away is to be drawn. `anew`: it begins again, and its tokens so far are none."""

    row: Row
    anew: bool = False


@dataclass(frozen=True)
class Finished:
    """A row that is away has ended."""

    row: Row


@dataclass(frozen=True)
class Returned:
    """A row came back unfinished, because of an `Interrupt`; all its tokens were told before."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Lost:
    """An engine is gone, or was found wrong: killed, hung, failed to load, lied about its version."""

    engine: str
    cause: str


@dataclass(frozen=True)
class Scored:
    """The rewards of a whole group are known. `trains`: False for a group that is to be replaced by another prompt."""

    group: int
    trains: bool = True


@dataclass(frozen=True)
class ScoringLost:
    """Whoever computed the rewards of a group is gone."""

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
    """The weights of `version` can be read by engines, and stay readable until those of `version + 2` publications."""

    version: int


@dataclass(frozen=True)
class Evaluate:
    """The trainer stands still until these rows are answered with the weights that it has just published."""

    group: int
    """Below 0, and not used before."""
    rows: int
    turns: bool = False
    """Its rows have turns, as those that are trained may have (`Limits.turns`)."""


@dataclass(frozen=True)
class Late:
    """The deadline of a wait has passed."""

    wait: Wait


@dataclass(frozen=True)
class Lead:
    """Sampling may be so many steps ahead from now on."""

    run_ahead: int


@dataclass(frozen=True)
class Ending:
    """The run is to end: nothing new is begun."""

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
    """Decode a row from where it stands: `drawn` tokens of it were delivered by earlier attempts."""

    engine: str
    row: Row
    attempt: int
    drawn: int


@dataclass(frozen=True)
class Open:
    """Begin what a row of several turns needs beside an engine, up to its first turn."""

    row: Row


@dataclass(frozen=True)
class Interrupt:
    """Give a row back, as it is between two tokens."""

    engine: str
    row: Row
    attempt: int


@dataclass(frozen=True)
class Load:
    """Stop between two tokens, take the published weights of `version`, go on with the same rows."""

    engine: str
    version: int


@dataclass(frozen=True)
class Sleep:
    """Give the memory of the device back, weights and all, until the next `Load`. The engine has no rows."""

    engine: str


@dataclass(frozen=True)
class End:
    """End what is left of an engine. It is started anew when the trainer does not need its memory any more."""

    engine: str


@dataclass(frozen=True)
class Restart:
    """End what is left of an engine, and start it anew; it joins again."""

    engine: str


@dataclass(frozen=True)
class Dismiss:
    """End what is left of an engine, for good: it is not started again."""

    engine: str


@dataclass(frozen=True)
class Score:
    """All rows of the group have ended: compute its rewards."""

    group: int


@dataclass(frozen=True)
class Publish:
    """Write the weights of `version` over the older of the two publications: nobody reads it any more."""

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
    """The group is not trained, for this reason; its place goes to another prompt. One below 0 stays unanswered."""

    group: int
    cause: str


@dataclass(frozen=True)
class Stop:
    """Nothing more will come. `failed`: because nothing can."""

    cause: str
    failed: bool
    voided: bool = False
    """Because no group was found that trains."""


ToEngines = Submit | Interrupt | Load | Sleep | End | Restart | Dismiss
Command = ToEngines | Open | Score | Publish | Deliver | Evaluated | GiveUp | Stop


# --- waits -----------------------------------------------------------------------------------------------------------

WaitKind = Literal["join", "load", "draw", "act", "sleep", "score", "ask", "train", "publish"]


class Wait(NamedTuple):
    """Somebody waits for `owner`, who has to do something by a deadline of the kind.

    A wait that got on is another wait: `progress` changes, and its deadline begins anew. What the controller does when
    it hears that a wait is late is said in `Controller._late`.
    """

    kind: WaitKind
    owner: str
    """An engine, "environments", "rewards" or "trainer"; "engines" as long as none is known."""
    progress: int
    """What an engine drew and answered so far, the version that it loads, the group whose rows are away, the group that
    is scored, the version that the trainer makes, publishes or asks a batch for."""
    attempt: int = 0
    """How often an engine was lost in a row, how often rows of the group came and went, or how often rewards were asked
    for before."""


# --- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the controller keeps to."""

    prompts_per_step: int
    """P, groups of a step."""
    group_size: int
    """G, rows of a group."""
    last_version: int
    """The run ends when the trainer has made it."""
    run_ahead: int = 0
    """D: steps by which sampling may be ahead."""
    max_staleness: int = 0
    """S: the largest age of a token that enters a loss. The controller never waits or drops for it."""
    publish_every: int = 1
    """Versions are published that are multiples of it."""
    in_turns: bool = False
    """Trainer and engines share the memory of one device: engines sleep from the end of sampling until the next
    publication. Only with a `run_ahead` of 0 that stays, and where every version is published."""
    turns: bool = False
    """Rows that are trained have turns: between two of them they are away, with their environments, and no engine holds
    them. An environment does not outlive the run, so that a row that is not over begins anew in a run that goes on."""
    max_groups: int = 1 << 30
    """C: most groups in flight."""
    max_given_up: int = 16
    """Groups given up in a row, none scored in between, after which the run ends as failed."""
    max_voided: int = 10_000
    """Groups voided from one batch to the next, after which the run ends as failed: too little is left to learn."""
    attempts: int = 3
    """Failures after which something is not tried again. A row that was lost so often since its last token is given up
    with its group; so is a group whose rewards were lost so often. An engine that was lost so often since it ended an
    answer stays away."""

    def __post_init__(self) -> None:
        if self.in_turns and (self.run_ahead or self.publish_every > 1):
            raise ValueError("engines on the trainer's device sleep while it trains: they cannot be ahead of it")
