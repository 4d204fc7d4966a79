"""Tool calls in the format of each family: recognised, parsed, and left unchanged if they cannot be parsed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.catalogue import catalogue
from tests.episodes.families import (
    FAMILIES,
    LOOK,
    WITH_TOOLS,
    bridge_of,
    eos_of,
    eos_text,
    template_of,
    tokenizer_of,
)

from posttrain.data.prompts import Renderer
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import FORMATS, Call, Said, proven, recognised
from posttrain.episodes.play import Play
from posttrain.errors import ConfigError
from posttrain.types import Completion, Prompt
from posttrain.verify.mathematics.places import REASONING


@catalogue("name", WITH_TOOLS)
def test_the_format_of_calls_is_recognised_and_results_are_context(name: str):
    bridge, tokenizer = bridge_of(name, "tool"), tokenizer_of(name)
    assert recognised(template_of(name)).name == (FAMILIES[name].calls if name in FAMILIES else "hermes")
    results = [{"role": "tool", "content": "found", "name": "look"}] * (1 if bridge.one_result else 2)
    text = str(tokenizer.decode(list(bridge.between(results, last=eos_of(name)))))
    assert text.count("found") == len(results)
    assert "standin" not in text


ARGUMENTS = (
    {},
    {"at": "x"},
    {"at": {"in": [1, 2.5, {"none": None}], "is": True}, "said": 'a "quoted" word, \\ and \'another\'\n{"}<[ARGS]'},
)


@pytest.mark.parametrize("arguments", ARGUMENTS)
@catalogue("name", WITH_TOOLS)
def test_the_call_that_a_template_writes_is_read_back(name: str, arguments: dict[str, Any]):
    bridge = bridge_of(name, "tool")
    turn = bridge.turn_that_calls("look", arguments)
    assert eos_text(name) not in turn
    assert proven(template_of(name), bridge).read(turn).calls == [Call("look", arguments)]


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ('"arguments": {{ c.function.arguments | tojson }}', '"arguments": {{ c.function.arguments }}'),
        ('"name": "{{ c.function.name }}"', '"function": "{{ c.function.name }}"'),
        ("<tool_call>\n{", "<tool_call>\n<function={"),
    ],
)
def test_a_template_whose_calls_cannot_be_read_is_refused(written: str, instead: str):
    template = FAMILIES["hermes"].template
    assert written in template
    renderer = Renderer(
        tokenizer=tokenizer_of("hermes"),
        chat=True,
        template_kwargs={"chat_template": template.replace(written, instead)},
    )
    bridge = Bridge.of(renderer, {eos_of("hermes")}, tools=[LOOK], roles=["tool"])
    with pytest.raises(ConfigError, match="a call that cannot be read back in the format hermes"):
        proven(template, bridge)


def test_a_template_without_calls_is_refused_and_told_which_formats_are_known():
    with pytest.raises(ConfigError, match=r"calls in an unknown format.*harmony, deepseek, mistral"):
        recognised(FAMILIES["chatml"].template)


@catalogue("name", WITH_TOOLS)
def test_a_call_that_cannot_be_read_stays_what_was_written(name: str):
    """A template would write another call instead, and in `split` the model would read a call that it never made."""
    bridge = bridge_of(name, "tool")
    written = bridge.turn_that_calls("look", {"at": "x"})
    broken = written.replace('{"at": "x"}', '{"at": "x')
    assert broken != written
    said = proven(template_of(name), bridge).read(broken)
    assert said.calls
    assert not said.readable
    play = Play(0, 0, Prompt(index=0, ids=(1,), text=""))
    play.draw(Completion(ids=(5,), logprobs=(0.0,), versions=(0,), finish_reason="eos", text=""), said)
    assert play.messages == [{"role": "assistant", "content": broken}]


def test_split_shows_an_unreadable_call_as_it_was_written():
    broken = '<tool_call>\n{"name": "look", "arguments": {"at": }}\n</tool_call>'
    bridge, tokenizer = bridge_of("thinking", "tool"), tokenizer_of("thinking")
    play = Play(0, 0, Prompt(index=0, ids=(1,), text="", messages=({"role": "user", "content": "One?"},)))
    said = recognised(FAMILIES["thinking"].template).read(broken)
    play.draw(Completion(ids=(5,), logprobs=(0.0,), versions=(0,), finish_reason="eos", text=broken), said)
    play.hear([{"role": "tool", "name": "unknown", "content": "error: the call is not a JSON object"}])
    assert broken in str(tokenizer.decode(list(bridge.whole(*play.conversation))))


def calls_read(name: str, text: str) -> list[Call]:
    return recognised(template_of(name)).read(text).calls


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as a template writes it, without the empty reasoning that some write before it."""
    return bridge_of(name, "tool").turn_that_calls("look", arguments).rpartition("</think>\n\n")[2]


