"""The records that pass between the parts of the library. They are frozen: made once and read everywhere.

Shapes: P prompts, G completions per prompt, B = P * G rows, T tokens, N preference pairs, K reward functions.
Row `b = p * G + g` is completion g of prompt p. Entry `t` of every `[B, T]` tensor describes `input_ids_BT[:, t]`:
a log-probability at `t` is the one of this token given the tokens before it. Rows are padded on the right only.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # used in annotations only, so that importing the records and the algorithms does not load torch

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt, rendered and tokenised once. The sampler and the trainer both use these ids."""

    index: int
    """Row of the dataset, counted from 0. It identifies the prompt in every record of the run."""
    ids: tuple[int, ...]
    text: str
    """The rendered text, chat template included."""
    messages: tuple[dict[str, Any], ...] | None = None
    """The chat messages from which the text was rendered; None when no chat template was used."""
    plain: str | None = None
    """The prompt of the row, if it was text. Reward functions then receive strings, as in TRL, even if the text was
    wrapped as a user turn."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the row; reward functions receive them by name."""
    origin: str = ""
    """Place of the row as error messages name it, such as "train.jsonl:71"; empty if it is unknown."""
    columns_of_data: tuple[str, ...] = ()
    """Names of all columns of the dataset, set if this row lacks some of them. Rewards receive None for the missing
    columns, whichever rows share the batch."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The turns of a trajectory and the replies of its environment, as plain JSON."""

    messages: tuple[Mapping[str, Any], ...]
    """The chat messages after the prompt: turns of the policy and replies of the environment."""
    turns: int
    """Number of turns of the policy."""
    ended: str
    """Reason for the end: `done` (the environment ended the episode, or nothing was left to answer), the name of the
    setting whose limit was reached, or `failed`."""
    reward: float | None = None
    """The environment's reward for the whole episode; None if it gave none."""
    turn_rewards: tuple[float | None, ...] = ()
    """The environment's reward for each turn, None for a turn without one; empty if no turn had one."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Other measurements of the environment, by name."""
    calls: tuple[str, ...] = ()
    """Names of the called tools, in the order of the calls."""
    errors: tuple[str, ...] = ()
    """Names of the tools whose calls failed, once for each failed call."""
    failure: str = ""
    """How the environment failed in the last attempt: exception, timeout or crash. The completion is then unscored."""
    detail: str = ""
    """The error message of that failure."""
    traceback: str = ""
    """Where in the user's file it was raised."""
    opening: tuple[Mapping[str, Any], ...] | None = None
    """The messages with which the environment replaced the prompt of the row; None if it did not."""
    attempts: int = 1
    """Number of times that the episode was started."""

    @property
    def total_reward(self) -> float | None:
        """The sum of the final reward and the rewards of the turns; None if there are none.

        >>> Episode(messages=(), turns=3, ended="done", reward=1.0, turn_rewards=(0.25, None, -0.5)).total_reward
        0.75
        """
        given = [reward for reward in (*self.turn_rewards, self.reward) if reward is not None]
        return math.fsum(given) if given else None

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Episode:
        """Build an episode from the output of `dataclasses.asdict`, read back from JSON."""
        lists = {"messages", "turn_rewards", "calls", "errors", *(["opening"] if saved.get("opening") else [])}
        return Episode(**{**saved, **{name: tuple(saved.get(name, ())) for name in lists}})


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One completion of the sampler: token ids, never re-tokenised text.

    A completion of several turns (a trajectory) alternates between segments that the policy sampled and segments that
    its environment wrote. A single answer is a trajectory of one segment.
    """

    ids: tuple[int, ...]
    """All ids after the prompt, including the final EOS if there is one."""
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each sampled id, under the distribution that it sampled from."""
    versions: tuple[int, ...]
    """The policy version that produced each sampled id."""
    finish_reason: FinishReason
    text: str
    """The text of the completion, or of its last turn, decoded without special tokens. It does not include the stop
    string that ended it."""
    given: tuple[tuple[int, int], ...] = ()
    """Segments (begin, end) of `ids` that the environment wrote and the policy did not sample. Never trained."""
    starts: tuple[int, ...] = ()
    """Positions in `ids` where the context starts again: tokens from there on do not see earlier tokens, nor the
    prompt. Each one is the beginning of a segment in `given`."""
    episode: Episode | None = None
    """The episode of a completion with several turns; None for a single answer."""

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def drawn(self) -> tuple[bool, ...]:
        """For each id, whether the policy sampled it. Only sampled tokens are trained.

        >>> Completion(
        ...     ids=(5, 6, 7), logprobs=(-1.0, -2.0), versions=(0, 0), finish_reason="eos", text="", given=((1, 2),)
        ... ).drawn
        (True, False, True)
        """
        if not self.given:
            return (True,) * len(self.ids)
        drawn = [True] * len(self.ids)
        for begin, end in self.given:
            drawn[begin:end] = [False] * (end - begin)
        return tuple(drawn)

    @property
    def drawn_ids(self) -> tuple[int, ...]:
        """The ids that the policy sampled. The length and the text of a completion count only these."""
        return tuple(itertools.compress(self.ids, self.drawn)) if self.given else self.ids

    @property
    def turn_ends(self) -> tuple[int, ...]:
        """Positions in `ids` of the last token of each turn.

        >>> Completion(
        ...     ids=(5, 6, 7), logprobs=(-1.0, -2.0), versions=(0, 0), finish_reason="eos", text="", given=((1, 2),)
        ... ).turn_ends
        (0, 2)
        """
        drawn = self.drawn
        return tuple(place for place, own in enumerate(drawn) if own and drawn[place + 1 : place + 2] != (True,))

    @property
    def failure(self) -> str:
        """How the environment failed, if a failure cut the completion short; empty otherwise."""
        return "" if self.episode is None else self.episode.failure

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Completion:
        """Build a completion from the output of `dataclasses.asdict`, read back from JSON."""
        tuples: dict[str, Any] = {name: tuple(saved[name]) for name in ("ids", "logprobs", "versions")}
        tuples |= {"given": tuple(map(tuple, saved.get("given", ()))), "starts": tuple(saved.get("starts", ()))}
        episode = saved.get("episode")
        return Completion(**{**saved, **tuples, "episode": None if episode is None else Episode.from_json(episode)})


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row of a supervised dataset: its token ids, and which of them are trained."""

    index: int
    input_ids: tuple[int, ...]
    completion_mask: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One row of a preference dataset: two answers to the same prompt. The first is the better one."""

    index: int
    """Row of the dataset, counted from 0."""
    chosen: Example
    rejected: Example
    margin: float | None = None
    """By how much the chosen answer is better, if the row says so."""


