"""The messages about the rows of a run before it trains."""

from __future__ import annotations

import string
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.catalogue import few
from tests.data.samples import jsonl
from tests.data.test_split import repeated

from posttrain.config import DataConfig, RunConfig, load_config
from posttrain.data.dropped import Rendered
from posttrain.data.examples import render_examples
from posttrain.data.labels import LabelledSet, Unpaired, render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import PromptSet, Renderer
from posttrain.data.ratings import render_ratings
from posttrain.data.read import Row
from posttrain.data.split import first_rows, read_split
from posttrain.data.steps import render_steps
from posttrain.errors import DataError
from posttrain.experience import rendering
from posttrain.models.load import LoadedModel
from posttrain.tasks.tiny import build_tokenizer
from posttrain.types import Example, LabelledExample, Pair, Prompt


def run_config(**more: Any) -> RunConfig:
    return load_config({"model": "m", "algorithm": "sft", "data": {"train": "d"}, "train": {"steps": 1}, **more}).config


def data_notes(train: Any, heldout: Any, **more: Any) -> list[str]:
    return rendering.data_notes(train, heldout, run_config(**more))


def prompt_notes(train: PromptSet, heldout: PromptSet, **more: Any) -> list[str]:
    return rendering.prompt_notes(train, heldout, run_config(**more))


def text_notes(train: Any, heldout: Any, tokenizer: Any, **data: Any) -> list[str]:
    loaded = cast("LoadedModel", SimpleNamespace(tokenizer=tokenizer, eos_ids={tokenizer.eos_token_id}))
    return rendering.text_notes(train, heldout, run_config(data={"train": "d", **data}), loaded)


def example(text: str, index: int = 0) -> Example:
    return Example(index=index, input_ids=tuple(text.encode()), completion_mask=(True,) * len(text))


def source(*rows: dict[str, Any]) -> list[Row]:
    return [Row(values=row, origin="rows") for row in rows]


def pairs(*texts: str) -> Rendered:
    made = [Pair(index=n, chosen=example(text[0]), rejected=example(text[1])) for n, text in enumerate(texts)]
    return Rendered(rows=made, source=source(*({"chosen": text[0], "rejected": text[1]} for text in texts)))


def examples(*texts: str) -> Rendered:
    rows = [example(text, n) for n, text in enumerate(texts)]
    return Rendered(rows=rows, form="text", source=source(*({"text": text} for text in texts)))


def labelled(*texts: str, label: bool = True) -> LabelledSet:
    rows = [LabelledExample(index=n, example=example(text), label=label) for n, text in enumerate(texts)]
    return LabelledSet(rows=rows, source=source(*({"completion": text, "label": label} for text in texts)))


def unpaired(*texts: str) -> LabelledSet:
    made = pairs(*texts)
    return LabelledSet(rows=Unpaired(made.rows), pairs=made.rows, source=made.source)


@pytest.mark.parametrize(
    ("train", "heldout", "shared"),
    [
        (examples("a", "b", "b"), examples("b", "c", "d", "e", "b"), "2 of 5"),
        (pairs("ab", "cd"), pairs("ab", "ad", "dc"), "1 of 3"),
        (labelled("a", "b"), labelled("b", "c", label=False), "1 of 2"),
        (unpaired("ab"), labelled("a", "b", "c"), "2 of 3"),
        (unpaired("ab", "cd"), unpaired("ax", "yd", "cd"), "1 of 3"),
    ],
    ids=["examples", "pairs, both answers", "labels, whatever they say", "answers of pairs", "pairs one by one"],
)
def test_held_out_rows_that_are_trained_on_are_counted(train, heldout, shared):
    (note,) = data_notes(train, heldout)
    assert note.startswith(f"{shared} held-out rows are in the training data word for word")


def test_of_other_rows_nothing_is_said():
    assert data_notes(examples("a"), examples("b")) == []
    assert data_notes(examples("a"), None) == []


def asked(prompt: str, answer: str, index: int) -> Example:
    ids = tuple((prompt + answer).encode())
    mask = (False,) * len(prompt) + (True,) * len(answer)
    return Example(index=index, input_ids=ids, completion_mask=mask)