THOUGHTS = [mark for mark in REASONING if "channel" not in mark[0]]
NOT_IN_CHANNELS = [name for name in WITH_TOOLS if not (name in FAMILIES and FAMILIES[name].calls == "harmony")]


@pytest.mark.parametrize(("opening", "closing"), THOUGHTS)
@catalogue("name", NOT_IN_CHANNELS)
def test_a_call_in_the_reasoning_is_not_made_and_spoils_none_behind_it(name: str, opening: str, closing: str):
    call = written(name, {"at": "x"})
    broken = call.replace('{"at": "x"}', '{"at": ')
    made = [Call("look", {"at": "x"})]
    for thought in (call, broken, f"{call} or {broken}"):
        for begin in (f"{opening}\nPerhaps {thought} ", f"Perhaps {thought} "):  # some templates open the reasoning
            assert calls_read(name, f"{begin}{closing}\n\nThe answer is 4.") == []
            said = recognised(template_of(name)).read(f"{begin}{closing}\n\n{call}")
            assert said.calls == made
            assert said.content == said.answer == f"{begin}{closing}".strip()
    assert calls_read(name, f"{opening} Perhaps {call}") == []


@pytest.mark.parametrize("opening", ["<think>", "<reasoning>", "<thought>", "[THINK]"])
def test_an_opening_mark_inside_a_line_is_text(opening: str):
    call = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
    assert calls_read("hermes", f"Found in the code: `{opening}`. {call}") == [Call("look", {"x": 1})]
    assert calls_read("hermes", f"I shall look.\n{opening} or {call}") == []


MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", "<｜tool▁call▁begin｜>")
MARKS += ("<｜tool▁call▁end｜>", "<|python_tag|>", "```json", "{", "}")


@pytest.mark.parametrize("mark", MARKS)
@catalogue("name", NOT_IN_CHANNELS)
def test_marks_in_the_arguments_of_a_call_are_text(name: str, mark: str):
    arguments = {"at": f"a {mark} b", "too": mark}
    call = bridge_of(name, "tool").turn_that_calls("look", arguments)
    assert calls_read(name, call) == [Call("look", arguments)]
    assert calls_read(name, f"<think>Why?</think>\n{call}") == [Call("look", arguments)]


@catalogue("name", NOT_IN_CHANNELS)
def test_the_answer_of_a_turn_is_the_text_beside_its_calls(name: str):
    """A reward that reads the last number must not find it in a call."""
    call = written(name, {"at": "42"})
    read = recognised(template_of(name)).read
    for end in range(len(call) - 20, len(call) + 1):  # a limit may cut the turn anywhere
        said = read(f"<think>One.</think>{call[:end]}")
        if said.calls:
            assert said.answer == "<think>One.</think>"
    assert read("It is 42.").answer is None
    for text in (call, call.replace('"at": "42"', '"at": "42')):
        play = Play(0, 0, Prompt(index=0, ids=(1,), text=""))
        play.draw(Completion(ids=(5,), logprobs=(0.0,), versions=(0,), finish_reason="eos", text=text), read(text))
        assert play.text == ""


