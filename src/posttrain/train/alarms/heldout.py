"""What held-out answers say: before training about what is normal, later about what was lost."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from posttrain.evaluate.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """What the held-out answers of the start model say."""

    accepted_at: float
    """Total reward from which on an answer counts as accepted."""
    accepted: int
    """Greedy answers that the reward accepts and the check has scored."""
    rejected: int
    """Of these, answers that the check rejects."""


def first_look(answers: Path, *, accepted_at: float | None, check_accepts_at: float) -> FirstLook | None:
    """Read the answers of the first evaluation; None without any.

    Marks go from 0 to 1, and 1 means right. Of other scores the best quarter counts as accepted.
    """
    if not answers.exists():
        return None
    records = Evaluation.read_answers(answers)
    scores = [answer.score for record in records for answer in (record.greedy, *record.samples)]
    known = sorted(score for score in scores if score is not None and math.isfinite(score))
    if accepted_at is None:
        accepted_at = 1.0 if are_marks(known) else statistics.quantiles(known, n=4, method="inclusive")[2]
    greedy = [r.greedy for r in records if r.greedy.score is not None and r.greedy.score >= accepted_at - 1e-9]
    opinions = [[score for score in answer.check.values() if score is not None] for answer in greedy]
    judged = [min(found) >= check_accepts_at for found in opinions if found]
    return FirstLook(accepted_at=accepted_at, accepted=len(judged), rejected=judged.count(False))


def are_marks(scores: list[float]) -> bool:
    """Are these scores of the kind of which 1 means right? (As `Evaluation.has_full_mark` decides.)"""
    return not scores or (scores[0] >= 0 and (abs(scores[-1] - 1) < 1e-6 or scores[-1] == 0))
