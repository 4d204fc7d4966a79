"""The section `alarms`: what a run watches to see that it learns what was meant, and what it does when it does not.

docs/alarms.md has the formula of each alarm, and how often it cries and how late it comes in simulations.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from posttrain.config.values import Count, Natural, Number, Part, Positive, Share, as_number

Ratio = Annotated[float, Field(gt=1), BeforeValidator(as_number)]


class AlarmConfig(Part):
    """Alarms for rewards that are gamed. Each fires once in a run; null switches one off."""

    enabled: bool = True
    """Watch at all."""
    on_alarm: Literal["warn", "pause", "stop"] = "warn"
    """warn: say so and go on. pause: save a checkpoint and end; `posttrain resume` takes the alarm as seen and goes on.
    stop: end where the alarm fired; a resumed run ends there again."""
    check_sample: Natural = 32
    """Accepted answers of each step that the independent check looks at, after the update. 0: evaluations only."""
    accepted_at: Number | None = None
    """Total reward from which on an answer counts as accepted. null: 1 where rewards are marks from 0 to 1, else what
    the best quarter of the answers got before training."""
    check_accepts_at: Number = 0.5
    """Score of the check from which on it agrees; of several checks each has to."""
    baseline_disagreement: Annotated[float, Field(gt=0, lt=1), BeforeValidator(as_number)] | None = None
    """Share of accepted answers that the check rejects in an honest run. null: as measured before training on the
    held-out answers, at least 1%."""
    disagreement_ratio: Ratio | None = 3.0
    """By which factor the odds of disagreement grow in a run that is gamed (by ten points at most): what the cumulative
    sum is tuned to find."""
    cusum_limit: Positive = 9.0
    """The sum of log-likelihood ratios at which the alarm fires. At 7 one honest run in eight fires in 1000 steps, at 9
    one in fifty."""
    heldout_z: Positive | None = 4.0
    """Standard errors by which the last evaluations are below the best earlier ones."""
    heldout_window: Count = 3
    """Evaluations that are averaged for that."""
    gap: Share | None = 0.1
    """By how much training reward minus held-out score may grow."""
    reference_steps: Count = 5
    """The first steps, which later ones are compared with, and the number of last steps that are averaged for that."""
    length_correlation: Share | None = 0.3
    """By how much the rank correlation of reward and length, among answers to one prompt, may move."""
    length_ratio: Ratio | None = 1.5
    """By which factor answers may become longer while the held-out score does not rise."""
    truncated: Share | None = 0.2
    """Share of truncated answers, where the start had less than half of that."""
    distinct_ratio: Share | None = 0.5
    """To which share of the start the distinct sequences of four tokens in an answer may fall."""
    compression_ratio: Ratio | None = 2.0
    """By which factor answers may become more compressible."""
    template: Share | None = 0.3
    """By how much the share of answers to different prompts with the same first (or last) 30 tokens may grow."""
    entropy_ratio: Share | None = 0.3
    """To which share of the start the entropy may fall while the held-out score does not rise."""
    kl_ratio: Ratio | None = 5.0
    """By which factor the KL to the reference may jump within ten steps."""
    failures: Share | None = 0.02
    """By how much the share of answers may grow that were not scored, timed out, failed or were ambiguous."""
    no_signal: Share | None = 0.8
    """Share of groups whose rewards do not differ, where it is not that the model has learned the task."""