@dataclass(frozen=True, kw_only=True)
class LabelledExample:
    """One row of a dataset with labelled answers: an answer, and whether it is desirable."""

    index: int
    """Row of the dataset, counted from 0."""
    example: Example
    label: bool


@dataclass(frozen=True, kw_only=True)
class RatedExample:
    """One row of a dataset with scored answers: an answer and its score."""

    index: int
    """Row of the dataset, counted from 0."""
    example: Example
    score: float


@dataclass(frozen=True, kw_only=True)
class StepExample:
    """One row of a dataset with labelled steps: an answer, the ends of its steps, and a label for each step."""

    index: int
    """Row of the dataset, counted from 0."""
    example: Example
    """The answer. Its `completion_mask` is True at the last token of each labelled step and nowhere else."""
    labels: tuple[float, ...]
    """Labels of those steps, in order: 1 for a right step, 0 for a wrong one, or the probability that it is right."""


FEWEST = 50
"""Smallest number of values from which a percentile is computed."""

Number = float | Tensor
"""The value of a metric: a float, or on a GPU a tensor of one number until it is read (functional/readings.py)."""


def _larger(one: Number, other: Number) -> Number:
    if isinstance(one, torch.Tensor):
        return one.clamp(min=other)
    return other.clamp(min=one) if isinstance(other, torch.Tensor) else max(one, other)


class Mean(NamedTuple):
    """A metric that is reduced as (sum of numerators) / (sum of denominators), however rows are split (RULE 52)."""

    numerator: Number
    denominator: Number

    def __float__(self) -> float:
        return float(self.numerator / self.denominator) if self.denominator else float("nan")

    def item(self) -> float:
        return float(self)

    def merge(self, other: Mean) -> Mean:
        return Mean(self.numerator + other.numerator, self.denominator + other.denominator)


class Max(NamedTuple):
    """A metric that is reduced by taking the largest value."""

    value: Number

    def __float__(self) -> float:
        return float(self.value)

    def item(self) -> float:
        return float(self)

    def merge(self, other: Max) -> Max:
        return Max(_larger(self.value, other.value))


class Min(NamedTuple):
    """A metric that is reduced by taking the smallest value."""

    value: Number

    def __float__(self) -> float:
        return float(self.value)

    def item(self) -> float:
        return float(self)

    def merge(self, other: Min) -> Min:
        return Min(-_larger(-self.value, -other.value))


class _Moments(NamedTuple):
    count: Number
    total: Number
    squares: Number


class Spread(_Moments):
    """A metric that is the population standard deviation (divided by n) of all merged values.

    `Spread(count, sum, sum of squares)`; NaN without values.
    """

    def __float__(self) -> float:
        if not self.count:
            return float("nan")
        return float(max(0.0, self.squares / self.count - (self.total / self.count) ** 2) ** 0.5)

    def item(self) -> float:
        return float(self)

    def merge(self, other: Spread) -> Spread:
        return Spread(*(a + b for a, b in zip(self, other, strict=True)))


