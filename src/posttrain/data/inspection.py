"""Inspect a dataset before training: what it is read as, how long its rows are, and which rows would be dropped.

The report uses the same code as a run, so it shows exactly what training will read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from posttrain.config import DataConfig
from posttrain.data.dropped import Dropped
from posttrain.data.forms import Kind, columns_of, detect, in_whole_characters
from posttrain.data.hints import looks_like, passed_over, template_problems, unseen_media
from posttrain.data.looks import LOOKS, Looking, take
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.split import open_rows
from posttrain.data.survey import Finding, Lengths, Sample, Use
from posttrain.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Characters", "Column", "DataReport", "Lengths", "Sample", "Use", "inspect_data"]

NO_LIMIT = 2**31
FIRST = 100
"""Number of rows that are read to decide whether the data is of use for another kind that its columns suit."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The content of one column."""

    name: str
    types: tuple[str, ...]
    missing: int
    """Number of rows without a value."""
    read: bool = True
    """Whether the column is read. In training with rewards every column is, because reward functions receive all."""


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """The report of `posttrain data check`."""

    source: str
    rows: int
    columns: tuple[Column, ...]
    unit: str
    """The unit of the lengths: tokens, or characters without a tokenizer."""
    max_length: int | None
    """Limit above which rows are dropped, in units of `unit`; None if no limit is known."""
    uses: tuple[Use, ...]
    """The use for which the data was inspected; empty if the data cannot be used."""
    also: Mapping[Kind, str]
    """Other kinds of training that the columns suit -> these columns."""
    findings: tuple[Finding, ...]
    """Remarks about the columns and the chat template. `uses` has the remarks about rows."""
    problems: tuple[str, ...] = ()
    """Reasons why the data cannot be used."""

    @property
    def usable(self) -> bool:
        return bool(self.uses)

    def to_json(self) -> dict[str, Any]:
        """The report as plain dicts, lists and numbers, ready for `json.dumps`."""
        return _plain({**_fields(self), "uses": [_use(use) for use in self.uses], "usable": self.usable})

    def render(self) -> str:
        """The report as plain text for a terminal."""
        from posttrain.data.inspect_text import as_text

        return as_text(self)


def inspect_data(
    source: str | Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    config: DataConfig | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    eos_ids: Collection[int] | None = None,
    max_length: int | None = None,
    kind: Kind | None = None,
) -> DataReport:
    """Read the whole source and report how a run would read it.

    Without a tokenizer, lengths are in characters and chat messages are shown in a plain format. `config` holds the
    other settings of `data`: prompt, answer, split and so on. Rows longer than `max_length` (a model's context length)
    are dropped. `kind` is the kind of data to inspect it as, if its columns suit several. Raises `DataError` if the
    source cannot be read.
    """
    sources = source if isinstance(source, str) else list(source)
    settings = (config or DataConfig(train=sources)).model_copy(update={"max_dropped": 1.0})
    rows = open_rows(settings, sources, settings.split, seed=0)
    limits = [limit for limit in (max_length, settings.max_length) if limit is not None]
    look = Looking(
        rows=rows,
        settings=settings,
        renderer=_renderer(settings, tokenizer, template_kwargs),
        eos_ids=_eos_ids(tokenizer, eos_ids),
        max_length=min(limits, default=NO_LIMIT),
        unit="characters" if tokenizer is None else "tokens",
    )
    suited, problems = _suited(rows, settings, kind)
    use, tried = None, dict[Kind, DataError]()
    for taken in tuple(suited):
        try:
            use = take(look, taken)
            break
        except DataError as error:
            tried[taken] = error
            del suited[taken]
    problems += [str(error) for error in tried.values()]
    return DataReport(
        source=source if isinstance(source, str) else ", ".join(source),
        rows=len(rows),
        columns=_columns(rows, _unread(rows, None if use is None else use.kind)),
        unit=look.unit,
        max_length=min(limits, default=None),
        uses=() if use is None else (use,),
        also={
            other: columns
            for other, columns in suited.items()
            if use is None or (other != use.kind and _some_are_of_use(rows, settings, other))
        },
        findings=()
        if use is None
        else (*_hints(look, use.kind, tried), *unseen_media(rows), *_about_the_template(look, use.kind)),
        problems=() if use is not None else tuple(dict.fromkeys(problems)),
    )


def _renderer(
    settings: DataConfig, tokenizer: PreTrainedTokenizerBase | None, template_kwargs: Mapping[str, Any] | None
) -> Renderer:
    if tokenizer is not None:
        return Renderer.of(settings, tokenizer, template_kwargs)
    plain = cast("PreTrainedTokenizerBase", Characters())
    return Renderer(tokenizer=plain, chat=False, system_prompt=settings.system_prompt, train_on=settings.train_on)


def _eos_ids(tokenizer: PreTrainedTokenizerBase | None, given: Collection[int] | None) -> frozenset[int]:
    if given is not None:
        return frozenset(given)
    eos = None if tokenizer is None else cast("int | None", tokenizer.eos_token_id)
    return frozenset() if eos is None else frozenset({eos})


