"""One reader for each layout of columns. It turns the values of a row into the canonical values of its kind.

The table in forms.py assigns readers to columns. A reader raises `Unusable` with the reason.

The functions for cells return the value of a column in a required form, or raise `Unusable`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.data.columns import better_side, is_tie
from posttrain.data.dropped import Unusable, a_type
from posttrain.data.messages import (
    Messages,
    Text,
    as_dialogue,
    as_messages,
    as_tools,
    implicit_dialogue,
    implicit_prompt,
    is_dialogue,
    joined,
    messages_in,
    with_system,
)

Values = Mapping[str, Any]
"""The columns of a row, or the canonical values that a reader returns."""


def cell(values: Values, column: str) -> Any:
    """The value of a column. Raises `Unusable` if it is missing."""
    if values.get(column) is None:
        raise Unusable(f"no value in column {column!r}")
    return values[column]


def conversation(values: Values, column: str, *, system: Any = None) -> Messages:
    try:
        return as_messages(cell(values, column), system=system)
    except Unusable as reason:
        raise reason if "no value" in str(reason) else Unusable(f"{column}: {reason}") from None


def text(values: Values, column: str) -> str:
    if not isinstance(cell(values, column), str):
        raise Unusable(f"{column}: {a_type(values[column])}, not text")
    return values[column]


def text_or_messages(values: Values, column: str) -> Text:
    """Text, or messages, which may be JSON text."""
    value = cell(values, column)
    try:
        is_text = isinstance(value, str) and messages_in(value) is None
    except Unusable as reason:
        raise Unusable(f"{column}: {reason}") from None
    return value if is_text else conversation(values, column)


def prompt_cell(values: Values, column: str) -> Text:
    value = text_or_messages(values, column)
    if isinstance(value, str) and not value.strip():
        raise Unusable("empty prompt")
    return value


def answer_cell(values: Values, column: str) -> Text:
    """An answer: text, one message of the assistant, or a conversation that ends with one."""
    value = text_or_messages(values, column)
    if not isinstance(value, str) and value[-1]["role"] != "assistant":
        raise Unusable(f"{column}: messages that do not end with an assistant turn")
    return value


def answer_cells(values: Values, chosen: str = "chosen", rejected: str = "rejected") -> tuple[Text, Text]:
    return answer_cell(values, chosen), answer_cell(values, rejected)


def not_empty(answer: Any) -> Any:
    """The answer, text or messages, if it says something."""
    if not answer or (isinstance(answer, str) and not answer.strip()):
        raise Unusable("an empty answer")
    return answer


def with_tools(found: dict[str, Any], values: Values) -> dict[str, Any]:
    tools = as_tools(values.get("tools"))
    return found if tools is None else found | {"tools": tools}


def number(values: Values, column: str) -> float:
    value = cell(values, column)
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise Unusable(f"{column} is not a finite number")
    return found


NO_LABEL = "is neither true nor false"
"""The end of the reason for a row with another label, such as -1."""


def boolean(values: Values, column: str) -> bool:
    """A truth value: true or false, 1 or 0, or the same as text, as in CSV."""
    value = cell(values, column)
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
    if found is None or isinstance(value, float):
        raise Unusable(f"{column} {NO_LABEL}")
    return found


# --- questions -------------------------------------------------------------------------------------------------------


def with_input(instruction: str, given: Any) -> str:
    """Alpaca's columns instruction and input as one text.

    >>> with_input("Add.", "1 2"), with_input("Sing.", "")
    ('Add.\\n\\n1 2', 'Sing.')
    """
    return f"{instruction}\n\n{given}" if given else instruction


def asked(values: Values, column: str = "instruction") -> Text:
    """The question as text, or as messages if the row has a system prompt or a history of earlier turns (Alpaca)."""
    question = with_input(text(values, column), values.get("input"))
    if not question.strip():
        raise Unusable("empty prompt")
    turns: Messages = []
    history = values.get("history") or ()
    if not isinstance(history, Sequence):
        raise Unusable("history: not pairs of question and answer")
    for pair in history:
        if not isinstance(pair, Sequence) or len(pair) != 2 or not all(isinstance(said, str) for said in pair):
            raise Unusable("history: not pairs of question and answer")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    messages = with_system([*turns, {"role": "user", "content": question}], values.get("system"))
    return question if len(messages) == 1 else as_messages(messages)


# --- examples --------------------------------------------------------------------------------------------------------


def read_messages(values: Values, column: str = "messages") -> dict[str, Any]:
    messages = conversation(values, column, system=values.get("system") if column == "conversations" else None)
    if not any(message["role"] == "assistant" for message in messages):
        raise Unusable(f"{column} without an assistant turn")
    return with_tools({"messages": messages}, values)


def read_completion(values: Values, prompt: str = "prompt", completion: str = "completion") -> dict[str, Any]:
    """Read a prompt and a completion. The columns may have other names; an instruction may have an input."""
    question = asked(values) if prompt == "instruction" else prompt_cell(values, prompt)
    answer = not_empty(text_or_messages(values, completion))
    if not isinstance(answer, str) and not any(message["role"] == "assistant" for message in answer):
        raise Unusable(f"{completion} without an assistant turn")
    return with_tools({"prompt": question, "completion": answer}, values)


def read_response(values: Values, prompt: str) -> dict[str, Any]:
    return read_completion(values, prompt, "response")


def read_alpaca(values: Values) -> dict[str, Any]:
    """Read a row of Alpaca. With a history it is a conversation, and data.train_on says which answers are trained."""
    question, output = asked(values), not_empty(text(values, "output"))
    if values.get("history"):
        return with_tools({"messages": as_messages([*question, {"role": "assistant", "content": output}])}, values)
    return with_tools({"prompt": question, "completion": output}, values)


def read_instances(values: Values) -> dict[str, Any]:
    """Read a seed task of Self-Instruct: an instruction with a list of inputs and outputs."""
    instances = cell(values, "instances")
    if not isinstance(instances, list) or len(instances) != 1 or not isinstance(instances[0], dict):
        raise Unusable("instances: not exactly one input with its output")
    return read_alpaca({**values, **instances[0]})


def read_text(values: Values) -> dict[str, Any]:
    if not text(values, "text").strip():
        raise Unusable("empty text")
    return {"text": values["text"]}


# --- pairs -----------------------------------------------------------------------------------------------------------


def read_pair(values: Values) -> dict[str, Any]:
    """Read a prompt and two answers, as text or messages. Without a prompt, the answers' common beginning serves as
    one."""
    prompt = None if values.get("prompt") is None else prompt_cell(values, "prompt")
    return preference(prompt, answer_cells(values), values)


def read_asked_pair(values: Values, column: str = "instruction") -> dict[str, Any]:
    return preference(asked(values, column), answer_cells(values), values)


def read_conversation_pair(values: Values) -> dict[str, Any]:
    prompt = conversation(values, "conversations", system=values.get("system"))
    return preference(prompt, answer_cells(values), values)


def read_openai_pair(values: Values) -> dict[str, Any]:
    given = cell(values, "input")
    if not isinstance(given, dict):
        raise Unusable(f"input: {a_type(given)}, not an object with messages")
    answers = answer_cells(values, "preferred_output", "non_preferred_output")
    return preference(conversation(given, "messages"), answers, {**values, "tools": given.get("tools")})


def read_matching_pair(values: Values) -> dict[str, Any]:
    """Read a model-written evaluation. The answer that shows the behaviour is the chosen one."""
    answers = answer_cells(values, "answer_matching_behavior", "answer_not_matching_behavior")
    return preference(prompt_cell(values, "question"), answers, values)


def read_compared(values: Values, prompt: str, sides: tuple[str, str], verdict: str) -> dict[str, Any]:
    """Read two answers and a column that says which one is better."""
    said = cell(values, verdict)
    if is_tie(said):
        raise Unusable("a tie")
    better = better_side(said, sides)
    if better is None:
        raise Unusable(f"{verdict} names neither of the answers")
    question = asked(values) if prompt == "instruction" else prompt_cell(values, prompt)
    return preference(question, answer_cells(values, sides[better], sides[1 - better]), values)


def read_dialogue_pair(values: Values, *, chat: bool) -> dict[str, Any]:
    """Read HH-RLHF's pairs of whole conversations as text. With `chat` they become messages."""
    chosen, rejected = text(values, "chosen"), text(values, "rejected")
    if chosen.strip() == rejected.strip():
        raise Unusable("chosen and rejected are the same")
    if not (is_dialogue(chosen) and is_dialogue(rejected)):
        raise Unusable("chosen and rejected do not both begin with Human:")
    if not chat:
        prompt, *answers = implicit_dialogue(chosen, rejected)
        return preference(prompt, (answers[0], answers[1]), values)
    sides = {"chosen": as_dialogue(chosen), "rejected": as_dialogue(rejected)}
    if any(side[-1]["role"] != "assistant" for side in sides.values()):
        raise Unusable("an empty answer")
    return preference(None, answer_cells(sides), values)


