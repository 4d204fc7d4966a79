"""An agent that calls a model over HTTP, driven from outside: each of its requests waits for the policy's next turn.

    loop = AgentLoop(play)              play(url, key) asks POST url/chat/completions until it is done
    request = await loop.begin()        its first request: the prompt and the tools
    request = await loop.answer(turn)   its next request; None: it is done, and `loop.result` is its return value
The endpoint serves OpenAI's chat completions on the loopback interface, with a key of its own. Each request must
continue the conversation so far, because sampled turns are not sampled again. A request that rewrites the conversation
is an error, which says where.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_FULL = "This model's maximum context length is reached"
"""The message that OpenAI's clients recognise as the end of the context."""
_MOST_BODY = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of an agent."""

    messages: list[dict[str, Any]]
    """The whole conversation."""
    new: list[dict[str, Any]]
    """Messages that the policy has not seen yet."""
    tools: list[dict[str, Any]]
    """Schemas of the tools."""


class Rewritten(ValueError):
    """Raised if an agent's request does not continue the conversation so far."""


class AgentLoop:
    """One agent and its endpoint. All work happens while one of the methods is awaited."""

    def __init__(self, play: Callable[[str, str], Awaitable[Any]]) -> None:
        self._play, self._key = play, secrets.token_urlsafe(24)
        self._said: list[dict[str, Any]] = []
        self._calls = 0
        """Number of calls made so far. It numbers their ids, so that a repeated run gets the same ids."""
        self._requests: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[dict[str, Any] | None]]] = asyncio.Queue()
        self._open: asyncio.Future[dict[str, Any] | None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._server: asyncio.Server | None = None
        self.result: Any = None

    async def begin(self) -> Request | None:
        """Start the agent and return its first request; None if it makes none."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self._task = asyncio.create_task(_awaited(self._play(f"http://127.0.0.1:{port}/v1", self._key)))
        return await self._next()

    async def answer(self, message: Mapping[str, Any]) -> Request | None:
        """Answer with a turn of the policy and return the next request. Raises what the agent raises.

        The `tool_calls` of the turn are in the form of chat templates."""
        assert self._open is not None, "only a request is answered"
        answer = as_answer(message, self._calls)
        self._calls += len(answer.get("tool_calls", ()))
        self._said.append(answer)
        self._open.set_result(answer)
        return await self._next()

    async def cut(self) -> None:
        """Tell the agent that the context is full, until it is done."""
        while self._open is not None:
            self._open.set_result(None)
            await self._next()

    async def close(self) -> None:
        """Stop the agent, whatever it is doing, and its server."""
        if self._task is not None:
            self._task.cancel()
            with suppress(BaseException):
                await self._task
        if self._server is not None:
            self._server.close()

    async def _next(self) -> Request | None:
        assert self._task is not None
        self._open = None
        asked = asyncio.create_task(self._requests.get())
        await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            self.result = self._task.result()
            return None
        body, self._open = asked.result()
        messages = [_plain(message) for message in body.get("messages", ())]
        new = _behind(self._said, messages)
        self._said = messages
        return Request(messages=messages, new=new, tools=list(body.get("tools") or ()))

    # --- the endpoint ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > _MOST_BODY:
                status, kind, answer = _error("413 Content Too Large", f"at most {_MOST_BODY} bytes are read")
            else:
                status, kind, answer = await self._reply(head[0], headers, await reader.readexactly(int(length)))
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(answer)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + answer
            )
            await writer.drain()
        writer.close()

    async def _reply(self, line: str, headers: Mapping[str, str], body: bytes) -> tuple[str, str, bytes]:
        if not secrets.compare_digest(headers.get("authorization", ""), f"Bearer {self._key}"):
            return _error("401 Unauthorized", "this is not the key of this endpoint")
        if line.startswith("GET /v1/models"):
            return _json("200 OK", {"object": "list", "data": [{"id": "policy", "object": "model"}]})
        if not line.startswith("POST /v1/chat/completions"):
            return _error("404 Not Found", "only POST /v1/chat/completions is answered")
        try:
            asked = json.loads(body)
        except ValueError as error:
            return _error("400 Bad Request", f"the body is not JSON: {error}")
        if not isinstance(asked, dict):
            return _error("400 Bad Request", "the body is not a JSON object")
        future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        await self._requests.put((asked, future))
        answer = await future
        if answer is None:
            return _error("400 Bad Request", _FULL, code="context_length_exceeded")
        return _completion(answer, asked)


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def as_answer(message: Mapping[str, Any], first: int = 0) -> dict[str, Any]:
    """Return a turn in OpenAI's form: the arguments of calls as text. An empty turn becomes a space, because clients
    refuse an empty one."""
    calls = [
        {
            "id": f"call{number:05d}",  # nine letters, which some templates require
            "type": "function",
            "function": {"name": one["function"]["name"], "arguments": _as_json(one["function"]["arguments"])},
        }
        for number, one in enumerate(message.get("tool_calls", ()), first)
    ]
    content = message["content"] or (None if calls else " ")
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _as_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _completion(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[str, str, bytes]:
    reason = "tool_calls" if answer.get("tool_calls") else "stop"
    about = {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "created": int(time.time()),
        "model": asked.get("model", "policy"),
    }
    if not asked.get("stream"):
        choice = {"index": 0, "message": answer, "finish_reason": reason}
        return _json("200 OK", {**about, "object": "chat.completion", "choices": [choice]})
    calls = [{"index": place, **call} for place, call in enumerate(answer.get("tool_calls", ()))]
    delta = {**answer, **({"tool_calls": calls} if calls else {})}
    chunk = {
        **about,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    }
    return "200 OK", "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


def _json(status: str, value: Any) -> tuple[str, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


def _error(status: str, message: str, code: str | None = None) -> tuple[str, str, bytes]:
    return _json(status, {"error": {"message": message, "type": "invalid_request_error", "code": code}})


# --- the conversation -------------------------------------------------------------------------------------------------


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form of chat templates: content as text, and arguments of calls as objects."""
    content = message.get("content")
    if isinstance(content, list):
        others = [part.get("type") for part in content if part.get("type") != "text"]
        if others:
            raise ValueError(f"a message holds {others[0]}, but only text reaches the policy")
        content = "".join(part["text"] for part in content)
    found = {"role": message.get("role"), "content": content or ""}
    if message.get("tool_calls"):
        found["tool_calls"] = [dict(call) for call in message["tool_calls"]]
    kept = {name: message[name] for name in ("tool_call_id", "name") if message.get(name)}
    return {**found, **kept}


def _behind(said: Sequence[Mapping[str, Any]], asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that follow the conversation so far. Raises Rewritten if they do not continue it."""
    for place, before in enumerate(said):
        now = asked[place] if place < len(asked) else None
        if now is None or _same(before) != _same(now):
            raise Rewritten(
                f"the environment asks about a different conversation: message {place + 1} was "
                f"{_same(before)!s:.200} and is {None if now is None else _same(now)!s:.200}. It cannot change "
                "what the policy has said and seen"
            )
    new = list(asked[len(said) :])
    if said and not new:
        raise Rewritten("the environment asked again without a new message, but a turn is sampled only once")
    if said and any(message["role"] == "assistant" for message in new):
        raise Rewritten("the environment wrote a message of the role assistant, which only the policy may write")
    return new


def _same(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what must agree in equal messages. White space around the text and the JSON format may differ."""
    calls = [(call["function"]["name"], _read(call["function"]["arguments"])) for call in message.get("tool_calls", ())]
    return message["role"], (message.get("content") or "").strip(), calls


def _read(arguments: Any) -> Any:
    if isinstance(arguments, str):
        with suppress(ValueError):
            return json.loads(arguments)
    return arguments
