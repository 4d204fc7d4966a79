"""The declarations of every algorithm, and the questions that the rest of the library asks it.

An algorithm is a frozen record of settings with pure functions: `to_batch` (of what was sampled, or given) and `loss`
(the forward pass and a batch in, a scalar out). The machinery never asks which algorithm runs; it reads `data_kind`,
`min_group_size` and `needs`.
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
    """Base of all algorithms: it declares, and answers the questions that most of them answer alike."""

    key: ClassVar[str]
    card: ClassVar[Card] = FromFile()  # type: ignore[assignment]
    choices: ClassVar[dict[str, str]] = {}  # of the card, where the class computes by them
    metrics: ClassVar[dict[str, str]] = {}
    """Metric -> formula, beside `shared_metrics` and those of every run."""
    data_kind: ClassVar[DataKind]
    min_group_size: ClassVar[int] = 1
    learns_from_rewards: ClassVar[bool] = True
    """For algorithms that sample: False if a teacher, and not a reward, says what is good."""
    reads_token_rewards: ClassVar[bool] = False
    """For algorithms that sample: may single tokens have rewards? Each token then has its own advantage."""
    reads_token_advantages: ClassVar[bool] = False
    """For algorithms that sample: does the loss read an advantage for each token? If not, it reads one for the whole
    completion, and turns cannot have advantages of their own."""
    learns_off_policy: ClassVar[bool] = False
    """For algorithms that sample: is the loss right for another policy's completions, without a ratio?"""
    open_composition: ClassVar[bool] = False
    """Do settings decide which values of others are allowed? Explanations then list all values."""
    shared_sources: ClassVar[dict[str, str]] = {}
    """Sources of the defaults of inherited settings, as `Card.sources`."""
    shared_metrics: ClassVar[dict[str, str]] = {}
    """Formulas of metrics that the base logs, as `Card.metrics`."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    @property
    def group_size_needed(self) -> int:
        """The fewest completions per prompt that these settings can work with."""
        return self.min_group_size

    def require_group(self, experience: Experience, needed: int | None = None) -> None:
        """A single completion has nothing to be compared with: nothing would be learnt (RULE 12)."""
        needed = needed or self.group_size_needed
        if experience.group_size < needed:
            raise ConfigError(
                given=f"group_size = {experience.group_size}, but {self.key} compares completions of the same prompt",
                allowed=f"an integer of at least {needed}",
                fix=f"Set sampling.group_size = {max(8, needed)}, or use algorithm reinforce, which needs no group.",
            )

    @property
    def anchors_at_trainer(self) -> bool:
        """For algorithms that sample: are there ratios centred at old_logprobs? If not, no pass computes them."""
        return False

    def needs_old_pass(self, *, updates: int, dropout: bool) -> bool:
        """Is a pass for `old_logprobs` made before the `updates` of a batch?

        Only from the second update on does the policy differ from the one it started from (RULE 6). With dropout it
        does at once: what the update computes is not what the policy would say. A ratio that is centred elsewhere
        needs no pass.
        """
        differs = updates > 1 or dropout
        return "old_for_advantages" in self.needs or (differs and self.anchors_at_trainer)

    @property
    def correct_from(self) -> float | None:
        """The reward from which on an answer counts as correct; None where nobody asks whether it is."""
        return None

    @property
    def clip_settings(self) -> tuple[str, ...]:
        """The settings that clip a ratio: where none is asked for by default, setting them asks for one."""
        return tuple(name for name in ("clip_low", "clip_high") if name in {field.name for field in fields(self)})

    @property
    def correction_name(self) -> str:
        """The correction for the difference between sampler and trainer; auto if the run has yet to choose one."""
        return "none"

    def with_decided_correction(self, *, exact: bool) -> Self:
        """A correction of auto decided; `exact` says that the sampler computes as the trainer does."""
        return self

    @property
    def auxiliary_coef(self) -> float:
        """Weight of the loss on other data, where `needs` has it."""
        return 0.0

    @property
    def step_reading(self) -> StepReading | None:
        """For algorithms that learn from steps: how a model reads them."""
        return None

    def initial_state(self) -> Any:
        """The state that changes during a run: a small frozen dataclass of plain numbers, saved in checkpoints. None
        for most algorithms."""
        return None

    def next_state(self, state: Any, experience: Any) -> Any:
        """The state after this experience was used, or after the rows of an update were looked at."""
        return state

    def to_batch(self, experience: Any, state: Any = None) -> Batch:
        """What the loss reads."""
        return experience

    def step_metrics(self, experience: Experience, batch: Batch) -> Metrics:
        """For algorithms that sample: metrics of a whole step, beside those of the loss."""
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """Compute, before the first backward and without gradient, whatever couples the rows of an optimizer step."""
        return batch

    def loss(self, outputs: Outputs | Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Scalar loss of these rows, divided by the totals of the whole step, and metrics of these rows."""
        raise NotImplementedError


def require_whole_update(batch: Batch, totals: Totals, missing: str) -> None:
    """Refuse a part of an update where its rows depend on each other: every split would give other numbers."""
    in_loss = int(batch.completion_mask_BT.sum())
    if in_loss == totals.tokens:
        return
    rejected = 0
    if batch.correction_BT is not None:
        rejected = int(((batch.correction_BT == 0) & ~batch.completion_mask_BT).sum())
    if rejected and in_loss + rejected == totals.tokens:
        raise ConfigError(
            given=f"totals that count {totals.tokens} tokens, {rejected} of which the correction rejects and takes out "
            "of the denominator",
            allowed="totals of the batch that algorithm.prepare returns",
            fix=f"Call batch = algorithm.prepare(batch) with {missing}, then count_totals(batch), then the loss.",
        )
    raise ConfigError(
        given="some rows of an update whose rows depend on each other, and nothing that was computed over all",
        allowed="the whole update, or a batch from algorithm.to_batch and algorithm.prepare",
        fix=f"Call algorithm.prepare(batch) with {missing} before the batch is split.",
    )
