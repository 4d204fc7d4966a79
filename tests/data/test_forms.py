"""Every layout gives the same values; the table says how each column is read."""

from __future__ import annotations

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.data import templates
from tests.data.samples import real_tokenizer, rows_of, shared_file
from tests.data.test_examples import marked

from posttrain.config import DataConfig
from posttrain.data.dropped import IN_ANOTHER_FORM, Dropped, too_many
from posttrain.data.examples import render_examples
from posttrain.data.forms import FORMS, MEANT, Form, detect, fits
from posttrain.data.labels import render_labels
from posttrain.data.looks import LOOKS
from posttrain.data.messages import as_dialogue, implicit_dialogue, implicit_prompt
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer, render_prompts
from posttrain.data.read import Row, read_rows
from posttrain.errors import DataError

ASK, YES, NO = (
    {"role": "user", "content": "a?"},
    {"role": "assistant", "content": "yes"},
    {"role": "assistant", "content": "no"},
)
HUMAN, GPT, GPT_NO = {"from": "human", "value": "a?"}, {"from": "gpt", "value": "yes"}, {"from": "gpt", "value": "no"}
DIALOGUE = "\n\nHuman: a?\n\nAssistant:"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def inspect_kind(row) -> str:
    """The kind that `data check` assigns to such data."""
    return next(kind for kind in LOOKS if fits(rows_of(row), kind))


def read(kind, row, *, chat: bool = False):
    rows = rows_of(row)
    return detect(rows, kind).read(rows[0], chat=chat)


# --- layouts ---------------------------------------------------------------------------------------------------------


@catalogue(
    "row, expected",
    [
        ({"messages": [ASK, YES]}, {"messages": [ASK, YES]}),
        ({"conversations": [HUMAN, GPT]}, {"messages": [ASK, YES]}),
        ({"conversations": [ASK, YES]}, {"messages": [ASK, YES]}),
        ({"prompt": "a?", "completion": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"prompt": [ASK], "completion": [YES]}, {"prompt": [ASK], "completion": [YES]}),
        ({"instruction": "a?", "input": "", "output": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"instruction": "a", "input": "b", "output": "yes"}, {"prompt": "a\n\nb", "completion": "yes"}),
        ({"instruction": "a?", "instances": [{"input": "", "output": "yes"}]}, {"prompt": "a?", "completion": "yes"}),
        ({"prompt": "a?", "response": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"prompt": "a?", "response": "no", "completion": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"instruction": "a", "input": "b", "response": "yes"}, {"prompt": "a\n\nb", "completion": "yes"}),
        ({"question": "a?", "response": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"query": "a?", "response": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"input": "a?", "output": "yes"}, {"prompt": "a?", "completion": "yes"}),
        ({"text": "abc", "id": 3}, {"text": "abc"}),
    ],
)
def test_examples_of_every_layout(row, expected):
    assert read("examples", row) == expected


def test_a_system_prompt_and_a_history_make_a_conversation():
    row = {"instruction": "a?", "output": "yes", "system": "Be kind.", "history": [["b?", "c"]]}
    earlier = [{"role": "user", "content": "b?"}, {"role": "assistant", "content": "c"}]
    system = {"role": "system", "content": "Be kind."}
    assert read("examples", row) == {"messages": [system, *earlier, ASK, YES]}
    assert read("examples", row | {"history": []}) == {"prompt": [system, ASK], "completion": "yes"}
    assert read("examples", {"conversations": [HUMAN, GPT], "system": "Be kind."}) == {"messages": [system, ASK, YES]}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a?", "chosen": "yes", "rejected": "no"},
        {"instruction": "a?", "input": "", "chosen": "yes", "rejected": "no"},
        {"question": "a?", "chosen": "yes", "rejected": "no", "system": ""},
        {"question": "a?", "answer_matching_behavior": "yes", "answer_not_matching_behavior": "no", "statement": "s"},
    ],
)
def test_pairs_of_text_of_every_layout(row):
    assert read("pairs", row) == {"prompt": "a?", "chosen": "yes", "rejected": "no"}


