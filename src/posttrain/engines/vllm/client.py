"""The HTTP requests to a vLLM server, call by call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

GENERATE = "/inference/v1/generate"
IDLE = 1.0
"""Seconds after which a connection is not used again: a server closes idle ones after five, and perhaps just then."""
LONGEST_ERROR = 500
"""Characters of an answer that are quoted in an error."""


class ServerError(Exception):
    """A server refused a call, or is not there; the text says which call and what it answered."""


class NoAnswer(ServerError):
    """Nobody listens, or nobody answers."""


@dataclass(frozen=True)
class Drawn:
    """The next tokens of a request, and at its end why it ended and which weights drew it."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    reason: str | None = None
    """`stop`, `length` or `abort` at the end."""
    spans: Sequence[tuple[str, int, int]] = ()
    """At the end: (version, first token, behind the last) of the whole request."""


class Client:
    """One server. Calls are short, requests last as long as their answer."""

    def __init__(self, url: str, seconds: float) -> None:
        """`seconds` is how long a call may take."""
        self.url, self.seconds = url.rstrip("/"), seconds
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=seconds, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self, path: str, body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None, **query: str
    ) -> Any:
        """POST, or GET without a body for a path that begins with "GET "; the JSON of the answer."""
        method, _, path = path.rpartition(" ")
        try:
            answer = await self._http.request(method or "POST", path, json=body, params=query)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{path} at {self.url}: {self._why(error)}") from error
        if answer.status_code != httpx.codes.OK:
            raise ServerError(f"{path} at {self.url} answered {answer.status_code}: {answer.text[:LONGEST_ERROR]}")
        return answer.json() if answer.content else None

    async def rpc(self, method: str, **arguments: Any) -> list[Any]:
        """The answer of each of the server's workers to a method of our extension."""
        answer = await self.call("/collective_rpc", {"method": method, "kwargs": arguments})
        return answer["results"]

    async def abort(self, names: Sequence[str]) -> None:
        """End requests; they hand over what they have drawn."""
        await self.call("/abort_requests", {"request_ids": [f"generate-tokens-{name}" for name in names]})

    async def stream(self, path: str) -> httpx.Response | None:
        """GET an answer that goes on and on; None where there is no such route. Whoever reads it closes it."""
        request = self._http.build_request("GET", path, timeout=httpx.Timeout(self.seconds, read=None))
        try:
            answer = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{path} at {self.url}: {self._why(error)}") from error
        if answer.status_code == httpx.codes.OK:
            return answer
        await answer.aclose()
        return None

    async def generate(self, body: Mapping[str, Any]) -> AsyncIterator[Drawn]:
        """The tokens of a request as they come. Waits for ever: whoever asks has a deadline of his own."""
        timeout = httpx.Timeout(self.seconds, read=None)
        try:
            async with self._http.stream("POST", GENERATE, json={**body, "stream": True}, timeout=timeout) as answer:
                if answer.status_code != httpx.codes.OK:
                    text = (await answer.aread()).decode(errors="replace")
                    raise ServerError(f"{GENERATE} at {self.url} answered {answer.status_code}: {text[:LONGEST_ERROR]}")
                async for line in answer.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        for drawn in drawn_by(json.loads(line[6:]), self.url):
                            yield drawn
        except httpx.HTTPError as error:
            raise NoAnswer(f"{GENERATE} at {self.url}: {self._why(error)}") from error

    def _why(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.TimeoutException):
            return f"no answer within {self.seconds:g} s"
        return f"the connection broke ({type(error).__name__})"


def drawn_by(message: Mapping[str, Any], url: str) -> list[Drawn]:
    """The content of one message of a stream about its only completion."""
    if "choices" not in message:
        raise ServerError(f"{GENERATE} at {url}: {json.dumps(message)[:LONGEST_ERROR]}")
    found = list[Drawn]()
    for choice in message["choices"]:
        content = (choice.get("logprobs") or {}).get("content") or ()
        ids = tuple(choice.get("token_ids") or ())
        if len(content) != len(ids) or any(one["token_id"] != token for one, token in zip(content, ids, strict=True)):
            raise ServerError(f"{GENERATE} at {url} gave {len(ids)} tokens and log-probabilities of {len(content)}")
        spans = [(str(span["version"]), span["start"], span["end"]) for span in choice.get("weight_versions") or ()]
        found.append(Drawn(ids, [one["logprob"] for one in content], choice.get("finish_reason"), spans))
    return found
