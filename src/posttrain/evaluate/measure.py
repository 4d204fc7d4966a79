"""The measures of a run before, during and after training, for every kind of learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from posttrain.evaluate.evaluation import Evaluation, evaluation_json
from posttrain.evaluate.heldout import evaluate_sampler
from posttrain.evaluate.row_scores import RowScores, first, of_baseline, score_rows
from posttrain.files import Damaged, read_sealed_json, write_durably, write_sealed
from posttrain.functional.intervals import Interval, ratio_interval
from posttrain.types import Batch, Example, Outputs, Prompt

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.engines.sampler import Answers
    from posttrain.rewards import RewardSet

EVALUATION_SEED = 1_000_000_007
"""Offset to the run's seed, so that evaluations and training never use the same random stream."""


class Measure(Protocol):
    """`measure(folder, name)` measures the current weights and returns entries for evaluation.json.

    The result has the measurement under its name, and comparisons with the baseline. The answers are stored in
    `folder`, so that a resumed run can still compare. The result is empty if there is nothing to measure with.
    """

    def __call__(self, folder: Path, name: str) -> dict[str, Any]: ...


class HeldOutAnswers:
    """Greedy and sampled answers to the held-out prompts, scored by the rewards and by the independent check.

    If training has no reward, the check takes its place. Without either there is nothing to measure.
    """

    def __init__(
        self,
        config: RunConfig,
        sampler: Answers,
        prompts: Sequence[Prompt],
        rewards: RewardSet | None,
        check: RewardSet | None,
    ) -> None:
        """`check` is the independent check, which training never sees."""
        self.config, self.sampler, self.prompts = config, sampler, prompts
        self.rewards, self.check = (rewards, check) if rewards is not None else (check, None)

    def __call__(self, folder: Path, name: str) -> dict[str, Any]:
        if not self.prompts or self.rewards is None:
            return {}
        settings = self.config.evaluation
        evaluation = evaluate_sampler(
            self.sampler,
            self.prompts[: settings.prompts],
            self.rewards,
            sampling=self.config.sampling,
            samples=settings.samples,
            temperature=settings.temperature,
            max_completion_length=settings.max_completion_length,
            confidence=settings.confidence,
            seed=self.config.seed + EVALUATION_SEED,
            check=self.check,
            max_unscored=self.config.guards.max_unscored,
        )
        file = f"{name.replace(' ', '-')}.jsonl"
        evaluation.write_answers(folder / file, write_sealed)
        evaluation.write_judgements(folder.parent / "judgements" / file, write_durably)
        if name != "trained":
            return {name: evaluation.to_json()}
        before, lost = of_baseline(lambda: Evaluation.from_json(read_measured(folder.parent)["baseline"]))
        answers, lost_answers = of_baseline(lambda: Evaluation.read_answers(folder / "baseline.jsonl"))
        if before is not None and answers is not None:
            before = replace(before, records=answers)
        return {**evaluation_json(before, evaluation), **lost_answers, **lost}


class HeldOutLoss:
    """Negative log-likelihood of the held-out answers, for supervised training: the mean over the tokens of all rows.

    Intervals are for a ratio of sums with the row as unit, because the tokens of an answer are not independent.
    """

    def __init__(
        self, config: RunConfig, forward: Callable[[Batch], Outputs], examples: Sequence[Example], pad_id: int
    ) -> None:
        self.config, self.forward, self.pad_id = config, forward, pad_id
        self.examples = first(examples, config.evaluation.prompts)

    def __call__(self, folder: Path, name: str) -> dict[str, Any]:
        if not self.examples:
            return {}
        budget, confidence = self.config.train.microbatch_tokens, self.config.evaluation.confidence
        scores = score_rows(self.forward, self.examples, pad_id=self.pad_id, tokens_per_microbatch=budget)
        scores.write(folder, name)
        measured = {name: loss_measures(scores, confidence)}
        if name != "trained":
            return measured
        before, lost = of_baseline(lambda: RowScores.read(folder))
        if before is None:
            return {**measured, **lost}
        change = ratio_interval([-moved for moved in scores - before], scores.tokens, confidence)
        return {**measured, "difference": {"loss": change._asdict()}}


def read_measured(run: Path) -> Mapping[str, Any]:
    """Read evaluation.json. Raises `Damaged` if its checksum does not match."""
    found = read_sealed_json(run, "evaluation.json")
    if not isinstance(found, dict):
        raise Damaged("evaluation.json is not a JSON object")
    return found


def loss_measures(scores: RowScores, confidence: float) -> dict[str, Any]:
    """Return the loss per token, its exp (perplexity), and how often the right token was the most likely one."""
    loss = ratio_interval([-total for total in scores.logprobs], scores.tokens, confidence, bounds=(0.0, math.inf))
    measured = {
        "prompts": len(scores.tokens),
        "tokens": sum(scores.tokens),
        "confidence": confidence,
        "loss": loss._asdict(),
        "perplexity": Interval(exp(loss.mean), exp(loss.low), exp(loss.high), loss.n)._asdict(),
    }
    if scores.top1 is not None:
        right = ratio_interval(scores.top1, scores.tokens, confidence, bounds=(0.0, 1.0))
        measured["token_accuracy"] = right._asdict()
    return measured


def exp(value: float) -> float:
    """Return e to the power of the value; infinity instead of an OverflowError."""
    return math.exp(value) if value < 700 else math.inf


class WithForgetting:
    """A measure extended by the loss on a reference text before and after training, to detect forgetting."""

    def __init__(self, measure: Measure, reference_loss: Callable[[], float]) -> None:
        self.measure, self.reference_loss = measure, reference_loss

    def __call__(self, folder: Path, name: str) -> dict[str, Any]:
        measured = self.measure(folder, name)
        if name.startswith("step"):
            return measured
        before = (of_baseline(lambda: read_measured(folder.parent)["forgetting"])[0] or {}) if name == "trained" else {}
        return {**measured, "forgetting": {**before, f"{name}_loss": self.reference_loss()}}
