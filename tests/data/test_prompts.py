"""A row becomes the ids that sampler and trainer use: the right columns, one BOS, no EOS, nothing lost silently."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from tests.data.samples import real_tokenizer, rows_of, shared_file

from posttrain.config import DataConfig, RunConfig, load_config
from posttrain.data.prompts import PromptSet, Renderer, overlap, render_prompts, with_all_columns
from posttrain.data.read import read_rows
from posttrain.data.split import open_rows
from posttrain.errors import DataError
from posttrain.experience.rendering import prompt_notes

HELLO = [{"role": "user", "content": "hello"}]


def render(rows, renderer, *, room: int = 1000, **settings) -> PromptSet:
    config = DataConfig(train="rows.jsonl", **settings)
    return render_prompts(rows, config, renderer, max_prompt_length=room, what="training data")


def texts(found: PromptSet) -> list[str]:
    return [prompt.text for prompt in found.prompts]


# --- the column of the prompt --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prompt", "question", "problem", "instruction"])
def test_the_usual_prompt_columns_are_found(renderer, name):
    found = render(rows_of({"id": 1, name: "hello"}), renderer)
    assert texts(found) == ["hello"]
    assert found.columns == f"prompt from column {name!r}, no answer column"


@pytest.mark.parametrize("name", ["answer", "Answer", "solution", "ground_truth", "gold"])
def test_the_usual_answer_columns_reach_rewards_as_answer(renderer, name):
    (prompt,) = render(rows_of({"prompt": "1+1", name: 2, "level": "easy"}), renderer).prompts
    assert prompt.columns["answer"] == 2
    assert prompt.columns["level"] == "easy"
    assert "prompt" not in prompt.columns


def test_a_named_answer_column_wins_over_the_usual_ones(renderer):
    (prompt,) = render(rows_of({"prompt": "1+1", "answer": "x", "result": 2}), renderer, answer="result").prompts
    assert prompt.columns["answer"] == 2


@pytest.mark.parametrize("column", ["prompt", "asked"])
def test_rows_of_verl_keep_their_gold_answer_beside_a_named_prompt(renderer, column):
    row = {column: "1+1", "data_source": "mine", "reward_model": {"style": "rule", "ground_truth": "2"}}
    (prompt,) = render(rows_of(row), renderer, prompt=column).prompts
    assert (prompt.text, prompt.columns["answer"]) == ("1+1", "2")


def test_a_template_joins_columns(renderer):
    rows = rows_of({"Body": "Two and two.", "Question": "How many?", "Answer": 4.0})
    found = render(rows, renderer, prompt="{Body} {Question} {{x}}")
    assert texts(found) == ["Two and two. How many? {x}"]
    assert found.columns == "prompt from template '{Body} {Question} {{x}}', answer from 'Answer'"


def test_alpaca_rows_keep_their_input(renderer):
    rows = rows_of({"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Sing.", "input": ""})
    assert texts(render(rows, renderer)) == ["Add.\n\n1 2", "Sing."]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"no column for the prompt; its columns are text, Label; allowed: prompt, question, problem, instruction"),
        (
            {"prompt": "Text"},
            r"no column 'Text' \(data.prompt\); its columns are text, Label.*\n  Did you mean 'text'\?",
        ),
        ({"prompt": "{txt} {Label}"}, r"no column 'txt' \(data.prompt\); .*\n  Did you mean 'text'\?"),
        ({"prompt": "{}"}, r"data.prompt = '\{\}' is not a template \(braces without a column\)"),
        ({"prompt": "{text:{Label}}"}, r"is not a template \(braces within braces\)"),
        ({"prompt": "{text:d}"}, r"cannot format \(Unknown format code 'd'"),
        ({"prompt": "{text"}, r"data.prompt = '\{text' is not a template .*\n  Close every brace"),
        ({"prompt": "text", "answer": "label"}, r"no column 'label' \(data.answer\).*\n  Did you mean 'Label'\?"),
    ],
)
def test_a_missing_column_lists_those_there_are(renderer, settings, message):
    with pytest.raises(DataError, match=message):
        render(rows_of({"text": "a", "Label": 1}), renderer, **settings)


# --- the text that the model reads ---------------------------------------------------------------------------------


def test_plain_text_gets_one_bos_and_no_eos(renderer, tokenizer):
    (prompt,) = render(rows_of({"prompt": "hello"}), renderer).prompts
    assert tokenizer.convert_ids_to_tokens(prompt.ids) == ["<bos>", *"hello"]
    assert prompt.messages is None


def test_an_eos_that_the_tokenizer_adds_is_taken_off(renderer, tokenizer):
    from tokenizers.processors import TemplateProcessing

    ends = [("<bos>", tokenizer.bos_token_id), ("<eos>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A <eos>", special_tokens=ends)
    assert tokenizer("a").input_ids[-1] == tokenizer.eos_token_id
    (prompt,) = render(rows_of({"prompt": "hello"}), renderer).prompts
    assert tokenizer.eos_token_id not in prompt.ids


def test_plain_text_becomes_a_user_turn_where_there_is_a_chat_template(chat_renderer, chat_tokenizer):
    (prompt,) = render(rows_of({"prompt": "hello"}), chat_renderer).prompts
    assert prompt.text == "<bos>u:hello<eos>a:"
    assert chat_tokenizer.convert_ids_to_tokens(prompt.ids) == ["<bos>", *"u:hello", "<eos>", *"a:"]
    assert prompt.messages == tuple(HELLO)


def test_messages_and_a_system_prompt_go_through_the_template(chat_tokenizer):
    renderer = Renderer(tokenizer=chat_tokenizer, chat=True, system_prompt="Be kind.")
    (prompt,) = render(rows_of({"prompt": HELLO}), renderer).prompts
    assert prompt.text == "<bos>s:Be kind.<eos>u:hello<eos>a:"


def test_chat_can_be_switched_off_and_must_be_possible_when_on(chat_tokenizer, tokenizer):
    config = DataConfig(train="x.jsonl", chat=False)
    (prompt,) = render(rows_of({"prompt": "hello"}), Renderer.of(config, chat_tokenizer)).prompts
    assert prompt.text == "hello"
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"data.chat = true, but the tokenizer has no chat template"):
        Renderer.of(DataConfig(train="x.jsonl", chat=True), tokenizer)
    with pytest.raises(DataError, match=r"data has chat messages, but the tokenizer has no chat template"):
        render(rows_of({"prompt": HELLO}), Renderer.of(DataConfig(train="x.jsonl"), tokenizer))


def test_template_variables_reach_the_template(tokenizer):
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if loud %}!{% endif %}"
    renderer = Renderer.of(DataConfig(train="x.jsonl"), tokenizer, {"loud": True})
    assert texts(render(rows_of({"prompt": "hello"}), renderer)) == ["hello!"]


@pytest.mark.parametrize("name", ["tokenizers/qwen2.5", "tokenizers/smollm2", "models/minimind2-small"])
def test_real_chat_templates_are_tokenised_as_they_are(name):
    tokenizer = real_tokenizer(name)
    (prompt,) = render(rows_of({"prompt": "hello"}), Renderer.of(DataConfig(train="x.jsonl"), tokenizer)).prompts
    whole = tokenizer.apply_chat_template(HELLO, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert list(prompt.ids) == whole
    assert "hello" in prompt.text
    assert prompt.text.rstrip().endswith("assistant")


def test_a_real_tokenizer_that_writes_bos_writes_one():
    tokenizer = real_tokenizer("models/stories260K")
    (prompt,) = render(rows_of({"prompt": "Once"}), Renderer.of(DataConfig(train="x.jsonl"), tokenizer)).prompts
    assert list(prompt.ids).count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in prompt.ids


# --- dropped rows --------------------------------------------------------------------------------------------------


def test_unusable_rows_are_counted_with_reason_and_place(renderer):
    rows = rows_of(
        {"prompt": "fine"},
        {"prompt": "  "},
        {"prompt": None},
        {"prompt": 7},
        {"other": 1},
        {"prompt": []},
        {"prompt": [{"role": "user"}]},
        {"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"prompt": "much too long"},
    )
    found = render(rows, renderer, room=6, max_dropped=1.0)
    assert texts(found) == ["fine"]
    assert [(dropped.origin, dropped.reason) for dropped in found.dropped] == [
        ("rows:2", "empty prompt"),
        ("rows:3", "no value in column 'prompt'"),
        ("rows:4", "prompt: an int, neither text nor messages"),
        ("rows:5", "no value in column 'prompt'"),
        ("rows:6", "prompt: no messages"),
        ("rows:7", "prompt: message without role and content"),
        ("rows:8", "prompt: messages that end with an assistant turn"),
        ("rows:9", "prompt longer than 6 tokens"),
    ]
    assert found.dropped_summary.startswith("dropped 8 of 9 rows: 2 no value")


def test_a_template_takes_a_column_with_a_dot_in_its_name(renderer):
    assert texts(render(rows_of({"a.b": "x", "c[0]": "y"}), renderer, prompt="{a.b} {c[0]}")) == ["x y"]


def test_a_template_formats_each_value_as_its_column_asks(renderer):
    good = {"q": "x", "price": 2.5, "n": 3, "day": date(2020, 1, 2)}
    wrong = [{"price": "free"}, {"n": [3]}, {"price": 10**400}]
    rows = rows_of(good, *(good | one for one in wrong))
    found = render(rows, renderer, prompt="{q:>3s} {price:.2f} {n:03d} {day:%d.%m.%Y}", max_dropped=0.9)
    assert texts(found) == ["  x 2.50 003 02.01.2020"]
    assert ["a value that data.prompt cannot format" in one.reason for one in found.dropped] == [True] * 3


def test_a_template_over_empty_columns_is_an_empty_prompt(renderer):
    rows = rows_of({"a": "x", "b": "y"}, {"a": "", "b": " "}, {"a": "x", "b": None})
    found = render(rows, renderer, prompt="{a} {b}", max_dropped=1.0)
    assert [dropped.reason for dropped in found.dropped] == ["empty prompt", "no value in column 'b'"]


def test_the_index_is_the_row_of_the_data_not_of_the_usable_prompts(renderer):
    found = render(rows_of({"prompt": ""}, {"prompt": "a"}, {"prompt": ""}, {"prompt": "b"}), renderer, max_dropped=0.5)
    assert [prompt.index for prompt in found.prompts] == [1, 3]


def test_the_lower_of_two_length_limits_holds(renderer):
    rows = rows_of({"prompt": "abc"}, {"prompt": "abcdef"})
    assert texts(render(rows, renderer, room=100, max_prompt_length=4)) == ["abc"]
    assert texts(render(rows, renderer, room=4, max_prompt_length=100)) == ["abc"]


def test_too_many_dropped_rows_are_an_error_that_names_the_first_three(renderer):
    rows = rows_of(*[{"prompt": ""}] * 6, *[{"prompt": "a"}] * 4)
    message = r"training data: dropped 6 of 10 rows: 6 empty prompt \(rows:1, rows:2, rows:3\); allowed: at most 50%"
    with pytest.raises(DataError, match=message):
        render(rows, renderer)
    assert len(render(rows, renderer, max_dropped=0.6)) == 4


def test_nothing_left_is_an_error_whatever_may_be_dropped(renderer):
    with pytest.raises(DataError, match=r"dropped 1 of 1 row: 1 prompt longer than 3 tokens"):
        render(rows_of({"prompt": "abcdef"}), renderer, room=3, max_dropped=1.0)


def test_prompts_in_both_parts_are_counted_word_for_word(renderer):
    train = render(rows_of({"prompt": "a"}, {"prompt": "b"}), renderer)
    heldout = render(rows_of({"prompt": "b"}, {"prompt": "c"}, {"prompt": "b"}), renderer)
    assert overlap(train, heldout) == 2


def test_every_prompt_knows_the_columns_that_any_has(renderer):
    found = render(rows_of({"prompt": "a", "id": 1}, {"prompt": "b", "tag": "x"}), renderer)
    assert [dict(prompt.columns) for prompt in found.prompts] == [{"id": 1}, {"tag": "x"}], "a row keeps its columns"
    assert {prompt.columns_of_data for prompt in found.prompts} == {("id", "tag")}
    parts = with_all_columns(found, render(rows_of({"prompt": "c", "more": 2}), renderer))
    assert {prompt.columns_of_data for part in parts for prompt in part.prompts} == {("id", "tag", "more")}


def run_config(system_prompt: str | None = None, **more: Any) -> RunConfig:
    given = {"model": "m", "algorithm": "grpo", "rewards": ["exact_match"], "train": {"steps": 1}, **more}
    return load_config({**given, "data": {"train": "d", "system_prompt": system_prompt}}).config


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "player", [{"environment": "gymnasium:FrozenLake-v1"}, {"environment": "game.py:Game"}, {"agent": "a.py:answer"}]
)
def test_prompts_of_an_environment_or_agent_are_the_same_only_with_the_same_columns(
    player, streaming, renderer, write, tmp_path, monkeypatch
):
    """It reads the row's seed, for example, and may write the prompt itself."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))

    def notes(seeds: range, given: dict[str, Any]) -> str:
        parts = []
        for part in (range(8), seeds):
            rows = [{"prompt": "Play.", "seed": seed} for seed in part]
            path = str(write(f"{part}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
            data = DataConfig(train=path, streaming=streaming and part == range(8))
            parts.append(render(open_rows(data, path, "train", 0), renderer))
        return "; ".join(prompt_notes(*parts, run_config(**given)))

    assert notes(range(8, 16), player) == ""
    assert notes(range(6, 14), player).startswith("2 of 8 held-out prompts are in the training data word for word")
    assert "8 of 8 held-out prompts are in the training data word for word" in notes(range(8, 16), {})
    assert "only 1 different prompts" in notes(range(8, 16), {})


@pytest.mark.parametrize(("asked", "told"), [("aabb", True), ("aaaabbbb", True), ("abcdefga", False), ("abcd", False)])
def test_held_out_prompts_that_repeat_are_told(renderer, asked, told):
    train, heldout = (render(rows_of(*({"prompt": text} for text in texts)), renderer) for texts in ("xy", asked))
    notes = prompt_notes(train, heldout, run_config())
    assert any(f"{len(asked)} measured held-out rows have only 2 different prompts" in note for note in notes) == told


def test_prompts_that_keep_their_own_system_turn_are_counted(chat_tokenizer):
    renderer = Renderer(tokenizer=chat_tokenizer, chat=True, system_prompt="Be kind.")
    own = [{"role": "system", "content": "Be brief."}, *HELLO]
    found = render(rows_of({"prompt": own}, {"prompt": HELLO}), renderer)
    notes = prompt_notes(found, found, run_config("Be kind."))
    assert any(note.startswith("training data: 1 of 2 prompts have their own system turn") for note in notes)
    assert not any("system turn" in note for note in prompt_notes(found, found, run_config()))


def test_gsm8k_loses_no_row_and_keeps_its_answers(renderer):
    rows = read_rows(str(shared_file("math/gsm8k_test.jsonl")), max_rows=50)
    found = render(rows, Renderer(tokenizer=real_tokenizer("tokenizers/qwen2.5"), chat=True))
    assert len(found) == 50
    assert "####" in found.prompts[0].columns["answer"]