def _suited(rows: Sequence[Row], settings: DataConfig, kind: Kind | None) -> tuple[dict[Kind, str], list[str]]:
    """The kinds that the columns suit, with the columns read, and the reasons why they do not suit the asked kind or
    the two most common ones."""
    if settings.prompt is not None or settings.answer is not None:
        kind = kind or "prompts"
    suited: dict[Kind, str] = {}
    problems = []
    for one in LOOKS if kind is None else (kind,):
        if one == "prompts" and settings.prompt is not None:
            suited[one] = settings.prompt
            continue
        try:
            suited[one] = _read_as(rows, one)
        except DataError as error:
            problems += [str(error)] if one in (kind, "examples", "prompts") else []
    return suited, problems


def _read_as(rows: Sequence[Row], kind: Kind) -> str:
    scored = {"chosen", "rejected", "score_chosen", "score_rejected"}
    if kind == "ratings" and scored <= set(columns_of(rows)):
        return "score_chosen + score_rejected"
    form = detect(rows, kind)
    return f"{form.name} ({form.family})"


def _some_are_of_use(rows: Sequence[Row], settings: DataConfig, kind: Kind) -> bool:
    """Whether at least one of the first rows can be read as `kind`. For example, conversations that end with an answer
    have the column of prompts, but they contain no open question."""
    if (kind == "prompts" and settings.prompt is not None) or _read_as(rows, kind).startswith("score_"):
        return True
    form = detect(rows, kind)
    return any(not isinstance(form.read(row), Dropped) for row in islice(rows, FIRST))


def _hints(look: Looking, kind: Kind, tried: Mapping[Kind, DataError]) -> tuple[Finding, ...]:
    """Findings about other uses of the data. There are none if the settings name the column of prompts."""
    if look.settings.prompt is not None:
        return ()
    return (*passed_over(look.rows, kind, tried), *looks_like(look.rows, kind))


def _about_the_template(look: Looking, kind: Kind) -> tuple[Finding, ...]:
    """Findings about the EOS token, and about those parts of the chat template that matter to this kind. Without a
    tokenizer there are none."""
    if look.unit == "characters":
        return ()
    if not look.eos_ids:
        message = "the tokenizer has no EOS: nothing tells the model where an answer ends"
        return (Finding(message=message, fix='Add "eos_token" to tokenizer_config.json.'),)
    if not look.renderer.tokenizer.chat_template or not look.renderer.chat:
        return ()
    matters = {"prompts": ("generation prompt", "tools"), "examples": None}.get(
        kind, ("generation prompt", "end of turn", "tools")
    )
    found = template_problems(look.renderer, look.eos_ids, tools="tools" in columns_of(look.rows))
    return tuple(
        Finding(message=f"chat template: {problem.message}", fix=problem.fix)
        for problem in found
        if matters is None or problem.kind in matters
    )


def _unread(rows: Sequence[Row], kind: Kind | None) -> tuple[str, ...]:
    """Columns that are not read. For prompts there are none, because reward functions may read any column."""
    if kind is None or kind == "prompts":
        return ()
    columns = columns_of(rows)
    pairs = kind == "ratings" and "chosen" in columns
    return detect(rows, "pairs" if pairs else kind).unused(columns)


def _columns(rows: Iterable[Row], unread: Sequence[str]) -> tuple[Column, ...]:
    types: dict[str, dict[str, None]] = {}
    present: Counter[str] = Counter()
    count = 0
    for row in rows:
        count += 1
        for name, value in row.values.items():
            known = types.setdefault(in_whole_characters(name), {})
            if value is not None:
                known[type(value).__name__] = None
                present[in_whole_characters(name)] += 1
    return tuple(
        Column(name=name, types=tuple(found), missing=count - present[name], read=name not in unread)
        for name, found in types.items()
    )


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _use(use: Use) -> dict[str, Any]:
    bias = use.length_bias
    shown = ("origin", "parts", "rejected", "facts")
    return asdict(replace(use, dropped=())) | {
        "samples": [{name: getattr(sample, name) for name in shown} for sample in use.samples],
        "lengths": {what: found._asdict() for what, found in use.lengths.items()},
        "numbers": {what: found._asdict() for what, found in use.numbers.items()},
        "length_bias": bias and {name: interval._asdict() for name, interval in _fields(bias).items()},
        "dropped": dict(Counter(dropped.reason for dropped in use.dropped)),
        "dropped_rows": [dropped._asdict() for dropped in use.dropped],
    }


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    found["columns"] = [asdict(column) for column in found["columns"]]
    found["findings"] = [asdict(finding) for finding in found["findings"]]
    return json.loads(json.dumps(found, default=str))


class Characters:
    """Replaces the tokenizer if none was named: one id for each character, and chat messages after their roles."""

    eos_token_id = None
    chat_template = "plain"

    class Encoding(NamedTuple):
        input_ids: list[int]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Encoding:
        return self.Encoding([ord(character) for character in text])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        shown = [_shown(message) for message in messages]
        turns = [f"{message['role']}: {said}\n" for message, said in zip(messages, shown, strict=True)]
        head = [f"tools: {json.dumps(list(tools))}\n"] if tools else []
        return "".join([*head, *turns]) + ("assistant: " if add_generation_prompt else "")


def _shown(message: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["content"] + "".join(f"<tool call {json.dumps(call)}>" for call in calls)
