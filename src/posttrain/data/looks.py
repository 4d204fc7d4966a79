"""The records of each kind of data for `data check`: rendered with the code of a run, counted, and shown as text.

LOOKS has one entry for each kind. In the shown text, ⟦ and ⟧ enclose the trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from posttrain.data.dropped import Dropped, Rendered
from posttrain.data.examples import render_examples
from posttrain.data.forms import MEANT, Kind
from posttrain.data.labels import render_labels
from posttrain.data.limits import texts_in
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.ratings import render_ratings
from posttrain.data.read import Row
from posttrain.data.special import injected
from posttrain.data.steps import render_steps
from posttrain.data.survey import PLACES, Finding, Lengths, Sample, Seen, Survey, Use
from posttrain.data.unknown import Unknown, UnknownText
from posttrain.types import Example, LabelledExample, Pair, Prompt, RatedExample, StepExample

if TYPE_CHECKING:
    from posttrain.config import DataConfig

Parts = Sequence[tuple[str, bool]]
"""Segments of text, and whether their tokens are trained."""
SHOWN_CHARACTERS = 500
"""Number of characters shown of each segment, or of each message in it."""
CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that move a terminal's cursor or change the direction of text -> their escaped form."""
SHOWN_TURNS = 8
"""Number of long messages for which a segment has room."""


