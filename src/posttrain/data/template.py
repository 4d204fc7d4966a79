"""What a chat template does that training should know before it starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from posttrain.data.dropped import Unusable
from posttrain.data.masks import Conversation, find_answers
from posttrain.data.prompts import Renderer
from posttrain.errors import DataError


class TemplateProblem(NamedTuple):
    """Something about a chat template that training should know."""

    kind: str
    """prefix, masks, generation prompt, end of turn, or tools."""
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
    """What is wrong with the chat template, tried with a conversation of two questions; `tools`: the data has some."""
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
            "no EOS at the end of an answer: one is put behind the last answer of each row, none behind the others"
        )
        fix = "Name a template in model.chat_template that ends answers with the EOS."
        found.append(TemplateProblem("end of turn", message, fix))
    if tools and replace(talk, tools=_TOOLS).render(question) == talk.render(question):
        message = "the tools of the data are not shown to the model"
        fix = "Name a template in model.chat_template that writes them."
        found.append(TemplateProblem("tools", message, fix))
    return tuple(found)


def _prefix_problem(talk: Conversation) -> TemplateProblem:
    message = "earlier turns are rewritten when a turn is added"
    try:
        _, way = find_answers(talk, "a conversation")
    except (DataError, Unusable):
        fix = "Set data.train_on = last, or name a template in model.chat_template that only appends."
        return TemplateProblem("masks", f"{message}; answers before the last cannot be told from the rest", fix)
    fix = "To train each answer as it is sampled, set data.train_on = last."
    return TemplateProblem("prefix", f"{message}; answers are found by {way}, and trained as they are rewritten", fix)
