"""Held-out rows: named, generated, or a share of the training rows that the seed alone decides."""

from __future__ import annotations

import pytest
from tests.catalogue import catalogue
from tests.data.samples import jsonl

from posttrain.config import DataConfig, load_config, to_yaml
from posttrain.data.same_prompts import prompt_keys
from posttrain.data.split import first_training_rows, open_rows, read_split
from posttrain.data.stream import StreamedRows
from posttrain.errors import DataError


@pytest.fixture
def hundred(write) -> str:
    return str(write("train.jsonl", jsonl(*[{"prompt": str(n)} for n in range(100)])))


def numbers(rows) -> list[int]:
    return [int(row.values["prompt"]) for row in rows]


def test_a_share_of_the_rows_is_held_out_and_no_row_is_lost_or_in_both_parts(hundred):
    train, heldout = read_split(DataConfig(train=hundred, eval_fraction=0.2), seed=0)
    assert len(heldout) == 20
    assert sorted(numbers(train) + numbers(heldout)) == list(range(100))
    assert numbers(train) == sorted(numbers(train))


def test_the_seed_decides_which(hundred):
    config = DataConfig(train=hundred, eval_fraction=0.2)
    assert read_split(config, seed=1) == read_split(config, seed=1)
    assert read_split(config, seed=1).heldout != read_split(config, seed=2).heldout


def test_a_named_source_is_used_instead(hundred, write):
    named = str(write("test.jsonl", jsonl({"prompt": "7"})))
    train, heldout = read_split(DataConfig(train=hundred, eval=named), seed=0)
    assert (len(train), numbers(heldout)) == (100, [7])


def test_a_task_brings_its_own_held_out_rows():
    train, heldout = read_split(DataConfig(train="task:sort", max_rows=300), seed=0)
    assert len(train) == len(heldout) == 300
    assert not {row.values["prompt"] for row in train} & {row.values["prompt"] for row in heldout}


def test_a_named_task_gives_its_held_out_rows(hundred):
    heldout = read_split(DataConfig(train=hundred, eval="task:sort", max_rows=5), seed=0).heldout
    assert heldout[0].origin == "task:sort, eval row 0"


def test_at_least_one_row_is_held_out_and_one_is_left(write):
    two = str(write("two.jsonl", jsonl({"prompt": "1"}, {"prompt": "2"})))
    assert [len(part) for part in read_split(DataConfig(train=two, eval_fraction=0.01), seed=0)] == [1, 1]
    one = str(write("one.jsonl", jsonl({"prompt": "1"})))
    with pytest.raises(DataError, match=r"data.eval_fraction = 0.5 of 1 rows leaves nothing to train on"):
        read_split(DataConfig(train=one, eval_fraction=0.5), seed=0)


def test_nothing_is_held_out_at_zero(hundred):
    assert [len(part) for part in read_split(DataConfig(train=hundred, eval_fraction=0.0), seed=0)] == [100, 0]


def test_a_part_of_the_training_rows_is_taken_in_their_order_beside_the_same_held_out_rows(hundred):
    whole = read_split(DataConfig(train=hundred, eval_fraction=0.2), seed=0)
    parts = [read_split(DataConfig(train=hundred, eval_fraction=0.2, part=f"{k}/3"), seed=0) for k in (1, 2, 3)]
    assert [len(part.train) for part in parts] == [26, 27, 27]
    assert [n for part in parts for n in numbers(part.train)] == numbers(whole.train)
    assert all(numbers(part.heldout) == numbers(whole.heldout) for part in parts)


def test_the_first_rows_of_a_part_have_the_columns_of_the_run(hundred):
    config = DataConfig(train=hundred, eval_fraction=0, part="2/4", columns={"number": "prompt"})
    assert [row.values for row in first_training_rows(config, 0, 2)] == [{"number": "25"}, {"number": "26"}]
    whole = config.model_copy(update={"part": None})
    assert [row.values for row in first_training_rows(whole, 0, 2)] == [{"number": "0"}, {"number": "1"}]


def test_more_parts_than_rows_are_refused(write):
    few = str(write("few.jsonl", jsonl({"prompt": "1"}, {"prompt": "2"})))
    with pytest.raises(DataError, match="leaves some parts empty"):
        read_split(DataConfig(train=few, eval_fraction=0, part="1/3"), seed=0)