@catalogue(
    "row",
    [
        {"prompt": [ASK], "chosen": [YES], "rejected": [NO]},
        {"chosen": [ASK, YES], "rejected": [ASK, NO]},
        {"prompt": "a?", "chosen": [ASK, YES], "rejected": [ASK, NO]},
        {"conversations": [HUMAN], "chosen": GPT, "rejected": GPT_NO},
        {"input": {"messages": [ASK]}, "preferred_output": [YES], "non_preferred_output": [NO]},
        {"chosen": f"{DIALOGUE} yes", "rejected": f"{DIALOGUE} no"},
    ],
)
def test_pairs_of_messages_of_every_layout(row):
    assert read("pairs", row, chat=True) == {"prompt": [ASK], "chosen": [YES], "rejected": [NO]}


def test_texts_of_dialogues_stay_texts_for_a_model_without_a_chat_template():
    row = {"chosen": f"{DIALOGUE} I am, yes", "rejected": f"{DIALOGUE} I am not"}
    assert read("pairs", row) == {"prompt": DIALOGUE, "chosen": " I am, yes", "rejected": " I am not"}


def test_a_margin_is_the_column_or_else_the_difference_of_the_scores():
    row = {"prompt": "a?", "chosen": "yes", "rejected": "no", "score_chosen": 8, "score_rejected": 6.5}
    assert read("pairs", row)["margin"] == 1.5
    assert read("pairs", row | {"margin": 3})["margin"] == 3.0
    assert "margin" not in read("pairs", row | {"score_rejected": None})


@catalogue(
    "row, prompt, completion",
    [
        ({"prompt": "a?", "completion": "yes", "label": True}, "a?", "yes"),
        ({"messages": [ASK, YES], "label": True}, [ASK], [YES]),
        ({"messages": [ASK, YES], "kto_tag": True}, [ASK], [YES]),
        ({"conversations": [HUMAN, GPT], "kto_tag": "true"}, [ASK], [YES]),
        ({"instruction": "a?", "output": "yes", "kto_tag": 1}, "a?", "yes"),
    ],
)
def test_labels_of_every_layout(row, prompt, completion):
    assert read("labels", row) == {"prompt": prompt, "completion": completion, "label": True}


def test_ratings_and_steps():
    row = {"prompt": "a?", "completion": "yes"}
    assert read("ratings", row | {"score": 2}) == row | {"score": 2.0}
    assert read("ratings", {"messages": [ASK, YES], "score": 2}) == {"prompt": [ASK], "completion": [YES], "score": 2.0}
    steps = {"prompt": "a?", "completions": ["b", "c"], "labels": [True, 0.5]}
    assert read("steps", steps) == {"prompt": "a?", "steps": ["b", "c"], "labels": [True, 0.5]}


def test_prompts_keep_their_other_columns_and_verl_rows_their_gold_answer(tmp_path):
    row = {
        "data_source": "gsm8k",
        "prompt": [ASK],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 0},
    }
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "train.parquet")
    (found,) = read_rows(str(tmp_path / "train.parquet"))
    assert detect([found], "prompts").family == "verl"
    assert detect([found], "prompts").read(found) == row | {"answer": "4"}
    assert read("prompts", {"question": "a?", "gold": 4, "level": 2}) == {
        "prompt": "a?", "answer": 4, "gold": 4, "level": 2
    }  # fmt: skip


def test_tools_may_be_a_list_or_json_text_with_or_without_their_wrapping():
    for tools in ([TOOL], '[{"name": "add", "parameters": {}}]', [TOOL["function"]]):
        assert read("examples", {"messages": [ASK, YES], "tools": tools})["tools"] == [TOOL]
    for nothing in (None, "", [], "[]"):
        assert "tools" not in read("examples", {"messages": [ASK, YES], "tools": nothing})


