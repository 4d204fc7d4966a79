"""The independent check, and the accepted answers that it sees.

No part that trains can use it: it is no `RewardSet`, it returns no `Scores`, and it runs after the update. A check that
becomes a reward will be gamed (Baker et al., arXiv:2503.11926).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.engines.sampler import Judging
    from posttrain.experience.group import Group
    from posttrain.rewards import RewardSet
    from posttrain.rewards.judge import Judgement
    from posttrain.types import Prompt

Place = tuple[int, int]
"""(prompt of the step, completion of the prompt)."""
SAMPLE_STREAM = 7_368_787
"""Separates the choice of answers from other random draws that depend on seed and step."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The check's verdict on a sample of the accepted answers of a step."""

    accepted: int = 0
    """Number of answers that the reward accepts."""
    scores: Mapping[str, Mapping[Place, float | None]] = field(default_factory=dict)
    """Scores by label of the check; None for an answer without a score."""
    agrees: Mapping[Place, bool] = field(default_factory=dict)
    """Whether the check accepts each answer, too. Answers without a score are missing."""
    seconds: float = 0.0
    judgements: tuple[Judgement, ...] = ()
    """Questions to language models among the checks, and their answers; their label is check/<label>."""
    failure: str = ""
    """The first error, if the check failed."""

    @property
    def rejected(self) -> int:
        return sum(not agrees for agrees in self.agrees.values())

    @property
    def unscored(self) -> int:
        return max((len(found) for found in self.scores.values()), default=0) - len(self.agrees)

    @property
    def rejected_prompts(self) -> int:
        return len({p for (p, _), agrees in self.agrees.items() if not agrees})

    def metrics(self) -> dict[str, float]:
        """The metrics of the check for one step.

        check/accepted      number of answers that the reward accepts
        check/checked       number of sampled answers that the check gave a score
        check/rejected      number of checked answers that the check rejects
        check/rejected_prompts
                            number of prompts with a rejected answer
        check/unscored      number of sampled answers that the check gave no score
        check/disagreement  rejected / checked; missing if nothing was checked
        time/check          seconds
        """
        return {
            "check/accepted": float(self.accepted),
            "check/checked": float(len(self.agrees)),
            "check/rejected": float(self.rejected),
            "check/rejected_prompts": float(self.rejected_prompts),
            "check/unscored": float(self.unscored),
            **({"check/disagreement": self.rejected / len(self.agrees)} if self.agrees else {}),
            "time/check": self.seconds,
        }


class IndependentCheck:
    """A judge of answers that is independent of the reward."""

    def __init__(self, judges: RewardSet) -> None:
        self._judges = judges

    @property
    def in_evaluations(self) -> RewardSet:
        """The part that scores held-out answers, which are never trained on."""
        return self._judges

    @property
    def labels(self) -> tuple[str, ...]:
        return self._judges.labels

    @property
    def notes(self) -> list[str]:
        """Warnings for the user. Like `facts`, which say how the check judges, these are sentences and no scores."""
        return self._judges.notes

    @property
    def facts(self) -> list[str]:
        return self._judges.facts

    def require(self, prompts: Sequence[Prompt], what: str) -> None:
        """Check the prompts before training: ConfigError for a missing column, DataError for unusable gold answers."""
        self._judges.check(prompts, what)

    def bind(self, policy: Judging, template_kwargs: Mapping[str, Any], *, ledger: Path | None = None) -> None:
        self._judges.bind(policy, template_kwargs, ledger=ledger)

    def look_at(self, groups: Sequence[Group], places: Sequence[Place], *, accepted: int, accepts_at: float) -> Checked:
        """Score the answers at these places, a sample of the `accepted` ones. With several checks, all must agree."""
        started = time.perf_counter()
        chosen: dict[int, list[Place]] = {}
        """Places by row of the data. If an epoch ends within a step, the step may have a row twice."""
        for p, g in sorted(places):
            chosen.setdefault(groups[p].prompt.index, []).append((p, g))
        answers = [[groups[p].completions[g] for p, g in those] for those in chosen.values()]
        said = self._judges.score([groups[those[0][0]].prompt for those in chosen.values()], answers)
        scores = {
            label: {
                place: score
                for those, found in zip(chosen.values(), part, strict=True)
                for place, score in zip(those, found, strict=True)
            }
            for label, part in said.parts.items()
        }
        agrees: dict[Place, bool] = {}
        for place in sorted(places):
            found = [score for one in scores.values() if (score := one[place]) is not None]
            if found:
                agrees[place] = min(found) >= accepts_at
        return Checked(
            accepted=accepted,
            scores=scores,
            agrees=agrees,
            seconds=time.perf_counter() - started,
            judgements=tuple(
                replace(one, label=f"check/{one.label}", completion=chosen[one.prompt][one.completion][1])
                for one in said.judgements
            ),
            failure=str(said.failures[0]) if said.failures else "",
        )


def accepted_places(groups: Sequence[Group], accepted_at: float) -> list[Place]:
    """Places of the answers whose total reward is at least `accepted_at`."""
    return [
        (p, g)
        for p, group in enumerate(groups)
        if group.scores is not None
        for g, (reward, scored) in enumerate(zip(group.scores.rewards_PG[0], group.scores.scored_PG[0], strict=True))
        if scored and reward >= accepted_at - 1e-9
    ]


def sample_of(places: Sequence[Place], size: int, *, seed: int, step: int) -> list[Place]:
    """At most `size` places: one of each prompt, then a second of each, and so on. It depends only on seed and step.

    A check that errs does so for all answers to a prompt, so answers to different prompts tell more.

    >>> [p for p, _ in sample_of([(0, 0), (0, 1), (0, 2), (3, 0), (5, 1)], 3, seed=0, step=1)]
    [0, 3, 5]
    """
    dice = random.Random((seed * 1_000_003 + step) * SAMPLE_STREAM)
    shuffled = dice.sample(list(places), len(places))
    turn_of: dict[Place, int] = {}
    seen: Counter[int] = Counter()
    for p, g in shuffled:
        turn_of[p, g] = seen[p]
        seen[p] += 1
    return sorted(sorted(shuffled, key=turn_of.__getitem__)[:size])
