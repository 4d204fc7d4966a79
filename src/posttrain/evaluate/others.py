"""Other prompts: does the model still answer unrelated prompts as it did before training?

A run that learns one task well can spoil the model for everything else: it says "Yes" to "What is the capital of
France?". A loss on running text hardly shows this, because the text itself is given. So the model answers prompts that
are unrelated to the training, greedily, before and after it. The measures:

    drift        (log p_before(y) - log p_after(y)) / tokens, y the answer before training: nats per token.
                 An estimate of the KL from the model before to the model after, at its own most likely answers
    unchanged    share of the prompts that are answered word for word as before
    the rest     repetition, same, ended and length of the answers (see `writing`)

Both sets of answers are stored, so that a report can show them side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.config import DataConfig
from posttrain.data.prompts import Renderer, prompt_form, render_prompts
from posttrain.data.read import read_rows
from posttrain.evaluate.forgetting import read_texts, row_logprobs
from posttrain.evaluate.measure import Measure
from posttrain.evaluate.row_scores import RowScores, of_baseline
from posttrain.evaluate.writing import (
    MOST_PROMPT_TOKENS,
    Written,
    longest_answer,
    writing_changes,
    writing_measures,
)
from posttrain.files import Damaged, read_sealed_json, write_sealed
from posttrain.functional.intervals import ratio_interval
from posttrain.types import Prompt

if TYPE_CHECKING:
    from posttrain.config import EvaluationConfig, RunConfig
    from posttrain.models.load import LoadedModel

PROMPTS = 64
"""Number of prompts of the file that the model answers."""

Answers = Sequence[Mapping[str, Any]]
"""Answers, each as {index, prompt, text, ids, ended}."""


def read_other_texts(settings: EvaluationConfig) -> None:
    """Check that the texts and prompts for measuring forgetting can be read. Raises `DataError`."""
    if settings.forgetting is not None:
        read_texts(settings.forgetting)
    if settings.other_prompts is not None:
        prompt_form(read_rows(settings.other_prompts, max_rows=PROMPTS), DataConfig(train=settings.other_prompts))


def other_prompts(config: RunConfig, loaded: LoadedModel) -> Sequence[Prompt]:
    """Return the first prompts of `evaluation.other_prompts`, without the run's system prompt. Raises `DataError`."""
    assert config.evaluation.other_prompts is not None
    data = DataConfig(train=config.evaluation.other_prompts, chat=config.data.chat)
    rows = read_rows(config.evaluation.other_prompts, max_rows=PROMPTS, seed=config.seed)
    renderer = Renderer.of(data, loaded.tokenizer, config.model.chat_template_kwargs)
    room = (loaded.context_length or 2 * MOST_PROMPT_TOKENS) - longest_answer(loaded)
    what = "evaluation.other_prompts"
    found = render_prompts(rows, data, renderer, max_prompt_length=min(MOST_PROMPT_TOKENS, room), what=what)
    return found.usable


def answer_logprobs(config: RunConfig, loaded: LoadedModel, prompts: Sequence[Prompt], answers: Answers) -> RowScores:
    """Return the log-probabilities of the answers to these prompts under the current weights, at temperature 1."""
    rows = [(prompt.ids, answer["ids"]) for prompt, answer in zip(prompts, answers, strict=True)]
    with loaded.compute.scope():
        return row_logprobs(
            loaded.model,
            rows,
            compute_dtype=loaded.compute_dtype,
            chunk_tokens=config.train.logprob_chunk_tokens,
        )


class Answered(NamedTuple):
    """The answers of one state of the weights, and their log-probabilities under the same weights."""

    answers: Answers
    scores: RowScores

    def write(self, folder: Path, name: str) -> None:
        content = {"answers": list(self.answers), "scores": self.scores._asdict()}
        write_sealed(folder / f"{name}-others.json", json.dumps(content, ensure_ascii=False))

    @property
    def written(self) -> Written:
        return Written(answers=self.answers, text=None, text_bytes=0)

    def measures(self, confidence: float) -> dict[str, Any]:
        return writing_measures(self.written, confidence)

    @staticmethod
    def read(folder: Path, name: str = "baseline") -> Answered:
        """Read the answers of `write`. Raises `Damaged` if the file's checksum or content is wrong."""
        found = read_sealed_json(folder, f"{name}-others.json")
        if not isinstance(found, dict) or found.keys() != {"answers", "scores"}:
            raise Damaged(f"{name}-others.json holds no answers")
        return Answered(found["answers"], RowScores(**found["scores"]))


class WithOtherPrompts:
    """A measure extended by the model's answers to other prompts, before and after training."""

    def __init__(
        self,
        measure: Measure,
        prompts: Sequence[Prompt],
        answer: Callable[[Sequence[Prompt]], Answers],
        score: Callable[[Sequence[Prompt], Answers], RowScores],
        *,
        max_drift: float,
        confidence: float,
    ) -> None:
        self.measure, self.prompts, self.answer, self.score = measure, prompts, answer, score
        self.max_drift, self.confidence = max_drift, confidence

    def __call__(self, folder: Path, name: str) -> dict[str, Any]:
        measured = self.measure(folder, name)
        if name.startswith("step"):
            return measured
        answers = self.answer(self.prompts)
        now = Answered(answers, self.score(self.prompts, answers))
        now.write(folder, name)
        found = {"prompts": len(answers), "max_drift": self.max_drift, name: now.measures(self.confidence)}
        before, lost = of_baseline(lambda: Answered.read(folder)) if name == "trained" else (None, {})
        if before is not None:
            found |= compared(before, now, self.score(self.prompts, before.answers), self.confidence)
        return {**measured, "others": {**found, **lost}}


def compared(before: Answered, now: Answered, then: RowScores, confidence: float) -> dict[str, Any]:
    """Compare the answers before and after training. `then` has the new weights' scores of the old answers."""
    lost = [-moved for moved in then - before.scores]
    pairs = zip(before.answers, now.answers, strict=True)
    return {
        "baseline": before.measures(confidence),
        "difference": writing_changes(before.written, now.written, confidence),
        "drift": ratio_interval(lost, then.tokens, confidence)._asdict(),
        "unchanged": sum(old["text"].strip() == new["text"].strip() for old, new in pairs) / len(now.answers),
    }
