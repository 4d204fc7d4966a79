"""Looking at a dataset before anything is trained on it: what it is taken for, how long it is, what would be dropped.

The report is made by the code that a run uses, so what it shows is what training will read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from posttrain.config import DataConfig
from posttrain.data.dropped import Dropped, summary
from posttrain.data.examples import detect_form, render_examples
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.read import Row, read_rows
from posttrain.errors import DataError
from posttrain.types import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_LIMIT = 2**31
SAMPLES = 3
SHOWN_CHARACTERS = 600
"""Of each sample in `render()`."""


class Lengths(NamedTuple):
    """Quantiles over the usable rows: each is a length that occurs."""

    shortest: int
    median: int
    p90: int
    p99: int
    longest: int

    @staticmethod
    def of(lengths: Sequence[int]) -> Lengths:
        """
        >>> Lengths.of(range(1, 101))
        Lengths(shortest=1, median=50, p90=90, p99=99, longest=100)
        """
        ordered = sorted(lengths)
        return Lengths(*(ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (0, 50, 90, 99, 100)))


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one column holds."""

    name: str
    types: tuple[str, ...]
    missing: int
    """Rows without a value."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row as the model will read it."""

    origin: str
    parts: tuple[tuple[str, bool], ...]
    """Stretches of text, and whether their tokens are trained."""
    answer: Any = None
    """The gold answer that rewards receive."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One way to train on the data: with `prompts` that are answered and rewarded, or with given `examples`."""

    kind: str
    mapping: str
    """Which columns are read as what."""
    usable: int
    dropped: tuple[Dropped, ...] = ()
    duplicates: int = 0
    """Usable rows that repeat an earlier one."""
    lengths: Mapping[str, Lengths]
    """By what is measured, for example "prompt"."""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What `posttrain data check` shows."""

    source: str
    rows: int
    columns: tuple[Column, ...]
    unit: str
    """Of the lengths: tokens, or characters where no tokenizer was given."""
    uses: tuple[Use, ...]
    problems: tuple[str, ...] = ()
    """Why the data cannot be used in the other way, or in no way."""

    @property
    def usable(self) -> bool:
        return bool(self.uses)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for `json.dumps`."""
        uses = [
            {**asdict(use), "lengths": {what: found._asdict() for what, found in use.lengths.items()}}
            for use in self.uses
        ]
        for use, plain in zip(self.uses, uses, strict=True):
            plain["dropped"] = dict(Counter(dropped.reason for dropped in use.dropped))
            plain["dropped_rows"] = [dropped._asdict() for dropped in use.dropped]
        return json.loads(json.dumps({**asdict(self), "uses": uses, "usable": self.usable}, default=str))

    def render(self) -> str:
        """Plain text for a terminal."""
        lines = [f"{self.source}: {self.rows} rows", "", "columns"]
        width = max((len(column.name) for column in self.columns), default=0)
        for column in self.columns:
            missing = f", missing in {column.missing} rows" if column.missing else ""
            lines.append(f"  {column.name:<{width}}  {' or '.join(column.types) or 'always empty'}{missing}")
        for use in self.uses:
            lines += ["", *_describe(use, self.rows, self.unit)]
        lines += ["", *(f"not usable: {problem}" for problem in self.problems)] if not self.uses else []
        for sample in self.uses[0].samples if self.uses else ():
            lines += ["", f"--- {sample.origin}", _marked(sample)]
            lines += [f"answer: {_cut(str(sample.answer))}"] if sample.answer is not None else []
        if self.uses and self.uses[0].kind == "examples":
            lines += ["", "⟦…⟧ is what is trained."]
        return "\n".join(lines)