class EffectiveShare(_Moments):
    """The effective sample size of weights divided by their number, (sum w)^2 / (n sum w^2), over the whole step.

    `EffectiveShare(count, sum, sum of squares)`; 0 if all weights are 0, NaN without values. It is never a mean over
    micro-batches.
    """

    def __float__(self) -> float:
        if not self.count:
            return float("nan")
        return float(self.total**2 / (self.count * self.squares)) if self.squares else 0.0

    def item(self) -> float:
        return float(self)

    def merge(self, other: EffectiveShare) -> EffectiveShare:
        return EffectiveShare(*(a + b for a, b in zip(self, other, strict=True)))


class ExplainedVariance(NamedTuple):
    """1 - Var(error) / Var(target) over all merged values; NaN for targets that do not vary."""

    error: Spread
    target: Spread

    def __float__(self) -> float:
        variance = float(self.target) ** 2
        return 1.0 - float(self.error) ** 2 / variance if variance > 0 else float("nan")

    def item(self) -> float:
        return float(self)

    def merge(self, other: ExplainedVariance) -> ExplainedVariance:
        return ExplainedVariance(self.error.merge(other.error), self.target.merge(other.target))


class Difference(NamedTuple):
    """The difference of two means over different samples, such as two classes. Each mean is reduced separately."""

    first: Mean
    second: Mean

    def __float__(self) -> float:
        return float(self.first) - float(self.second)

    def item(self) -> float:
        return float(self)

    def merge(self, other: Difference) -> Difference:
        return Difference(self.first.merge(other.first), self.second.merge(other.second))


class ExpOfMean(NamedTuple):
    """exp of a mean over the whole step, such as a perplexity from losses per token. Never a mean of perplexities."""

    mean: Mean

    def __float__(self) -> float:
        value = float(self.mean)
        return math.exp(value) if not value > 700 else math.inf

    def item(self) -> float:
        return float(self)

    def merge(self, other: ExpOfMean) -> ExpOfMean:
        return ExpOfMean(self.mean.merge(other.mean))


class Percentile(NamedTuple):
    """A metric that is a percentile of all merged values: the smallest value that a `share` of them does not exceed.
    NaN for fewer than `FEWEST` values, because the percentile would simply be the largest of them.

    >>> float(Percentile(0.99, (torch.arange(1.0, 51.0),)).merge(Percentile(0.99, (torch.arange(51.0, 101.0),))))
    99.0
    """

    share: float
    parts: tuple[Tensor, ...]
    """The merged values, tensors `[N]`. Those from a GPU have NaN in between."""

    def __float__(self) -> float:
        values_N = torch.cat([part.cpu() for part in self.parts])
        values_N = values_N[~values_N.isnan()]
        if len(values_N) < FEWEST:
            return float("nan")
        return float(values_N.sort().values[math.ceil(self.share * len(values_N)) - 1])

    def item(self) -> float:
        return float(self)

    def merge(self, other: Percentile) -> Percentile:
        return Percentile(self.share, self.parts + other.parts)


class IfAny(NamedTuple):
    """A metric that is left out if its count over the whole step is 0. On a GPU the count is known only at the end."""

    metric: Metric
    count: Number

    def __float__(self) -> float:
        return float(self.metric) if self.count else float("nan")

    def item(self) -> float:
        return float(self)

    def merge(self, other: IfAny) -> IfAny:
        return IfAny(self.metric.merge(other.metric), self.count + other.count)  # pyright: ignore[reportArgumentType]