def test_arguments_of_a_call_become_objects_and_a_call_behind_words_is_one_turn_with_them():
    function = {"name": "add", "arguments": {"n": 1}}
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    openai = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}]}  # fmt: skip
    assert read("examples", {"messages": [ASK, openai]})["messages"][1] == {
        **called, "tool_calls": [{"id": "c1", **called["tool_calls"][0]}]
    }  # fmt: skip
    talk = [HUMAN, GPT, {"from": "function_call", "value": '{"name": "add", "arguments": {"n": 1}}'}]
    assert read("examples", {"conversations": talk})["messages"] == [ASK, called | {"content": "yes"}]


def test_parts_that_are_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]
    assert read("examples", {"messages": [{"role": "user", "content": parts}, YES]}) == {"messages": [ASK, YES]}


@pytest.mark.parametrize(("kind", "column", "value"), [("labels", "label", False), ("ratings", "score", 2.5)])
def test_a_response_is_judged_like_a_completion_and_no_example_is_made_of_it(kind, column, value):
    row = {"prompt": "a?", "response": "no", column: value}
    assert read(kind, row) == {"prompt": "a?", "completion": "no", column: value}
    assert inspect_kind(row) == kind


# --- messages as JSON text, and answers that say nothing --------------------------------------------------------------

said = st.text("ab \n\"'[]{}:,\\é", max_size=12).map(lambda text: f"x{text}x")
REJECTED = {"role": "assistant", "content": "other"}


