"""Runs inside a vLLM server, in its environment: many requests over one connection.

The server is started with `--middleware posttrain_rows.Rows`; the folder of this file is on its path. vLLM's own route
for tokens takes one connection per request and writes a small document for each token, which costs about as much as
sampling it with a small model. Here

    GET  /posttrain/rows/NAME    is a stream of lines for as long as the connection lives:
                                 [[request, ids, log-probabilities, reason, spans], ...]
    POST /posttrain/rows/NAME    adds requests to it, and drops some, in this order:
                                 [{"request_id", "token_ids", "cache_salt", "sampling_params"}, {"abort"}, ...]

The reason is null until the request has ended (`stop`, `length`, `abort`); it is `error: ...` for a failed request.
Spans say which weights sampled which tokens, as (label, first, last + 1), and come with the end. When a stream is
closed, its requests are aborted. Their names in the server are the names that vLLM's own route would give them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

PATH = "/posttrain/rows/"
TOGETHER = 0.01
"""Seconds for which tokens are collected and then sent as one line."""


async def drawn_by(engine: Any, request: dict[str, Any]) -> AsyncIterator[list[Any]]:
    """Yield the tokens that vLLM samples for a request, as [ids, log-probabilities, reason, spans]."""
    import msgspec
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    how = msgspec.convert(request["sampling_params"], SamplingParams)
    how.output_kind = RequestOutputKind.DELTA
    prompt = tokens_input(request["token_ids"], cache_salt=request["cache_salt"])
    async for answer in engine.generate(prompt, how, f"generate-tokens-{request['request_id']}"):
        [drawn] = answer.outputs
        ids = list(drawn.token_ids)
        numbers = [at[token].logprob for at, token in zip(drawn.logprobs or (), ids, strict=True)]
        spans = [(span.version, span.start, span.end) for span in drawn.weight_versions or ()]
        yield [ids, numbers, drawn.finish_reason, spans]


class Rows:
    """ASGI middleware: answers its own path and passes everything else on."""

    def __init__(self, app: Any, draws: Callable[[Any, dict[str, Any]], AsyncIterator[list[Any]]] = drawn_by) -> None:
        self.app, self.draws = app, draws
        self.streams: dict[str, Stream] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PATH):
            await self.app(scope, receive, send)
            return
        name = scope["path"].removeprefix(PATH)
        if scope["method"] == "GET":
            stream = self.streams[name] = Stream(lambda request: self.draws(scope["app"].state.engine_client, request))
            try:
                await stream.run(receive, send)
            finally:
                if self.streams.get(name) is stream:
                    del self.streams[name]
        elif name in self.streams:
            self.streams[name].add(json.loads(await body_of(receive)))
            await respond(send, 200, b"{}")
        else:
            await respond(send, 404, b'"there is no such stream"')


class Stream:
    """One connection, and the requests that answer through it."""

    def __init__(self, draws: Callable[[dict[str, Any]], AsyncIterator[list[Any]]]) -> None:
        self.draws = draws
        self.lines: list[Any] = []
        self.filled = asyncio.Event()
        self.requests: dict[str, asyncio.Task[None]] = {}

    def add(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            if "abort" in request:
                if task := self.requests.get(request["abort"]):
                    task.cancel()
            else:
                number, task = request["request_id"], asyncio.ensure_future(self.answer(request))
                self.requests[number] = task
                task.add_done_callback(lambda _, number=number: self.requests.pop(number))

    async def answer(self, request: dict[str, Any]) -> None:
        number = request["request_id"]
        try:
            async for drawn in self.draws(request):
                self.say([number, *drawn])
        except Exception as error:
            self.say([number, [], [], f"error: {type(error).__name__}: {error}", []])

    def say(self, line: list[Any]) -> None:
        self.lines.append(line)
        self.filled.set()

    async def run(self, receive: Any, send: Any) -> None:
        """Serve until the reader is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"\n", "more_body": True})
        writing = asyncio.ensure_future(self.write(send))
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            for task in (writing, *self.requests.values()):
                task.cancel()

    async def write(self, send: Any) -> None:
        while True:
            await self.filled.wait()
            await asyncio.sleep(TOGETHER)
            lines, self.lines = self.lines, []
            self.filled.clear()
            await send({"type": "http.response.body", "body": json.dumps(lines).encode() + b"\n", "more_body": True})


async def body_of(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def respond(send: Any, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