def test_of_prompts_beside_sampled_pairs_only_prompts_are_held_out_streamed_or_not(write, tmp_path, monkeypatch):
    """Every round holds out the same prompts, whatever the earlier rounds have added."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    prompts = str(write("prompts.jsonl", jsonl(*[{"prompt": str(n)} for n in range(50)])))
    pair = {"chosen": "a", "rejected": "b", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}
    earlier = str(write("pairs.jsonl", jsonl(*[{"prompt": str(n), **pair} for n in range(50, 120)])))
    first = read_split(DataConfig(train=prompts, eval_fraction=0.2), seed=0)
    for streaming in (False, True, True):  # the second time from the stored counts
        config = DataConfig(train=[prompts, earlier], eval_fraction=0.2, streaming=streaming)
        train, heldout = read_split(config, seed=0)
        assert [row.values for row in heldout] == [row.values for row in first.heldout], streaming
        assert numbers(train) == numbers(first.train) + list(range(50, 120))
        part = read_split(config.model_copy(update={"part": "2/2"}), seed=0)
        assert numbers(part.train) == numbers(train)[55:]


def test_of_sampled_pairs_alone_pairs_are_held_out(write):
    pair = {"chosen": "a", "rejected": "b", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}
    pairs = str(write("pairs.jsonl", jsonl(*[{"prompt": str(n), **pair} for n in range(10)])))
    assert [len(part) for part in read_split(DataConfig(train=pairs, eval_fraction=0.2), seed=0)] == [8, 2]


def repeated(kind: str, size: int, each: int) -> list[dict]:
    """Rows with `each` different answers to each of `size` prompts, mixed."""
    rows = []
    for answer in range(each):
        for n in range(size):
            prompt, text = f"say {n}", f"{answer}"
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
            tried = [turns[0], *searched(text)]
            rows.append(
                {
                    "prompts": {"question": prompt, "answer": text},
                    "pairs": {"prompt": prompt, "chosen": text, "rejected": "x"},
                    "labels": {"prompt": prompt, "completion": text, "label": answer % 2 == 0},
                    "ratings": {"prompt": prompt, "completion": text, "score": answer},
                    "steps": {"prompt": prompt, "completions": [text], "labels": [True]},
                    "messages": {"messages": turns},
                    "alpaca": {"instruction": "say", "input": str(n), "output": text},
                    "other names": {"query": prompt, "response_w": text, "response_l": "x"},
                    "asked messages": {"messages": turns[:1], "answer": text},
                    "asked conversations": {"conversations": turns[:1], "answer": text},
                    "asked later": {"messages": [*HELLO, turns[0]], "answer": text},
                    "answered later": {"messages": [*HELLO, *turns]},
                    "searched": {"messages": [*tried, turns[1]]},
                    "searched later": {"messages": [*HELLO, *tried, turns[1]]},
                    "searched before pairs": {"prompt": tried, "chosen": text, "rejected": "x"},
                    "searched before the end": {"messages": tried, "answer": text},
                    "prompt beside text": {"prompt": prompt, "answer": text, "text": prompt + text},
                    "one text": {"prompt": prompt, "answer": text, "text": "always"},
                    "no response": {"question": prompt, "response": None, "answer": text},
                    "some chosen": {"prompt": prompt, "chosen": text if answer else None, "rejected": "x"},
                }[kind]
            )  # fmt: skip
    return rows


def searched(text: str) -> list[dict]:
    """A call of a tool and its result, which differ between the answers to a question."""
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": text}}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "search", "content": f"hit {text}"},
    ]


HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
KINDS = (
    *("prompts", "pairs", "labels", "ratings", "steps", "messages", "alpaca", "other names", "asked messages"),
    *("asked conversations", "asked later", "answered later", "prompt beside text", "one text", "no response"),
    *("some chosen", "searched", "searched later", "searched before pairs", "searched before the end"),
)


def prompt_in(values: dict) -> str:
    named = next((values[name] for name in ("question", "prompt", "input", "query") if name in values), None)
    turns = values.get("messages") or values.get("conversations") or ()
    turns = turns if named is None or isinstance(named, str) else named
    said = [turn["content"] for turn in turns if turn["role"] == "user"]
    return said[-1] if turns else str(named)


@catalogue("streaming", [False, True])
@catalogue("kind", KINDS)
def test_no_prompt_is_both_trained_and_held_out(kind, streaming, write, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / f"cache {kind}"))
    path = str(write(f"{kind}.jsonl", jsonl(*repeated(kind, 40, 4))))
    for seed in range(1 if streaming else 2):
        config = DataConfig(train=path, eval_fraction=0.2, streaming=streaming)
        train, heldout = (list(part) for part in read_split(config, seed=seed))
        assert (len(train), len(heldout)) == (128, 32)
        assert not {prompt_in(row.values) for row in train} & {prompt_in(row.values) for row in heldout}
        train, heldout = read_split(config.model_copy(update={"hold_out": "rows"}), seed=seed)
        assert {prompt_in(row.values) for row in train} & {prompt_in(row.values) for row in heldout}


SAMPLED = {"prompt": "say 1", "chosen": "a", "rejected": "b", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}
ODD = ({"prompt": " "}, {"prompt": None, "question": "say 1"}, {"question": 3}, {"query": "say 2"}, {}, SAMPLED)


@catalogue("kind", KINDS)
def test_streamed_rows_have_the_prompts_of_rows_in_memory(kind, write, tmp_path, monkeypatch):
    """Also beside rows that cannot be used, have another column, or are pairs of earlier rounds."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / f"cache {kind}"))
    for name, others in (("plain", ()), ("odd", ODD)):
        path = str(write(f"{kind}, {name}.jsonl", jsonl(*repeated(kind, 20, 2), *others)))
        columns = {"prompt": "query"} if kind == "other names" else {}
        config = DataConfig(train=path, columns=columns)
        keys = [
            prompt_keys(open_rows(config.model_copy(update={"streaming": streaming}), path, "train", 0), config)
            for streaming in (False, True)
        ]
        assert keys[0].tolist() == keys[1].tolist()
        assert others or len(set(keys[0].tolist())) == 20


