"""Preference rows: two answers to one prompt, rendered like any answer; pairs that cannot be compared are counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.data import templates
from tests.data.samples import real_tokenizer, rows_of, shared_file
from tests.data.test_examples import marked

from posttrain.data.collate import collate_examples
from posttrain.data.dropped import Rendered, Unusable
from posttrain.data.forms import detect
from posttrain.data.labels import render_labels
from posttrain.data.layouts import read_pair
from posttrain.data.messages import implicit_prompt
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.read import read_rows
from posttrain.errors import DataError

ASK = {"role": "user", "content": "one?"}
RIGHT, WRONG = {"role": "assistant", "content": "1"}, {"role": "assistant", "content": "2"}
GOOD = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}


def render(rows, renderer: Renderer, *, max_length: int = 1000, max_dropped: float = 0.9) -> Rendered:
    return render_pairs(
        rows,
        renderer,
        eos_ids={renderer.tokenizer.eos_token_id},
        max_length=max_length,
        max_dropped=max_dropped,
        what="training data",
    )


def only(rows, renderer: Renderer) -> tuple[str, str]:
    (pair,) = render(rows, renderer).rows
    return marked(pair.chosen, renderer.tokenizer), marked(pair.rejected, renderer.tokenizer)


def test_both_answers_follow_the_prompt_and_end_with_eos(renderer):
    assert only(rows_of(GOOD), renderer) == ("<bos>1+1=[2][<eos>]", "<bos>1+1=[3][<eos>]")


def test_of_plain_text_alone_the_common_words_are_the_prompt(renderer):
    rows = rows_of({"chosen": "Q a A yes", "rejected": "Q a A yet"})
    chosen = "".join(f"[{letter}]" for letter in " yes")
    assert only(rows, renderer)[0] == f"<bos>Q a A{chosen}[<eos>]"


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("a b c", "a b", "a"),
        ("a b", "a b c", "a"),
        ("a bc", "a bd", "a"),
        ("a\nb", "a c", "a"),
        ("abc", "abd", "ab"),
        ("x", "y", ""),
    ],
)
def test_the_common_beginning_ends_with_a_word_where_there_are_words(chosen, rejected, prompt):
    assert implicit_prompt(chosen, rejected) == (prompt, chosen[len(prompt) :], rejected[len(prompt) :])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [ASK], "chosen": [RIGHT], "rejected": [WRONG]},
        {"prompt": "one?", "chosen": "1", "rejected": "2"},
        {"prompt": "one?", "chosen": [RIGHT], "rejected": [WRONG]},
        {"chosen": [ASK, RIGHT], "rejected": [ASK, WRONG]},
        {"prompt": "one?", "chosen": [ASK, RIGHT], "rejected": [ASK, WRONG]},
    ],
    ids=["messages", "text", "text and messages", "conversations", "prompt and conversations"],
)
def test_every_form_of_chat_is_rendered_alike(row, chat_renderer):
    chosen, rejected = only(rows_of(row), chat_renderer)
    assert chosen == "<bos>u:one?<eos>a:[1][<eos>]"
    assert rejected == "<bos>u:one?<eos>a:[2][<eos>]"


TALK = [{"role": role, "content": f"{role[0]}{n}"} for n in range(4) for role in ("user", "assistant")]
SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.slow
@given(st.booleans(), st.integers(0, 3), st.integers(0, 7), st.data())
@settings(max_examples=300, deadline=None)
def test_no_turn_of_the_prompt_or_of_the_beginnings_is_lost(with_system, question, cut, data):
    """A conversation is cut anywhere into a prompt and the beginnings of the answers, which may repeat each other."""
    whole = [*[SYSTEM] * with_system, *TALK[: 2 * question + 1]]
    cut = min(cut, len(whole))
    begin = data.draw(st.integers(0, cut))  # the turns begin:cut are in both
    if not whole[begin:] or whole[begin]["role"] == "assistant" or not whole[:cut]:
        return
    answers = {"chosen": [*whole[begin:], RIGHT], "rejected": [*whole[begin:], WRONG]}
    row = {"prompt": whole[:cut], **answers}
    if begin and cut == begin and whole[begin - 1]["role"] == whole[begin]["role"]:
        return
    values = read_pair(row)
    assert (values["prompt"], values["chosen"], values["rejected"]) == (whole, [RIGHT], [WRONG])


@catalogue(
    "prompt",
    [
        TALK[2:3],
        TALK[:3],
        [SYSTEM, *TALK[:3]],
        [SYSTEM, TALK[0]],
        TALK[0:1],
        TALK[1:3],
        "u1",
        " u1\n",
        "u0",
        "\n\nHuman: u0\n\nAssistant: a0\n\nHuman: u1",
    ],
)
def test_a_prompt_that_is_part_of_the_beginnings_adds_nothing_but_its_system_turn(prompt):
    values = read_pair({"prompt": prompt, "chosen": [*TALK[:3], RIGHT], "rejected": [*TALK[:3], WRONG]})
    assert values["prompt"] == [*([SYSTEM] if SYSTEM in list(prompt) else []), *TALK[:3]]


@pytest.mark.parametrize("prompt", ["a title", "User: u0\nAssistant: a0\nUser: u1", "u0  and more"])
def test_a_prompt_as_text_beside_whole_conversations_is_not_needed(prompt):
    values = read_pair({"prompt": prompt, "chosen": [*TALK[:3], RIGHT], "rejected": [*TALK[:3], WRONG]})
    assert values["prompt"] == TALK[:3]


def test_white_space_makes_no_other_turn():
    prompt = [SYSTEM, {"role": "user", "content": "u0\n "}]
    values = read_pair({"prompt": prompt, "chosen": [TALK[0], RIGHT], "rejected": [TALK[0], WRONG]})
    assert values["prompt"] == [SYSTEM, TALK[0]] or values["prompt"] == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user", "content": "another question"}],
        [SYSTEM, {"role": "user", "content": "another question"}],
        [TALK[0], {"role": "assistant", "content": "another answer"}],
        [*TALK[4:6], {"role": "system", "content": "t"}],
    ],
)
def test_a_prompt_that_contradicts_the_beginnings_is_not_thrown_away(prompt):
    with pytest.raises(Unusable, match="begin with turns that do not follow the prompt"):
        read_pair({"prompt": prompt, "chosen": [*TALK[:3], RIGHT], "rejected": [*TALK[:3], WRONG]})
    with pytest.raises(Unusable):  # a second system turn
        read_pair(
            {"prompt": [SYSTEM, *TALK[6:]], "chosen": [SYSTEM, TALK[0], RIGHT], "rejected": [SYSTEM, TALK[0], WRONG]}
        )


def test_columns_system_and_conversations_stay_in_front_of_conversations():
    sides = {"chosen": [TALK[0], RIGHT], "rejected": [TALK[0], WRONG]}
    for row in (
        {"question": "u0", "system": "s"},
        {"conversations": [SYSTEM, *TALK[4:6]]},
        {"instruction": "u0", "system": "s"},
    ):
        (given_row,) = rows_of({**row, **sides})
        found = detect([given_row], "pairs").read(given_row)
        assert found["prompt"] == [*row.get("conversations", [SYSTEM]), TALK[0]]


def test_what_a_template_writes_behind_the_eos_is_left_out(chat_renderer):
    """The score is read at the last token, which must be the EOS, as in a sampled answer."""
    chat_renderer.tokenizer.chat_template = chat_renderer.tokenizer.chat_template.replace(
        "{{ eos_token }}", "{{ eos_token }}|"
    )
    assert only(rows_of({"prompt": "one?", "chosen": "1", "rejected": "2"}), chat_renderer)[0].endswith("a:[1][<eos>]")


def test_a_margin_is_read_where_there_is_one(renderer):
    pairs = render(rows_of(GOOD | {"margin": 2}, GOOD, GOOD | {"margin": None}), renderer).rows
    assert [pair.margin for pair in pairs] == [2.0, None, None]


@catalogue(
    "row, reason",
    [
        ({"chosen": "3"}, "chosen and rejected are the same"),
        ({"prompt": ""}, "empty prompt"),
        ({"prompt": 7}, "prompt: an int, neither text nor messages"),
        ({"chosen": None}, "no value in column 'chosen'"),
        ({"chosen": ""}, "an empty answer"),
        ({"chosen": [RIGHT]}, "one answer is text, the other messages"),
        ({"chosen": [ASK], "rejected": [WRONG]}, "chosen: messages that do not end with an assistant turn"),
        ({"rejected": [{"content": "1"}]}, "rejected: message without role and content"),
        ({"prompt": None, "chosen": "x"}, "no prompt, and chosen and rejected do not begin alike"),
        ({"chosen": "2" * 50}, "longer than 20 tokens"),
        ({"chosen": "3<eos>"}, "chosen and rejected are the same tokens"),
        ({"margin": "much"}, "margin is not a finite number"),
        ({"margin": float("nan")}, "margin is not a finite number"),
        ({"margin": True}, "margin is not a finite number"),
    ],
)
def test_a_row_that_cannot_be_compared_is_counted_and_named(renderer, row, reason):
    found = render(rows_of(GOOD, GOOD | row), renderer, max_length=20)
    assert len(found) == 1
    assert found.dropped_summary == f"dropped 1 of 2 rows: 1 {reason} (rows:2)"


def test_too_many_dropped_rows_are_an_error(renderer):
    with pytest.raises(DataError, match=r"training data: dropped 2 of 3 rows: 2 chosen and rejected are the same"):
        render(rows_of(GOOD, *[GOOD | {"chosen": "3"}] * 2), renderer, max_dropped=0.5)


def test_data_of_another_kind_is_an_error(renderer):
    with pytest.raises(DataError, match=r"preference pairs cannot be made of the columns prompt, answer"):
        render(rows_of({"prompt": "1", "answer": "2"}), renderer)


def test_real_preference_data_becomes_pairs():
    tokenizer = real_tokenizer("tokenizers/qwen2.5")
    for name in ("ultrafeedback_eval.jsonl.gz", "hh_rlhf_harmless_base_test.jsonl.gz"):
        rows = read_rows(str(shared_file(f"preference/{name}")), max_rows=20)
        found = render(rows, Renderer(tokenizer=tokenizer, chat=True), max_length=4000)
        assert len(found) >= 15


def test_answers_that_differ_behind_an_eos_in_their_text_are_no_equal_ones(tokenizer):
    tokenizer.chat_template = templates.APPENDS
    renderer = Renderer(tokenizer=tokenizer, chat=True)
    row = {"prompt": "1+1=", "chosen": "2<eos>a", "rejected": "2<eos>b"}
    assert only(rows_of(row), renderer) == (
        "<bos>u:1+1=<eos>a:[2][<eos>][a][<eos>]",
        "<bos>u:1+1=<eos>a:[2][<eos>][b][<eos>]",
    )


@pytest.mark.parametrize("chat", [True, False])
def test_with_several_eos_and_a_pad_token_that_is_one_every_answer_keeps_its_end(tokenizer, chat):
    """A template ends turns with an EOS that is not the tokenizer's own; padding is recognised by position, not by
    id."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    tokenizer.chat_template = templates.APPENDS.replace("{{ eos_token }}", "<end>")
    tokenizer.pad_token = tokenizer.eos_token
    eos_ids = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end>")}
    renderer = Renderer(tokenizer=tokenizer, chat=chat)
    limits = {"eos_ids": eos_ids, "max_length": 100, "max_dropped": 0.0, "what": "data"}
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "33"}
    (pair,) = render_pairs(rows_of(row), renderer, **limits).rows
    frame, end = ("<bos>u:1+1=<end>a:{}", "[<end>]") if chat else ("<bos>1+1={}", "[<eos>]")
    sides = [marked(side, tokenizer) for side in (pair.chosen, pair.rejected)]
    assert sides == [frame.format(answer + end) for answer in ("[2]", "[3][3]")]
    tokens, mask_BT = collate_examples([pair.chosen, pair.rejected], tokenizer.pad_token_id)
    assert tokens.lengths_B.tolist() == [len(pair.chosen.input_ids), len(pair.rejected.input_ids)]
    assert mask_BT.sum(dim=-1).tolist() == [2, 3]
    labelled = render_labels(rows_of({"prompt": "1+1=", "completion": "2", "label": True}), renderer, **limits)
    assert marked(labelled.rows[0].example, tokenizer) == sides[0]
