"""Hints of `data check`: uses that the columns suggest although a run would read the data differently, and problems of
the chat template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from posttrain.data.columns import spelled, two_answers
from posttrain.data.dropped import Unusable
from posttrain.data.forms import ANSWER_COLUMNS, LOOKED_AT, MEANT, TAKEN_BY, Kind, columns_of, detect
from posttrain.data.masks import Conversation, find_answers
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.stream import StreamedRows
from posttrain.data.survey import Finding
from posttrain.errors import DataError

SHOWN_VALUES = 4
_ANSWER = re.compile(
    r"output|response|answer|completion|reply|generation|target|conversation|summary|ref", re.IGNORECASE
)
_VERDICT = re.compile(r"prefer|winner|better|label|choice", re.IGNORECASE)


def passed_over(rows: Sequence[Row], used: Kind, tried: Mapping[Kind, DataError]) -> list[Finding]:
    """Findings for kinds that the columns suit better than `used`, with the reason why no row can be read that way."""
    return [_passed_over(rows, used, kind, error) for kind, error in tried.items()]


def _passed_over(rows: Sequence[Row], used: Kind, kind: Kind, error: DataError) -> Finding:
    form = detect(rows, kind)
    reason = error.given.removeprefix("the data: ")
    fix = f"{error.fix} Without changes, the data is used for {MEANT[used]}."
    if kind == "labels":
        label = form.needs[-1]
        fix = f"Write true (desirable) or false into {label} for {TAKEN_BY[kind]}; it holds {_values(rows, label)}."
        if used == "examples":
            fix += " Without changes, sft would imitate all of these answers, including the bad ones."
    message = f"the columns {form.name} suit {MEANT[kind]}, but training on them would stop: {reason}"
    return Finding(message=message, fix=fix)


def _values(rows: Iterable[Row], column: str) -> str:
    found = dict.fromkeys(repr(row.values.get(column)) for row in islice(rows, LOOKED_AT))
    return ", ".join([*islice(found, SHOWN_VALUES), *(["…"] if len(found) > SHOWN_VALUES else [])])


def looks_like(rows: Sequence[Row], used: Kind) -> list[Finding]:
    """Findings for columns that look like answers but are not read as answers."""
    if used == "pairs":
        return []
    columns = columns_of(rows)
    if sides := two_answers(columns):
        return [_two_answers(sides, columns)]
    others = [name for name in columns if _ANSWER.search(name) and name not in ANSWER_COLUMNS]
    texts = [name for name in others if any(isinstance(row.values.get(name), str) for row in islice(rows, LOOKED_AT))]
    if used != "prompts" or not texts or set(columns) & set(ANSWER_COLUMNS):
        return []
    message = f"{texts[0]} looks like an answer, but only reward functions would receive it"
    fix = (
        f"Set data.columns = {spelled({'completion': texts[0]})} to imitate it with sft, or data.answer = "
        f"{spelled(texts[0])} if it is the gold answer for rewards."
    )
    return [Finding(message=message, fix=fix)]


def _two_answers(sides: tuple[str, str], columns: Sequence[str]) -> Finding:
    told = next((name for name in columns if _VERDICT.search(name)), None)
    message = f"{sides[0]} and {sides[1]} look like two answers to compare"
    message += f", and {told} like the verdict; they are not read as such" if told else "; they are not read as such"
    fix = (
        f"For {TAKEN_BY['pairs']}, write the better answer to a column chosen, the other one to rejected and the "
        f"question to prompt, or the verdict as {sides[0]}, {sides[1]} or tie."
    )
    return Finding(message=message, fix=fix)


_MEDIA = re.compile(r"(image|video|audio)s?", re.IGNORECASE)


def unseen_media(rows: Sequence[Row]) -> list[Finding]:
    """Findings for columns of pictures, videos or sound with values: training reads text only. Of streamed rows, the
    first ones are looked at."""
    looked = islice(rows, LOOKED_AT) if isinstance(rows, StreamedRows) else rows
    names = {name for name in columns_of(rows) if _MEDIA.fullmatch(name)}
    filled = {name for row in looked for name in names & set(row.values) if row.values[name]}
    fix = "Leave out the rows whose answers need them, or remove the column."
    return [
        Finding(
            message=f"the column {name} holds values that the model does not see: training reads text only", fix=fix
        )
        for name in sorted(filled)
    ]


class TemplateProblem(NamedTuple):
    """A problem of a chat template that affects training."""

    kind: str
    """One of prefix, masks, generation prompt, end of turn and tools."""
    message: str
    fix: str


_TALK = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nTwo."},
    {"role": "user", "content": "Three?"},
    {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFour."},
]
_TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]


def template_problems(
    renderer: Renderer, eos_ids: Collection[int], *, tools: bool = False
) -> tuple[TemplateProblem, ...]:
    """Problems of the chat template, found by rendering a conversation of two questions. `tools`: the data has some."""
    found: list[TemplateProblem] = []
    talk = Conversation(messages=_TALK, trained=(1, 3), renderer=renderer, eos_ids=eos_ids)
    question, answered = _TALK[:1], _TALK[:2]
    if talk.render(question, prompted=True) == talk.render(question):
        fix = "Name a template in model.chat_template that reads add_generation_prompt."
        found.append(TemplateProblem("generation prompt", "nothing tells the model that it is its turn", fix))
    if not talk.render(_TALK[:3], prompted=True).startswith(talk.render(answered)):
        found.append(_prefix_problem(talk))
    whole = talk.render(answered)
    if talk.end_of_turn(whole, whole.rfind("Two."), len(whole)) is None:
        message = (
            "no EOS at the end of an answer: posttrain adds one after the last answer of each row, but none "
            "after the others"
        )
        fix = "Name a template in model.chat_template that ends answers with the EOS."
        found.append(TemplateProblem("end of turn", message, fix))
    if tools and replace(talk, tools=_TOOLS).render(question) == talk.render(question):
        message = "the tools of the data are not shown to the model"
        fix = "Name a template in model.chat_template that writes them."
        found.append(TemplateProblem("tools", message, fix))
    return tuple(found)


def _prefix_problem(talk: Conversation) -> TemplateProblem:
    message = "the template rewrites earlier turns when a turn is added"
    try:
        _, way = find_answers(talk, "a conversation")
    except (DataError, Unusable):
        fix = "Set data.train_on = last, or name a template in model.chat_template that only appends."
        return TemplateProblem("masks", f"{message}; answers before the last cannot be separated from the rest", fix)
    fix = "To train on each answer as it was sampled, set data.train_on = last."
    return TemplateProblem(
        "prefix", f"{message}; answers are found by {way}, and trained as the template rewrites them", fix
    )
