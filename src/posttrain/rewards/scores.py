"""What scoring a step's completions came to, and the limit on how many may stay without a reward.

Shapes: P prompts, G completions of each; lists of lists, because groups may differ in size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from posttrain.errors import RewardError
from posttrain.verify.verdict import Verdict

if TYPE_CHECKING:
    from posttrain.rewards.judge import Judgement


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A component that could not score a completion."""

    label: str
    prompt: int
    """`Prompt.index`: the row of the dataset."""
    completion: int
    """Which completion of the prompt, counted from 0."""
    kind: Literal["exception", "timeout", "crash"]
    message: str
    traceback: str = ""
    """With the first failure of each component: the traceback, or where it hung, or what it printed before it died."""

    def __str__(self) -> str:
        where = f"prompt {self.prompt}, completion {self.completion + 1}"
        return f'reward "{self.label}", {where}: {self.kind}: {self.message}'


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The rewards of one step."""

    rewards_PG: list[list[float]]
    """Weighted sum of the components; nan where the completion is unscored."""
    scored_PG: list[list[bool]]
    parts: dict[str, list[list[float | None]]]
    """The components by label, unweighted and whatever their gates; None where one was not applicable or failed."""
    failures: tuple[Failure, ...]
    seconds: dict[str, float]
    """Seconds spent in each component, summed over workers."""
    verdicts: dict[str, list[list[Verdict | None]]] = field(default_factory=dict)
    """By label, for components that gave a reason or failed: the verdict behind each number of `parts`."""
    is_open: dict[str, list[list[bool | None]]] = field(default_factory=dict)
    """By label, for components behind a gate: whether it was open; None where the other reward had no score."""
    judgements: tuple[Judgement, ...] = ()
    """What judges were asked and said."""

    @property
    def counted(self) -> dict[str, list[list[float | None]]]:
        """The components by label as they enter the sum, before their weights: 0 where a gate was shut."""

        def gated(label: str, part: list[list[float | None]]) -> list[list[float | None]]:
            pairs = zip(part, self.is_open[label], strict=True)
            return [[behind_gate(v, o) for v, o in zip(values, is_open, strict=True)] for values, is_open in pairs]

        return {label: gated(label, part) if label in self.is_open else part for label, part in self.parts.items()}

    @property
    def unscored_fraction(self) -> float:
        """Share of the completions without a reward; 0 when there are no completions."""
        scored = [value for row in self.scored_PG for value in row]
        return scored.count(False) / len(scored) if scored else 0.0

    def at(self, places: Sequence[int]) -> Scores:
        """The rewards of the prompts at these places; failures, judgements and seconds stay those of the whole call."""

        def picked(rows: Sequence[Any]) -> list[Any]:
            return [rows[place] for place in places]

        return replace(
            self,
            rewards_PG=picked(self.rewards_PG),
            scored_PG=picked(self.scored_PG),
            parts={label: picked(part) for label, part in self.parts.items()},
            verdicts={label: picked(part) for label, part in self.verdicts.items()},
            is_open={label: picked(part) for label, part in self.is_open.items()},
        )

    def followed_by(self, later: Scores) -> Scores:
        """These and the rewards of further prompts, of the same components."""
        return Scores(
            rewards_PG=[*self.rewards_PG, *later.rewards_PG],
            scored_PG=[*self.scored_PG, *later.scored_PG],
            parts={label: [*part, *later.parts[label]] for label, part in self.parts.items()},
            verdicts={label: self._verdicts(label) + later._verdicts(label) for label in self._with_reasons(later)},
            is_open={label: [*part, *later.is_open[label]] for label, part in self.is_open.items()},
            failures=(*self.failures, *later.failures),
            seconds={label: seconds + later.seconds[label] for label, seconds in self.seconds.items()},
            judgements=(*self.judgements, *later.judgements),
        )

    def _with_reasons(self, later: Scores) -> list[str]:
        return [label for label in self.parts if label in self.verdicts or label in later.verdicts]

    def _verdicts(self, label: str) -> list[list[Verdict | None]]:
        return self.verdicts.get(label) or [[None] * len(row) for row in self.rewards_PG]


def behind_gate(value: float | None, is_open: bool | None) -> float | None:
    """What a component contributes: itself, 0 where its gate is shut, None where nobody knows whether it is.

    >>> behind_gate(0.7, True), behind_gate(0.7, False), behind_gate(0.7, None), behind_gate(None, False)
    (0.7, 0.0, None, None)
    """
    if value is None or is_open is None:
        return None
    return value if is_open else 0.0


def weighted_sum(parts: Mapping[str, float | None], weights: Mapping[str, float], failed: set[str]) -> float:
    """The reward of one completion; nan when it has none.

    A component that is None is not applicable and drops out. One that failed takes the reward with it, unless its
    weight is 0: such a component is only watched, so it can neither give a reward nor take one.

    >>> weighted_sum({"correct": 1.0, "brief": None}, {"correct": 1.0, "brief": 0.5}, failed=set())
    1.0
    >>> weighted_sum({"correct": None, "brief": 1.0}, {"correct": 1.0, "brief": 0.5}, failed={"correct"})
    nan
    """
    weighted = {label: weight for label, weight in weights.items() if weight != 0}
    terms = [weight * part for label, weight in weighted.items() if (part := parts[label]) is not None]
    if not terms or failed & weighted.keys():
        return math.nan
    return math.fsum(terms)


def enforce_limit(scores: Scores, max_unscored: float) -> None:
    """RewardError when more than this share of a step's completions is unscored, with the first failure's traceback."""
    share = scores.unscored_fraction
    if share <= max_unscored:
        return
    scored = [value for row in scores.scored_PG for value in row]
    counts = Counter((failure.label, failure.kind) for failure in scores.failures)
    causes = [f'{number} × "{label}" {kind}' for (label, kind), number in counts.most_common()]
    raise RewardError(
        given=f"{scored.count(False)} of {len(scored)} completions ({share:.0%}) have no reward, "
        f"and the limit is {max_unscored:.0%}: {', '.join(causes) or 'every component returned None for them'}",
        fix=_advice(scores.failures),
    )


def _advice(failures: Sequence[Failure]) -> str:
    if not failures:
        return "Let a component return a number where none applies, or raise guards.max_unscored."
    first = failures[0]
    trace = "".join(f"\n    {line}" for line in first.traceback.splitlines())
    cure = "raise its timeout" if first.kind == "timeout" else "correct it"
    return f"First failure: {first}{trace}\n  Check `{first.label}`: {cure}, or raise guards.max_unscored."