def inspect_data(
    source: str | Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    config: DataConfig | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> DataReport:
    """Read the whole source and report what a run would make of it.

    Without a tokenizer lengths are in characters and chat messages are shown in a plain form of their own. `config`
    holds the other settings of `data`: prompt, answer, split and so on. Raises `DataError` when the source cannot be
    read.
    """
    sources = source if isinstance(source, str) else list(source)
    settings = (config or DataConfig(train=sources)).model_copy(update={"max_dropped": 1.0})
    rows = read_rows(sources, split=settings.split, max_rows=settings.max_rows)
    renderer = (
        Renderer.of(settings, tokenizer, template_kwargs)
        if tokenizer is not None
        else Renderer(
            tokenizer=cast("PreTrainedTokenizerBase", Characters()), chat=False, system_prompt=settings.system_prompt
        )
    )
    uses, problems = [], []
    for look in (_as_examples, _as_prompts):
        try:
            uses.append(look(rows, settings, renderer))
        except DataError as error:
            problems.append(str(error))
    return DataReport(
        source=source if isinstance(source, str) else ", ".join(source),
        rows=len(rows),
        columns=_columns(rows),
        unit="characters" if tokenizer is None else "tokens",
        uses=tuple(uses),
        problems=tuple(problems),
    )


def _as_examples(rows: Sequence[Row], settings: DataConfig, renderer: Renderer) -> Use:
    if settings.prompt is not None:
        raise DataError(given="data.prompt is set, which only training with rewards reads")
    eos = cast("int | None", renderer.tokenizer.eos_token_id)
    found = render_examples(
        rows,
        renderer,
        eos_ids=() if eos is None else (eos,),
        max_length=NO_LIMIT,
        max_dropped=1.0,
        what="the data",
    )
    return Use(
        kind="examples",
        mapping=f"supervised training, {detect_form(rows)}",
        usable=len(found),
        dropped=found.dropped,
        duplicates=_repeated([example.input_ids for example in found.examples]),
        lengths={
            "whole row": Lengths.of([len(example.input_ids) for example in found.examples]),
            "trained": Lengths.of([sum(example.completion_mask) for example in found.examples]),
        },
        samples=tuple(
            Sample(
                origin=rows[example.index].origin,
                parts=_parts(example, lambda ids: str(renderer.tokenizer.decode(ids))),
            )
            for example in found.examples[:SAMPLES]
        ),
    )


def _as_prompts(rows: Sequence[Row], settings: DataConfig, renderer: Renderer) -> Use:
    found = render_prompts(rows, settings, renderer, max_prompt_length=NO_LIMIT, what="the data")
    return Use(
        kind="prompts",
        mapping=f"training with rewards, {found.columns}",
        usable=len(found),
        dropped=found.dropped,
        duplicates=_repeated([prompt.text for prompt in found.prompts]),
        lengths={"prompt": Lengths.of([len(prompt.ids) for prompt in found.prompts])},
        samples=tuple(
            Sample(
                origin=rows[prompt.index].origin,
                parts=((prompt.text, False),),
                answer=prompt.columns.get("answer"),
            )
            for prompt in found.prompts[:SAMPLES]
        ),
    )


def _columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    names = dict.fromkeys(name for row in rows for name in row.values)
    values = {name: [row.values.get(name) for row in rows] for name in names}
    return tuple(
        Column(
            name=name,
            types=tuple(dict.fromkeys(type(value).__name__ for value in found if value is not None)),
            missing=sum(value is None for value in found),
        )
        for name, found in values.items()
    )


def _repeated(keys: Sequence[Any]) -> int:
    return len(keys) - len(set(keys))


def _parts(example: Example, decode: Callable[[list[int]], str]) -> tuple[tuple[str, bool], ...]:
    """The text in stretches that are trained or not."""
    pairs = zip(example.input_ids, example.completion_mask, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return tuple((decode([token for token, _ in run]), trained) for trained, run in runs)


def _describe(use: Use, rows: int, unit: str) -> list[str]:
    dropped = summary(use.dropped, rows)
    lines = [use.mapping, f"  usable      {use.usable} of {rows} rows" + (f"; {dropped}" if dropped else "")]
    if use.duplicates:
        lines.append(f"  duplicates  {use.duplicates} rows repeat an earlier one")
    for what, found in use.lengths.items():
        lines.append(
            f"  {what:<10}  {unit}: {found.shortest} to {found.longest}, median {found.median}, "
            f"90% up to {found.p90}, 99% up to {found.p99}"
        )
    return lines


def _marked(sample: Sample) -> str:
    shown, room = [], SHOWN_CHARACTERS
    for text, trained in sample.parts:
        if room <= 0:
            shown.append(" […]")
            break
        text, room = _cut(text, room), room - len(text)
        shown.append(f"⟦{text}⟧" if trained else text)
    return "".join(shown)


def _cut(text: str, room: int = SHOWN_CHARACTERS) -> str:
    return text if len(text) <= room else f"{text[:room]} […]"


class Characters:
    """Stands in for a tokenizer where none was named: one id per character, chat messages under their roles."""

    eos_token_id = None
    chat_template = "plain"

    class Encoding(NamedTuple):
        input_ids: list[int]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Encoding:
        return self.Encoding([ord(character) for character in text])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: bool, add_generation_prompt: bool = False
    ) -> str:
        turns = [f"{message['role']}: {message['content']}\n" for message in messages]
        return "".join(turns) + ("assistant: " if add_generation_prompt else "")
