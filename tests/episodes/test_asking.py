"""An unchanged agent loop as an environment: it sends HTTP requests, and the answers are the turns."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from posttrain.episodes.adapters.asking import AgentLoop, Rewritten

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


async def ask(url: str, key: str, messages: list[Any], **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        headers = {"Authorization": f"Bearer {key}"}
        body = {"model": "m", "messages": messages, **more}
        return await client.post(f"{url}/chat/completions", headers=headers, json=body)


async def guesser(url: str, key: str) -> list[str]:
    """Ask until the answer is `stop`; return all answers."""
    messages: list[Any] = [{"role": "user", "content": "begin"}]
    heard = []
    while True:
        reply = await ask(url, key, messages, tools=TOOLS)
        if reply.status_code != 200:
            return [*heard, reply.json()["error"]["code"]]
        choice = reply.json()["choices"][0]
        heard.append(f"{choice['message']['content']}/{choice['finish_reason']}")
        if choice["message"]["content"] == "stop":
            return heard
        messages.append(choice["message"])
        for call in choice["message"].get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "cat"}]})
        if not choice["message"].get("tool_calls"):
            messages.append({"role": "user", "content": f"go on {len(heard)}"})


def turn(content: str, **calls: Any) -> dict[str, Any]:
    made = [{"id": "call0", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls.items()]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_each_request_is_a_turn_and_its_news_are_what_came_back():
    async def go() -> None:
        loop = AgentLoop(guesser)
        first = await loop.begin()
        assert first is not None
        assert (first.messages, first.new, first.tools) == (
            [{"role": "user", "content": "begin"}],
            [{"role": "user", "content": "begin"}],
            TOOLS,
        )
        second = await loop.answer(turn("a"))
        assert second is not None
        assert second.new == [{"role": "user", "content": "go on 1"}]
        third = await loop.answer(turn("", look={"place": "x"}))
        assert third is not None
        [result] = third.new
        assert (result["role"], result["content"]) == ("tool", "cat")
        assert third.messages[-2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"place": "x"}'}
        assert await loop.answer(turn("stop")) is None
        assert loop.result == ["a/stop", "None/tool_calls", "stop/stop"]
        await loop.close()

    run(go())


def test_a_limit_of_ours_is_a_full_context_for_the_agent():
    async def go() -> None:
        loop = AgentLoop(guesser)
        await loop.begin()
        await loop.answer(turn("a"))
        await loop.cut()
        assert loop.result == ["a/stop", "context_length_exceeded"]
        await loop.close()

    run(go())


def test_an_empty_turn_is_a_space_which_clients_accept():
    async def go() -> None:
        loop = AgentLoop(guesser)
        await loop.begin()
        again = await loop.answer(turn(""))
        assert again is not None
        assert again.messages[1] == {"role": "assistant", "content": " "}
        await loop.cut()
        await loop.close()

    run(go())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda messages: [{"role": "user", "content": "other"}, *messages[1:]],
            "message 1 was .*begin.* and is .*other",
        ),
        (lambda messages: messages[:1], "message 2 was .* and is None"),
        (
            lambda messages: [*messages, {"role": "assistant", "content": "yes"}],
            "wrote a message of the role assistant",
        ),
        (lambda messages: [*messages, {"role": "user", "content": [{"type": "image_url"}]}], "holds image_url"),
    ],
)
def test_a_conversation_that_is_rewritten_is_an_error_that_says_where(change, says):
    async def rewrites(url: str, key: str) -> None:
        messages: list[Any] = [{"role": "user", "content": "begin"}]
        reply = await ask(url, key, messages)
        await ask(url, key, change([*messages, reply.json()["choices"][0]["message"]]))

    async def go() -> None:
        loop = AgentLoop(rewrites)
        await loop.begin()
        try:
            await loop.answer(turn("a"))
        finally:
            await loop.close()

    with pytest.raises((Rewritten, ValueError), match=says):
        run(go())


def test_what_is_no_request_is_answered_with_the_reason():
    async def careless(url: str, key: str) -> list[Any]:
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
            headers = {"Authorization": f"Bearer {key}"}
            post = partial(client.post, f"{url}/chat/completions")
            replies = [await post(headers=headers, content=body) for body in (b"{", b"[]")]
        heard, saying = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        saying.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        long = await heard.read()
        saying.close()
        return [*((reply.status_code, reply.json()["error"]["message"]) for reply in replies), long.split(b"\r\n")[0]]

    async def go() -> Any:
        loop = AgentLoop(careless)
        try:
            assert await loop.begin() is None
            return loop.result
        finally:
            await loop.close()

    (broken, why), no_object, long = run(go())
    assert (broken, "not JSON" in why) == (400, True)
    assert no_object == (400, "the body is not a JSON object")
    assert long == b"HTTP/1.1 413 Content Too Large"


def test_only_who_has_the_key_is_answered_and_what_is_raised_comes_through():
    async def thief(url: str, key: str) -> None:
        reply = await ask(url, "other", [{"role": "user", "content": "x"}])
        assert reply.status_code == 401
        raise LookupError("no game today")

    async def go() -> None:
        loop = AgentLoop(thief)
        try:
            await loop.begin()
        finally:
            await loop.close()

    with pytest.raises(LookupError, match="no game today"):
        run(go())


def test_a_stream_is_one_chunk():
    async def streams(url: str, key: str) -> str:
        return (await ask(url, key, [{"role": "user", "content": "x"}], stream=True)).text

    async def go() -> str:
        loop = AgentLoop(streams)
        await loop.begin()
        await loop.answer(turn("hello"))
        await loop.close()
        return loop.result

    text = run(go())
    assert '"delta": {"role": "assistant", "content": "hello"}' in text
    assert text.endswith("data: [DONE]\n\n")
