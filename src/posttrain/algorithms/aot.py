"""AOT: alignment by optimal transport (arXiv:2406.05882).

    paired     u = S(chosen) - S(rejected) of the policy, v the same of the reference, S(y) = sum_t logprobs
    unpaired   u = r(chosen), v = r(rejected), r(y) = sum_t (logprobs - ref_logprobs)
    h_k        = beta * (u_(k) - v_(k))                           both sorted over all pairs of the step
    L          = -log sigmoid(h)

Mean over the pairs of the step. The loss does not compare the two sides of each pair. It compares the distribution of
u with the distribution of v, quantile by quantile. With label_smoothing e: (1 - e) L(h) + e L(-h).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from posttrain.algorithms.algorithm import require_whole_update
from posttrain.algorithms.base import Need
from posttrain.algorithms.pairs import PairLoss, pairs_of
from posttrain.algorithms.settings import BelowHalf, Positive, settings
from posttrain.functional.masks import without_gradient
from posttrain.functional.preferences import logistic, matched_by_rank, smoothed
from posttrain.types import Batch, Metrics, Outputs, Tensor, Totals


@settings
class AOT(PairLoss):
    key = "aot"

    beta: Positive = 0.1
    """Strength of the implicit KL constraint: a larger beta keeps the policy closer to the reference."""
    label_smoothing: BelowHalf = 0.0
    """Probability that the two labels of a pair are swapped."""
    comparison: Literal["paired", "unpaired"] = "paired"
    """Distributions to compare. paired: the margins of the policy with the margins of the reference; unpaired: the
    chosen with the rejected answers of all prompts."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference", "current"})

    @without_gradient
    def prepare(self, batch: Batch) -> Batch:
        """Sort over all pairs of the update. paired: give each margin of the policy the reference's margin of the same
        rank. unpaired: pair the chosen and the rejected answers of the same rank."""
        if batch.offsets_B is not None or batch.current_logprobs_BT is None:
            return batch
        pairs = pairs_of(batch.current_logprobs_BT, batch)
        groups_B, offsets_B = batch.groups_B.clone(), pairs.ref_log_probs().new_zeros(batch.num_rows)
        rows_2N = pairs.rows_2N[:, pairs.whole_N]
        if self.comparison == "paired":
            policy_N, reference_N = _difference(pairs.log_probs()), _difference(pairs.ref_log_probs())
            offsets_B[rows_2N] = matched_by_rank(policy_N[pairs.whole_N], reference_N[pairs.whole_N])
        else:
            ranks_2N = pairs.log_ratios()[:, pairs.whole_N].argsort(dim=-1, stable=True)
            groups_B[rows_2N[1][ranks_2N[1]]] = groups_B[rows_2N[0][ranks_2N[0]]]
        return replace(batch, groups_B=groups_B, offsets_B=offsets_B)

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        if batch.offsets_B is None:  # these rows are the whole update
            require_whole_update(batch, totals, "current_logprobs_BT")
            current_BT = Outputs.of(outputs, batch).logprobs_BT.detach()
            batch = self.prepare(replace(batch, current_logprobs_BT=current_BT))
        assert batch.offsets_B is not None
        pairs = pairs_of(outputs, batch)
        ratio_2N = pairs.log_ratios()
        u_N = _difference(pairs.log_probs() if self.comparison == "paired" else ratio_2N)
        h_N = self.beta * (u_N - batch.offsets_B[pairs.rows_2N[0]])
        loss_N = smoothed(logistic, h_N, self.label_smoothing)
        return pairs.mean(loss_N, totals), pairs.metrics(self.beta * ratio_2N)


def _difference(x_2N: Tensor) -> Tensor:
    """`[N]`: the value of the chosen answer minus the value of the rejected answer."""
    chosen_N, rejected_N = x_2N
    return chosen_N - rejected_N