def preference(prompt: Text | None, answers: tuple[Text, Text], values: Values) -> dict[str, Any]:
    """The canonical values of a pair; `answers` are (chosen, rejected). Raises `Unusable` if these do not compare."""
    chosen, rejected = answers
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise Unusable("one answer is text, the other messages")
    if chosen == rejected:
        raise Unusable("chosen and rejected are the same")
    if prompt is None or _begins_before(chosen) or _begins_before(rejected):
        given = prompt
        prompt, chosen, rejected = implicit_prompt(chosen, rejected)
        if given and prompt and not isinstance(prompt, str) and not isinstance(given, str):
            prompt = joined(given, prompt)
    if not prompt:
        raise Unusable("no prompt, and chosen and rejected do not begin alike")
    for answer in (chosen, rejected):
        not_empty(answer)
    found: dict[str, Any] = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    margin = margin_of(values)
    return with_tools(found | ({} if margin is None else {"margin": margin}), values)


def _begins_before(answer: Text) -> bool:
    """Whether the messages of an answer begin with earlier turns."""
    return not isinstance(answer, str) and answer[0]["role"] != "assistant"


def margin_of(values: Values) -> float | None:
    """By how much the chosen answer is better: the column margin, or else the difference of the scores, or None."""
    if values.get("margin") is not None:
        return number(values, "margin")
    if values.get("score_chosen") is None or values.get("score_rejected") is None:
        return None
    return number(values, "score_chosen") - number(values, "score_rejected")


