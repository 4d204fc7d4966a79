"""Steps whose completions are sampled elsewhere in the meantime: the driver of the engines supplies the groups.

The experience of a step is assembled as in synchronous training. Tokens that are older than `train.max_staleness` are
masked and serve as context only. Their group is still trained, and its rewards count in full.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.config import RunConfig
from posttrain.experience.driver import Batch, Driver
from posttrain.experience.feed import PromptFeed, StepData, sampled_step
from posttrain.experience.generate import Generated
from posttrain.experience.group import Group
from posttrain.experience.selection import DynamicallySelected
from posttrain.types import Max, Mean, Metrics, Prompt

TOO_MANY_STALE = 0.01
"""Share of masked tokens above which a warning names the setting to change."""


class AsynchronousFeed(PromptFeed):
    """A feed whose sampling goes on between two calls. Implements `Feed`."""

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[Prompt],
        driver: Driver,
        *,
        pad_id: int,
        weights: Sequence[float] | None,
        publish: Callable[[int], Metrics],
        say: Callable[[str], None],
        replaces: bool = False,
        context_length: int | None = None,
    ) -> None:
        """`weights` are the rewards' weights, None if nothing is learned from rewards. `publish` publishes the weights
        of a version, and `say` warns the user. `replaces`: whether groups without signal are replaced."""
        super().__init__(config, prompts, pad_id=pad_id, context_length=context_length)
        self.driver, self.weights, self.publish, self.say = driver, weights, publish, say
        self.max_lag, self.replaces = config.train.max_lag, replaces
        self._told = False

    def take(self, step: int, version: int) -> StepData:
        if not self.driver.has_weights:
            self.publish(version)
        batch = self.driver.batch(version)
        data = sampled_step(
            batch.groups,
            version=version,
            pad_id=self.pad_id,
            weights=self.weights,
            max_lag=self.max_lag,
            discarded=batch.voided,
            greedy=batch.greedy,
        )
        metrics = data.metrics | queue_metrics(batch) | age_metrics(batch.groups, version, self.max_lag)
        if self.replaces:
            generated = Generated(groups=[*batch.groups, *batch.voided])
            metrics |= DynamicallySelected(generated=generated, places=range(len(batch.groups))).metrics()
        if float(metrics["staleness/masked"]) > TOO_MANY_STALE and not self._told:
            self._told, train = True, self.config.train
            self.say(
                f"step {step}: {float(metrics['staleness/masked']):.1%} of the sampled tokens are more than "
                f"{self.max_lag} versions old and are not trained; raise train.max_staleness = "
                f"{train.max_staleness}, or lower train.run_ahead = {train.run_ahead}. staleness/masked shows the "
                "share of later steps"
            )
        in_tools = {} if batch.in_tools is None else {"time/in_tools": batch.in_tools}
        return replace(data, metrics=metrics, seconds={"time/wait_for_groups": batch.waited, **in_tools})

    def describe(self) -> str:
        train = self.config.train
        engines = f"{len(self.driver.engines)} engine{'s' * (len(self.driver.engines) > 1)}"
        auto = " at first" * (train.run_ahead == "auto")
        return f"{super().describe()}, sampled by {engines}, {train.lead} step{'s' * (train.lead != 1)} ahead{auto}"

    def state(self) -> dict[str, Any]:
        return {"engines": self.driver.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the engines' state. The checkpoint of a synchronous run has none."""
        if "engines" in state:
            self.driver.load_state(state["engines"])


def queue_metrics(batch: Batch) -> Metrics:
    """`queue/in_flight`: groups being sampled or scored when the step begins; `queue/waiting`: scored groups that wait
    for a later step; `queue/engines_idle`: share of the engines' time since the last step in which they sampled no
    token; `queue/gave_back_gib`: measured memory of a shared GPU that engines gave back for the step.
    """
    gave_back: Metrics = {"queue/gave_back_gib": Mean(batch.gave_back / 2**30, 1)} if batch.gave_back else {}
    return gave_back | {
        "queue/in_flight": Mean(batch.in_flight, 1),
        "queue/waiting": Mean(batch.queued, 1),
        "queue/engines_idle": Mean(batch.engines_idle, 1),
    }


def age_metrics(groups: Sequence[Group], version: int, max_lag: int) -> Metrics:
    """`staleness/p95`: 95th percentile over the sampled tokens; `staleness/masked`: share of tokens too old to train;
    `completions/trained_length`: mean number of trained tokens per completion."""
    lags = sorted(version - drawn for group in groups for drawn in group.versions)
    if not lags:
        return {"staleness/masked": Mean(0, 1)}
    masked = sum(lag > max_lag for lag in lags)
    rows = sum(len(group.completions) for group in groups)
    p95 = statistics.quantiles(lags, n=20, method="inclusive")[-1] if len(lags) > 1 else lags[0]
    return {
        "staleness/p95": Max(float(p95)),
        "staleness/masked": Mean(masked, len(lags)),
        "completions/trained_length": Mean(len(lags) - masked, rows),
    }
