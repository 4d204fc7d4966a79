"""Requests and answers in OpenAI's format, and where in a session a request continues: no process, no model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from posttrain.data.literal import Literal
from posttrain.episodes.agents.answers import Answer, chunks, whole
from posttrain.episodes.agents.conduct import _worth
from posttrain.episodes.agents.requests import Asked, Refused, read_request
from posttrain.episodes.agents.transcript import Transcript
from posttrain.tasks.tiny import build_tokenizer

HELLO = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
RUN = {"temperature": 0.7, "stop": ["\n"]}


def read(ignores: bool = False, **body: Any) -> Asked:
    return read_request({"messages": [HELLO], **body}, RUN, ignores=ignores)


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"temperature": 1.0}, "temperature", "temperature = 1.0, but the run samples with 0.7"),
        ({"top_p": 0.9}, "top_p", "the run samples with 1.0"),
        ({"stop": "END"}, "stop", "the run samples with"),
        ({"frequency_penalty": 0.1}, "frequency_penalty", "the run samples with 0.0"),
        ({"n": 2}, "n", "n = 2 is not supported; only 1 is"),
        ({"n": True}, "n", "not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice", "auto and none are"),
        ({"tools": [{"type": "function"}]}, "tools", "not a tool of the type function"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": True}, "max_completion_tokens", "at least 1"),
        ({"functions": []}, "functions", "'functions' is not supported"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}, HELLO]}, "messages[0]", "are not a list"),
        (
            {"messages": [HELLO, {"role": "assistant", "content": "b"}]},
            "messages",
            "the last message is the model's own",
        ),
        ({"messages": [{"role": "function", "content": ""}]}, "messages[0]", "none of the roles system, developer"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0]",
            "not text",
        ),
    ],
)
def test_what_is_not_answered_is_refused_and_says_why(body, param, message):
    with pytest.raises(Refused, match=message.replace("[", r"\[")) as refused:
        read(**body)
    assert refused.value.status == 400
    assert refused.value.body["error"]["param"] == param


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(Refused, match="not a JSON object"):
        read_request([HELLO], RUN, ignores=True)


def test_what_the_run_draws_with_may_be_asked_for():
    asked = read(temperature=0.7, stop="\n", top_p=1, n=1, seed=3, user="me", presence_penalty=None, max_tokens=9)
    assert (asked.most_tokens, asked.stream, asked.logprobs) == (9, False, False)
    assert read(stop=["\n"], max_tokens=9, max_completion_tokens=5).most_tokens == 5


def test_of_a_run_that_ignores_only_how_tokens_are_drawn_is_ignored():
    assert read(ignores=True, temperature=0.0, stop=["END"], logit_bias={"5": 1}).messages == [HELLO]
    with pytest.raises(Refused, match="n = 2"):
        read(ignores=True, n=2)


def test_messages_come_in_every_form_and_go_to_the_template_in_one():
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    unreadable = {"id": "c2", "function": {"name": "look", "arguments": "{"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "a", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [call, unreadable], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "c1", "content": "18"},
    ]
    named = {"name": "look", "arguments": {"at": 1}}
    assert read(messages=messages, tools=[TOOL]).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a", "name": "me"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": named},
                {"type": "function", "id": "c2", "function": {"name": "look", "arguments": "{"}},
            ],
        },
        {"role": "tool", "content": "18", "tool_call_id": "c1", "name": "look"},
    ]
    assert read(tools=[TOOL], tool_choice="none").tools == []


# --- answers ---------------------------------------------------------------------------------------------------------

CALL = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": '{"at": "x"}'}}


def test_an_answer_has_the_form_of_openai():
    asked = Asked(messages=[HELLO], model="gpt-4.1", logprobs=True)
    body = whole(
        Answer(text=" a b", prompt_tokens=3, completion_tokens=2, version=7, logprobs=[(" a", -0.5)]), asked, "x-1"
    )
    assert (body["object"], body["model"], body["id"]) == ("chat.completion", "gpt-4.1", "chatcmpl-x-1")
    assert body["system_fingerprint"] == "version-7"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": " a b", "refusal": None}
    assert choice["finish_reason"] == "stop"
    [token] = choice["logprobs"]["content"]
    assert token == {"token": " a", "logprob": -0.5, "bytes": [32, 97], "top_logprobs": []}
    body = whole(Answer(text="", calls=[CALL], reason="tool_calls"), Asked(messages=[HELLO]), "x-2")
    assert body["choices"][0]["message"]["content"] is None
    assert body["choices"][0]["message"]["tool_calls"] == [CALL]
    assert body["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("text", ["", "a", " two  words\n", "\n"])
@pytest.mark.parametrize("calls", [[], [CALL, CALL]])
def test_the_parts_of_a_stream_make_the_whole(text, calls):
    answer, asked = Answer(text=text, calls=calls), Asked(messages=[HELLO], stream=True, include_usage=True)
    *parts, last = chunks(answer, asked, "x-1")
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    made: dict[int, Any] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            made.setdefault(part["index"], {**part, "function": {**part["function"], "arguments": ""}})
            made[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    assert [{key: one[key] for key in CALL} for one in made.values()] == calls
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 0)
    assert {part["id"] for part in (*parts, last)} == {"chatcmpl-x-1"}


# --- conversations ---------------------------------------------------------------------------------------------------


def said(text: str, **call: Any) -> dict[str, Any]:
    calls = [{"type": "function", "id": "call00000", "function": {"name": "look", "arguments": call}}] if call else []
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def transcript() -> Transcript:
    """A transcript whose ids show their origin: requests 1, 2 and answers 10, 20."""
    made = Transcript()
    made.ask([user("a")], [], [1])
    made.answer(said("b"), [10])
    made.ask([user("a"), said("b"), user("c")], [], [1, 10, 2])
    made.answer(said("d"), [20])
    return made


@pytest.mark.parametrize(
    ("messages", "ids", "newest", "more"),
    [
        ([user("a"), said("b"), user("c"), said("d"), user("e")], (1, 10, 2, 20), True, [user("e")]),
        ([user("a"), said(" b\n"), user("c"), said("d "), user("e")], (1, 10, 2, 20), True, [user("e")]),
        ([user("a"), said("b"), user("f")], (1, 10), False, [user("f")]),
        ([user("a"), said("b"), user("c")], (1, 10, 2), False, []),
        ([user("a")], (1,), False, []),
    ],
)
def test_a_request_goes_on_from_the_longest_conversation_that_it_begins_with(transcript, messages, ids, newest, more):
    found = transcript.find(messages, [])
    assert found is not None
    assert (found.ids, found.newest, list(found.more)) == (ids, newest, more)


@pytest.mark.parametrize(
    "messages",
    [
        [user("x")],
        [user("a"), said("x"), user("c")],
        [user("a"), user("c")],
        [user("a "), said("b"), user("c")],
        [user("a"), said("b", at="x"), user("c")],
        [user("a"), said("b"), {"role": "system", "content": "c"}],
        [user("a"), said("b"), said("c"), user("d")],
    ],
)
def test_any_other_request_goes_on_from_nothing(transcript, messages):
    assert transcript.find(messages, []) is None


def test_other_tools_are_another_context(transcript):
    assert transcript.find([user("a"), said("b"), user("c")], [TOOL]) is None


def test_calls_are_compared_by_what_they_call():
    made = Transcript()
    made.ask([user("a")], [TOOL], [1])
    made.answer(said("", at="x"), [10])
    renamed = said("", at="x")
    renamed["tool_calls"][0]["id"] = "mine"
    result = {"role": "tool", "content": "18", "tool_call_id": "mine"}
    found = made.find([user("a"), renamed, result], [TOOL])
    assert found is not None
    assert found.ids == (1, 10)
    assert made.find([user("a"), said("", at="y"), result], [TOOL]) is None


def test_special_tokens_in_the_calls_of_a_client_are_text():
    call = {"type": "function", "id": "<eos>", "function": {"name": "look", "arguments": {"<eos>": ["a<eos>", 1]}}}
    hidden, known = Literal.of(build_tokenizer()).hide([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert list(known.values()) == ["<eos>"]
    assert "<eos>" not in json.dumps(hidden, ensure_ascii=False)
    assert hidden[0]["role"] == "assistant"


MISSPELT = {"role": "assistant", "text": "4"}


@pytest.mark.parametrize("given", [{"x": 1}, "well done", "4", b"4", [1], [MISSPELT], float("nan"), 10**400])
def test_an_agent_returns_a_reward_messages_or_nothing(given):
    with pytest.raises((TypeError, ValueError), match="the agent returned"):
        _worth(given)
    assert _worth(True) == {"done": True, "reward": 1.0}


def test_a_message_of_an_agent_may_be_empty_and_calls_need_no_content():
    class Message(BaseModel):
        role: str
        content: str | None = None

    empty = {"role": "assistant", "content": ""}
    called = {"role": "assistant", "tool_calls": []}
    assert _worth([empty, Message(role="assistant"), called])["messages"] == [empty, empty, called | {"content": ""}]