def asked_pairs(*texts: str) -> Rendered:
    rows = [Pair(index=n, chosen=asked(t[:2], t[2], n), rejected=asked(t[:2], t[3], n)) for n, t in enumerate(texts)]
    return Rendered(rows=rows, source=source(*({"prompt": t[:2], "chosen": t[2], "rejected": t[3]} for t in texts)))


def asked_examples(*texts: str) -> Rendered:
    rows = [asked(text[:2], text[2:], n) for n, text in enumerate(texts)]
    return Rendered(rows=rows, source=source(*({"prompt": text[:2], "completion": text[2:]} for text in texts)))


def asked_labels(*texts: str) -> LabelledSet:
    found = asked_examples(*texts)
    rows = [LabelledExample(index=row.index, example=row, label=True) for row in found.rows]
    return LabelledSet(rows=rows, source=found.source)


def asked_prompts(*texts: str) -> PromptSet:
    return PromptSet(prompts=tuple(Prompt(index=n, ids=(1,), text=text[:2]) for n, text in enumerate(texts)))


@pytest.mark.parametrize("made", [asked_pairs, asked_examples, asked_labels])
def test_held_out_rows_with_a_trained_prompt_are_counted(made):
    train = made("1+xy", "2+xy", "2+zy")
    (note,) = data_notes(train, made("2+uv", "3+xy", "1+uv"))
    assert note.startswith("2 of 3 held-out rows have a prompt that is also trained")
    assert data_notes(train, made("3+xy", "4+xy")) == []
    (note,) = data_notes(train, made("2+xy", "3+xy"))
    assert "word for word" in note
    assert len(data_notes(train, made("2+xy", "1+uv"))) == 2


@pytest.mark.parametrize(
    ("texts", "distinct"),
    [
        (["1+xy", "1+zy", "2+xy", "2+zy"], 2),
        (["1+xy", "1+zy", "1+vw"], 1),
        ([f"{number}+xy" for number in "12345671"], None),
        ([f"{number}+xy" for number in "1234512"], 5),
        (["1+xy", "2+xy"], None),
        (["1+xy"], None),
    ],
)
@pytest.mark.parametrize("made", [asked_pairs, asked_examples, asked_labels])
def test_held_out_rows_that_repeat_prompts_are_told_with_the_number_of_different_ones(made, texts, distinct):
    expected = (
        []
        if distinct is None
        else [f"the {len(texts)} measured held-out rows have only {distinct} different prompts: "]
    )
    notes = data_notes(made("8+xy", "9+xy"), made(*texts))
    assert [note[: note.index(":") + 2] for note in notes] == expected


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ([f"{n}+xy" for n in "12121212345678"], "the 8 measured held-out rows have only 2 different prompts"),
        ([f"{n}+xy" for n in "12345678121212"], None),
    ],
)
@pytest.mark.parametrize("made", [asked_pairs, asked_examples, asked_labels, asked_prompts])
def test_only_rows_that_are_measured_count_as_repeated(made, texts, told):
    notes_of = prompt_notes if made is asked_prompts else data_notes
    notes = notes_of(made("9+xy"), made(*texts), evaluation={"prompts": 8})
    assert [note.partition(":")[0] for note in notes] == ([] if told is None else [told])


def test_pairs_that_are_trained_one_by_one_repeat_no_prompt():
    found = asked_pairs("1+xy", "2+xy")
    heldout = LabelledSet(rows=Unpaired(found.rows), pairs=found.rows, source=found.source)
    assert data_notes(asked_examples("8+xy"), heldout) == []


def test_rows_without_a_prompt_repeat_none():
    assert data_notes(examples("ab"), examples("cd", "ef", "gh")) == []


TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}]{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
RENDERS = {
    **dict.fromkeys(["messages", "answered later", "searched", "searched later", "alpaca"], render_examples),
    **dict.fromkeys(["pairs", "searched before pairs", "other names"], render_pairs),
    "labels": render_labels,
    "ratings": render_ratings,
    "steps": partial(render_steps, separator="|"),
}


@pytest.mark.parametrize(
    ("streaming", "kind"),
    few(
        product([False, True], RENDERS),
        *product([False], RENDERS),
        *product([True], ["answered later", "pairs", "labels", "steps"]),
    ),
)
def test_notes_count_prompts_as_the_split_holds_them_out(kind, streaming, tmp_path, monkeypatch):
    """So whole prompts that are held out are not also trained, and conversations that only begin alike differ."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    tokenizer = build_tokenizer(string.printable)
    tokenizer.chat_template = TEMPLATE
    ends = {} if kind == "steps" else {"eos_ids": {tokenizer.eos_token_id}}
    limits = {"max_length": 999, "max_dropped": 0.0, "what": "data", **ends}

    def notes(each: int, unit: str) -> list[str]:
        path = tmp_path / f"{each}.jsonl"
        path.write_text(jsonl(*repeated(kind, 40, each)))
        data = DataConfig(train=str(path), eval_fraction=0.2, streaming=streaming, hold_out=unit)
        rows = read_split(data, seed=0)
        parts = (rows.train, first_rows(rows.heldout, 256))
        return data_notes(*(RENDERS[kind](part, Renderer(tokenizer=tokenizer, chat=True), **limits) for part in parts))

    assert notes(1, "prompts") == []
    (note,) = notes(4, "prompts")
    assert note.startswith("the 32 measured held-out rows have only 8 different prompts")
    assert notes(4, "rows")[-1].startswith("32 of 32 held-out rows have a prompt that is also trained")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["examples", "pairs", "labels", "ratings", "unpaired"])
def test_text_without_a_token_is_told_of_training_rows_and_of_other_held_out_rows(
    kind, streaming, tmp_path, monkeypatch
):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rendering, "CHECKED", 3)
    tokenizer = build_tokenizer(string.printable)
    how = {"eos_ids": {2}, "max_length": 99, "max_dropped": 0.0, "what": "data"}
    judged = {"chosen": "b", "rejected": "c"} if kind in ("pairs", "unpaired") else {"label": True, "score": 1}
    columns = {"examples": (), "ratings": ("score",), "labels": ("label",)}.get(kind, ("chosen", "rejected"))
    render = {**RENDERS, "examples": render_examples, "unpaired": render_labels}[kind]

    def part(*texts: str) -> Any:
        name = "rejected" if "rejected" in columns else "completion"
        rows = [{"prompt": f"p{n}", **{c: judged[c] for c in columns}, name: text} for n, text in enumerate(texts)]
        path = tmp_path / f"{len(texts)}.jsonl"
        path.write_text(jsonl(*rows))
        rows = read_split(DataConfig(train=str(path), streaming=streaming, eval_fraction=0), seed=0).train
        return render(rows, Renderer(tokenizer=tokenizer, chat=False), **how)

    train, heldout = part("x", "日", "y", "日"), part("日")
    told = text_notes(train, heldout, tokenizer)
    some = streaming and kind != "ratings"  # ratings are all rendered before a run
    where = "the first 3 rows of the training data: 1 of 3" if some else "training data: 2 of 4"
    assert len(told) == 1
    assert told[0].startswith(f"{where} rows hold")
    assert "'日' in 4.jsonl:2" in told[0]
    assert text_notes(train, heldout, tokenizer, eval="e")[1].startswith("held-out data: 1 of 1 row holds")
    assert text_notes(part("x", "y"), None, tokenizer) == []


def test_answers_without_any_token_are_refused_before_a_run():
    tokenizer = build_tokenizer("ab")
    how = {"eos_ids": {2}, "max_length": 99, "max_dropped": 0.0, "what": "data"}
    rows = source({"prompt": "a", "completion": "日"}, {"prompt": "b", "completion": "本"})
    found = render_examples(rows, Renderer(tokenizer=tokenizer, chat=False), **how)
    with pytest.raises(DataError, match="training data: every trained token except EOS is <unk>"):
        text_notes(found, None, tokenizer)