# --- labels, ratings and steps ---------------------------------------------------------------------------------------


def read_label(values: Values, completion: str = "completion") -> dict[str, Any]:
    found = {"prompt": prompt_cell(values, "prompt"), "completion": _judged(values, completion)}
    return with_tools(found | {"label": boolean(values, "label")}, values)


def read_message_label(values: Values, column: str, label: str) -> dict[str, Any]:
    """Read a conversation whose last turn has a label."""
    return with_tools(_last_turn(values, column) | {"label": boolean(values, label)}, values)


def read_alpaca_label(values: Values, label: str) -> dict[str, Any]:
    found = {"prompt": asked(values), "completion": _judged(values, "output")}
    return with_tools(found | {"label": boolean(values, label)}, values)


def read_rating(values: Values, completion: str = "completion") -> dict[str, Any]:
    found = {"prompt": prompt_cell(values, "prompt"), "completion": _judged(values, completion)}
    return with_tools(found | {"score": number(values, "score")}, values)


def read_message_rating(values: Values) -> dict[str, Any]:
    return with_tools(_last_turn(values, "messages") | {"score": number(values, "score")}, values)


def _judged(values: Values, column: str = "completion") -> Text:
    return not_empty(answer_cell(values, column))


def _last_turn(values: Values, column: str) -> dict[str, Any]:
    messages = conversation(values, column, system=values.get("system") if column == "conversations" else None)
    if messages[-1]["role"] != "assistant":
        raise Unusable(f"{column}: messages that do not end with an assistant turn")
    if len(messages) == 1:
        raise Unusable(f"{column}: an answer without a question")
    return {"prompt": messages[:-1], "completion": messages[-1:]}


def read_steps(values: Values) -> dict[str, Any]:
    """Read a solution in steps with labels: true, false, a number from 0 (wrong) to 1 (right), or null for none."""
    steps, labels = cell(values, "completions"), cell(values, "labels")
    for column, value in (("completions", steps), ("labels", labels)):
        if not isinstance(value, list):
            raise Unusable(f"{column}: {a_type(value)}, not a list with one entry per step")
    if not steps:
        raise Unusable("no steps")
    if len(steps) != len(labels):
        raise Unusable("completions and labels of different length")
    if not all(isinstance(step, str) and step.strip() for step in steps):
        raise Unusable("a step without text")
    known = [label for label in labels if label is not None]
    if not all(isinstance(label, int | float) and 0 <= label <= 1 for label in known):
        raise Unusable("a label of a step that is neither true, false nor between 0 and 1")
    if not known:
        raise Unusable("no step with a label")
    return {"prompt": prompt_cell(values, "prompt"), "steps": steps, "labels": labels}


# --- prompts ---------------------------------------------------------------------------------------------------------


def read_prompt(values: Values, column: str = "prompt") -> dict[str, Any]:
    prompt = prompt_cell(values, column)
    return _waiting({"prompt": prompt}, column) | _tools_of(prompt, values)


def read_instruction(values: Values) -> dict[str, Any]:
    prompt = asked(values)
    return {"prompt": prompt} | _tools_of(prompt, values)


def read_conversation(values: Values) -> dict[str, Any]:
    prompt = conversation(values, "conversations", system=values.get("system"))
    return _waiting({"prompt": prompt}, "conversations") | _tools_of(prompt, values)


def read_verl(values: Values, column: str = "prompt") -> dict[str, Any]:
    """Read a row of verl, with the gold answer inside `reward_model`."""
    judge = cell(values, "reward_model")
    if not isinstance(judge, dict):
        raise Unusable(f"reward_model: {a_type(judge)}, not an object with ground_truth")
    return read_prompt(values, column) | {"answer": judge.get("ground_truth")}


def _waiting(found: dict[str, Any], column: str) -> dict[str, Any]:
    if not isinstance(found["prompt"], str) and found["prompt"][-1]["role"] == "assistant":
        raise Unusable(f"{column}: messages that end with an assistant turn")
    return found


def _tools_of(prompt: Text, values: Values) -> dict[str, Any]:
    """The tools of a prompt in messages. A text prompt cannot have any; its column `tools` goes to reward functions."""
    return {} if isinstance(prompt, str) else with_tools({}, values)
