"""Supervised rows: the answer is trained, the question is not, and every answer ends with EOS."""

from __future__ import annotations

import pytest
from tests.catalogue import few
from tests.data.samples import real_tokenizer, rows_of, shared_file

from posttrain.data.dropped import Rendered
from posttrain.data.examples import render_examples
from posttrain.data.prompts import Renderer
from posttrain.data.read import read_rows
from posttrain.errors import DataError
from posttrain.types import Example

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "2"},
]


def render(rows, renderer: Renderer, *, max_length: int = 1000, max_dropped: float = 0.5) -> Rendered:
    return render_examples(
        rows,
        renderer,
        eos_ids={renderer.tokenizer.eos_token_id},
        max_length=max_length,
        max_dropped=max_dropped,
        what="training data",
    )


def marked(example: Example, tokenizer) -> str:
    """The tokens as text, with trained ones in brackets: a b [c] [<eos>]"""
    tokens = tokenizer.convert_ids_to_tokens(example.input_ids)
    return "".join(f"[{t}]" if trained else t for t, trained in zip(tokens, example.completion_mask, strict=True))


def only(rows, renderer: Renderer) -> str:
    (example,) = render(rows, renderer).rows
    return marked(example, renderer.tokenizer)


def test_of_prompt_and_completion_the_completion_is_trained_and_ends_with_eos(renderer):
    assert only(rows_of({"prompt": "1+1=", "completion": "2"}), renderer) == "<bos>1+1=[2][<eos>]"


def test_an_eos_that_is_there_is_not_doubled(renderer):
    assert only(rows_of({"prompt": "1+1=", "completion": "2<eos>"}), renderer) == "<bos>1+1=[2][<eos>]"


def test_of_plain_text_everything_but_the_first_token_is_trained(renderer):
    assert only(rows_of({"text": "abc"}), renderer) == "<bos>[a][b][c][<eos>]"


def test_the_first_token_is_never_trained_because_nothing_predicts_it(tokenizer):
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    assert only(rows_of({"text": "abc"}), Renderer(tokenizer=tokenizer, chat=False)) == "a[b][c][<eos>]"


def test_alpaca_rows_put_the_input_under_the_instruction(renderer):
    rows = rows_of(
        {"instruction": "Add", "input": "1 2", "output": "3"}, {"instruction": "Hum", "input": "", "output": "m"}
    )
    found = render(rows, renderer)
    assert [marked(example, renderer.tokenizer) for example in found.rows] == [
        "<bos>Add\n\n1 2[3][<eos>]",
        "<bos>Hum[m][<eos>]",
    ]
    assert found.form == "instruction + output"


def test_with_a_chat_template_the_prompt_is_the_one_of_generation(chat_renderer):
    rows = rows_of({"prompt": "1+1=", "completion": "2"})
    assert only(rows, chat_renderer) == "<bos>u:1+1=<eos>a:[2][<eos>]"


def test_every_assistant_turn_of_a_talk_is_trained(chat_renderer):
    expected = "<bos>s:Be brief.<eos>u:one?<eos>a:[1][<eos>]u:two?<eos>a:[2][<eos>]"
    assert only(rows_of({"messages": TALK}), chat_renderer) == expected


def test_of_a_chat_prompt_with_earlier_turns_only_the_completion_is_trained(chat_renderer):
    expected = "<bos>s:Be brief.<eos>u:one?<eos>a:1<eos>u:two?<eos>a:[2][<eos>]"
    assert only(rows_of({"prompt": TALK[:-1], "completion": "2"}), chat_renderer) == expected
    as_messages = rows_of({"prompt": TALK[:-1], "completion": [TALK[-1]]})
    assert only(as_messages, chat_renderer) == expected


def test_a_template_that_puts_no_eos_behind_an_answer_still_teaches_to_stop(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    renderer = Renderer(tokenizer=tokenizer, chat=True)
    assert only(rows_of({"messages": TALK[1:3]}), renderer) == "u:one?\na:[1][\n][<eos>]"


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_reason(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] if loop.last else '...' }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
    )
    with pytest.raises(DataError, match=r"rows:1: the chat template rewrites earlier turns .*only appends"):
        render(rows_of({"messages": TALK}), Renderer(tokenizer=tokenizer, chat=True))


