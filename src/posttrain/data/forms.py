"""The table of all layouts of columns, with the code that detects a layout and reads its rows.

`detect` picks the first form in the table whose columns the data has. `Form.read` then returns the same values for
every layout of a kind:

    prompts    prompt, and the other columns (including answer if there is a gold answer)
    examples   messages | prompt + completion | text
    pairs      prompt, chosen, rejected, and margin if the row says how much better the chosen answer is
    labels     prompt, completion, label (True: desirable)
    ratings    prompt, completion, score
    steps      prompt, steps, labels

and `tools` if the row has some. Prompts and answers are text or chat messages (messages.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from posttrain.data import layouts as read
from posttrain.data.columns import (
    PROMPT_NAMES,
    Names,
    in_template,
    listed,
    other_names,
    renamed,
    spelled,
    two_answers,
    verdict_column,
)
from posttrain.data.dropped import IN_ANOTHER_FORM, Dropped, Unusable
from posttrain.data.limits import refuse_half_characters
from posttrain.data.messages import is_dialogue
from posttrain.data.read import Row
from posttrain.errors import DataError

Kind = Literal["prompts", "examples", "pairs", "labels", "ratings", "steps"]
Reader = Callable[[Mapping[str, Any]], dict[str, Any]]

SCORES = ("margin", "score_chosen", "score_rejected")
ANSWER_COLUMNS = ("answer", "Answer", "solution", "ground_truth", "gold")
LOOKED_AT = 100
"""Number of rows whose content is read if the columns alone do not determine the form."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A layout of columns, and the function that reads its rows."""

    kind: Kind
    needs: tuple[str, ...]
    """Columns that identify the form."""
    may_have: tuple[str, ...] = ()
    """Optional columns, read if they are present."""
    unless: tuple[str, ...] = ()
    """Columns that rule the form out, because they indicate another kind."""
    family: str
    """The library or dataset that uses this layout."""
    reader: Reader
    chat_reader: Reader | None = None
    """Reads text that is a conversation as messages, for a model with a chat template."""
    looks_like: Callable[[Mapping[str, Any]], bool] = lambda values: True
    """Whether the content of a row fits the form."""
    columns: Names = field(default_factory=dict)
    """Our names of columns -> the names in the data, if they differ."""
    answer: str | None = None
    """For prompts: the column of the gold answer, which rewards receive as `answer`."""

    @property
    def name(self) -> str:
        """The columns of the form, as messages show them.

        >>> FORMS[0].name
        'messages'
        """
        return " + ".join(f"{n} ({self.columns[n]})" if self.columns.get(n, n) != n else n for n in self.needs)

    @property
    def found_in(self) -> set[str]:
        """The names in the data of the columns that identify the form."""
        return {self.columns.get(name, name) for name in self.needs}

    @property
    def prompt_column(self) -> str | None:
        """The column whose text is the whole prompt. None if there is no such column, or if others add to it.

        >>> [form.prompt_column for form in forms_of("pairs")][1:5]
        [None, 'prompt', None, None]
        """
        first = self.needs[0] if self.needs else ""
        others = {*self.needs[1:], *self.may_have} & {"input", "system", "history"}
        return self.columns.get(first, first) if first in PROMPT_NAMES and not others else None

    def read(self, row: Row, *, chat: bool = False) -> dict[str, Any] | Dropped:
        """The values of a row under our names, or the reason why it cannot be used. `chat`: the model has a chat
        template."""
        values = renamed(row.values, self.columns) if self.columns else row.values
        try:
            found = (self.chat_reader or self.reader if chat else self.reader)(values)
            refuse_half_characters(row.values if self.kind == "prompts" else found)
        except Unusable as reason:
            return Dropped(row.origin, self._in_another_form(row, values) or str(reason))
        except RecursionError:
            return Dropped(row.origin, "lists or objects that are nested too deeply")
        if self.kind != "prompts":
            return found
        others = {name: value for name, value in row.values.items() if name not in self.needs[:1]}
        return others | ({"answer": row.values.get(self.answer)} if self.answer else {}) | found

    def _in_another_form(self, row: Row, values: Mapping[str, Any]) -> str:
        """The reason for a row without one of our columns, if it has those of another form; "" for any other. A row
        whose column is there and null is a broken one."""
        if set(self.needs) <= set(values):
            return ""
        there = {name: value for name, value in row.values.items() if value is not None}
        other = _fitting(self.kind, list(there), [row._replace(values=there)])
        if other is None or other.found_in <= self.found_in:
            return ""
        return f"{IN_ANOTHER_FORM} {other.name} and not {self.name}"

    def unused(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Columns of the data that this form does not read. In training with rewards, reward functions receive them."""
        read_here = {*self.needs, *self.may_have, *self.columns.values(), self.answer}
        return tuple(name for name in columns if name not in read_here)


def _form(kind: Kind, needs: str, family: str, reader: Reader, may_have: str = "", **more: Any) -> Form:
    return Form(
        kind=kind, needs=tuple(needs.split()), may_have=tuple(may_have.split()), family=family, reader=reader, **more
    )


def _dialogues(values: Mapping[str, Any]) -> bool:
    return is_dialogue(values.get("chosen")) and is_dialogue(values.get("rejected"))


def _verl(values: Mapping[str, Any]) -> bool:
    return isinstance(values.get("reward_model"), dict)


_PAIR = f"tools {' '.join(SCORES)}"
_ALPACA = "input system history tools"

FORMS: tuple[Form, ...] = (
    # kind, columns that identify the form, its family, its reader, its optional columns
    _form("examples", "messages", "TRL, OpenAI", read.read_messages, "tools"),
    _form("examples", "prompt completion", "TRL", read.read_completion, "tools"),
    _form(
        "examples", "conversations", "ShareGPT", partial(read.read_messages, column="conversations"), "system tools",
        unless=("chosen", "rejected"),
    ),
    _form("examples", "instruction output", "Alpaca", read.read_alpaca, _ALPACA),
    _form("examples", "instruction instances", "Self-Instruct", read.read_instances),
    *(
        _form("examples", f"{prompt} response", family, partial(read.read_response, prompt=prompt), may_have)
        for prompt, family, may_have in (
            ("prompt", "verl", "tools"), ("instruction", "Databricks", _ALPACA),
            ("question", "Orca", "tools"), ("query", "MetaMath", "tools"),
        )
    ),
    _form("examples", "input output", "OpenRLHF", partial(read.read_completion, prompt="input", completion="output")),
    _form("examples", "text", "plain text", read.read_text),
    _form("pairs", "input preferred_output non_preferred_output", "OpenAI", read.read_openai_pair, " ".join(SCORES)),
    _form("pairs", "conversations chosen rejected", "ShareGPT", read.read_conversation_pair, f"system {_PAIR}"),
    _form("pairs", "prompt chosen rejected", "TRL, UltraFeedback", read.read_pair, _PAIR),
    _form("pairs", "instruction chosen rejected", "Alpaca", read.read_asked_pair, f"input system history {_PAIR}"),
    _form(
        "pairs", "question chosen rejected", "Orca", partial(read.read_asked_pair, column="question"), f"system {_PAIR}"
    ),
    _form(
        "pairs", "chosen rejected", "HH-RLHF", partial(read.read_dialogue_pair, chat=False), _PAIR,
        chat_reader=partial(read.read_dialogue_pair, chat=True), looks_like=_dialogues,
    ),
    _form("pairs", "chosen rejected", "TRL", read.read_pair, _PAIR),
    _form(
        "pairs", "question answer_matching_behavior answer_not_matching_behavior", "model-written evaluations",
        read.read_matching_pair,
    ),
    _form("labels", "prompt completion label", "TRL", read.read_label, "tools"),
    _form("labels", "prompt response label", "verl", partial(read.read_label, completion="response"), "tools"),
    *(
        _form("labels", f"{column} {label}", family, partial(read.read_message_label, column=column, label=label), has)
        for column, family, has in (("messages", "OpenAI", "tools"), ("conversations", "ShareGPT", "system tools"))
        for label in ("label", "kto_tag")
    ),
    *(
        _form("labels", f"instruction output {label}", "Alpaca", partial(read.read_alpaca_label, label=label), _ALPACA)
        for label in ("label", "kto_tag")
    ),
    _form("ratings", "prompt completion score", "TRL's columns", read.read_rating, "tools"),
    _form(
        "ratings", "prompt response score", "verl", partial(read.read_rating, completion="response"), "tools"
    ),
    _form("ratings", "messages score", "OpenAI", read.read_message_rating, "tools"),
    _form("steps", "prompt completions labels", "TRL", read.read_steps),
    _form("prompts", "prompt reward_model", "verl", read.read_verl, "tools", looks_like=_verl),
    _form("prompts", "prompt", "TRL", read.read_prompt, "tools"),
    _form("prompts", "question", "GSM8K", partial(read.read_prompt, column="question")),
    _form("prompts", "problem", "MATH", partial(read.read_prompt, column="problem")),
    _form("prompts", "instruction", "Alpaca", read.read_instruction, _ALPACA),
    _form("prompts", "messages", "OpenAI", partial(read.read_prompt, column="messages"), "tools"),
    _form("prompts", "conversations", "ShareGPT", read.read_conversation, "system tools"),
)  # fmt: skip

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt": PROMPT_NAMES[1:],
    "completion": ("answer", "response", "solution", "output", "target", "reply"),
    "completions": ("steps", "solution_steps"),
    "chosen": ("accepted", "preferred", "better", "winner", "chosen_response", "response_chosen", "preferred_output"),
    "rejected": ("dispreferred", "worse", "loser", "rejected_response", "response_rejected", "non_preferred_output"),
    "messages": ("conversation", "dialogue", "dialog", "chat"),
    "label": ("desirable", "is_correct", "thumbs_up", "kto_tag"),
    "labels": ("step_labels", "ratings"),
    "score": ("rating", "reward"),
    "text": ("content", "document"),
}
"""Other names of these columns in public data. An error message then says what to set in data.columns."""

MEANT: Mapping[Kind, str] = {
    "prompts": "training with rewards",
    "examples": "supervised training",
    "pairs": "preference pairs",
    "labels": "judged answers",
    "ratings": "rated answers",
    "steps": "judged steps",
}
TAKEN_BY: Mapping[Kind, str] = {
    "prompts": "grpo and the other algorithms that learn from rewards",
    "examples": "sft",
    "pairs": "dpo and the other algorithms that learn from pairs",
    "labels": "kto and the other algorithms that learn from judged answers",
    "ratings": "reward_regression",
    "steps": "process_reward_model",
}


def columns_of(rows: Iterable[Row]) -> list[str]:
    """All column names in the order of their first occurrence. Streamed rows know them already. Lone surrogates are
    escaped."""
    known: Iterable[str] | None = getattr(rows, "columns", None)
    names = known if known is not None else dict.fromkeys(name for row in rows for name in row.values)
    return list(map(in_whole_characters, names))


def in_whole_characters(name: str) -> str:
    """The name of a column with lone surrogates escaped, so that it can be printed."""
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()


def forms_of(kind: Kind) -> tuple[Form, ...]:
    return tuple(form for form in FORMS if form.kind == kind)


def detect(rows: Iterable[Row], kind: Kind) -> Form:
    """The first form of the kind whose columns the rows have. Raises `DataError` if there is none.

    For a large source, pass some of its rows that have all of its columns.
    """
    columns = columns_of(rows)
    found = _fitting(kind, columns, rows)
    if found is None:
        raise _no_form(kind, columns, rows)
    found = replace(found, may_have=tuple(name for name in found.may_have if name in columns))
    if kind != "prompts":
        return found
    return replace(found, answer=next((name for name in ANSWER_COLUMNS if name in columns), None))


def are_verls(rows: Iterable[Row]) -> bool:
    """Whether each of the first rows has its gold answer in verl's object `reward_model`."""
    judges = [row.values.get("reward_model") for row in islice(rows, LOOKED_AT)]
    return bool(judges) and all(isinstance(judge, dict) and "ground_truth" in judge for judge in judges)


def fits(rows: Iterable[Row], kind: Kind) -> bool:
    """Whether the rows have the columns of a form of this kind."""
    return _fitting(kind, columns_of(rows), rows) is not None


def _fitting(kind: Kind, columns: Sequence[str], rows: Iterable[Row]) -> Form | None:
    """The form that fits: by our column names, or by other common names, or, for pairs, two answers and a verdict."""
    sample = [row.values for row in islice(rows, LOOKED_AT)]
    found = _by_columns(kind, columns, sample)
    if found is None and (names := other_names(kind, columns, sample)):
        values = [renamed(one, names) for one in sample]
        form = _by_columns(kind, list(renamed(dict.fromkeys(columns), names)), values)
        if form is not None and any(not isinstance(form.read(Row(one, "")), Dropped) for one in values):
            found = replace(form, columns=names)
    return found or (_compared(columns, sample) if kind == "pairs" else None)


def _by_columns(kind: Kind, columns: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> Form | None:
    for form in forms_of(kind):
        if set(form.needs) <= set(columns) and not set(form.unless) & set(columns):
            complete = [values for values in sample if all(name in values for name in form.needs)]
            if not complete or any(form.looks_like(values) for values in complete):
                return form
    return None


def _compared(columns: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> Form | None:
    """The form for two answer columns and a column that says which answer is better; None if it does not fit."""
    sides = two_answers(columns)
    verdict = verdict_column(sides, columns, sample) if sides else None
    prompt = next((name for name in PROMPT_NAMES if name in columns), None)
    if sides is None or verdict is None or prompt is None:
        return None
    reader = partial(read.read_compared, prompt=prompt, sides=sides, verdict=verdict)
    form = _form("pairs", "", "two answers and a verdict", reader, "input system history tools")
    return replace(form, needs=(prompt, *sides, verdict))


def _no_form(kind: Kind, columns: Sequence[str], rows: Iterable[Row]) -> DataError:
    what = {
        "examples": "supervised training cannot use the columns",
        "prompts": "the data has no column for the prompt; its columns are",
    }.get(kind, f"{MEANT[kind]} cannot be made of the columns")
    names = dict.fromkeys(form.needs[0] if kind == "prompts" else form.name for form in forms_of(kind))
    return DataError(
        given=f"{what} {listed(columns)}",
        allowed=("; " if kind != "prompts" else ", ").join(names),
        fix=_set_prompt(columns)
        if kind == "prompts"
        else _other_kinds(kind, columns, rows) or _renaming(kind, columns),
    )


def _set_prompt(columns: Sequence[str]) -> str:
    known = _under_another_name("prompt", columns)
    return f'Set data.prompt to a column, or to a template such as "{in_template([known] if known else columns)}".'


def _renaming(kind: Kind, columns: Sequence[str]) -> str:
    """Advice on what to set in data.columns, for the form with the fewest missing columns whose columns the data has
    under other names."""
    best: dict[str, str] = {}
    for form in forms_of(kind):
        missing = [name for name in form.needs if name not in columns]
        known = {name: _under_another_name(name, columns) for name in missing}
        if all(known.values()) and len(set(known.values())) == len(missing) and len(missing) < (len(best) or 9):
            best = {ours: theirs for ours, theirs in known.items() if theirs}
    if best:
        return f"Set data.columns = {spelled(best)}."
    usual = {"examples": "prompt + completion", "pairs": "prompt + chosen + rejected"}.get(kind, forms_of(kind)[0].name)
    example = spelled({usual.partition(" ")[0]: next(iter(columns), "name")})[:-1] + ", ...}"
    return f"Say in data.columns which columns are {usual.replace(' + ', ', ')}: {example}."


def _under_another_name(name: str, columns: Sequence[str]) -> str | None:
    """The column that has a synonym or a misspelling of `name`; None if there is none."""
    others = [column for column in columns if column.lower() in OTHER_NAMES.get(name, ())]
    return next(iter(others), None) or next(iter(difflib.get_close_matches(name, columns, n=1, cutoff=0.8)), None)


def _other_kinds(kind: Kind, columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Advice on what else the data could be used for."""
    fitting = [
        form
        for other in MEANT
        if other not in (kind, "prompts") and (form := _fitting(other, columns, rows)) is not None
    ]
    return " ".join(f"Without changes, the data ({form.name}) suits {TAKEN_BY[form.kind]}." for form in fitting[:2])
