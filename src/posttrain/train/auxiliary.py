"""A next-token loss on other data, added to the policy loss: the PTX term of Kimi K2.

It keeps the model from forgetting abilities that the rewards do not measure.

    loss of the update + coef * mean negative log-probability of the auxiliary rows' trained tokens

The log-probabilities are at temperature 1, whatever the sampling temperature. The rows of an update are a pure function
of the seed and the number of the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.data.dataset import examples_batch
from posttrain.data.order import rows_for_step
from posttrain.errors import NonFiniteError
from posttrain.functional.reductions import token_mean
from posttrain.models.microbatches import Split
from posttrain.models.transfer import on_the_host, to_device
from posttrain.types import Batch, Example, Mean, Metrics, Outputs, count_totals


class AddGradient(Protocol):
    """An additional loss that each update learns from."""

    def __call__(self, step: int, number: int) -> Metrics:
        """Add the gradient for update `number` (0, 1, …) of a step."""
        ...


def nothing_else(step: int, number: int) -> Metrics:
    """Add no gradient: an update learns from its minibatch only."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Auxiliary:
    """The PTX term: `rows` examples per update, weighted with `coef`."""

    coef: float
    examples: Sequence[Example]
    rows: int
    updates_per_step: int
    seed: int
    pad_id: int
    forward: Callable[[Batch], Outputs]
    """The policy's forward pass at temperature 1."""
    split: Split

    def __call__(self, step: int, number: int) -> Metrics:
        """`ptx/nll`: nats per token of the auxiliary rows, before the update."""
        update = (step - 1) * self.updates_per_step + number + 1
        chosen = [self.examples[row] for row in rows_for_step(self.seed, update, self.rows, len(self.examples))]
        batch = examples_batch(chosen, self.pad_id)
        totals, nll, seen = count_totals(batch), 0.0, []
        for rows, micro in self.split(batch):
            logprobs_BT = self.forward(micro).logprobs_BT
            mask_BT = to_device(micro.completion_mask_BT, logprobs_BT.device)
            loss = token_mean(-logprobs_BT, mask_BT, totals.tokens)
            (self.coef * loss).backward()
            seen.append((rows, loss.detach()))
        for (rows, _), loss in zip(seen, on_the_host([loss for _, loss in seen]), strict=True):
            if not loss.isfinite():
                raise NonFiniteError(
                    given=f"step {step}: the loss of the auxiliary data is {loss.item()}; it is in row "
                    f"{' or '.join(str(chosen[row].index) for row in rows)} of data.auxiliary",
                    allowed="finite numbers",
                    fix="No weight was changed. Lower train.learning_rate, or set model.precision = float32.",
                )
            nll += loss.item() * totals.tokens
        return {"ptx/nll": Mean(nll, float(totals.tokens) if self.split.ranks.rank == 0 else 0.0)}  # ranks add nll up
