"""A model's own answers as examples, for two uses of supervised training:

replay        examples of another kind, beside those of a narrow task: the model is kept as it is elsewhere, because
              on them it has nothing to learn. (A model that learns "Yes" and "No" from a hundred examples alone says
              one of them to everything.)
warm start    answers to the questions of an RL run that its reward accepts (rejection sampling): the model learns
              the form of an answer from what it can do already.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from posttrain.config import DataConfig, ModelConfig
from posttrain.data.dropped import Dropped
from posttrain.data.prompts import prompt_form
from posttrain.data.read import read_rows
from posttrain.errors import DataError
from posttrain.evaluate.api import evaluate
from posttrain.evaluate.evaluation import Record

_FIRST_SENTENCE = re.compile(r"\s*(.{8,}?[.!?])(?:\s|$)")


def own_answers(
    model: str | ModelConfig,
    source: str,
    rewards: Any = None,
    *,
    samples: int = 1,
    at_least: float = 1.0,
    temperature: float = 0.7,
    max_completion_length: int = 256,
    max_rows: int | None = None,
    prompt: str | None = None,
    answer: str | None = None,
    system_prompt: str | None = None,
    first_sentence: bool = False,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows with prompt and completion: of each prompt the best of `samples` answers, where one is good enough.

    Good enough is an answer that ended by itself and has `at_least` this sum of `rewards`; without rewards, any that
    ended. With `first_sentence` that sentence alone is the completion, and an answer that was cut behind it is good,
    too: replay that is cheap, of a model that rambles. Without rewards an answer that another prompt got, too, is kept
    once, because replay should show many answers; with them every prompt keeps its answer. A row has the prompt as the
    data gives it, after the template `prompt`, and no system turn. Raises what `evaluate` raises, and `DataError` when
    no answer is good enough.
    """
    data = DataConfig(train=source, prompt=prompt, answer=answer)
    rows = read_rows(source, max_rows=max_rows, seed=seed)
    form = prompt_form(rows, data)
    found = evaluate(
        model,
        [row.values for row in rows],
        _lenient() if rewards is None else rewards,
        k=samples,
        temperature=temperature,
        max_prompts=len(rows),
        max_completion_length=max_completion_length,
        prompt=prompt,
        answer=answer,
        system_prompt=system_prompt,
        seed=seed,
    )
    kept: dict[str, dict[str, Any]] = {}
    for record in found.records:
        best = _best(record, 1.0 if rewards is None else at_least, first_sentence)
        values = form.read(rows[record.index], chat=True)
        if best is not None and not isinstance(values, Dropped):
            key = best if rewards is None else str(record.index)
            kept.setdefault(key, {"prompt": values["prompt"], "completion": best})
    if not kept:
        raise DataError(
            given=f"none of {len(found.records) * samples} answers ended and got {at_least:g}",
            allowed="at least one",
            fix="Raise --samples or --max-length, or lower --at-least.",
        )
    return list(kept.values())


def _lenient() -> Callable[..., float]:
    """A reward where none is given: every answer is good. A closure, so that it is called in this process: workers
    would first import what this module does."""
    return lambda prompt, completion: 1.0


def _best(record: Record, at_least: float, first_sentence: bool) -> str | None:
    answers: list[tuple[float, str]] = []
    for one in record.samples:
        text = _sentence(one.text, one.truncated) if first_sentence else None if one.truncated else one.text
        if text and text.strip() and one.score is not None and one.score >= at_least:
            answers.append((one.score, text))
    return max(answers, key=lambda scored: scored[0])[1] if answers else None


def _sentence(text: str, truncated: bool) -> str | None:
    """The first sentence; of an answer without an end of a sentence, all of it, unless it was cut.

    >>> _sentence("It is Paris. And", True), _sentence("Paris", False), _sentence("It is", True)
    ('It is Paris.', 'Paris', None)
    """
    found = _FIRST_SENTENCE.match(text)
    return found[1] if found else None if truncated else text
