"""The scores of a step's completions, and the limit on how many may stay without a reward.

Shapes: P prompts, G completions of each; lists of lists, because groups may differ in size.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from posttrain.errors import RewardError
from posttrain.verify.verdict import Verdict

if TYPE_CHECKING:
    from posttrain.rewards.judge import Judgement


CORRECT_AT = 1.0 - 1e-9
"""An answer counts as correct when its total reward reaches this. `accuracy`, pass@k and majority@k therefore mean
something for rewards whose full mark is 1; for any other scale read `score`."""


ENVIRONMENT = "the environment"
"""Stands for the label of a component where it was the environment that failed."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A component that could not score a completion."""

    label: str
    prompt: int
    """`Prompt.index`: the row of the dataset."""
    completion: int
    """Which completion of the prompt, counted from 0."""
    kind: str
    """exception, timeout or crash; of an environment also template."""
    message: str
    traceback: str = ""
    """With the first failure of each component: the traceback, or where it hung, or what it printed before it died."""

    def __str__(self) -> str:
        where = f"prompt {self.prompt}, completion {self.completion + 1}"
        what = self.label if self.label == ENVIRONMENT else f'reward "{self.label}"'
        return f"{what}, {where}: {self.kind}: {self.message}"


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
    tokens: dict[str, list[list[list[float] | None]]] = field(default_factory=dict)
    """By label, for components that give each token a number: those numbers, unweighted and whatever their gates; None
    where there is one for the whole completion. Their sum stands in `parts`."""
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
            tokens={label: picked(part) for label, part in self.tokens.items()},
            is_open={label: picked(part) for label, part in self.is_open.items()},
        )

    def each(self, indexes: Sequence[int]) -> list[Scores]:
        """Those of each prompt by itself; `indexes` are the prompts' own.

        A failure or a judgement goes to the first place of its prompt. Seconds stay those of the whole call, and are 0.
        """
        first = {index: place for place, index in reversed(list(enumerate(indexes)))}
        failures: dict[int, list[Failure]] = defaultdict(list)
        judgements: dict[int, list[Judgement]] = defaultdict(list)
        for failure in self.failures:
            failures[first[failure.prompt]].append(failure)
        for judgement in self.judgements:
            judgements[first[judgement.prompt]].append(judgement)
        no_time = dict.fromkeys(self.seconds, 0.0)
        return [
            replace(
                self.at([place]),
                failures=tuple(failures[place]),
                judgements=tuple(judgements[place]),
                seconds=no_time,
            )
            for place in range(len(indexes))
        ]

    @staticmethod
    def joined(each: Sequence[Scores]) -> Scores:
        """One record of all of them, in their order; they have the same components."""

        def all_of(name: str, label: str, missing: Any = None) -> list[Any]:
            rows: list[Any] = []
            for one in each:
                rows += getattr(one, name).get(label) or [[missing] * len(row) for row in one.rewards_PG]
            return rows

        with_reasons = [label for label in each[0].parts if any(label in one.verdicts for one in each)]
        return Scores(
            rewards_PG=[row for one in each for row in one.rewards_PG],
            scored_PG=[row for one in each for row in one.scored_PG],
            parts={label: all_of("parts", label) for label in each[0].parts},
            verdicts={label: all_of("verdicts", label) for label in with_reasons},
            tokens={label: all_of("tokens", label) for label in each[0].tokens},
            is_open={label: all_of("is_open", label) for label in each[0].is_open},
            failures=tuple(failure for one in each for failure in one.failures),
            seconds={label: sum(one.seconds[label] for one in each) for label in each[0].seconds},
            judgements=tuple(judgement for one in each for judgement in one.judgements),
        )

    def with_unscored(self, missing: Mapping[tuple[int, int], Failure]) -> Scores:
        """With completions that nothing was asked about, because what they came from has failed; by (prompt, number)
        of the completion, in ascending order."""
        if not missing:
            return self

        def wider(rows: Sequence[Sequence[Any]], value: Any) -> list[list[Any]]:
            found = [list(row) for row in rows]
            for place, number in missing:
                found[place].insert(number, value)
            return found

        verdicts = {label: wider(rows, None) for label, rows in self.verdicts.items()}
        return replace(
            self,
            rewards_PG=wider(self.rewards_PG, math.nan),
            scored_PG=wider(self.scored_PG, False),
            parts={label: wider(rows, None) for label, rows in self.parts.items()},
            verdicts=verdicts,
            tokens={label: wider(rows, None) for label, rows in self.tokens.items()},
            is_open={label: wider(rows, None) for label, rows in self.is_open.items()},
            failures=(*missing.values(), *self.failures),
        )

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint: a reward that is missing is null, a verdict the list of what it says."""
        rewards_PG = [[None if math.isnan(reward) else reward for reward in row] for row in self.rewards_PG]
        verdicts = {
            label: [[None if verdict is None else verdict.to_json() for verdict in row] for row in given]
            for label, given in self.verdicts.items()
        }
        return asdict(replace(self, verdicts={})) | {"rewards_PG": rewards_PG, "verdicts": verdicts}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Scores:
        """What `to_json` gave."""
        from posttrain.rewards.judge.records import Judgement

        rewards_PG = [[math.nan if reward is None else reward for reward in row] for row in saved["rewards_PG"]]
        verdicts = {
            label: [[None if verdict is None else Verdict.from_json(verdict) for verdict in row] for row in given]
            for label, given in saved["verdicts"].items()
        }
        return Scores(
            **{
                **saved,
                "rewards_PG": rewards_PG,
                "verdicts": verdicts,
                "failures": tuple(Failure(**failure) for failure in saved["failures"]),
                "judgements": tuple(map(Judgement.from_json, saved["judgements"])),
            }
        )


def behind_gate(value: float | None, is_open: bool | None) -> float | None:
    """The contribution of a component: its value, 0 if its gate is shut, None if the state of the gate is unknown.

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
    if first.label == ENVIRONMENT:
        return (
            f"First failure: {first}\n  Correct the environment, or raise environment.timeout or guards.max_unscored."
        )
    return f"First failure: {first}{trace}\n  Check `{first.label}`: {cure}, or raise guards.max_unscored."
