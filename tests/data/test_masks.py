"""With any chat template, only the answers and their ends are trained, or an error says why that is impossible."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.data import templates
from tests.data.samples import real_tokenizer, rows_of
from tests.data.test_examples import marked, only, render

from posttrain.data.dropped import Unusable
from posttrain.data.hints import template_problems
from posttrain.data.masks import WAYS, Conversation, assistant_segments, find_answers
from posttrain.data.prompts import Renderer
from posttrain.errors import DataError

HEAR = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TWO = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "2"},
]
REASONED = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "<think>\nx\n</think>\n\n1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "<think>\ny\n</think>\n\n2"},
]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"n": 1}}}


def under(template: str, tokenizer, **settings) -> Renderer:
    tokenizer.chat_template = template
    return Renderer(tokenizer=tokenizer, chat=True, **settings)


def trained_text(messages, renderer: Renderer, **options) -> str:
    eos = {renderer.tokenizer.eos_token_id}
    segments = assistant_segments(messages, renderer, eos, origin="here", **options)
    return "|".join(renderer.tokenizer.decode(s.ids) for s in segments if s.trained)


def way(template: str, tokenizer, messages=TWO, trained=(1, 3)) -> str:
    renderer = under(template, tokenizer)
    talk = Conversation(messages=messages, trained=trained, renderer=renderer, eos_ids={tokenizer.eos_token_id})
    return find_answers(talk, "here")[1]


# --- the methods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("APPENDS", "prefix"),
        ("TRIMS", "prefix"),
        ("TAGS", "tags"),
        ("COUNTS", "marks"),
        ("TAKES_REASONING_OUT", "marks"),
    ],
)
def test_each_template_has_its_way(tokenizer, template, expected):
    assert way(getattr(templates, template), tokenizer) == expected


def test_reasoning_that_is_taken_out_of_earlier_answers_is_not_trained(tokenizer):
    renderer = under(templates.TAKES_REASONING_OUT, tokenizer)
    expected = (
        "<bos>u:one?<eos>a:[1][<eos>]u:two?<eos>a:" + "".join(f"[{c}]" for c in "<think>\ny\n</think>\n\n2") + "[<eos>]"
    )
    assert only(rows_of({"messages": REASONED}), renderer) == expected


def test_the_empty_reasoning_of_the_generation_prompt_is_no_part_of_the_answer(tokenizer):
    with_thinking = under(templates.TAKES_REASONING_OUT, tokenizer)
    without = under(templates.TAKES_REASONING_OUT, tokenizer, template_kwargs={"enable_thinking": False})
    assert trained_text(TWO, with_thinking) == "1<eos>|<think>\n\n</think>\n\n2<eos>"
    assert trained_text(TWO, without) == "1<eos>|2<eos>"


def test_tags_of_the_template_count_and_the_eos_behind_them_is_trained(tokenizer):
    renderer = under(templates.TAGS, tokenizer)
    talk = [*TWO[:2], TWO[2], {"role": "assistant", "content": "abc"}]
    assert only(rows_of({"messages": talk}), renderer) == "".join(
        ["4 turns. u:one?<eos>a:[1][<eos>]u:two?<eos>a:", "[c][b][a][<eos>]"]
    )


def test_the_last_answer_can_be_trained_alone_under_any_template(tokenizer):
    for template in ("APPENDS", "TAKES_REASONING_OUT", "COUNTS", "FORGETS", "TAGS"):
        renderer = under(getattr(templates, template), tokenizer, train_on="last")
        assert trained_text(REASONED, renderer).endswith("2<eos>") or template == "TAGS"
        assert "|" not in trained_text(REASONED, renderer)


def test_an_answer_of_weight_0_is_not_trained(tokenizer):
    weighted = [TWO[0], {**TWO[1], "weight": 0}, TWO[2], {**TWO[3], "weight": 1}]
    renderer = under(templates.APPENDS, tokenizer)
    assert only(rows_of({"messages": weighted}), renderer) == "<bos>u:one?<eos>a:1<eos>u:two?<eos>a:[2][<eos>]"
    nothing = [TWO[0], {**TWO[1], "weight": 0}]
    found = render(rows_of({"messages": TWO}, {"messages": nothing}), renderer)
    assert [dropped.reason for dropped in found.dropped] == ["nothing to train on"]


def test_without_an_eos_in_the_template_the_last_answer_gets_one(tokenizer):
    assert trained_text(TWO, under(templates.NO_EOS, tokenizer)) == "1\n|2\n<eos>"


def test_where_nothing_can_be_told_the_reasons_are_given(tokenizer):
    message = (
        r"here: the chat template rewrites earlier turns when a turn is added, so the assistant's tokens cannot be "
        r"separated from the rest \(the template has no \{% generation %\} tags; the template leaves out an answer or "
        r"changes it\); allowed: (.|\n)*data.train_on = last"
    )
    with pytest.raises(DataError, match=message):
        trained_text(TWO, under(templates.FORGETS, tokenizer))


def test_what_a_template_refuses_is_a_row_that_is_dropped(tokenizer):
    renderer = under(templates.ALTERNATES, tokenizer)
    bad = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    found = render(rows_of({"messages": TWO}, {"messages": bad}), renderer)
    assert found.dropped[0].reason == "the chat template refuses it (Roles must alternate)"


# --- a conversation that the assistant begins ------------------------------------------------------------------------


GREETING = [{"role": "assistant", "content": "hello"}, *TWO]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("APPENDS", "hello<eos>|1<eos>|2<eos>"),
        ("TRIMS", "hello<eos>|1<eos>|2<eos>"),
        ("COUNTS", "hello<eos>|1<eos>|2<eos>"),
        ("TAGS", "olleh<eos>|1<eos>|2<eos>"),
        ("TAKES_REASONING_OUT", "hello<eos>|1<eos>|<think>\n\n</think>\n\n2<eos>"),
        ("NO_EOS", "hello\n|1\n|2\n<eos>"),
    ],
)
def test_an_answer_that_nobody_asked_for_is_trained_behind_its_header(tokenizer, template, expected):
    assert trained_text(GREETING, under(getattr(templates, template), tokenizer)) == expected


def test_a_sharegpt_row_that_gpt_begins_costs_no_other_row(tokenizer):
    talk = [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "1?"}, {"from": "gpt", "value": "1"}]
    found = render(rows_of({"conversations": talk}, {"conversations": talk[1:]}), under(templates.APPENDS, tokenizer))
    assert [marked(example, tokenizer) for example in found.rows] == [
        "<bos>a:[h][i][<eos>]u:1?<eos>a:[1][<eos>]",
        "<bos>u:1?<eos>a:[1][<eos>]",
    ]


def test_where_a_template_refuses_an_assistant_in_front_the_row_is_dropped(tokenizer):
    found = render(rows_of({"messages": TWO}, {"messages": GREETING}), under(templates.ALTERNATES, tokenizer))
    assert [dropped.reason for dropped in found.dropped] == ["the chat template refuses it (Roles must alternate)"]


@pytest.mark.parametrize("name", ["tokenizers/qwen2.5", "tokenizers/smollm2", "models/minimind2-small"])
def test_real_templates_write_what_the_assistant_says_first(name):
    tokenizer = real_tokenizer(name)
    end = tokenizer.eos_token
    found = trained_text(GREETING, Renderer(tokenizer=tokenizer, chat=True))
    assert found.replace(f"{end}\n", end) == f"hello{end}|1{end}|2{end}"


# --- an EOS in the text of an answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["APPENDS", "TRIMS", "COUNTS", "TAKES_REASONING_OUT"])
def test_an_answer_goes_on_behind_an_eos_in_its_text(tokenizer, template):
    talk = [TWO[0], {"role": "assistant", "content": "1<eos>b"}, TWO[2], {"role": "assistant", "content": "<eos>2c"}]
    found = trained_text(talk, under(getattr(templates, template), tokenizer))
    assert found.replace("<think>\n\n</think>\n\n", "") == "1<eos>b<eos>|<eos>2c<eos>"


def test_an_eos_at_the_end_of_the_text_ends_the_answer(tokenizer):
    talk = [TWO[0], {"role": "assistant", "content": "1<eos>"}]
    assert trained_text(talk, under(templates.APPENDS, tokenizer)) == "1<eos>"


@pytest.mark.parametrize("front", ["", "{{ messages | length }}"])
def test_an_eos_in_the_arguments_of_a_call_ends_nothing(tokenizer, front):
    function = {"name": "add", "arguments": {"n": "<eos>1"}}
    talk = [
        TWO[0],
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "<eos>b", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "2"},
        TWO[3],
    ]
    call = '[add {"n": "<eos>1"}]<eos>'
    assert trained_text(talk, under(front + templates.CALLS, tokenizer)) == f"{call}|<eos>b{call}|2<eos>"


# --- tools -----------------------------------------------------------------------------------------------------------


def test_tools_reach_the_template_and_calls_are_trained(tokenizer):
    talk = [
        {"from": "human", "value": "1?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"n": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "two"},
    ]
    row = {"conversations": talk, "tools": '[{"name": "add"}]', "system": "Count."}
    renderer = under(templates.CALLS, tokenizer)
    (example,) = render(rows_of(row), renderer).rows
    text = tokenizer.decode(example.input_ids)
    assert text == '<bos>tools:add<eos>s:Count.<eos>u:1?<eos>a:[add {"n": 1}]<eos>t:2<eos>a:two<eos>'
    trained = [token for token, on in zip(example.input_ids, example.completion_mask, strict=True) if on]
    assert tokenizer.decode(trained) == '[add {"n": 1}]<eos>two<eos>'


def test_calls_are_found_where_earlier_turns_are_rewritten(tokenizer):
    talk = [
        TWO[0],
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "2"},
        TWO[3],
    ]
    renderer = under("{{ messages | length }}" + templates.CALLS, tokenizer)
    assert way("{{ messages | length }}" + templates.CALLS, tokenizer, talk) == "marks"
    assert trained_text(talk, renderer) == '[add {"n": 1}]<eos>|2<eos>'


def test_a_template_that_leaves_calls_out_does_not_teach_empty_answers(tokenizer):
    talk = [TWO[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    found = render(rows_of({"messages": TWO}, {"messages": talk}), under(templates.APPENDS, tokenizer))
    assert found.dropped[0].reason == "the chat template leaves out tool calls"
    earlier = [*talk, {"role": "tool", "content": "2"}, TWO[3]]
    found = render(
        rows_of({"messages": TWO}, {"messages": earlier}), under(templates.APPENDS, tokenizer, train_on="last")
    )
    assert found.dropped[0].reason == "the chat template leaves out tool calls"


ID_ONLY = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.id }} "
    "{{ c.function.arguments | tojson }}>{% endfor %}{% if m.tool_call_id %}{{ m.tool_call_id }}={% endif %}"
    "{{ eos_token }}{% endfor %}" + templates.PROMPT
)
"""Writes only the id of a call, as Kimi K2's template does."""
NINE_LETTERS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}"
    "{% endif %}{% endfor %}{% endfor %}" + templates.CALLS
)
"""Refuses ids of another length, as Mistral's templates do."""
FIRST_CALL = templates.CALLS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
AS_PYTHON = templates.CALLS.replace("[{{ c.function.name }} {{ c.function.arguments | tojson }}]", "{{ c }}")
ASKED = ("Please {} for cats", "{0}{0}", "ask")