def test_messages_need_a_chat_template(renderer):
    with pytest.raises(DataError, match=r"chat messages, but the tokenizer has no chat template"):
        render(rows_of({"messages": TALK}), renderer)


@pytest.mark.parametrize(
    "name",
    few(
        ["tokenizers/qwen2.5", "tokenizers/smollm2", "models/minimind2-small"],
        *("tokenizers/smollm2", "models/minimind2-small"),
    ),
)
def test_with_real_templates_the_answers_and_their_ends_are_trained_and_nothing_else(name):
    tokenizer = real_tokenizer(name)
    (example,) = render(rows_of({"messages": TALK}), Renderer(tokenizer=tokenizer, chat=True)).rows
    trained = [token for token, on in zip(example.input_ids, example.completion_mask, strict=True) if on]
    assert tokenizer.decode(trained) == f"1{tokenizer.eos_token}2{tokenizer.eos_token}"
    whole = tokenizer.apply_chat_template(TALK, tokenize=True, return_dict=False)
    assert list(example.input_ids) == whole[: len(example.input_ids)]


def test_unusable_rows_are_counted_with_reason_and_place(chat_renderer):
    rows = rows_of(
        {"messages": TALK},
        {"messages": TALK[:2]},
        {"messages": "hello"},
        {"messages": None},
        {"messages": [*TALK[:1], {"role": "assistant", "content": "x" * 500}]},
        {"messages": [{"role": "user"}]},
    )
    found = render(rows, chat_renderer, max_length=100, max_dropped=1.0)
    assert [(dropped.origin, dropped.reason) for dropped in found.dropped] == [
        ("rows:2", "messages without an assistant turn"),
        ("rows:3", "messages: text, not messages"),
        ("rows:4", "no value in column 'messages'"),
        ("rows:5", "longer than 100 tokens"),
        ("rows:6", "messages: message without role and content"),
    ]
    assert [example.index for example in found.rows] == [0]


def test_a_completion_of_messages_needs_an_assistant_turn(chat_renderer):
    with pytest.raises(DataError, match=r"1 completion without an assistant turn \(rows:1\)"):
        render(rows_of({"prompt": TALK[:2], "completion": [TALK[3]]}), chat_renderer)


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_an_empty_completion_is_dropped_like_an_empty_turn(renderer, blank):
    """In public data it is an answer that is missing. Who wants to teach silence can write an EOS as the completion."""
    found = render(rows_of({"prompt": "a", "completion": "b"}, {"prompt": "quiet", "completion": blank}), renderer)
    assert [dropped.reason for dropped in found.dropped] == ["an empty answer"]
    assert only(rows_of({"prompt": "quiet", "completion": "<eos>"}), renderer) == "<bos>quiet[<eos>]"


@pytest.mark.parametrize("row", [{"prompt": "a", "completion": 3}, {"prompt": 3, "completion": "a"}])
def test_numbers_are_no_text(renderer, row):
    with pytest.raises(DataError, match=r"\w+: an int, neither text nor messages \(rows:1\)"):
        render(rows_of(row), renderer)


def test_columns_that_fit_no_form_are_listed_with_the_forms(renderer):
    message = (
        r"cannot use the columns question, answer; allowed: messages; prompt \+ completion; conversations; .*; text"
        r"(.|\n)*Set data.columns = {prompt: question, completion: answer}"
    )
    with pytest.raises(DataError, match=message):
        render(rows_of({"question": "a", "answer": "b"}), renderer)


def test_real_alpaca_rows_all_become_examples():
    rows = read_rows(str(shared_file("sft/llamafactory_alpaca_en_demo.jsonl.gz")), max_rows=50)
    found = render(rows, Renderer(tokenizer=real_tokenizer("tokenizers/smollm2"), chat=True))
    assert len(found) == 50
    last_trained = [
        max(place for place, trained in enumerate(example.completion_mask) if trained) for example in found.rows
    ]
    ends = {example.input_ids[last] for example, last in zip(found.rows, last_trained, strict=True)}
    assert ends == {real_tokenizer("tokenizers/smollm2").eos_token_id}
