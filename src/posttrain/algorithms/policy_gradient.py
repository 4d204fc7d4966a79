"""The open composition: a policy-gradient method as a row of nine choices, each of which is a setting here.

    R'  = R + shaping                                  minus kl_coef * sum_t KL, if the KL is in the reward
    A   = (R' - baseline) / normalisation
    u   = exp(logprobs - old_logprobs)                 per token or per completion: ratio
    L   = aggregation(filter * correction * trust_region(u, A)  +  kl_coef * KL) - entropy_coef * entropy

The defaults are GRPO's row. With the row and the settings of a named algorithm it computes the same numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import Need
from posttrain.algorithms.composition.faults import refuse
from posttrain.algorithms.composition.losses import critic_loss, without
from posttrain.algorithms.composition.options import Values
from posttrain.algorithms.composition.parameters import Parameters
from posttrain.algorithms.composition.ratios import Moved
from posttrain.algorithms.composition.tables import Chosen, advantages_of, scored_by
from posttrain.algorithms.reinforce import REINFORCE, MovingAverage
from posttrain.algorithms.settings import settings
from posttrain.algorithms.shared import kl_term, weighted, weighted_completions
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals, count_totals


@settings
class ComposedPolicyGradient(Parameters):
    key = "policy_gradient"

    baseline: Literal[
        "none", "batch_mean", "moving_average", "group_mean", "leave_one_out", "runner_up", "greedy", "length_weighted",
        "optimal_token", "constant", "critic", "pass_at_k", "teacher",
    ] = "group_mean"  # fmt: skip
    """Number that a reward is compared with. optimal_token, critic and teacher give each token its own advantage."""
    normalisation: Literal[
        "none", "group_std", "batch_std", "mean_reward", "whiten_tokens", "per_reward", "nonzero_share"
    ] = "group_std"
    """Divisor of the advantages. per_reward normalises each reward function separately."""
    ratio: Literal["none", "token", "sequence", "sequence_product", "sequence_token"] = "token"
    """Ratio of the policy to the policy before the update. none: log-probabilities; sequence: the geometric mean."""
    trust_region: Literal[
        "none", "clip", "weight_clip", "soft_gate", "kernel", "divergence_mask", "clip_cov", "kl_cov", "log_clip",
        "truncated_negatives", "squared_log_ratio", "token_squared_log_ratio", "regression",
    ] = "clip"  # fmt: skip
    """Mechanism that keeps the policy near the policy before the update."""
    kl: Literal["none", "reward", "reward_sequence", "loss"] = "loss"
    """Place of the KL to the reference: in the reward of each token, in the completion's reward, or in the loss."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "fixed_length_mean", "prompt_mean"] = (
        "sequence_mean"
    )
    """Reduction of the token losses of a step to one number."""
    filter: Literal["none", "signal", "off_policy_negatives"] = "none"
    """signal replaces prompts with equal rewards; off_policy_negatives drops bad answers that became improbable."""
    shaping: Literal["none", "soft_overlong", "length", "budget", "score"] = "none"
    """Term that is added to the rewards."""
    reads_token_advantages = property(lambda self: self.chosen.reads_token_advantages)  # pyright: ignore[reportAssignmentType]
    looks_at_lengths = property(lambda self: self.chosen.shaping.by_length)  # pyright: ignore[reportAssignmentType]
    correct_from = property(lambda self: self.values.get("correct_at"))  # pyright: ignore[reportAssignmentType]
    kl_in_reward = property(lambda self: self.chosen.kl.in_reward is not None)  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        refuse(self, self.chosen)

    @property
    def chosen(self) -> Chosen:
        return Chosen.of(self)

    @property
    def values(self) -> Values:
        return self.chosen.values(self)

    @property
    def auto_correction(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.chosen.trust_region.auto_correction

    @property
    def learns_from_rewards(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.chosen.baseline.from_rewards

    @property
    def reads_token_rewards(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.chosen.baseline.reads_token_rewards and self.chosen.normalisation.instead is None

    @property
    def group_size_needed(self) -> int:
        return max(self.chosen.baseline.group, self.chosen.normalisation.group, self.values.get("k", 0) + 1)

    @property
    def needs(self) -> frozenset[Need]:
        old = frozenset[Need]({"old"} if self.chosen.ratio.ratio is not None else ())
        kl = self.chosen.kl.asks if self.values.get("kl_coef") else frozenset[Need]()
        return old.union(kl, self.common_needs(), *(option.needs for option in self.chosen.options))

    def initial_state(self) -> MovingAverage | None:
        return MovingAverage() if "baseline_decay" in self.values else None

    def next_state(self, state: MovingAverage | None, experience: Experience) -> MovingAverage | None:
        shaped = self.chosen.shaping.shaped(self.values, experience)
        decayed = REINFORCE(baseline_decay=self.values.get("baseline_decay", 0.0))
        return None if state is None else decayed.next_state(state, shaped)

    def advantages(self, experience: Experience, state: Any = None) -> Tensor:
        self.require_group(experience, self.group_size_needed - ("k" in self.values))
        return advantages_of(self.chosen, scored_by(self.chosen, self.values, experience, state))

    def to_batch(self, experience: Experience, state: Any = None) -> Batch:
        baseline, advantages_BT = self.chosen.baseline, self.advantages(experience, state)
        batch = Batch.from_experience(baseline.comparable(experience), advantages_BT)
        if baseline.returns is None:
            return batch
        return replace(batch, returns_BT=baseline.returns(scored_by(self.chosen, self.values, experience, state)))

    def prepare(self, batch: Batch) -> Batch:
        batch = super().prepare(batch)
        if self.chosen.aggregation.weights is not None:
            batch = replace(batch, prompt_weights_B=self.chosen.aggregation.weights(batch))
        if self.chosen.trust_region.select is None or batch.current_logprobs_BT is None:
            return batch
        outputs, started = self.start(batch.current_logprobs_BT, batch)
        return replace(batch, selected_BT=self._moved(outputs, started).batch.selected_BT)

    def _moved(self, outputs: Outputs, batch: Batch, totals: Totals | None = None) -> Moved:
        """Return the inputs of the trust region with the chosen tokens. Unprepared rows must be the whole update."""
        moved = Moved(values=self.values, outputs=outputs, batch=batch, ratio_of=self.chosen.ratio.ratio)
        select = self.chosen.trust_region.select
        if select is None or batch.selected_BT is not None:
            return moved
        require_whole_update(batch, totals or count_totals(batch), "current_logprobs_BT")
        return replace(moved, batch=replace(batch, selected_BT=select(moved)))

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        p, chosen, mask_BT = self.values, self.chosen, batch.completion_mask_BT
        term = chosen.trust_region.term(self._moved(outputs, batch, totals))
        metrics, whole = term.metrics, term.policy.shape != mask_BT.shape
        loss_BT = weighted_completions(term.policy, outputs, batch) if whole else weighted(term.policy, batch)
        if chosen.filter.drop is not None:
            loss_BT, dropped = without(chosen.filter.drop(p, outputs, batch), loss_BT, mask_BT)
            metrics |= dropped
        kl = kl_term(outputs, batch, p["kl_coef"], p["kl_estimator"]) if chosen.kl.in_loss else 0.0
        loss_BT = loss_BT + term.penalty + kl
        loss = chosen.aggregation.reduce(p, loss_BT, batch, totals)
        if chosen.baseline.returns is not None:
            value, value_metrics = critic_loss(p, outputs, batch, totals)
            loss, metrics = loss + value, metrics | value_metrics
        return self.finish(loss, outputs, batch, totals, metrics)