def stretches(example: Example, decode: Callable[[list[int]], object]) -> tuple[tuple[str, bool], ...]:
    """The tokens of an example as text, split into trained and untrained segments."""
    pairs = zip(example.input_ids, example.completion_mask, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return tuple((str(decode([token for token, _ in run])), trained) for trained, run in runs)


def marked(parts: Parts, texts: Iterable[str] = ()) -> str:
    """The segments as one text with marks around the trained ones. `texts` are the texts of the row; each long one is
    shortened separately, so that the turns stay recognisable.

    >>> marked([("2+2=", False), ("4<eos>", True)])
    '2+2=⟦4<eos>⟧'
    """
    known = [text.strip() for text in texts]
    long = sorted((text for text in known if len(text) > SHOWN_CHARACTERS), key=len, reverse=True)
    limit = SHOWN_TURNS * SHOWN_CHARACTERS if known else SHOWN_CHARACTERS
    shown = [(cut(_each_cut(text, long), limit), trained) for text, trained in parts]
    return "".join(f"⟦{text}⟧" if trained else text for text, trained in shown)


def _each_cut(text: str, long: Iterable[str]) -> str:
    for one in long:
        text = text.replace(one, cut(one))
    return text


def cut(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """Shorten a long text to its beginning and its end. The end shows whether there is an EOS."""
    tail, text = limit // 4, text.translate(CONTROLS)
    return text if len(text) <= limit else f"{text[: limit - tail]} […] {text[-tail:]}"


SAMPLES = 3
SEPARATOR = "\n"
"""Separator of steps; the default of process_reward_model."""


@dataclass(frozen=True, kw_only=True)
class Looking:
    """The rows to inspect, and the settings and tokenizer to inspect them with."""

    rows: Sequence[Row]
    settings: DataConfig
    renderer: Renderer
    eos_ids: frozenset[int]
    max_length: int
    unit: str

    @property
    def tolerance(self) -> dict[str, Any]:
        return {"max_dropped": self.settings.max_dropped, "what": "the data"}

    def some(self, indexes: Iterable[int]) -> dict[int, Row]:
        """The rows with these indices, found in one pass that ends at the last of them."""
        wanted = set(indexes)
        rows = islice(self.rows, max(wanted, default=-1) + 1)
        return {index: row for index, row in enumerate(rows) if index in wanted}

    def places(self, indexes: Sequence[int]) -> str:
        """Names of the first few of these rows, for a message."""
        some = self.some(indexes[:PLACES])
        return ", ".join([*(row.origin for row in some.values()), *(["…"] if len(indexes) > len(some) else [])])

    def parts(self, example: Example) -> tuple[tuple[str, bool], ...]:
        """The text of an example, split into trained and untrained segments."""
        return stretches(example, self.renderer.tokenizer.decode)


@dataclass(frozen=True, kw_only=True)
class Look:
    """The functions that render, count and show one kind."""

    render: Callable[[Looking], tuple[Sequence[Any], Sequence[Dropped], str]]
    """Returns the records, the dropped rows, and a text that says how the columns were read."""
    see: Callable[[Any], Seen]
    show: Callable[[Looking, Any], dict[str, Any]]
    """Returns the fields of a `Sample`, except its origin."""


def take(look: Looking, kind: Kind) -> Use:
    """Inspect the data as one kind. Raises `DataError` if its columns do not fit this kind."""
    how = LOOKS[kind]
    records, dropped, columns = how.render(look)
    survey, text = Survey(), _text(look)
    for record in records:
        survey.add(how.see(record))
        text.add(record)
    dropped = getattr(getattr(records, "pairs", records), "dropped", dropped)  # streamed rows know it only now
    first = [*islice(records, SAMPLES)]
    rows = look.some(record.index for record in first)
    return Use(
        kind=kind,
        mapping=f"{MEANT[kind]}, {columns}",
        usable=len(survey.rows),
        records=len(records),
        dropped=dropped,
        duplicates=len(survey.duplicates),
        repeated_prompts=len(survey.repeated_prompts),
        contradictions=len(survey.contradictions),
        tokens=survey.tokens,
        trained=survey.trained,
        lengths={name: Lengths.of(values) for name, values in survey.lengths.items()},
        numbers={name: Lengths.of(values) for name, values in survey.numbers.items()},
        classes=dict(survey.classes),
        length_bias=survey.length_bias(),
        samples=tuple(_sample(rows[record.index], how.show(look, record)) for record in first),
        findings=(*survey.findings(kind, look.unit, look.places), *_injected(look, kind), *text.findings()),
    )


def _sample(row: Row, shown: Mapping[str, Any]) -> Sample:
    return Sample(origin=row.origin, texts=tuple(texts_in(row.values)), **shown)


def _text(look: Looking) -> UnknownText:
    """The count of text that the tokenizer cannot write. Without a tokenizer it counts nothing."""
    known = None if look.unit == "characters" else Unknown.of(look.renderer.tokenizer, look.eos_ids)
    system_prompt = look.renderer.system_prompt
    return UnknownText(unknown=known, rows=look.rows, eos_ids=look.eos_ids, system_prompt=system_prompt)


def _injected(look: Looking, kind: Kind) -> tuple[Finding, ...]:
    """Findings about special tokens in the text of the rows. Without a tokenizer there are none."""
    if look.unit == "characters":
        return ()
    found = injected(look.rows, kind, look.renderer.tokenizer, look.eos_ids, chat=look.renderer.chat)
    return () if found is None else (Finding(message=found.message, fix=found.fix),)


# --- rendered as a run does it ----------------------------------------------------------------------------------------


def _prompts(look: Looking) -> tuple[Sequence[Prompt], Sequence[Dropped], str]:
    found = render_prompts(look.rows, look.settings, look.renderer, max_prompt_length=look.max_length, what="the data")
    return found.prompts, found.dropped, found.columns


def _steps(look: Looking) -> tuple[Sequence[StepExample], Sequence[Dropped], str]:
    found = render_steps(look.rows, look.renderer, separator=SEPARATOR, max_length=look.max_length, **look.tolerance)
    return found.rows, found.dropped, found.form


def _rendered(look: Looking, render: Callable[..., Rendered]) -> tuple[Sequence[Any], Sequence[Dropped], str]:
    """Render the other kinds."""
    found = render(look.rows, look.renderer, eos_ids=look.eos_ids, max_length=look.max_length, **look.tolerance)
    return found.rows, found.dropped, found.form


# --- counted ----------------------------------------------------------------------------------------------------------


def _see_prompt(prompt: Prompt) -> Seen:
    lengths = {"prompt": len(prompt.ids)}
    return _seen(prompt.index, prompt.text, prompt.text, lengths, tokens=len(prompt.ids), trained=0)


def _see_example(example: Example) -> Seen:
    lengths = {"whole row": len(example.input_ids), "trained": sum(example.completion_mask)}
    seen = _of(example, content=example.input_ids, lengths=lengths)
    # Plain text has no prompt: all of its tokens except the first are trained.
    return seen if len(_prompt(example)) > 1 else seen._replace(prompt=None)


def _see_pair(pair: Pair) -> Seen:
    chosen, rejected = pair.chosen, pair.rejected
    trained = [sum(side.completion_mask) for side in (chosen, rejected)]
    return _seen(
        pair.index,
        _prompt(chosen),
        (chosen.input_ids, rejected.input_ids),
        {"prompt": len(_prompt(chosen)), "chosen": trained[0], "rejected": trained[1]},
        tokens=len(chosen.input_ids) + len(rejected.input_ids),
        trained=sum(trained),
        contrary=(rejected.input_ids, chosen.input_ids),
        numbers={} if pair.margin is None else {"margin": pair.margin},
    )


def _see_label(row: LabelledExample) -> Seen:
    ids = row.example.input_ids
    return _of(
        row.example,
        content=(ids, row.label),
        contrary=(ids, not row.label),
        classes=("true" if row.label else "false",),
    )


def _see_rating(row: RatedExample) -> Seen:
    return _of(row.example, content=(row.example.input_ids, row.score), numbers={"score": row.score})


def _see_steps(row: StepExample) -> Seen:
    return _of(
        row.example,
        content=(row.example.input_ids, row.labels),
        lengths={"whole row": len(row.example.input_ids)},
        numbers={"steps per answer": len(row.labels)},
        classes=tuple({1.0: "right", 0.0: "wrong"}.get(label, "between") for label in row.labels),
    )


def _of(example: Example, *, content: object, lengths: Mapping[str, int] | None = None, **more: Any) -> Seen:
    """The counts of a record with one answer."""
    prompt, trained = _prompt(example), sum(example.completion_mask)
    lengths = {"prompt": len(prompt), "answer": trained} if lengths is None else lengths
    return _seen(example.index, prompt, content, lengths, tokens=len(example.input_ids), trained=trained, **more)


def _seen(
    index: int,
    prompt: object,
    content: object,
    lengths: Mapping[str, int],
    *,
    tokens: int,
    trained: int,
    numbers: Mapping[str, float] | None = None,
    **more: Any,
) -> Seen:
    return Seen(index, prompt, content, lengths, tokens, trained, numbers or {}, **more)


def _prompt(example: Example) -> tuple[int, ...]:
    """The ids before the first trained token."""
    return example.input_ids[: example.completion_mask.index(True)]


# --- shown ------------------------------------------------------------------------------------------------------------


def _show_prompt(look: Looking, prompt: Prompt) -> dict[str, Any]:
    answer = prompt.columns.get("answer")
    return {"parts": ((prompt.text, False),), "facts": {} if answer is None else {"answer": answer}}


def _show_example(look: Looking, example: Example) -> dict[str, Any]:
    return {"parts": look.parts(example)}


def _show_pair(look: Looking, pair: Pair) -> dict[str, Any]:
    facts = {} if pair.margin is None else {"margin": pair.margin}
    return {"parts": look.parts(pair.chosen), "rejected": look.parts(pair.rejected), "facts": facts}


def _show_judged(look: Looking, row: Any, *, fact: str) -> dict[str, Any]:
    value = getattr(row, fact)
    return {"parts": look.parts(row.example), "facts": {fact: list(value) if isinstance(value, tuple) else value}}


LOOKS: Mapping[Kind, Look] = {
    "steps": Look(render=_steps, see=_see_steps, show=partial(_show_judged, fact="labels")),
    "pairs": Look(render=partial(_rendered, render=render_pairs), see=_see_pair, show=_show_pair),
    "labels": Look(
        render=partial(_rendered, render=render_labels), see=_see_label, show=partial(_show_judged, fact="label")
    ),
    "ratings": Look(
        render=partial(_rendered, render=render_ratings), see=_see_rating, show=partial(_show_judged, fact="score")
    ),
    "examples": Look(render=partial(_rendered, render=render_examples), see=_see_example, show=_show_example),
    "prompts": Look(render=_prompts, see=_see_prompt, show=_show_prompt),
}
"""Kinds of data, most specific first. Data that fits several kinds is read as the first of them."""