@pytest.mark.parametrize("kind", ["prompts", "pairs", "labels", "ratings", "steps", "prompt beside text"])
def test_streamed_rows_whose_prompts_are_text_are_not_read_again(kind, write, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    path = str(write("rows.jsonl", jsonl(*repeated(kind, 1000, 2))))
    config = DataConfig(train=path, streaming=True)
    rows, read = open_rows(config, path, "train", 0), []
    as_written = StreamedRows._as_written
    monkeypatch.setattr(StreamedRows, "_as_written", lambda self, places: counted(as_written(self, places), read))
    assert len(set(prompt_keys(rows, config).tolist())) == 1000
    assert len(read) < 1000, "only what tells the form"


def counted(rows, read):
    for row in rows:
        read.append(row)
        yield row


def test_of_a_template_its_text_is_the_prompt(write):
    path = str(write("rows.jsonl", jsonl(*[{"a": n % 4, "b": n % 5, "prompt": str(n)} for n in range(80)])))
    train, heldout = read_split(DataConfig(train=path, eval_fraction=0.2, prompt="{a} and {b}"), seed=0)
    texts = [{(row.values["a"], row.values["b"]) for row in part} for part in (train, heldout)]
    assert not texts[0] & texts[1]
    assert (len(texts[1]), len(heldout)) == (4, 16)


@catalogue("kind", KINDS)
def test_if_all_prompts_differ_the_rows_are_those_that_earlier_versions_held_out(kind, write):
    path = str(write(f"{kind}.jsonl", jsonl(*repeated(kind, 60, 1))))
    for seed in range(3):
        both = [read_split(DataConfig(train=path, hold_out=unit), seed=seed) for unit in ("prompts", "rows")]
        assert both[0] == both[1]


def test_seeds_0_and_1_hold_out_these_rows_in_every_version(hundred):
    found = [numbers(read_split(DataConfig(train=hundred, eval_fraction=0.05), seed=seed).heldout) for seed in (0, 1)]
    assert found == [[19, 44, 71, 90, 93], [15, 32, 35, 45, 90]]


def test_prompts_of_many_rows_do_not_enlarge_the_held_out_part_if_others_fit(write):
    rows = [{"prompt": "often"}] * 50 + [{"prompt": str(n)} for n in range(50)]
    for seed in range(5):
        path = str(write("rows.jsonl", jsonl(*rows)))
        heldout = read_split(DataConfig(train=path, eval_fraction=0.1), seed=seed).heldout
        assert len(heldout) == 10
        assert all(row.values["prompt"] != "often" for row in heldout)


def test_if_no_prompt_fits_the_one_with_the_fewest_rows_is_held_out_and_of_one_prompt_rows_are(write):
    rows = [{"prompt": "a", "completion": str(n)} for n in range(60)]
    rows += [{"prompt": "b", "completion": str(n)} for n in range(40)]
    path = str(write("rows.jsonl", jsonl(*rows)))
    train, heldout = read_split(DataConfig(train=path, eval_fraction=0.1), seed=0)
    assert [(len(part), {row.values["prompt"] for row in part}) for part in (train, heldout)] == [
        (60, {"a"}),
        (40, {"b"}),
    ]
    alone = str(write("alone.jsonl", jsonl(*rows[:60])))
    assert [len(part) for part in read_split(DataConfig(train=alone, eval_fraction=0.1), seed=0)] == [54, 6]


def test_a_run_of_an_earlier_version_keeps_its_rows(tmp_path, hundred):
    """Its config.yaml does not name the unit. The file of a user who does not name it holds out prompts."""
    run = {"model": "tiny:sort", "algorithm": "dpo", "data": {"train": hundred}, "train": {"steps": 1}}
    text = to_yaml(load_config(run))
    for name, content, unit in (
        ("now", text, "prompts"),
        ("then", text.replace("  hold_out: prompts  # default\n", ""), "rows"),
        ("own", text.replace("  hold_out: prompts  # default\n", "").partition("\n")[2], "prompts"),
    ):
        (tmp_path / f"{name}.yaml").write_text(content)
        assert load_config(tmp_path / f"{name}.yaml").config.data.hold_out == unit, name
