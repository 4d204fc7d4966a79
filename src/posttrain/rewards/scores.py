"""The scores of a step's completions, and the limit on the share of completions without a reward.

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
"""Score from which a reward counts an answer as right (`RewardSet.is_right`). Without a built-in verifier, `accuracy`,
pass@k and majority@k therefore make sense only for rewards whose maximum is 1. For any other scale read `score`."""


ENVIRONMENT = "the environment"
"""Used in place of a component's label if the environment failed."""


OF_ENVIRONMENT = "Correct the environment, or raise environment.timeout (of an agent: agent.timeout)"
"""What helps if an environment has failed."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A component that could not score a completion."""

    label: str
    prompt: int
    """`Prompt.index`: the row of the dataset."""
    completion: int
    """Index of the completion among those of its prompt, from 0."""
    kind: str
    """exception, timeout or crash; for an environment also template."""
    message: str
    traceback: str = ""
    """For the first failure of each component: the traceback, the line where it hung, or its last output."""

    def __str__(self) -> str:
        where = f"prompt {self.prompt}, completion {self.completion + 1}"
        what = self.label if self.label == ENVIRONMENT else f'reward "{self.label}"'
        return f"{what}, {where}: {self.kind}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The rewards of one step."""

    rewards_PG: list[list[float]]
    """Weighted sum of the components; nan for an unscored completion."""
    scored_PG: list[list[bool]]
    parts: dict[str, list[list[float | None]]]
    """The components by label, before weights and gates; None for a component that was not applicable or failed."""
    failures: tuple[Failure, ...]
    seconds: dict[str, float]
    """Seconds spent in each component, summed over workers."""
    verdicts: dict[str, list[list[Verdict | None]]] = field(default_factory=dict)
    """By label, for components that gave a reason or failed: the verdict for each number in `parts`."""
    tokens: dict[str, list[list[list[float] | None]]] = field(default_factory=dict)
    """By label, for components that give each token a number: these numbers, before weights and gates. None if there is
    one number for the whole completion. `parts` holds their sum."""
    is_open: dict[str, list[list[bool | None]]] = field(default_factory=dict)
    """By label, for gated components: whether the gate was open; None if the gate's reward had no score."""
    judgements: tuple[Judgement, ...] = ()
    """The questions to judges and their replies."""

    @property
    def counted(self) -> dict[str, list[list[float | None]]]:
        """The components by label as they enter the sum, before their weights: 0 if the gate was shut."""

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
        """The scores of the prompts at these places. Failures, judgements and seconds stay those of the whole call."""

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
        """Split the scores into one record per prompt. `indexes` are the values of `Prompt.index`.

        A failure or a judgement goes to the first place of its prompt. The seconds are 0, because they are known only
        for the whole call.
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
        """Join several records with the same components into one, in order. Some labels are missing in the record of a
        group without an answer to score, whose trajectories all failed."""

        def all_of(name: str, label: str, missing: Any = None) -> list[Any]:
            rows: list[Any] = []
            for one in each:
                rows += getattr(one, name).get(label) or [[missing] * len(row) for row in one.rewards_PG]
            return rows

        def labels_of(name: str) -> list[str]:
            return [label for label in each[0].parts if any(label in getattr(one, name) for one in each)]

        return Scores(
            rewards_PG=[row for one in each for row in one.rewards_PG],
            scored_PG=[row for one in each for row in one.scored_PG],
            parts={label: all_of("parts", label) for label in each[0].parts},
            verdicts={label: all_of("verdicts", label) for label in labels_of("verdicts")},
            tokens={label: all_of("tokens", label) for label in labels_of("tokens")},
            is_open={label: all_of("is_open", label) for label in labels_of("is_open")},
            failures=tuple(failure for one in each for failure in one.failures),
            seconds={label: sum(one.seconds.get(label, 0.0) for one in each) for label in labels_of("seconds")},
            judgements=tuple(judgement for one in each for judgement in one.judgements),
        )

    def with_unscored(self, missing: Mapping[tuple[int, int], Failure]) -> Scores:
        """Insert completions that no component was asked about, because their environment failed. The keys of `missing`
        are (prompt, number) of a completion, in ascending order."""
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
        """The record as JSON for a checkpoint: a missing reward is null, and a verdict is the list of its fields."""
        rewards_PG = [[None if math.isnan(reward) else reward for reward in row] for row in self.rewards_PG]
        verdicts = {
            label: [[None if verdict is None else verdict.to_json() for verdict in row] for row in given]
            for label, given in self.verdicts.items()
        }
        return asdict(replace(self, verdicts={})) | {"rewards_PG": rewards_PG, "verdicts": verdicts}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Scores:
        """Restore a record from the result of `to_json`."""
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

    A component that is None is not applicable and drops out. If a component failed, the completion has no reward,
    unless its weight is 0: such a component is only logged and cannot change the reward.

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
    """Raise RewardError if more than this share of a step's completions is unscored. It has the first traceback."""
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
        return "Let a component return a number where no other component applies, or raise guards.max_unscored."
    first = failures[0]
    trace = "".join(f"\n    {line}" for line in first.traceback.splitlines())
    cure = "raise its timeout" if first.kind == "timeout" else "correct it"
    if first.label == ENVIRONMENT:
        return f"First failure: {first}{trace}\n  {OF_ENVIRONMENT}, or raise guards.max_unscored."
    return f"First failure: {first}{trace}\n  Check `{first.label}`: {cure}, or raise guards.max_unscored."
