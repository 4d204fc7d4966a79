"""The records of judging, and the numbers that a step's judgements come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from posttrain.types import Mean, Metrics

Verdict = str | float
""""A", "B" or "tie" for a comparison; otherwise points."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What a judge is asked once."""

    messages: tuple[dict[str, str], ...]
    sample: int = 0
    """Which of several judgements of the same question, counted from 0: each draws from a stream of its own."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of one question."""

    text: str = ""
    """Raw, as the judge wrote it."""
    error: str = ""
    """Why there is no text."""
    verdict: Verdict | None = None
    """None where the text has none, or where there is no text."""
    seconds: float = 0.0
    calls: int = 0
    """Requests that were sent, failed ones and the question for a missing verdict included."""
    tokens: int = 0
    """Tokens of prompt and reply, as the endpoint counts them."""
    cached: bool = False


class Backend(Protocol):
    """Whoever answers."""

    def identity(self) -> str | None:
        """Changes whenever the same question may get another answer; None where answers must not be kept."""
        ...

    def answer(self, conversations: Sequence[Conversation], keep: Callable[[int, Reply], None]) -> list[Reply]:
        """One reply per conversation, in order; `keep` is called with its place as soon as one has arrived."""
        ...


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One comparison or one grading, with everything that was said for it."""

    label: str
    """Which reward."""
    prompt: int
    """`Prompt.index`: the row of the dataset."""
    completion: int
    """Which completion of the prompt, counted from 0."""
    opponent: int | None = None
    """The completion that it was compared with; None where there is none, or where it is a column of the row."""
    score: float | None
    """The score for `completion`; the opponent gets 1 - score. None: no verdict."""
    note: str = ""
    """Why nobody was asked, where nobody was."""
    replies: tuple[Reply, ...] = ()
    """The replies; two for a comparison, with `completion` as answer A in the first and as answer B in the second."""

    @property
    def compares(self) -> bool:
        return any(isinstance(reply.verdict, str) for reply in self.replies)

    @property
    def changed_with_order(self) -> bool:
        """A comparison with two verdicts of which the second is not the first one mirrored."""
        given = [reply.verdict for reply in self.replies]
        return self.compares and None not in given and given[1] != _MIRRORED[str(given[0])]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Judgement:
        """What `to_json` gave."""
        return Judgement(**{**saved, "replies": tuple(Reply(**reply) for reply in saved["replies"])})


def judge_metrics(judgements: Sequence[Judgement]) -> Metrics:
    """The numbers of a step, over all of its judges; nothing where there was no judge.

    judge/ties            share of the decided comparisons that ended in a tie
    judge/position_bias   share of comparisons with two verdicts in which the order changed the verdict
    judge/first_won       share of the verdicts A and B that are A: an unbiased judge has one half
    judge/unparsable      share of the replies without a verdict, after asking once more
    judge/cached          share of the replies that were on disk
    judge/unasked         share of the judgements that needed no judge: empty answers, equal answers
    judge/calls           requests sent
    judge/tokens          tokens of questions and replies, those from the cache left out
    judge/seconds         seconds spent waiting for replies, summed over questions
    """
    if not judgements:
        return {}
    replies = [reply for judgement in judgements for reply in judgement.replies]
    compared = [judgement for judgement in judgements if judgement.compares]
    both = [[r.verdict for r in j.replies] for j in compared if all(r.verdict is not None for r in j.replies)]
    decisive = [verdict for verdicts in both for verdict in verdicts if verdict != "tie"]
    comparisons: Metrics = {
        "judge/ties": _share(judgement.score == 0.5 for judgement in compared if judgement.score is not None),
        "judge/position_bias": _share(second != _MIRRORED[str(first)] for first, second in both),
        "judge/first_won": _share(verdict == "A" for verdict in decisive),
    }
    return {
        **(comparisons if compared else {}),
        "judge/unparsable": _share(reply.verdict is None for reply in replies if not reply.error),
        "judge/cached": _share(reply.cached for reply in replies),
        "judge/unasked": _share(not judgement.replies for judgement in judgements),
        "judge/calls": Mean(float(sum(reply.calls for reply in replies)), 1.0),
        "judge/tokens": Mean(float(sum(reply.tokens for reply in replies)), 1.0),
        "judge/seconds": Mean(sum(reply.seconds for reply in replies), 1.0),
    }


_MIRRORED = {"A": "B", "B": "A", "tie": "tie"}


def _share(hits: Iterable[bool]) -> Mean:
    found = list(hits)
    return Mean(float(sum(found)), float(len(found)))