DEEPSEEK = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{}\n```<｜tool▁call▁end｜>"
TWO_CALLS = [
    ("hermes", '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\n' * 2),
    ("deepseek", f"<｜tool▁calls▁begin｜>{DEEPSEEK}\n{DEEPSEEK}<｜tool▁calls▁end｜>"),
    ("mistral", '[TOOL_CALLS][{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]'),
    ("mistral", "[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS]look[ARGS]{}"),
    ("llama", '{"name": "look", "parameters": {}}; {"name": "look", "parameters": {}}'),
    ("llama", '<|python_tag|>{"name": "look", "parameters": {}}; {"name": "look", "parameters": {}}'),
]


@pytest.mark.parametrize(("name", "calls"), TWO_CALLS)
def test_text_behind_calls_is_kept_beside_them(name: str, calls: str):
    read, made = FORMATS[name].read, [Call("look", {})] * 2
    said = read(f"{calls}2 or \\boxed{{3}}")
    assert said == Said("2 or \\boxed{3}", made, answer="2 or \\boxed{3}")
    assert read(f"{calls}\n<think>Was it").content == "<think>Was it"  # reasoning that a limit cut
    if name != "llama":  # there a call is the beginning of a turn
        assert read(f"It is 4{calls}2").content == "It is 4\n2"


def test_text_behind_a_call_that_cannot_be_read_is_its_answer():
    said = FORMATS["hermes"].read('<tool_call>{"name": "look", "arguments": {"at": }}</tool_call>\nSo 42.')
    assert not said.readable
    assert said.answer == "So 42."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", '[TOOL_CALLS]{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}'),
        ("mistral", '[TOOL_CALLS]look[ARGS]{"at": "x"}look[ARGS]{"at": "y"}'),
        ("mistral", '[TOOL_CALLS]look[ARGS]{"at": "x"}}'),
        ("llama", '{"name": "look", "parameters": {}}, {"name": "look", "parameters": {}}'),
        ("llama", '{"name": "look", "parameters": {}}; {"name": "look", "parameters": {"at": }}'),
    ],
)
def test_what_looks_like_a_further_call_is_a_problem_and_no_text(name: str, text: str):
    said = FORMATS[name].read(text)
    assert not said.readable
    assert (said.content, said.answer) == (text, "")


ANSWERS = (
    '{"name": "Paris", "population": 2}',
    '{"name": "Paris"}',
    '{"type": "city", "name": "Paris"}',
    '{"name": "Paris", "population": 2,}',
    '{"name": "Paris", "popul',
    '[{"name": "Paris", "parameters": {}}]',
    '{"city": {"name": "Paris", "parameters": {}}}',
)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_in_json_is_no_call_of_llama(answer: str):
    assert FORMATS["llama"].read(answer, ["look"]) == Said(answer, [])


def test_the_name_of_a_tool_tells_a_call_of_llama_from_an_answer():
    for text in ('{"name": "look"}', '{"name": "look", "input": {"at": "x"}}', '{"name": "look", "param'):
        assert FORMATS["llama"].read(text, ["find"]) == Said(text, [])
        assert len(FORMATS["llama"].read(text, ["find", "look"]).calls) == 1


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "look", "parameters": {}}', Call("look", {})),
        ('{"name": "look", "arguments": {"at": "x"}}', Call("look", {"at": "x"})),
        ('{"type": "function", "name": "look"}', Call("look", {})),
        ('<|python_tag|>{"name": "look"}<|eom_id|>', Call("look", {})),
    ],
)
def test_calls_of_llama_in_other_forms_are_read(text: str, call: Call):
    assert FORMATS["llama"].read(text).calls == [call]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "look", "parameters": {"at": }}',
        '{"type": "function", "name": "lo',
    ],
)
def test_broken_json_that_begins_as_a_call_of_llama_is_an_unreadable_call(text: str):
    said = FORMATS["llama"].read(text)
    assert not said.readable
    assert said.answer == ""
