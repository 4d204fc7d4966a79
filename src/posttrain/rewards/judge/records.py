"""The records of judging, and the metrics of a step's judgements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from posttrain.types import Mean, Metrics

Verdict = str | float
"""A judge's verdict: "A", "B" or "tie" for a comparison, otherwise points."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One question to a judge."""

    messages: tuple[dict[str, str], ...]
    sample: int = 0
    """Index among several judgements of the same question, from 0. Each draws from its own random stream."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply to one question."""

    text: str = ""
    """Raw text of the judge."""
    error: str = ""
    """The reason why there is no text, or none to the second question."""
    verdict: Verdict | None = None
    """The verdict in the text; None if there is no verdict or no text."""
    seconds: float = 0.0
    calls: int = 0
    """Number of requests sent, including failed ones and the question for a missing verdict."""
    tokens: int = 0
    """Tokens of prompt and reply, as the endpoint counts them."""
    cached: bool = False
    finish_reason: str = ""
    """Why the reply ended, as the endpoint or the sampler says it: `length` if it was cut at `judge.max_tokens`."""


class Backend(Protocol):
    """An endpoint or a model that answers the questions."""

    def identity(self) -> str | None:
        """Text that changes whenever the same question may get another answer. None if answers must not be kept."""
        ...

    def answer(self, conversations: Sequence[Conversation], keep: Callable[[int, Reply], None]) -> list[Reply]:
        """One reply per conversation, in order. `keep` gets each reply with its place as soon as it arrives."""
        ...


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One comparison or one grading, with all replies to its questions."""

    label: str
    """Label of the reward."""
    prompt: int
    """`Prompt.index`: the row of the dataset."""
    completion: int
    """Index of the completion among those of its prompt, from 0."""
    opponent: int | None = None
    """Index of the completion that it was compared with; None without a comparison, or for a column of the row."""
    score: float | None
    """The score of `completion`; the opponent gets 1 - score. None: no verdict."""
    note: str = ""
    """If the judge was not asked, the reason why."""
    replies: tuple[Reply, ...] = ()
    """The replies; two for a comparison, with `completion` as answer A in the first and as answer B in the second."""

    @property
    def compares(self) -> bool:
        return any(isinstance(reply.verdict, str) for reply in self.replies)

    @property
    def changed_with_order(self) -> bool:
        """Did the verdict change with the order? True if the second of two verdicts does not mirror the first."""
        given = [reply.verdict for reply in self.replies]
        return self.compares and None not in given and given[1] != _MIRRORED[str(given[0])]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Judgement:
        """Restore a judgement from the result of `to_json`."""
        return Judgement(**{**saved, "replies": tuple(Reply(**reply) for reply in saved["replies"])})


def judge_metrics(judgements: Sequence[Judgement]) -> Metrics:
    """The metrics of a step, over all of its judges; empty without a judge.

    judge/ties            share of the decided comparisons that ended in a tie
    judge/position_bias   share of comparisons with two verdicts in which the order changed the verdict
    judge/first_won       share of A among the verdicts A and B: one half for an unbiased judge
    judge/unparsable      share of the replies without a verdict, after the judge was asked once more
    judge/cached          share of the replies that were on disk
    judge/unasked         share of the judgements that needed no judge: empty answers, equal answers
    judge/calls           requests sent
    judge/tokens          tokens of questions and replies, without those from the cache
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
