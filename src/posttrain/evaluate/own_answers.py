"""A model's own answers as examples, for two uses of supervised training:

replay        general examples, mixed with those of a narrow task. They keep the model's other behaviour, because
              it has nothing to learn from them. (A model that learns only "Yes" and "No" from a hundred examples gives
              one of the two answers to every prompt.)
warm start    answers to the questions of an RL run that its reward accepts (rejection sampling): the model learns
              the form of an answer from its own right answers.
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
    """Return rows with prompt and completion: for each prompt, the best of `samples` answers, if one is good enough.

    An answer is good enough if it was not cut off and its sum of `rewards` is `at_least` this value; without rewards,
    if it was not cut off. With `first_sentence`, the completion is only the first sentence, and the answer may be cut
    off after it: this makes cheap replay from a model that rambles. Without rewards, an answer to several prompts is
    kept once, because replay should show many answers; with rewards, every prompt keeps its answer. A row has the
    prompt of the data, after the template `prompt`, and no system turn. Raises what `evaluate` raises, and `DataError`
    if no answer is good enough.
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
            fix="Raise --samples or --max-completion-length, or lower --at-least.",
        )
    return list(kept.values())


def _lenient() -> Callable[..., float]:
    """Return a reward that accepts every answer, for use without rewards. It is a closure, so it is called in this
    process: workers would first have to import everything that this module imports."""
    return lambda prompt, completion: 1.0


def _best(record: Record, at_least: float, first_sentence: bool) -> str | None:
    answers: list[tuple[float, str]] = []
    for one in record.samples:
        text = _sentence(one.text, one.truncated) if first_sentence else None if one.truncated else one.text
        if text and text.strip() and one.score is not None and one.score >= at_least:
            answers.append((one.score, text))
    return max(answers, key=lambda scored: scored[0])[1] if answers else None


def _sentence(text: str, truncated: bool) -> str | None:
    """Return the first sentence. If no sentence ends, return the whole answer, or None if it was cut off.

    >>> _sentence("It is Paris. And", True), _sentence("Paris", False), _sentence("It is", True)
    ('It is Paris.', 'Paris', None)
    """
    found = _FIRST_SENTENCE.match(text)
    return found[1] if found else None if truncated else text