@catalogue("said", ["", "I {} now."])
@catalogue("question", ASKED)
@catalogue("name", ["search", "a", "u", "get_n", "<eos>"])
def test_a_call_that_is_left_out_is_noticed_though_its_name_is_in_the_text(tokenizer, name, question, said):
    call = {"id": f"{name}:0", "type": "function", "function": {"name": name, "arguments": {}}}
    talk = [
        {"role": "user", "content": question.format(name)},
        {"role": "assistant", "content": said.format(name), "tool_calls": [call]},
        {"role": "tool", "content": f"{name} 2", "name": name, "tool_call_id": f"{name}:0"},
        TWO[3],
    ]
    for template in ("APPENDS", "TRIMS", "TAKES_REASONING_OUT", "COUNTS"):
        with pytest.raises(Unusable, match="leaves out tool calls"):
            trained_text(talk, under(getattr(templates, template), tokenizer))
    for template in (templates.CALLS, AS_PYTHON, ID_ONLY):
        assert "2<eos>" in trained_text(talk, under(template, tokenizer, train_on="last"))


@pytest.mark.parametrize("name", ["search", "c"])
def test_a_template_may_write_ids_or_check_them(tokenizer, name):
    call = {"id": "call_abc1", "type": "function", "function": {"name": name, "arguments": {}}}
    talk = [TWO[0], {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "call_abc2"}]}]
    for template in (NINE_LETTERS, templates.CALLS):
        assert trained_text(talk, under(template, tokenizer)) == f"[{name} {{}}][{name} {{}}]<eos>"
    with pytest.raises(Unusable, match="leaves out tool calls"):
        trained_text(talk, under(FIRST_CALL, tokenizer))


