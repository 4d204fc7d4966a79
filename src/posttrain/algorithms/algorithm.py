"""The base class of every algorithm: its declarations, and the interface that the rest of the library reads.

An algorithm is a frozen record of settings with pure functions: `to_batch` (from sampled or given data) and `loss`
(from the outputs of the forward pass and a batch to a scalar). The training code never asks which algorithm runs; it
reads `data_kind`, `min_group_size` and `needs`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self

from posttrain.algorithms.declared import Card, DataKind, FromFile, Need, StepReading
from posttrain.algorithms.settings import settings
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, Metrics, Outputs, Tensor, Totals


@settings
class Algorithm:
    """Base of all algorithms, with the declarations and the defaults that most of them share."""

    key: ClassVar[str]
    card: ClassVar[Card] = FromFile()  # type: ignore[assignment]
    choices: ClassVar[dict[str, str]] = {}  # the card's choices, if the class computes from them
    metrics: ClassVar[dict[str, str]] = {}
    """Metric -> formula, without `shared_metrics` and the metrics of every run."""
    data_kind: ClassVar[DataKind]
    min_group_size: ClassVar[int] = 1
    learns_from_rewards: ClassVar[bool] = True
    """For algorithms that sample: false if a teacher, and not a reward, supplies the learning signal."""
    reads_token_rewards: ClassVar[bool] = False
    """For algorithms that sample: true if single tokens may have rewards. Each token then has its own advantage."""
    reads_token_advantages: ClassVar[bool] = False
    """For algorithms that sample: true if the loss reads an advantage for each token. If false, it reads one for the
    whole completion, and turns cannot have their own advantages."""
    learns_off_policy: ClassVar[bool] = False
    """For algorithms that sample: true if the loss is correct for another policy's completions without a ratio."""
    open_composition: ClassVar[bool] = False
    """True if some settings decide which values of other settings are allowed. `explain` then lists all values."""
    shared_sources: ClassVar[dict[str, str]] = {}
    """Sources of the defaults of inherited settings, in the format of `Card.sources`."""
    shared_metrics: ClassVar[dict[str, str]] = {}
    """Formulas of the metrics that the base class logs, in the format of `Card.metrics`."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    @property
    def group_size_needed(self) -> int:
        """Smallest number of completions per prompt that these settings work with."""
        return self.min_group_size

    def require_group(self, experience: Experience, needed: int | None = None) -> None:
        """Refuse a group that is too small to compare completions: nothing would be learnt (RULE 12)."""
        needed = needed or self.group_size_needed
        if experience.group_size < needed:
            raise ConfigError(
                given=f"group_size = {experience.group_size}, but {self.key} compares completions of the same prompt",
                allowed=f"an integer of at least {needed}",
                fix=f"Set sampling.group_size = {max(8, needed)}, or use algorithm reinforce, which needs no group.",
            )

    @property
    def anchors_at_trainer(self) -> bool:
        """For algorithms that sample: true if ratios are centred at old_logprobs. If false, no pass computes them."""
        return False

    def needs_old_pass(self, *, updates: int, dropout: bool) -> bool:
        """Return true if a forward pass for `old_logprobs` runs before the `updates` of a batch.

        Without dropout, the policy differs from its starting point only from the second update on (RULE 6). With
        dropout it differs from the first: the update computes other log-probabilities than the policy without
        dropout. A ratio that is centred elsewhere needs no pass.
        """
        differs = updates > 1 or dropout
        return "old_for_advantages" in self.needs or (differs and self.anchors_at_trainer)

    @property
    def correct_from(self) -> float | None:
        """Reward from which an answer counts as correct; None if the algorithm does not distinguish correct answers."""
        return None

    @property
    def clip_settings(self) -> tuple[str, ...]:
        """Names of the settings that clip a ratio. If they are unset by default, setting them introduces a ratio."""
        return tuple(name for name in ("clip_low", "clip_high") if name in {field.name for field in fields(self)})

    @property
    def correction_name(self) -> str:
        """Name of the correction for the difference between sampler and trainer; auto until a run decides it."""
        return "none"

    def with_decided_correction(self, *, exact: bool) -> Self:
        """Return the algorithm with `correction = auto` resolved. `exact`: the sampler computes as the trainer does."""
        return self

    @property
    def auxiliary_coef(self) -> float:
        """Weight of the loss on other data, if `needs` contains auxiliary."""
        return 0.0

    @property
    def step_reading(self) -> StepReading | None:
        """For algorithms that learn from steps: the rule that splits and aggregates them."""
        return None

    def initial_state(self) -> Any:
        """Return the initial state of a run: a small frozen dataclass of plain numbers, saved in checkpoints. None for
        most algorithms."""
        return None

    def next_state(self, state: Any, experience: Any) -> Any:
        """Return the state after this experience was used, or after the rows of an update were evaluated."""
        return state

    def to_batch(self, experience: Any, state: Any = None) -> Batch:
        """Return the batch that the loss reads."""
        return experience

    def step_metrics(self, experience: Experience, batch: Batch) -> Metrics:
        """For algorithms that sample: return metrics of a whole step, in addition to the metrics of the loss."""
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """Compute all that couples the rows of an optimizer step, without gradient, before the first backward pass."""
        return batch

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Return the scalar loss of these rows, divided by the totals of the whole step, and their metrics."""
        raise NotImplementedError


def require_unit_interval(y: Tensor, what: str) -> None:
    """Refuse targets of a cross-entropy outside [0, 1], for which it has no lower bound. On a GPU nothing is checked,
    because each micro-batch would wait for it; a run checks the rows when it reads them."""
    if y.device.type == "cpu" and not ((y >= 0) & (y <= 1)).all():
        raise ConfigError(
            given=f"{what} from {y.min():g} to {y.max():g}",
            allowed="numbers from 0 to 1, as the loss is their cross-entropy",
            fix="Divide them by the largest possible one.",
        )


def require_whole_update(batch: Batch, totals: Totals, missing: str) -> None:
    """Refuse a part of an update whose rows depend on each other: every split would give other numbers."""
    in_loss = int(batch.completion_mask_BT.sum())
    if in_loss == totals.tokens:
        return
    rejected = 0
    if batch.correction_BT is not None:
        rejected = int(((batch.correction_BT == 0) & ~batch.completion_mask_BT).sum())
    if rejected and in_loss + rejected == totals.tokens:
        raise ConfigError(
            given=f"totals that count {totals.tokens} tokens, but the correction rejects {rejected} of them and takes "
            "them out of the denominator",
            allowed="totals of the batch that algorithm.prepare returns",
            fix=f"Call batch = algorithm.prepare(batch) with {missing}, then count_totals(batch), then the loss.",
        )
    raise ConfigError(
        given="some rows of an update whose rows depend on each other, without the quantities computed over all rows",
        allowed="the whole update, or a batch from algorithm.to_batch and algorithm.prepare",
        fix=f"Call algorithm.prepare(batch) with {missing} before the batch is split.",
    )
