"""Render rows as answers with labelled steps: a prompt, steps, and a label for each step.

Prompt, steps and separators are tokenised separately. So a step has the same ids in training and in an answer of a
model that is cut at its separators. A step ends with the last token of its separator; its score is read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posttrain.data.dropped import Dropped, Rendered, Unusable, refuse_too_many
from posttrain.data.forms import detect
from posttrain.data.limits import MOST_CHARACTERS, refuse_long
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.errors import ConfigError
from posttrain.types import Example, StepExample


@dataclass(frozen=True, kw_only=True)
class StepSet(Rendered[StepExample]):
    """The usable answers, and the dropped rows."""

    cut: int = 0
    """Number of labelled steps of the usable answers that are beyond the context length. They are not trained."""
    divided: int = 0
    """Number of steps that contain the separator. If the trained model is used as a reward, each counts as several."""

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about the steps."""
        steps, notes = sum(len(row.labels) for row in self.rows), []
        if self.cut:
            notes.append(f"{self.cut} of {steps + self.cut} steps end beyond the context and are not trained")
        if self.divided:
            notes.append(
                f"{self.divided} of {steps + self.cut} steps contain the separator: used as a reward, the model "
                "will read each of them as several steps; choose another algorithm.separator"
            )
        return notes


class Solution(NamedTuple):
    """The ids of a prompt followed by steps, and the position of the last token of each step."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]


def render_steps(
    rows: Sequence[Row], renderer: Renderer, *, separator: str, max_length: int, max_dropped: float, what: str
) -> StepSet:
    """Render each row as a `StepExample`, or count it as dropped, with the reason. Raises `DataError` for the same
    reasons as `render_pairs`."""
    form, usable, dropped, cut, divided = detect(rows, "steps"), [], [], 0, 0
    for index, row in enumerate(rows):
        values = form.read(row, chat=renderer.chat)
        found = values if isinstance(values, Dropped) else _render(values, index, row, renderer, separator, max_length)
        if isinstance(values, Dropped) or isinstance(found, Dropped):
            dropped.append(found)
            continue
        usable.append(found)
        cut += sum(label is not None for label in values["labels"]) - len(found.labels)
        divided += sum(separator in step.removesuffix(separator) for step in values["steps"])
    refuse_too_many(dropped, len(rows), max_dropped, what)
    kept = {"rows": tuple(usable), "dropped": tuple(dropped), "source": rows}
    return StepSet(**kept, form="steps and their labels", cut=cut, divided=divided)


def render_solution(
    prompt: str | Sequence[dict[str, Any]], steps: Sequence[str], renderer: Renderer, separator: str
) -> Solution:
    """Render a prompt and steps as a model that scores steps reads them."""
    messages = renderer.messages(prompt)
    ids = list(renderer.ids(renderer.text(prompt), is_chat=messages is not None))
    closing, ends = separator_ids(renderer, separator), []
    for step in steps:
        ids += renderer.ids(step.removesuffix(separator), is_chat=True)
        ids += closing
        ends.append(len(ids) - 1)
    return Solution(tuple(ids), tuple(ends))


def separator_ids(renderer: Renderer, separator: str) -> list[int]:
    ids = renderer.tokenizer(separator, add_special_tokens=False).input_ids
    if not ids:
        raise ConfigError(
            given=f"separator = {separator!r}, for which this tokenizer has no token",
            allowed="a text of at least one token",
            fix=r'Set algorithm.separator = "\n\n", for example.',
        )
    return list(ids)


def split_steps(text: str, separator: str) -> list[str]:
    """The steps of an answer, without their separators. Blank parts are left out.

    >>> split_steps("Add 1.\\n\\nSo 3.", "\\n")
    ['Add 1.', 'So 3.']
    """
    return [part for part in text.split(separator) if part.strip()]


def _render(
    values: dict[str, Any], index: int, row: Row, renderer: Renderer, separator: str, max_length: int
) -> StepExample | Dropped:
    try:
        refuse_long((values["prompt"], values["steps"][:1]), max_length, renderer.tokenizer)
        if sum(map(len, values["steps"])) > MOST_CHARACTERS:
            raise Unusable(f"more than {MOST_CHARACTERS:,} characters")
        solution = render_solution(values["prompt"], values["steps"], renderer, separator)
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    steps = zip(solution.ends, values["labels"], strict=True)
    known = [(end, float(label)) for end, label in steps if label is not None and end < max_length]
    if not known:
        return Dropped(row.origin, f"no labelled step within {max_length} tokens")
    ends = [end for end, _ in known]
    ids, last = solution.ids[: ends[-1] + 1], set(ends)
    return StepExample(
        index=index,
        example=Example(index=index, input_ids=ids, completion_mask=tuple(place in last for place in range(len(ids)))),
        labels=tuple(label for _, label in known),
    )
