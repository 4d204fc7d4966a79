"""Answers to chat requests in OpenAI's form, as one body or as the events of a stream."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.episodes.agents.requests import Asked


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A turn in the form that the trainer sends to the process of the trajectory. Plain JSON."""

    text: str
    """Text of the turn, without its calls."""
    calls: Sequence[Mapping[str, Any]] = ()
    """Tool calls in OpenAI's form: arguments are JSON text."""
    reason: Literal["stop", "length", "tool_calls"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    version: int = 0
    """The policy version that sampled the last token."""
    logprobs: Sequence[tuple[str, float]] = ()
    """(token, log-probability) of every sampled token except an EOS at the end."""


def whole(answer: Answer, asked: Asked, name: str) -> dict[str, Any]:
    """Return the body of an answer that is not a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    message["refusal"] = None
    if answer.calls:
        message["tool_calls"] = [dict(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "logprobs": _logprobs(answer, asked), "finish_reason": answer.reason}
    return {**_head("chat.completion", answer, asked, name), "choices": [choice], "usage": _usage(answer)}


def chunks(answer: Answer, asked: Asked, name: str) -> Iterator[dict[str, Any]]:
    """Yield the answer as the events of a stream: word by word, then the calls, then the finish reason."""
    head = _head("chat.completion.chunk", answer, asked, name)
    extra = {"usage": None} if asked.include_usage else {}

    def chunk(delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice], **extra}

    content = None if answer.calls and not answer.text else ""
    yield chunk({"role": "assistant", "content": content}, logprobs=_logprobs(answer, asked))
    for word in re.findall(r"\s*\S+|\s+", answer.text):
        yield chunk({"content": word})
    for index, call in enumerate(answer.calls):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
    yield chunk({}, answer.reason)
    if asked.include_usage:
        yield {**head, "choices": [], "usage": _usage(answer)}


def models() -> dict[str, Any]:
    """Return the list of models: the policy alone, whatever model name requests use."""
    return {"object": "list", "data": [model()]}


def model(name: str = "policy") -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "posttrain"}


def _head(kind: str, answer: Answer, asked: Asked, name: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model or "policy",
        "system_fingerprint": f"version-{answer.version}",
    }


def _usage(answer: Answer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.completion_tokens
    used = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
    return {**used, "total_tokens": total}


def _logprobs(answer: Answer, asked: Asked) -> dict[str, Any] | None:
    if not asked.logprobs:
        return None
    tokens = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in answer.logprobs
    ]
    return {"content": tokens, "refusal": None}