def test_the_real_templates_with_and_without_calls():
    call = {"type": "function", "function": {"name": "search", "arguments": {"what": "cats"}}}
    talk = [
        {"role": "user", "content": "Please search for cats"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    assert "search" in trained_text(talk, Renderer(tokenizer=real_tokenizer("tokenizers/qwen2.5"), chat=True))
    with pytest.raises(Unusable, match="leaves out tool calls"):
        trained_text(talk, Renderer(tokenizer=real_tokenizer("tokenizers/smollm2"), chat=True))


# --- properties ------------------------------------------------------------------------------------------------------

lower, upper = (st.text(alphabet, min_size=1, max_size=6) for alphabet in ("bcd ", "XYZ "))
turns = st.lists(st.tuples(lower.filter(str.strip), upper.filter(str.strip)), min_size=1, max_size=4).map(
    lambda pairs: [
        {"role": role, "content": content}
        for pair in pairs
        for role, content in zip(("user", "assistant"), pair, strict=True)
    ]
)
talks = st.builds(lambda talk, begun: talk[1:] if begun else talk, turns, st.booleans())
"""Conversations, half of which begin with the assistant."""


@HEAR
@given(talks, st.sampled_from(["APPENDS", "TRIMS", "COUNTS", "TAKES_REASONING_OUT", "TAGS"]))
def test_no_token_of_a_prompt_is_trained_and_every_token_of_an_answer_is(tokenizer, talk, template):
    """Questions are in lower case, answers in capitals."""
    found = trained_text(talk, under(getattr(templates, template), tokenizer))
    said = [message["content"] for message in talk if message["role"] == "assistant"]
    said = [text.strip() if template == "TRIMS" else text[::-1] if template == "TAGS" else text for text in said]
    if template == "TAKES_REASONING_OUT":
        said[-1] = f"<think>\n\n</think>\n\n{said[-1]}"
    assert found == "|".join(f"{text}<eos>" for text in said)


@pytest.mark.slow
@HEAR
@given(talks, st.sampled_from(["APPENDS", "TRIMS", "COUNTS", "TAKES_REASONING_OUT", "TAGS"]))
def test_the_segments_together_are_what_the_template_writes(tokenizer, talk, template):
    renderer = under(getattr(templates, template), tokenizer)
    segments = assistant_segments(talk, renderer, {tokenizer.eos_token_id}, origin="here")
    whole = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
    assert [token for segment in segments for token in segment.ids] == whole


@pytest.mark.slow
@HEAR
@given(talks)
def test_marks_and_tags_find_what_the_prefix_finds(tokenizer, talk):
    trained = [place for place, message in enumerate(talk) if message["role"] == "assistant"]
    tagged = templates.APPENDS.replace(
        "{{ m['content'] }}",
        "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
        "{% else %}{{ m['content'] }}{% endif %}",
    )
    conversation = Conversation(
        messages=talk, trained=trained, renderer=under(tagged, tokenizer), eos_ids={tokenizer.eos_token_id}
    )
    by = {name: [(s.ids, s.trained) for s in find(conversation) if s.ids] for name, find in WAYS.items()}
    assert by["prefix"] == by["tags"] == by["marks"]


@pytest.mark.parametrize("name", ["tokenizers/qwen2.5", "tokenizers/smollm2", "models/minimind2-small"])
@settings(max_examples=25, deadline=None)
@given(talk=talks)
def test_with_real_templates_marks_find_what_the_prefix_finds(name, talk):
    tokenizer = real_tokenizer(name)
    talk = [{**message, "content": message["content"].strip()} for message in talk]
    trained = [place for place, message in enumerate(talk) if message["role"] == "assistant"]
    renderer = Renderer(tokenizer=tokenizer, chat=True)
    conversation = Conversation(messages=talk, trained=trained, renderer=renderer, eos_ids={tokenizer.eos_token_id})
    prefix, marks = WAYS["prefix"](conversation), WAYS["marks"](conversation)
    assert prefix == marks
    whole = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
    assert [token for segment in prefix for token in segment.ids] == whole


# --- problems of templates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "kinds"),
    [
        ("APPENDS", []),
        ("CALLS", []),
        ("TAKES_REASONING_OUT", ["prefix"]),
        ("COUNTS", ["prefix"]),
        ("FORGETS", ["masks"]),
        ("NO_PROMPT", ["generation prompt"]),
        ("NO_EOS", ["end of turn"]),
    ],
)
def test_what_is_wrong_with_a_template_is_said(tokenizer, template, kinds):
    found = template_problems(under(getattr(templates, template), tokenizer), {tokenizer.eos_token_id})
    assert [problem.kind for problem in found] == kinds
    assert all(problem.message and problem.fix.endswith(".") for problem in found)


def test_tools_that_a_template_does_not_write_are_a_problem(tokenizer):
    for template, kinds in ((templates.APPENDS, ["tools"]), (templates.CALLS, [])):
        found = template_problems(under(template, tokenizer), {tokenizer.eos_token_id}, tools=True)
        assert [problem.kind for problem in found] == kinds


@pytest.mark.parametrize(
    ("name", "kinds"), [("tokenizers/qwen2.5", []), ("tokenizers/smollm2", ["tools"]), ("models/minimind2-small", [])]
)
def test_real_templates_have_the_problems_that_they_have(name, kinds):
    tokenizer = real_tokenizer(name)
    found = template_problems(Renderer(tokenizer=tokenizer, chat=True), {tokenizer.eos_token_id}, tools=True)
    assert [problem.kind for problem in found] == kinds
