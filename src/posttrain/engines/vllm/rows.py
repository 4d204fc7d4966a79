"""Requests for tokens that share one connection to a server (extension/posttrain_rows.py is the server's side)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from posttrain.engines.vllm.client import Client, Drawn, NoAnswer, ServerError


class Rows:
    """One stream of tokens for many requests. All of its code runs in the event loop of its engine."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._path = f"/posttrain/rows/{uuid.uuid4().hex}"
        self._answers: dict[str, asyncio.Queue[Drawn | ServerError]] = {}
        self._new: list[Mapping[str, Any]] = []
        self._broken: ServerError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends = False

    async def open(self) -> bool:
        """Open the stream. Return False if the server has no such route: each request then needs a connection."""
        answer = await self._client.stream(self._path)
        if answer is None:
            return False
        self._begin(self._read(answer))
        return True

    async def close(self) -> None:
        """Close the stream. The server aborts the requests that are not answered yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def generate(self, body: Mapping[str, Any]) -> AsyncIterator[Drawn]:
        """See `Client.generate`. A request that is not read to its end is aborted."""
        number, ended = body["request_id"], False
        answers = self._answers[number] = asyncio.Queue[Drawn | ServerError]()
        self._send(body)
        try:
            while not ended:
                drawn = self._broken or await answers.get()
                if isinstance(drawn, ServerError):
                    raise drawn
                ended = drawn.reason is not None
                yield drawn
        finally:
            del self._answers[number]
            if not ended and self._broken is None:
                self._send({"abort": number})  # after the request itself

    def _send(self, body: Mapping[str, Any]) -> None:
        """Send a message, together with all others that are made before the event loop runs again."""
        self._new.append(body)
        if not self._sends:
            self._sends = True
            self._begin(self._send_all())

    async def _send_all(self) -> None:
        while self._new:
            new, self._new = self._new, []
            await self._client.call(self._path, new)
        self._sends = False

    async def _read(self, answer: httpx.Response) -> None:
        try:
            async for line in answer.aiter_lines():
                for number, ids, logprobs, reason, spans in json.loads(line) if line else ():
                    if (reason or "").startswith("error: "):
                        raise ServerError(f"a request failed: {reason.removeprefix('error: ')}")
                    if len(ids) != len(logprobs):
                        raise ServerError(f"{len(ids)} tokens came with {len(logprobs)} log-probabilities")
                    if number in self._answers:
                        found = Drawn(ids, logprobs, reason, [(str(span[0]), span[1], span[2]) for span in spans])
                        self._answers[number].put_nowait(found)
            raise NoAnswer(f"{self._client.url} ended the stream of tokens")
        except httpx.HTTPError as error:
            raise NoAnswer(f"the stream of tokens from {self._client.url} broke ({type(error).__name__})") from error
        finally:
            await answer.aclose()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Any) -> None:
        """Run a task. An error in one breaks all requests, because without the stream nothing is known about any."""
        try:
            await work
        except (ServerError, ValueError, TypeError) as error:
            self._broken = error if isinstance(error, ServerError) else ServerError(f"the stream of tokens: {error}")
            for answers in self._answers.values():
                answers.put_nowait(self._broken)
