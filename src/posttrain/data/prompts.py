"""Render rows as prompts: find the column of the question, render it, and tokenise it.

`plain_prompts` makes prompts without a tokenizer, for code that only calls rewards.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

from posttrain.config import DataConfig
from posttrain.data.columns import in_template, listed
from posttrain.data.dropped import Dropped, Kept, Unusable, refuse_too_many
from posttrain.data.forms import ANSWER_COLUMNS, Form, are_verls, columns_of, detect
from posttrain.data.layouts import cell, read_prompt, read_verl
from posttrain.data.limits import limited_time, refuse_long, try_template
from posttrain.data.read import Row
from posttrain.data.stream import StreamedRecords, collect
from posttrain.errors import DataError
from posttrain.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from posttrain.config import DataConfig


@dataclass(frozen=True, kw_only=True)
class PromptSet(Kept):
    """The usable prompts, and the dropped rows."""

    prompts: Sequence[Prompt]
    columns: str = ""
    """The columns of the prompt and the gold answer, in words."""

    @property
    def usable(self) -> Sequence[Prompt]:
        return self.prompts


_TALK = [
    {"role": role, "content": said}
    for role, said in (("user", "One?"), ("assistant", "Two."), ("user", "Three?"), ("assistant", "Four."))
]
_TRIED: set[str] = set()
"""Chat templates that were tried and stayed within their limits."""


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Turns prompts into token ids, with a chat template or as plain text. A run uses one renderer throughout."""

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    system_prompt: str | None = None
    template_kwargs: Mapping[str, Any] | None = None
    train_on: Literal["all", "last"] = "all"
    """Whether all answers of a conversation are trained, or only the last one."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """Schemas of the tools of the run, for prompts that have no tools of their own."""
    spell: Callable[[str], tuple[int, ...]] | None = None
    """Tokenises rendered text in place of the tokenizer: see `Literal`."""

    @staticmethod
    def of(
        config: DataConfig, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
    ) -> Renderer:
        has_template = bool(tokenizer.chat_template)
        if config.chat is True and not has_template:
            raise DataError(
                given="data.chat = true, but the tokenizer has no chat template",
                allowed="true only with a chat template",
                fix="Set data.chat = false, or give model.chat_template the path of a Jinja file.",
            )
        renderer = Renderer(
            tokenizer=tokenizer,
            chat=has_template if config.chat == "auto" else config.chat,
            system_prompt=config.system_prompt,
            template_kwargs=template_kwargs,
            train_on=config.train_on,
        )
        if has_template and str(tokenizer.chat_template) not in _TRIED:
            try_template(renderer.render_samples)
            _TRIED.add(str(tokenizer.chat_template))
        return renderer

    def messages(self, prompt: str | Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...] | None:
        """The chat messages of a prompt; None if it is plain text. A system turn of the prompt replaces the run's."""
        if isinstance(prompt, str):
            if not self.chat:
                return None
            prompt = [{"role": "user", "content": prompt}]
        has_own = bool(prompt) and prompt[0]["role"] == "system"
        system = [] if self.system_prompt is None or has_own else [{"role": "system", "content": self.system_prompt}]
        return (*system, *(dict(message) for message in prompt))

    def text(
        self, prompt: str | Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The text that the model reads, with the special tokens of the chat template."""
        messages = self.messages(prompt)
        if messages is None:
            return (self.system_prompt or "") + str(prompt)
        return self.render(messages, add_generation_prompt=True, tools=tools or self.tools)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The messages rendered with the chat template. Raises `Unusable` if the template refuses them."""
        return str(self._apply(messages, tools, tokenize=False, add_generation_prompt=add_generation_prompt))

    def render_samples(self) -> None:
        """Render conversations of one, two and four turns, to try the chat template."""
        for turns in (1, 2, 4):
            with suppress(Unusable):
                self.render(_TALK[:turns], add_generation_prompt=turns == 1)

    def encode_marked(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Mapping[str, Any]:
        """The `input_ids` of a conversation, and its `assistant_masks` from the template's {% generation %} tags."""
        wanted = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        return cast("Mapping[str, Any]", self._apply(messages, tools, **wanted))

    def _apply(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, **options: Any
    ) -> Any:
        if not self.tokenizer.chat_template:
            raise DataError(
                given="the data has chat messages, but the tokenizer has no chat template",
                allowed="plain text, or a tokenizer with a chat template",
                fix="Give model.chat_template the path of a Jinja file, or give the data as text.",
            )
        options |= dict(self.template_kwargs or {}) | ({} if tools is None else {"tools": list(tools)})
        try:
            with limited_time():
                return self.tokenizer.apply_chat_template([dict(message) for message in messages], **options)
        except DataError:  # the template exceeded its limits
            raise
        except Exception as error:  # a template is a program: it may refuse a value, or fail on it
            raise Unusable(f"the chat template refuses it ({str(error)[:200]})") from error

    def ids(self, text: str, *, is_chat: bool) -> tuple[int, ...]:
        """The token ids of a text. A template writes its own BOS. Plain text gets the special tokens that the tokenizer
        puts first, and never a final EOS."""
        if is_chat and self.spell is not None:
            return self.spell(text)
        try:
            ids = list(self.tokenizer(text, add_special_tokens=not is_chat).input_ids)
        except (TypeError, UnicodeEncodeError):  # data cannot hold lone surrogates, but a template may write them
            raise Unusable("text with half a character (a lone surrogate)") from None
        if not is_chat and len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id:
            ids.pop()
        return tuple(ids)


def render_prompts(
    rows: Sequence[Row], config: DataConfig, renderer: Renderer, *, max_prompt_length: int, what: str
) -> PromptSet:
    """Render each row as a `Prompt`, or count it as dropped, with the reason. `what` names the rows in errors.

    `max_prompt_length` is the longest prompt for which the context has room; `data.max_prompt_length` may be lower.
    Raises `DataError` if a column is missing from the data, or if a larger share than `data.max_dropped` of the rows
    cannot be used.
    """
    limit = min(max_prompt_length, config.max_prompt_length or max_prompt_length)
    form = prompt_form(rows, config)
    render = partial(render_prompt, form=form, renderer=renderer, max_length=limit)
    prompts, dropped = collect(rows, render, Prompt, max_dropped=config.max_dropped, what=what)
    [whole] = with_all_columns(PromptSet(prompts=prompts, dropped=dropped, columns=describe(form), source=rows))
    return whole


def with_all_columns(*parts: PromptSet) -> list[PromptSet]:
    """The same parts, where each prompt that lacks columns of other prompts records the names of all columns."""
    found = (
        part.prompts.columns
        if isinstance(part.prompts, StreamedRecords)
        else (name for prompt in part.prompts for name in prompt.columns)
        for part in parts
    )
    names = tuple(dict.fromkeys(chain.from_iterable(found)))

    def told(prompt: Prompt) -> Prompt:
        return prompt if len(prompt.columns) == len(names) else replace(prompt, columns_of_data=names)

    def all_told(part: PromptSet) -> PromptSet:
        if isinstance(part.prompts, StreamedRecords):
            part.prompts.finish = told
            return part
        return replace(part, prompts=tuple(map(told, part.prompts)))

    return list(map(all_told, parts))


def render_prompt(row: Row, index: int, form: Form, renderer: Renderer, *, max_length: int) -> Prompt | Dropped:
    """Render one row of layout `form`; `index` is its number in the data."""
    columns = form.read(row, chat=renderer.chat)
    if isinstance(columns, Dropped):
        return columns
    prompt = columns.pop("prompt")
    messages = renderer.messages(prompt)
    try:
        refuse_long(prompt, max_length, renderer.tokenizer, "prompt longer")
        text = renderer.text(prompt, tools=None if isinstance(prompt, str) else columns.get("tools"))
        ids = renderer.ids(text, is_chat=messages is not None)
    except Unusable as reason:
        return Dropped(row.origin, str(reason))
    if not ids:
        return Dropped(row.origin, "prompt without tokens")
    if len(ids) > max_length:
        return Dropped(row.origin, f"prompt longer than {max_length} tokens")
    plain = prompt if isinstance(prompt, str) else None
    return Prompt(index=index, ids=ids, text=text, plain=plain, messages=messages, columns=columns, origin=row.origin)


def prompt_form(rows: Iterable[Row], config: DataConfig) -> Form:
    """The columns of the prompt and the gold answer, from `data.prompt` and `data.answer` or else from forms.py."""
    columns = columns_of(rows)
    if config.answer is not None and config.answer not in columns:
        raise _no_column(f"the column {config.answer!r} (data.answer)", "a column of the data", columns, config.answer)
    form = detect(rows, "prompts") if config.prompt is None else _named_form(config.prompt, columns, rows)
    return form if config.answer is None else replace(form, answer=config.answer)


def _named_form(setting: str, columns: Sequence[str], rows: Iterable[Row]) -> Form:
    """The form for `data.prompt`: a column, or a template over columns. Rows of verl keep their own gold answer even if
    the column is named."""
    answer = next((name for name in ANSWER_COLUMNS if name in columns), None)
    if "{" not in setting:
        if setting not in columns:
            raise _no_column(f"the column {setting!r} (data.prompt)", "a column of the data", columns, setting)
        verl = answer is None and are_verls(rows)
        reader = partial(read_verl if verl else read_prompt, column=setting)
        family = "data.prompt, verl" if verl else "data.prompt"
        return Form(kind="prompts", needs=(setting,), family=family, reader=reader, answer=answer)
    for name in _fields(setting):
        if name not in columns:
            raise _no_column(f"the column {name!r} (data.prompt)", "columns in braces", columns, name)
    return Form(
        kind="prompts",
        needs=(),
        may_have=tuple(_fields(setting)),
        family=f"template {setting!r}",
        reader=partial(_fill_in, template=setting, names=_fields(setting)),
        answer=answer,
    )


class _Names(string.Formatter):
    """A formatter that takes all of `{a.b}` for the name of a column, and not for an attribute."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return kwargs[field_name], field_name


def _fill_in(values: Mapping[str, Any], *, template: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        prompt = _Names().vformat(template, (), {name: cell(values, name) for name in names})
    except (ValueError, TypeError, OverflowError) as error:
        raise Unusable(f"a value that data.prompt cannot format ({error})") from None
    if not prompt.strip():
        raise Unusable("empty prompt")
    return {"prompt": prompt}


def describe(form: Form) -> str:
    """The columns of the prompt and the gold answer, in words."""
    source = f"column {form.needs[0]!r}" if form.needs else form.family
    if "input" in form.may_have and form.needs == ("instruction",):
        source += " with 'input' below it"
    return f"prompt from {source}, " + (f"answer from {form.answer!r}" if form.answer else "no answer column")


def _fields(template: str) -> list[str]:
    """The columns of a template. Raises `DataError` if no values can fill it in. Whether a format such as `{price:.2f}`
    fits is known for each row."""
    try:
        found = [field[1:] for field in string.Formatter().parse(template) if field[1] is not None]
        for name, spec, conversion in found:
            if not name:
                raise ValueError("braces without a column")
            if "{" in (spec or ""):
                raise ValueError("braces within braces")
            if conversion not in (None, "s", "r", "a"):
                raise ValueError(f"the conversion {conversion!r} is not known")
        return [str(name) for name, _, _ in found]
    except ValueError as error:
        raise DataError(
            given=f"data.prompt = {template!r} is not a template ({error})",
            allowed='text with columns in braces, such as "{Body} {Question}"',
            fix="Close every brace, and name a column in it; write {{ for a brace in the text.",
        ) from None


def _no_column(missing: str, allowed: str, columns: Sequence[str], wanted: str = "") -> DataError:
    close = difflib.get_close_matches(wanted, columns, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return DataError(
        given=f"the data has no {missing.removeprefix('the ')}; its columns are {listed(columns)}",
        allowed=allowed,
        fix=f'{hint}Set data.prompt to a column, or to a template such as "{in_template(columns)}".'
        if "answer" not in missing
        else f"{hint}Set data.answer to the column with the gold answer.",
    )


def overlap(train: PromptSet, heldout: PromptSet, *, whole: bool = False) -> int:
    """The number of held-out prompts whose exact text is also in the training data. `whole`: in a row with the same
    columns."""
    if isinstance(train.prompts, StreamedRecords):
        return train.prompts.shared_with(heldout.source, whole=whole)
    seen = {words_of(prompt, whole=whole) for prompt in train.prompts}
    return sum(words_of(prompt, whole=whole) in seen for prompt in heldout.prompts)


def words_of(prompt: Prompt, *, whole: bool) -> str:
    """A text that is equal for prompts with the same text. `whole`: only if their other columns are the same, too."""
    return repr((prompt.text, sorted(prompt.columns.items()))) if whole else prompt.text


def plain_prompts(rows: Sequence[Row], config: DataConfig) -> list[Prompt]:
    """The usable rows as prompts without token ids.

    Raises DataError if no column holds a prompt, or if a larger share than `data.max_dropped` cannot be used.
    """
    form = prompt_form(rows, config)
    read = [form.read(row) for row in rows]
    refuse_too_many([row for row in read if isinstance(row, Dropped)], len(rows), config.max_dropped, "training data")
    prompts = tuple(
        _prompt(number, rows[number].origin, columns)
        for number, columns in enumerate(read)
        if not isinstance(columns, Dropped)
    )
    [whole] = with_all_columns(PromptSet(prompts=prompts))
    return list(whole.prompts)


def _prompt(number: int, origin: str, columns: Mapping[str, Any]) -> Prompt:
    others = {name: value for name, value in columns.items() if name != "prompt"}
    prompt = columns["prompt"]
    if isinstance(prompt, str):
        return Prompt(index=number, ids=(), text=prompt, plain=prompt, columns=others, origin=origin)
    text = "\n".join(str(message["content"]) for message in prompt)
    return Prompt(index=number, ids=(), text=text, messages=tuple(prompt), columns=others, origin=origin)
