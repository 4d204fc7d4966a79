"""Rows into prompts: which column is the question, how it is rendered, which ids the model will see."""

from __future__ import annotations

import difflib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posttrain.data.dropped import Dropped, refuse_too_many, summary
from posttrain.data.read import Row
from posttrain.errors import DataError
from posttrain.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from posttrain.config import DataConfig

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction")
ANSWER_COLUMNS = ("answer", "Answer", "solution", "ground_truth", "gold")


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The usable prompts, and what was left out of them."""

    prompts: tuple[Prompt, ...]
    dropped: tuple[Dropped, ...] = ()
    columns: str = ""
    """Where the prompt and the gold answer come from, in words."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def dropped_summary(self) -> str:
        """What was left out and why, in a sentence; "" for nothing."""
        return summary(self.dropped, len(self.prompts) + len(self.dropped))


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """How a prompt of this run becomes ids: chat template or plain text, always the same."""

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    system_prompt: str | None = None
    template_kwargs: Mapping[str, Any] | None = None

    @staticmethod
    def of(
        config: DataConfig, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
    ) -> Renderer:
        has_template = bool(tokenizer.chat_template)
        if config.chat is True and not has_template:
            raise DataError(
                given="data.chat = true, but the tokenizer has no chat template",
                allowed="true only with a chat template",
                fix="Set data.chat = false, or name a template in model.chat_template.",
            )
        return Renderer(
            tokenizer=tokenizer,
            chat=has_template if config.chat == "auto" else config.chat,
            system_prompt=config.system_prompt,
            template_kwargs=template_kwargs,
        )

    def messages(self, prompt: str | Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...] | None:
        """The chat messages of a prompt; None when it is plain text."""
        if isinstance(prompt, str):
            if not self.chat:
                return None
            prompt = [{"role": "user", "content": prompt}]
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt is not None else []
        return (*system, *(dict(message) for message in prompt))

    def text(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        """What the model reads, special tokens of the chat template included."""
        messages = self.messages(prompt)
        if messages is None:
            return (self.system_prompt or "") + str(prompt)
        return self.render(messages, add_generation_prompt=True)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The messages under the chat template."""
        if not self.tokenizer.chat_template:
            raise DataError(
                given="the data has chat messages, but the tokenizer has no chat template",
                allowed="plain text, or a tokenizer with a chat template",
                fix="Name a template in model.chat_template, or give the data as text.",
            )
        kwargs = dict(self.template_kwargs or {})
        return str(
            self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **kwargs,
            )
        )

    def ids(self, text: str, *, is_chat: bool) -> tuple[int, ...]:
        """A template writes its own BOS; plain text gets what the tokenizer puts in front, and never a closing EOS."""
        ids = list(self.tokenizer(text, add_special_tokens=not is_chat).input_ids)
        if not is_chat and len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id:
            ids.pop()
        return tuple(ids)


def render_prompts(
    rows: Sequence[Row], config: DataConfig, renderer: Renderer, *, max_prompt_length: int, what: str
) -> PromptSet:
    """Every row as a `Prompt`, or counted as dropped with the reason. `what` names the rows in errors.

    `max_prompt_length` is what the context leaves room for; `data.max_prompt_length` may be lower. Raises `DataError`
    when a column is missing from the data, or when more than `data.max_dropped` of the rows cannot be used.
    """
    limit = min(max_prompt_length, config.max_prompt_length or max_prompt_length)
    find_prompt = PromptColumn.find(config.prompt, rows)
    answer = _answer_column(config.answer, rows)
    prompts, dropped = [], []
    for index, row in enumerate(rows):
        found = _render(row, index, find_prompt, answer, renderer, limit)
        (prompts if isinstance(found, Prompt) else dropped).append(found)
    refuse_too_many(dropped, len(rows), config.max_dropped, what)
    columns = f"prompt from {find_prompt.describe()}" + (
        f", answer from {answer!r}" if answer else ", no answer column"
    )
    return PromptSet(prompts=tuple(prompts), dropped=tuple(dropped), columns=columns)


def _render(
    row: Row, index: int, column: PromptColumn, answer: str | None, renderer: Renderer, limit: int
) -> Prompt | Dropped:
    prompt = column.of(row)
    if isinstance(prompt, Dropped):
        return prompt
    messages = renderer.messages(prompt)
    text = renderer.text(prompt)
    ids = renderer.ids(text, is_chat=messages is not None)
    if not ids:
        return Dropped(row.origin, "prompt without tokens")
    if len(ids) > limit:
        return Dropped(row.origin, f"prompt longer than {limit} tokens")
    columns = {name: value for name, value in row.values.items() if name != column.name}
    if answer is not None:
        columns["answer"] = row.values.get(answer)
    plain = prompt if isinstance(prompt, str) else None
    return Prompt(index=index, ids=ids, text=text, plain=plain, messages=messages, columns=columns)


@dataclass(frozen=True, kw_only=True)
class PromptColumn:
    """Where a row's prompt is: a column, or a template over columns."""

    name: str | None = None
    context: str | None = None
    """A column whose text, where a row has any, stands below that of `name`: the input of Alpaca's instructions."""
    template: str | None = None

    @staticmethod
    def find(setting: str | None, rows: Sequence[Row]) -> PromptColumn:
        columns = list(dict.fromkeys(name for row in rows for name in row.values))
        if setting is None:
            found = next((name for name in PROMPT_COLUMNS if name in columns), None)
            if found is None:
                raise _no_column("column for the prompt", ", ".join(PROMPT_COLUMNS), columns)
            return PromptColumn(name=found, context="input" if found == "instruction" and "input" in columns else None)
        if "{" not in setting:
            if setting not in columns:
                raise _no_column(f"the column {setting!r} (data.prompt)", "a column of the data", columns, setting)
            return PromptColumn(name=setting)
        for name in _fields(setting):
            if name not in columns:
                raise _no_column(f"the column {name!r} (data.prompt)", "columns in braces", columns, name)
        return PromptColumn(template=setting)

    def describe(self) -> str:
        if self.name is None:
            return f"template {self.template!r}"
        return f"column {self.name!r}" + (f" with {self.context!r} below it" if self.context else "")

    def of(self, row: Row) -> str | list[dict[str, Any]] | Dropped:
        """Text, chat messages, or why there is neither."""
        if self.template is not None:
            values = {name: row.values.get(name) for name in _fields(self.template)}
            missing = [name for name, value in values.items() if value is None]
            if missing:
                return Dropped(row.origin, f"no value in column {missing[0]!r}")
            prompt = self.template.format_map(values)
        else:
            prompt = row.values.get(self.name or "")
        if prompt is None:
            return Dropped(row.origin, f"no value in column {self.name!r}")
        if isinstance(prompt, str):
            below = row.values.get(self.context) if self.context else None
            return with_input(prompt, below) if prompt.strip() else Dropped(row.origin, "empty prompt")
        fault = fault_in_messages(prompt)
        if not fault and prompt[-1]["role"] == "assistant":
            fault = "messages that end with an assistant turn"
        return Dropped(row.origin, fault) if fault else prompt


def with_input(instruction: str, given: Any) -> str:
    """Alpaca's two columns as one text.

    >>> with_input("Add.", "1 2"), with_input("Sing.", "")
    ('Add.\\n\\n1 2', 'Sing.')
    """
    return f"{instruction}\n\n{given}" if given else instruction


def _fields(template: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise DataError(
            given=f"data.prompt = {template!r} is not a template ({error})",
            allowed='text with columns in braces, such as "{Body} {Question}"',
            fix="Close every brace; write {{ for a brace in the text.",
        ) from None


def fault_in_messages(value: Any) -> str:
    """What is wrong with a value that should be chat messages; "" if nothing."""
    if not isinstance(value, list):
        return f"a {type(value).__name__}, neither text nor messages"
    if not value:
        return "no messages"
    if not all(isinstance(message, dict) and "role" in message and "content" in message for message in value):
        return "message without role and content"
    return ""


def _answer_column(setting: str | None, rows: Sequence[Row]) -> str | None:
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    if setting is not None and setting not in columns:
        raise _no_column(f"the column {setting!r} (data.answer)", "a column of the data", columns, setting)
    return setting or next((name for name in ANSWER_COLUMNS if name in columns), None)


def _no_column(missing: str, allowed: str, columns: Sequence[str], wanted: str = "") -> DataError:
    close = difflib.get_close_matches(wanted, columns, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    example = "{" + columns[0] + "}" if columns else "{column}"
    return DataError(
        given=f"the data has no {missing.removeprefix('the ')}; its columns are {', '.join(columns) or '(none)'}",
        allowed=allowed,
        fix=f'{hint}Set data.prompt to a column, or to a template such as "{example}".'
        if "answer" not in missing
        else f"{hint}Set data.answer to the column with the gold answer.",
    )


def overlap(train: Sequence[Prompt], heldout: Sequence[Prompt]) -> int:
    """How many held-out prompts stand, word for word, in the training data too."""
    seen = {prompt.text for prompt in train}
    return sum(prompt.text in seen for prompt in heldout)