@given(said, said, st.booleans(), st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_messages_as_json_text_are_read_like_messages(question, answer, sharegpt, indent, as_csv):
    ask, yes = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    human, gpt = {"from": "human", "value": question}, {"from": "gpt", "value": answer}
    first, second = (human, gpt) if sharegpt else (ask, yes)
    rows = {
        "examples": [
            {"messages": [first, second]}, {"prompt": [first], "completion": [second]},
            {"conversations": [first, second]},
        ],
        "pairs": [
            {"prompt": [first], "chosen": [second], "rejected": [REJECTED]},
            {"chosen": [first, second], "rejected": [first, REJECTED]},
            {"prompt": [first], "chosen": second, "rejected": REJECTED},
        ],
        "labels": [
            {"prompt": [first], "completion": [second], "label": True}, {"messages": [first, second], "label": True}
        ],
        "prompts": [{"prompt": [first]}, {"messages": [first]}],
    }  # fmt: skip
    for kind, several in rows.items():
        for row in several:
            as_text = {name: json.dumps(value, indent=indent) for name, value in row.items()}
            if as_csv:
                file = io.StringIO()
                writer = csv.DictWriter(file, list(as_text))
                writer.writeheader()
                writer.writerow(as_text)
                (as_text,) = csv.DictReader(io.StringIO(file.getvalue(), newline=""))
            assert read(kind, as_text) == read(kind, row)


@given(said, st.sampled_from(["role content", "content role", "from value"]), st.booleans())
def test_messages_in_the_notation_of_python_are_dropped_with_the_cure(text, names, alone):
    values = {"role": "user", "content": f"{text}'", "from": "human", "value": f"{text}'"}
    message = {name: values[name] for name in names.split()}
    for column in ("prompt", "completion"):
        row = {"prompt": "a", "completion": "b", column: str(message if alone else [message])}
        (dropped,) = [detect(rows_of(row), "examples").read(rows_of(row)[0])]
        assert dropped == Dropped("rows:1", f"{column}: messages as text that is not JSON: write JSON, with json.dumps")


@catalogue(
    "text",
    [
        '[{"from": "1990", "value": 3}]', '{"role": "admin", "content": "x"}', '{"role": "user"}', "[1, 2]", "{}", "[]",
        '{"messages": [{"role": "user", "content": "a"}]}', '[{"role": "user", "content": "a"}, 3]', "[{'a': 1}]",
        '[{"role": "user", "content": "a"}] What is this?', "[{'role': 'admin', 'content': 'a'}]",
        "{'model': 'm', 'messages': [{'role': 'user', 'content': 'a'}]}",
        '[[{"role": "user", "content": "a"}]]', "role: user", '{"x": {"from": "user"}', "[user]",
    ],
)  # fmt: skip
def test_other_json_and_other_text_stay_text(text):
    assert read("examples", {"prompt": text, "completion": text}) == {"prompt": text, "completion": text}
    assert read("prompts", {"prompt": text})["prompt"] == text


BLANK = st.text(" \t\n\r\u00a0\u2003", max_size=4)


@given(BLANK)
def test_an_answer_that_says_nothing_is_dropped_whatever_its_form(blank):
    turn = {"role": "assistant", "content": blank}
    for row in (
        {"prompt": "a", "completion": blank}, {"prompt": [ASK], "completion": [turn]},
        {"prompt": "a", "response": blank},
        {"instruction": "a", "output": blank}, {"instruction": "a", "response": blank}, {"input": "a", "output": blank},
        {"question": "a", "response": blank}, {"instruction": "a", "instances": [{"input": "", "output": blank}]},
        {"instruction": "a", "output": blank, "history": [["b", "c"]]}, {"messages": [ASK, turn]},
    ):  # fmt: skip
        found = detect(rows_of(row), "examples").read(rows_of(row)[0])
        assert isinstance(found, Dropped), row
        assert "an empty answer" in found.reason or "empty assistant turn" in found.reason


# --- rows that fit no form -------------------------------------------------------------------------------------------


CONVERT = "Convert the files to one form: all rows are read by the same columns."


def test_rows_of_a_file_in_another_form_say_so():
    ours = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    alpaca, broken = {"instruction": "a", "output": "b"}, {"messages": None, "id": 3}
    form = detect(rows_of(*[ours] * 3, alpaca), "examples")
    assert form.read(Row(alpaca, "b:1")) == Dropped("b:1", "with the columns instruction + output and not messages")
    assert form.read(Row(broken, "a:4")) == Dropped("a:4", "no value in column 'messages'")
    dropped = [form.read(Row(alpaca, "b:1")), *[Dropped("a:1", "empty prompt")] * 2]
    assert too_many(dropped[:1], 1, 0.5, "training data").fix == CONVERT
    assert too_many(dropped, 3, 0.5, "training data").fix == "Fix the rows named above."


@pytest.mark.parametrize(
    ("kind", "row", "column"),
    [
        ("examples", {"instruction": "a", "input": "b", "output": "c"}, "instruction"),
        ("examples", {"prompt": "a", "completion": "b", "text": "c"}, "completion"),
        ("prompts", {"prompt": "a", "question": "b", "answer": "c"}, "prompt"),
    ],
)
def test_a_row_with_null_in_a_column_is_broken_though_its_other_columns_are_a_form(kind, row, column):
    found = detect(rows_of(row), kind).read(Row(row | {column: None}, "a:1"))
    assert isinstance(found, Dropped)
    assert IN_ANOTHER_FORM not in found.reason


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (
            {"query": "a", "response_w": "b", "response_l": "c"},
            "prompt (query) + chosen (response_w) + rejected (response_l)",
        ),
        (
            {"prompt": "a", "response_a": "b", "response_b": "c", "winner": "a"},
            "prompt + response_a + response_b + winner",
        ),
    ],
)
def test_a_file_in_another_form_is_named_also_by_other_names_of_columns(row, columns):
    ours = {"prompt": "a", "chosen": "b", "rejected": "c"}
    found = detect(rows_of(*[ours] * 3, row), "pairs").read(Row(row, "b:1"))
    assert found == Dropped("b:1", f"with the columns {columns} and not prompt + chosen + rejected")


@catalogue(
    "kind, columns, message",
    [
        (
            "examples",
            ("problem", "reply"),
            r"columns problem, reply; .*\n  Set data.columns = {prompt: problem, completion: reply}",
        ),
        ("pairs", ("prompt", "choosen", "rejected"), "Set data.columns = {chosen: choosen}"),
        ("pairs", ("prompt", "completion"), r"suits sft"),
        ("examples", ("chosen", "rejected"), r"\(chosen \+ rejected\) suits dpo"),
        (
            "labels",
            ("a", "b"),
            r"allowed: prompt \+ completion \+ label; .*messages \+ label; .*\n  Say in data.columns which",
        ),
        ("pairs", ("instruction", "output_1", "output_2", "preference"), "instruction, output_1, output_2, preference"),
        ("examples", ("conversations", "chosen", "rejected"), r"\(conversations \+ chosen \+ rejected\) suits dpo"),
    ],
)
def test_columns_that_fit_no_form_are_named_with_what_to_do(kind, columns, message):
    with pytest.raises(DataError, match=message):
        detect(rows_of(dict.fromkeys(columns, "x")), kind)