Metric = Mean | Max | Min | Spread | EffectiveShare | ExplainedVariance | Difference | ExpOfMean | Percentile | IfAny
Metrics = dict[str, Metric]


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The denominators of one WHOLE optimizer step, counted before its first backward pass (RULE 7)."""

    tokens: int
    """Number of tokens with `completion_mask` 1."""
    sequences: int
    """Number of rows with at least one such token (RULE 8)."""
    rows: int
    """Number of all rows, including empty ones."""
    pairs: int = 0
    """Number of preference pairs in which both rows have at least one trained token."""
    chosen_tokens: int = 0
    """Number of trained tokens in the chosen rows of those pairs."""
    desirable: int = 0
    """Number of labelled answers that are desirable and have a trained token."""
    undesirable: int = 0
    """Number of labelled answers that are undesirable and have a trained token."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of the forward pass that a loss reads. Only these tensors carry gradient."""

    logprobs_BT: Tensor
    entropy_BT: Tensor | None = None
    values_BT: Tensor | None = None
    scores_B: Tensor | None = None
    scores_BT: Tensor | None = None
    """A score for each trained token, if these are the ends of steps; 0 elsewhere."""
    top1_BT: Tensor | None = None
    """Whether the token is the most likely one at its position. Without gradient."""

    def __post_init__(self) -> None:
        _widen(self)

    def each(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Apply `change` to every tensor and return the new outputs."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(x) for name, x in found.items() if x is not None})

    @staticmethod
    def of(outputs: Outputs | Tensor, batch: Batch | None = None) -> Outputs:
        """Wrap a bare tensor of log-probabilities as outputs. If a batch is given, check the shapes against it."""
        outputs = outputs if isinstance(outputs, Outputs) else Outputs(logprobs_BT=outputs)
        _require_tensor("logprobs_BT", outputs.logprobs_BT)
        if batch is not None:
            _require_shapes(outputs, batch.completion_mask_BT)
        return outputs


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The token ids of a `[B, T]` record: right-padded rows, prompt first."""

    input_ids_BT: Tensor
    lengths_B: Tensor
    """Number of tokens of each row without padding: prompt and completion."""
    starts_BT: Tensor | None = None
    """True where the context starts again within a row: that token and later ones see no earlier tokens. None if no row
    has such a position."""

    def rows(self, index: Tensor) -> Tokens:
        starts_BT = None if self.starts_BT is None else self.starts_BT[index]
        return Tokens(input_ids_BT=self.input_ids_BT[index], lengths_B=self.lengths_B[index], starts_BT=starts_BT)


@dataclass(frozen=True, kw_only=True)
class Mismatched:
    """The prompt of each labelled row with the answer of another row. A reference point is estimated from these.

    T is the length of these rows, not of the batch. A row without a partner has an empty mask.
    """

    tokens: Tokens
    completion_mask_BT: Tensor
    ref_logprobs_BT: Tensor

    def __post_init__(self) -> None:
        _make_bool(self, "completion_mask_BT")
        _require_shapes(self, self.completion_mask_BT)
        _widen(self)

    def rows(self, index: Tensor) -> Mismatched:
        return Mismatched(
            tokens=self.tokens.rows(index),
            completion_mask_BT=self.completion_mask_BT[index],
            ref_logprobs_BT=self.ref_logprobs_BT[index],
        )


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Sampled and scored completions, with everything that an algorithm may need to compute advantages.

    Optional tensors are present only if the algorithm declared that it needs them.
    """

    rewards_PG: Tensor
    completion_mask_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    sampling_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    teacher_logprobs_BT: Tensor | None = None
    squared_probs_BT: Tensor | None = None
    """The sum over the vocabulary of the squared probabilities of the policy that sampled each token."""
    rewards_KPG: Tensor | None = None
    """The unweighted rewards of each reward function; NaN where a function did not apply."""
    reward_weights_K: Tensor | None = None
    """The weight of each reward function in the sum. None means that all weights are 1."""
    token_rewards_BT: Tensor | None = None
    """Rewards of single tokens, for example of steps, in addition to the reward of the completion on its last token."""
    greedy_rewards_P: Tensor | None = None
    """Reward of the greedy completion of each prompt; NaN if it could not be scored."""
    scored_PG: Tensor
    """False if no reward could be computed. Such a completion is left out of the group statistics and the loss. If
    nothing was to be scored, all are True and all rewards NaN: only algorithms that read no rewards train on that."""
    truncated_PG: Tensor
    drawn_PG: Tensor | None = None
    """Number of sampled tokens of each completion, with those that are too old to be trained. None if there are no
    such tokens."""
    versions_BT: Tensor | None = None
    """The policy version that sampled each token."""
    version: int | None = None
    """The policy version that learns from this experience."""
    tokens: Tokens | None = None
    """The token ids; None when a loss is tested on plain tensors."""

    def __post_init__(self) -> None:
        _make_bool(self, "completion_mask_BT", "scored_PG", "truncated_PG")
        _require_shapes(self, self.completion_mask_BT, self.rewards_PG)
        _widen(self)
        nothing_to_score = bool((self.rewards_PG.isnan() & self.scored_PG).all())
        _require_bounded("rewards_PG", self.rewards_PG, self.scored_PG, nan=nothing_to_score)
        _require_bounded("rewards_KPG", self.rewards_KPG, self.scored_PG)
        _require_bounded("token_rewards_BT", self.token_rewards_BT, self.scored_mask_BT, nan=False)
        _require_bounded("greedy_rewards_P", self.greedy_rewards_P)
        _require_bounded("reward_weights_K", self.reward_weights_K, nan=False)

    @staticmethod
    def from_rewards(
        rewards_PG: Tensor,
        *,
        completion_mask_BT: Tensor,
        old_logprobs_BT: Tensor | None = None,
        sampling_logprobs_BT: Tensor | None = None,
        ref_logprobs_BT: Tensor | None = None,
        values_BT: Tensor | None = None,
        teacher_logprobs_BT: Tensor | None = None,
        squared_probs_BT: Tensor | None = None,
        rewards_KPG: Tensor | None = None,
        reward_weights_K: Tensor | None = None,
        token_rewards_BT: Tensor | None = None,
        greedy_rewards_P: Tensor | None = None,
        scored_PG: Tensor | None = None,
        truncated_PG: Tensor | None = None,
        drawn_PG: Tensor | None = None,
        versions_BT: Tensor | None = None,
        version: int | None = None,
        tokens: Tokens | None = None,
    ) -> Experience:
        """Build experience from plain tensors. A NaN reward counts as unscored unless `scored_PG` says otherwise."""
        _require_tensor("rewards_PG", rewards_PG)
        no_PG = torch.zeros_like(rewards_PG, dtype=torch.bool)
        return Experience(
            rewards_PG=rewards_PG if rewards_PG.dtype == torch.float64 else rewards_PG.float(),
            completion_mask_BT=completion_mask_BT,
            old_logprobs_BT=old_logprobs_BT,
            sampling_logprobs_BT=sampling_logprobs_BT,
            ref_logprobs_BT=ref_logprobs_BT,
            values_BT=values_BT,
            teacher_logprobs_BT=teacher_logprobs_BT,
            squared_probs_BT=squared_probs_BT,
            rewards_KPG=rewards_KPG,
            reward_weights_K=reward_weights_K,
            token_rewards_BT=token_rewards_BT,
            greedy_rewards_P=greedy_rewards_P,
            scored_PG=~rewards_PG.isnan() if scored_PG is None else scored_PG,
            truncated_PG=no_PG if truncated_PG is None else truncated_PG,
            drawn_PG=drawn_PG,
            versions_BT=versions_BT,
            version=version,
            tokens=tokens,
        )

    @property
    def group_size(self) -> int:
        return self.rewards_PG.shape[1]

    @property
    def scored_mask_BT(self) -> Tensor:
        """`completion_mask_BT`, but False for rows without a reward."""
        return self.completion_mask_BT & self.scored_PG.reshape(-1, 1)

    @property
    def lengths_PG(self) -> Tensor:
        """Number of sampled tokens of each completion, in the dtype of the rewards. Rewards judge whole completions."""
        return self.trained_PG if self.drawn_PG is None else self.drawn_PG.to(self.rewards_PG.dtype)

    @property
    def trained_PG(self) -> Tensor:
        """Number of trained tokens of each completion, in the dtype of the rewards."""
        return self.completion_mask_BT.sum(dim=-1).reshape(self.rewards_PG.shape).to(self.rewards_PG.dtype)

    @property
    def total_rewards_PG(self) -> Tensor:
        """The reward of each completion plus the rewards of its tokens."""
        if self.token_rewards_BT is None:
            return self.rewards_PG
        of_tokens_B = self.token_rewards_BT.masked_fill(~self.scored_mask_BT, 0).sum(dim=-1)
        return self.rewards_PG + of_tokens_B.reshape(self.rewards_PG.shape).to(self.rewards_PG.dtype)

    def refuse_token_rewards(self) -> None:
        """Raise ConfigError if tokens have rewards. Algorithms that would ignore such rewards call this."""
        if self.token_rewards_BT is not None:
            raise ConfigError(
                given="token_rewards_BT, which this algorithm does not read",
                allowed="token rewards with ppo, reinforce_plus_plus, reinforce and remax",
                fix="Leave token_rewards_BT out, or choose one of these.",
            )

    def require_rewards(self) -> None:
        """Raise ConfigError if no rewards were computed. Algorithms that learn from rewards call this."""
        if (self.rewards_PG.isnan() & self.scored_PG).any():
            raise ConfigError(
                given="experience without rewards, for an algorithm that learns from them",
                allowed="a reward for each scored completion",
                fix="Pass rewards to policy.sample and policy.experience, or your own numbers [P, G] to "
                "policy.experience.",
            )

    def broadcast(self, values_PG: Tensor) -> Tensor:
        """Expand one number per completion to `[B, T]`: the number on each trained token, 0 elsewhere."""
        self.require_rewards()
        self.refuse_token_rewards()
        mask_BT = self.scored_mask_BT
        return torch.where(mask_BT, values_PG.reshape(-1, 1), values_PG.new_zeros(()))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of one optimizer step, or some of them: what a loss reads in addition to the model's outputs."""

    completion_mask_BT: Tensor
    advantages_BT: Tensor | None = None
    rewards_B: Tensor | None = None
    """Reward of each completion. A row without a reward has an empty mask."""
    token_rewards_BT: Tensor | None = None
    """Rewards of single tokens, in addition to `rewards_B`."""
    truncated_B: Tensor | None = None
    """Whether the completion was cut off before its EOS."""
    old_logprobs_BT: Tensor | None = None
    sampling_logprobs_BT: Tensor | None = None
    current_logprobs_BT: Tensor | None = None
    """The policy's log-probabilities right before this update, without gradient. Terms that couple rows use them."""
    current_entropy_BT: Tensor | None = None
    """The policy's entropy at each token right before this update."""
    kept_BT: Tensor | None = None
    """Tokens whose policy term counts. `prepare` chooses them among all tokens of the update; None means all."""
    correction_BT: Tensor | None = None
    """Off-policy weight of each token, 0 for a rejected token; None means no correction."""
    coupled: bool = False
    """Whether weights that depend on each other were computed over all rows of the update."""
    prompt_weights_B: Tensor | None = None
    """1 / (prompts * trained tokens of the row's prompt) over the whole update, for a mean per prompt."""
    selected_BT: Tensor | None = None
    """Tokens that `prepare` chose among all tokens of the update; None if the algorithm selects none."""
    ref_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    """Critic values from before the update."""
    returns_BT: Tensor | None = None
    teacher_logprobs_BT: Tensor | None = None
    versions_BT: Tensor | None = None
    version: int | None = None
    """The policy version that learns from these rows."""
    groups_B: Tensor
    """Id of the prompt of each row, or of the pair in preference data. Groups are identified by it, so rows may be
    permuted freely."""
    chosen_B: Tensor | None = None
    """Preference pairs: True for the chosen row of a pair, False for the rejected row."""
    margins_B: Tensor | None = None
    """Preference pairs with margins: by how much the chosen row is better. Both rows of a pair hold the number."""
    labels_B: Tensor | None = None
    """Labelled answers: True for a desirable answer, False for an undesirable one."""
    targets_B: Tensor | None = None
    """Rated answers: the target for the score of each answer."""
    targets_BT: Tensor | None = None
    """Answers with labelled steps: the label of each trained token, which is the last token of its step."""
    mismatched: Mismatched | None = None
    """Labelled answers: each prompt with the answer of another row, for algorithms that need it."""
    mismatched_log_ratios_B: Tensor | None = None
    """log(policy / reference) of another row's answer to this row's prompt, without gradient; NaN for a row without
    a partner."""
    offsets_B: Tensor | None = None
    """A number that `prepare` computed over all rows of the update; the loss subtracts it from the score of each row or
    pair."""
    row_ids_B: Tensor | None = None
    """Index in the experience of each row. Error messages use it after any permutation or split."""
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        _make_bool(self, "completion_mask_BT", "truncated_B", "selected_BT", "kept_BT", "chosen_B", "labels_B")
        _require_shapes(self, self.completion_mask_BT)
        _widen(self)

    @staticmethod
    def from_experience(experience: Experience, advantages_BT: Tensor | None = None) -> Batch:
        """Build a batch from experience. Rows without a reward get an empty mask, which removes them from the loss."""
        num_prompts, group_size = experience.rewards_PG.shape
        return Batch(
            completion_mask_BT=experience.scored_mask_BT,
            advantages_BT=advantages_BT,
            rewards_B=experience.rewards_PG.reshape(-1),
            token_rewards_BT=experience.token_rewards_BT,
            truncated_B=experience.truncated_PG.reshape(-1),
            old_logprobs_BT=experience.old_logprobs_BT,
            sampling_logprobs_BT=experience.sampling_logprobs_BT,
            ref_logprobs_BT=experience.ref_logprobs_BT,
            values_BT=experience.values_BT,
            teacher_logprobs_BT=experience.teacher_logprobs_BT,
            versions_BT=experience.versions_BT,
            version=experience.version,
            groups_B=torch.arange(num_prompts, device=experience.rewards_PG.device).repeat_interleave(group_size),
            row_ids_B=torch.arange(num_prompts * group_size, device=experience.rewards_PG.device),
            tokens=experience.tokens,
        )

    @staticmethod
    def from_examples(completion_mask_BT: Tensor, *, tokens: Tokens | None = None) -> Batch:
        """Build a batch of answers to imitate. The mask says which tokens are trained."""
        rows, device = _rows_of(completion_mask_BT), completion_mask_BT.device
        return Batch(
            completion_mask_BT=completion_mask_BT,
            groups_B=torch.arange(rows, device=device),
            row_ids_B=torch.arange(rows, device=device),
            tokens=tokens,
        )

    @staticmethod
    def from_pairs(
        completion_mask_BT: Tensor,
        ref_logprobs_BT: Tensor | None = None,
        *,
        margins_N: Tensor | None = None,
        tokens: Tokens | None = None,
    ) -> Batch:
        """Build a batch of N preference pairs. Rows 0..N-1 are the chosen rows, and rows N..2N-1 are the rejected rows
        in the same order."""
        rows, device = _rows_of(completion_mask_BT), completion_mask_BT.device
        if rows % 2:
            raise ValueError(f"completion_mask_BT has {rows} rows, but pairs have two each: first all chosen rows")
        if margins_N is not None and margins_N.shape != (rows // 2,):
            raise ValueError(f"margins_N has shape {list(margins_N.shape)}, but there are {rows // 2} pairs")
        return Batch(
            completion_mask_BT=completion_mask_BT,
            ref_logprobs_BT=ref_logprobs_BT,
            groups_B=torch.arange(rows // 2, device=device).repeat(2),
            chosen_B=torch.arange(rows, device=device) < rows // 2,
            margins_B=None if margins_N is None else margins_N.repeat(2),
            row_ids_B=torch.arange(rows, device=device),
            tokens=tokens,
        )

    @staticmethod
    def from_labels(
        completion_mask_BT: Tensor,
        labels_B: Tensor,
        ref_logprobs_BT: Tensor | None = None,
        mismatched_log_ratios_B: Tensor | None = None,
        *,
        mismatched: Mismatched | None = None,
        tokens: Tokens | None = None,
    ) -> Batch:
        """Build a batch of labelled answers: label 1 (or True) is desirable, label 0 is undesirable."""
        rows, device = _rows_of(completion_mask_BT), completion_mask_BT.device
        return Batch(
            completion_mask_BT=completion_mask_BT,
            ref_logprobs_BT=ref_logprobs_BT,
            groups_B=torch.arange(rows, device=device),
            labels_B=labels_B,
            mismatched=mismatched,
            mismatched_log_ratios_B=mismatched_log_ratios_B,
            row_ids_B=torch.arange(rows, device=device),
            tokens=tokens,
        )

    @staticmethod
    def from_ratings(completion_mask_BT: Tensor, targets_B: Tensor, *, tokens: Tokens | None = None) -> Batch:
        """Build a batch of rated answers, with a target for the score of each answer."""
        rows, device = _rows_of(completion_mask_BT), completion_mask_BT.device
        return Batch(
            completion_mask_BT=completion_mask_BT,
            groups_B=torch.arange(rows, device=device),
            targets_B=targets_B,
            row_ids_B=torch.arange(rows, device=device),
            tokens=tokens,
        )

    @staticmethod
    def from_steps(completion_mask_BT: Tensor, targets_BT: Tensor, *, tokens: Tokens | None = None) -> Batch:
        """Build a batch of answers with labelled steps. The mask is True only at the last token of a labelled step."""
        rows, device = _rows_of(completion_mask_BT), completion_mask_BT.device
        return Batch(
            completion_mask_BT=completion_mask_BT,
            groups_B=torch.arange(rows, device=device),
            targets_BT=targets_BT,
            row_ids_B=torch.arange(rows, device=device),
            tokens=tokens,
        )

    @property
    def num_rows(self) -> int:
        return self.completion_mask_BT.shape[0]

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Indices `[N]` of the chosen rows and `[N]` of the rejected rows, in the order of the pairs' ids."""
        if self.chosen_B is None:
            raise ValueError("this batch holds no preference pairs; build it with Batch.from_pairs")
        sides_B = (2 * self.groups_B + ~self.chosen_B).argsort(stable=True)  # the chosen row of each pair comes first
        chosen_N, rejected_N = sides_B[::2], sides_B[1::2]
        if not self._are_pairs(chosen_N, rejected_N):
            raise ValueError("a preference pair was torn apart: split a batch by its `units`")
        return chosen_N, rejected_N

    def _are_pairs(self, first_N: Tensor, second_N: Tensor) -> bool:
        """Whether these are the two sides of each pair. On a GPU only the counts are compared, because a full check
        would wait for the GPU; rows are split on a CPU anyway."""
        assert self.chosen_B is not None
        if self.groups_B.device.type != "cpu":
            return len(first_N) == len(second_N)
        same = torch.equal(self.groups_B[first_N], self.groups_B[second_N])
        return same and bool(self.chosen_B[first_N].all()) and not self.chosen_B[second_N].any()

    @property
    def units(self) -> list[list[int]]:
        """The rows that a split must keep together: the two rows of a pair, or else single rows."""
        if self.chosen_B is None:
            return [[row] for row in range(self.num_rows)]
        return [list(pair) for pair in zip(*(rows_N.tolist() for rows_N in self.pairs), strict=True)]

    def rows(self, index: Tensor | Sequence[int]) -> Batch:
        """The batch with only the rows in `index`, in that order, or where a mask `[B]` is True."""
        index = torch.as_tensor(index)
        index = index.nonzero().flatten() if index.dtype == torch.bool else index.long()
        chosen = {f.name: getattr(self, f.name) for f in fields(self)}
        picked = {n: v[index] if isinstance(v, torch.Tensor) else v for n, v in chosen.items()}
        for name in ("tokens", "mismatched"):
            if (record := getattr(self, name)) is not None:
                picked[name] = record.rows(index)
        return replace(self, **picked)


LARGEST_REWARD = 1e15
"""Largest size of a reward. Its square, summed over a batch, still fits into float32. With a larger reward the standard
deviation would be infinite and every advantage 0."""
_ONE_EACH = {
    "BT": "one number per token of each row; a sum per row is not enough",
    "B": "one number per row",
    "PG": "one number per completion",
    "KPG": "for each reward function one number per completion",
    "K": "one number per reward function",
    "P": "one number per prompt",
}


@functools.cache
def _shaped(record: type) -> tuple[tuple[str, str], ...]:
    """The name and the shape letters of each field whose name ends with its shape."""
    names = (field.name for field in fields(record))
    return tuple((name, letters) for name in names if (letters := name.rpartition("_")[2]) in _ONE_EACH)


def _require_shapes(record: Any, mask_BT: Tensor, rewards_PG: Tensor | None = None) -> None:
    """Check that each field has the shape that its name ends with. A smaller tensor would be broadcast and change the
    loss silently.

    The mask determines the sizes of B and T, the rewards determine P and G, and the first field with K determines K.
    """
    if rewards_PG is not None and rewards_PG.dim() != 2:
        raise ValueError(f"rewards_PG must be [prompts, completions per prompt], got shape {list(rewards_PG.shape)}")
    sizes = {"B": _rows_of(mask_BT), "T": mask_BT.shape[-1]}
    if rewards_PG is not None:
        sizes |= zip("PG", rewards_PG.shape, strict=True)
        if rewards_PG.numel() != len(mask_BT):
            raise ValueError(
                f"completion_mask_BT has {len(mask_BT)} rows, but rewards_PG {list(rewards_PG.shape)} describes "
                f"{rewards_PG.numel()} completions; row p * G + g belongs to rewards_PG[p, g]"
            )
    for name, letters in _shaped(type(record)):
        if (x := getattr(record, name)) is None:
            continue
        _require_tensor(name, x)
        if letters.startswith("K") and x.dim():
            sizes.setdefault("K", len(x))
        if list(x.shape) != (needed := [sizes.get(letter, 0) for letter in letters]):
            against = {"BT": f"completion_mask_BT {needed}", "B": f"completion_mask_BT has {sizes['B']} rows"}
            found = against.get(letters, f"the rewards need {needed}")
            raise ValueError(f"{name} has shape {list(x.shape)}, but {found}: {_ONE_EACH[letters]}")


def _require_tensor(name: str, x: object) -> None:
    if not isinstance(x, torch.Tensor):
        missing = "; write nan for a missing reward" if name == "rewards_PG" else ""
        raise ValueError(f"{name} is {type(x).__name__}, but must be a tensor: torch.tensor(...) makes one{missing}")


def _rows_of(mask_BT: Tensor) -> int:
    if not isinstance(mask_BT, torch.Tensor) or mask_BT.dim() != 2:
        got = f"shape {list(mask_BT.shape)}" if isinstance(mask_BT, torch.Tensor) else type(mask_BT).__name__
        raise ValueError(f"completion_mask_BT must be a tensor [rows, tokens], got {got}")
    return mask_BT.shape[0]


def _make_bool(record: Any, *names: str) -> None:
    """Convert masks of 1 and 0 in any type to bool. Refuse other values, which would count as True."""
    for name in names:
        x = getattr(record, name)
        if isinstance(x, torch.Tensor) and x.dtype != torch.bool:
            if not ((x == 0) | (x == 1)).all():
                kind = "1 (desirable) or 0 (undesirable) for each row" if name == "labels_B" else "1 or 0"
                raise ValueError(f"{name} must be {kind}")
            object.__setattr__(record, name, x.bool())


def _widen(record: Any) -> None:
    """Convert numbers in less than float32 to float32, in which they are exact. Everything derived from them would
    otherwise be rounded: between 1 and 2, bfloat16 has steps of 0.008, more than the bounds of some ratios (RULE 2)."""
    for name in [each.name for each in fields(record)]:
        x = getattr(record, name)
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() < 4:
            object.__setattr__(record, name, x.float())


def _require_bounded(name: str, rewards: Tensor | None, scored: Tensor | bool = True, *, nan: bool = True) -> None:
    """Refuse a reward that is infinite or whose square is. The standard deviation of its group would be infinite, and
    all advantages would be 0.

    `nan` says whether NaN is allowed, as it is for a missing reward.
    """
    if rewards is None:
        return
    beyond = rewards.abs() > LARGEST_REWARD if nan else ~(rewards.abs() <= LARGEST_REWARD)
    if (bad := scored & beyond).any():
        at = bad.nonzero()[0].tolist()
        raise ConfigError(
            given=f"{name}{at} = {rewards[tuple(at)].item()}",
            allowed=f"finite rewards of at most {LARGEST_REWARD:g} in size",
            fix="Clip the reward, or mark the completion as unscored: nan, or False in scored_PG.",
        )


def count_totals(batch: Batch) -> Totals:
    """The denominators of the optimizer step that consists of exactly these rows."""
    per_row_B = batch.completion_mask_BT.sum(dim=-1)
    trained_B = per_row_B > 0
    special: dict[str, int] = {}
    if batch.chosen_B is not None:
        whole_N = whole_pairs(batch)
        special = {"pairs": int(whole_N.sum()), "chosen_tokens": int(per_row_B[batch.pairs[0][whole_N]].sum())}
    if batch.labels_B is not None:
        special["desirable"] = int((trained_B & batch.labels_B).sum())
        special["undesirable"] = int((trained_B & ~batch.labels_B).sum())
    return Totals(
        tokens=int(per_row_B.sum()),
        sequences=int(trained_B.sum()),
        rows=int(batch.completion_mask_BT.shape[0]),
        **special,
    )


def whole_pairs(batch: Batch) -> Tensor:
    """Whether both rows of each pair have at least one trained token, `[N]`. The loss leaves the other pairs out."""
    trained_B = batch.completion_mask_BT.any(dim=-1)
    chosen_N, rejected_N = batch.pairs
    return trained_B[chosen_N] & trained_B[rejected_N]
