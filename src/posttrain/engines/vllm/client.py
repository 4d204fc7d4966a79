"""The HTTP requests to a vLLM server, call by call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

GENERATE = "/inference/v1/generate"
IDLE = 1.0
"""Seconds after which a connection is not reused. A server closes idle ones after five, perhaps at that very moment."""
LONGEST_ERROR = 500
"""Maximum characters of an answer that an error quotes."""


class ServerError(Exception):
    """A server refused a call or cannot be reached. The text says which call, and what the server answered."""


class NoAnswer(ServerError):
    """Nobody listens, or no answer came in time."""


@dataclass(frozen=True)
class Drawn:
    """The next tokens of a request; at its end also the reason and the versions of the weights."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    reason: str | None = None
    """`stop`, `length` or `abort` at the end."""
    spans: Sequence[tuple[str, int, int]] = ()
    """At the end: (version, first token, last token + 1) for all tokens of the request."""


class Client:
    """Client of one server. Calls are short; requests for tokens last as long as their answer."""

    def __init__(self, url: str, seconds: float) -> None:
        """`seconds` is the maximum time for a call."""
        self.url, self.seconds = url.rstrip("/"), seconds
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=seconds, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def call(
        self, path: str, body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None, **query: str
    ) -> Any:
        """POST, or GET without a body for a path that begins with "GET "; return the JSON of the answer."""
        method, _, path = path.rpartition(" ")
        try:
            answer = await self._http.request(method or "POST", path, json=body, params=query)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{path} at {self.url}: {self._why(error)}") from error
        if answer.status_code != httpx.codes.OK:
            raise ServerError(f"{path} at {self.url} answered {answer.status_code}: {answer.text[:LONGEST_ERROR]}")
        return answer.json() if answer.content else None

    async def rpc(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of our extension, and return the answer of each of the server's workers."""
        answer = await self.call("/collective_rpc", {"method": method, "kwargs": arguments})
        return answer["results"]

    async def abort(self, names: Sequence[str]) -> None:
        """End requests; they return the tokens that they have so far."""
        await self.call("/abort_requests", {"request_ids": [f"generate-tokens-{name}" for name in names]})

    async def stream(self, path: str) -> httpx.Response | None:
        """GET an endless answer; return None if there is no such route. The caller must close it."""
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
        """Yield the tokens of a request as they arrive. It waits without limit: the caller has its own deadline."""
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
    """Return the content of one message of a stream, which is about a single completion."""
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