def test_columns_that_are_not_read_are_known():
    form = detect(rows_of({"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 1, "id": 2}), "pairs")
    assert form.unused(["prompt", "chosen", "rejected", "score_chosen", "id"]) == ("id",)


def test_every_form_can_be_reached():
    """No earlier line of the table hides a later one."""

    def reached(form: Form) -> bool:
        text = f"{DIALOGUE} x" if form.family == "HH-RLHF" else {} if form.family == "verl" else "x"
        found = detect(rows_of(dict.fromkeys(form.needs, text)), form.kind)
        return (found.needs, found.family) == (form.needs, form.family)

    assert [form.name for form in FORMS if not reached(form)] == []
    assert {form.kind for form in FORMS} == set(MEANT)


# --- real files ------------------------------------------------------------------------------------------------------

REAL = [
    ("sft/llamafactory_alpaca_en_demo.jsonl.gz", "examples", "Alpaca", {}),
    ("sft/llamafactory_glaive_toolcall_en_demo.jsonl.gz", "examples", "ShareGPT", {}),
    ("sft/self_instruct_seed_tasks.jsonl", "examples", "Self-Instruct", {}),
    ("preference/ultrafeedback_train.jsonl.gz", "pairs", "TRL, UltraFeedback",
     {"chosen and rejected are the same": 4, "an empty answer": 2}),
    ("preference/ultrafeedback_eval.jsonl.gz", "pairs", "TRL, UltraFeedback", {"chosen and rejected are the same": 1}),
    ("preference/hh_rlhf_harmless_base_test.jsonl.gz", "pairs", "HH-RLHF", {"an empty answer": 4}),
    ("preference/llamafactory_dpo_en_demo.jsonl.gz", "pairs", "ShareGPT", {}),
    ("preference/model_written_evals_agreeableness.jsonl", "pairs", "model-written evaluations", {}),
    ("preference/llamafactory_kto_en_demo.jsonl.gz", "labels", "OpenAI", {}),
]  # fmt: skip


@pytest.mark.slow
@catalogue("chat", [False, True], ids=["text", "chat"])
@catalogue("name, kind, family, reasons", REAL, ids=[name for name, *_ in REAL])
def test_real_files_are_recognised_and_what_is_dropped_of_them_is_known(name, kind, family, reasons, chat):
    rows = read_rows(str(shared_file(name)))
    form = detect(rows, kind)
    assert form.family == family
    dropped = [one.reason for row in rows if isinstance(one := form.read(row, chat=chat), Dropped)]
    assert {reason: dropped.count(reason) for reason in dropped} == reasons


def test_two_answers_with_a_soft_preference_are_no_pairs_and_said_so():
    rows = read_rows(str(shared_file("preference/alpaca_eval_openhermes_vs_gpt4.jsonl.gz")), max_rows=5)
    with pytest.raises(DataError, match=r"cannot be made of the columns instruction, output_1, .*preference; allowed:"):
        detect(rows, "pairs")


@pytest.mark.slow
@catalogue("name, kind, family, reasons", REAL, ids=[name for name, *_ in REAL])
def test_real_files_are_rendered_with_a_real_tokenizer(name, kind, family, reasons):
    rows = read_rows(str(shared_file(name)), max_rows=12)
    tokenizer = real_tokenizer("tokenizers/qwen2.5")
    render = {"examples": render_examples, "pairs": render_pairs, "labels": render_labels}[kind]
    found = render(
        rows, Renderer(tokenizer=tokenizer, chat=True), eos_ids={tokenizer.eos_token_id}, max_length=20_000,
        max_dropped=0.5, what="data",
    )  # fmt: skip
    assert len(found) + len(found.dropped) == 12
    assert len(found) >= 11


def test_calls_of_a_real_conversation_are_trained_and_its_tools_shown():
    (row,) = read_rows(str(shared_file("sft/llamafactory_glaive_toolcall_en_demo.jsonl.gz")), max_rows=1)
    tokenizer = real_tokenizer("tokenizers/qwen2.5")
    found = render_examples(
        [row], Renderer(tokenizer=tokenizer, chat=True), eos_ids={tokenizer.eos_token_id}, max_length=20_000,
        max_dropped=0.5, what="data",
    )  # fmt: skip
    (example,) = found.rows
    trained = tokenizer.decode([t for t, on in zip(example.input_ids, example.completion_mask, strict=True) if on])
    assert '<tool_call>\n{"name": "search_recipes", "arguments": {"ingredients": ["chicken"' in trained
    assert '"type": "function", "function": {"name": "search_recipes"' in tokenizer.decode(example.input_ids)
    assert "<tool_response>" not in trained
    assert trained.count("<|im_end|>") == 4


def test_tools_of_a_prompt_reach_the_template(tokenizer):
    tokenizer.chat_template = templates.CALLS
    rows, config = rows_of({"prompt": [ASK], "tools": [TOOL]}), DataConfig(train="rows.jsonl")
    renderer = Renderer.of(config, tokenizer)
    (prompt,) = render_prompts(rows, config, renderer, max_prompt_length=99, what="data").prompts
    assert prompt.text == "<bos>tools:add<eos>u:a?<eos>a:"
    assert prompt.columns["tools"] == [TOOL]


def test_dialogues_are_turns_of_the_template_where_there_is_one(chat_renderer):
    rows = rows_of({"chosen": f"{DIALOGUE} yes", "rejected": f"{DIALOGUE} no"})
    found = render_pairs(rows, chat_renderer, eos_ids={chat_renderer.tokenizer.eos_token_id}, max_length=99,
                         max_dropped=0.0, what="data")  # fmt: skip
    assert marked(found.rows[0].chosen, chat_renderer.tokenizer) == "<bos>u:a?<eos>a:[y][e][s][<eos>]"


# --- round trips -----------------------------------------------------------------------------------------------------

words = st.text(alphabet="ab \n", max_size=12)
turns = st.lists(
    st.tuples(st.sampled_from(["user", "assistant"]), st.text(alphabet="ab", max_size=2)), min_size=1, max_size=4
)
messages = turns.map(lambda found: [{"role": role, "content": content} for role, content in found])


@given(words, words, words)
def test_prompt_and_rest_are_the_whole_text_again(common, chosen, rejected):
    for cut in (implicit_prompt, implicit_dialogue):
        prompt, one, other = cut(common + chosen, common + rejected)
        assert (prompt + one, prompt + other) == (common + chosen, common + rejected)


@given(messages, messages)
def test_prompt_and_rest_are_all_messages_again(chosen, rejected):
    prompt, one, other = implicit_prompt(chosen, rejected)
    assert ([*prompt, *one], [*prompt, *other]) == (chosen, rejected)
    assert one
    assert other


said = st.text(alphabet="ab .", min_size=1, max_size=9).filter(str.strip)


@given(st.lists(st.tuples(said, said), min_size=1, max_size=4), said)
def test_a_dialogue_written_as_text_is_read_back_and_cut_before_its_last_answer(talk, other):
    text = "".join(f"\n\nHuman: {asked}\n\nAssistant: {answer}" for asked, answer in talk)
    assert [m["content"] for m in as_dialogue(text)] == [part.strip() for pair in talk for part in pair]
    head, last = text[: text.rfind(" ", 0, len(text) - len(talk[-1][1]))], talk[-1][1]
    if last != other:
        prompt, chosen, rejected = implicit_dialogue(text, f"{head} {other}")
        assert (prompt, chosen, rejected) == (head, f" {last}", f" {other}")
