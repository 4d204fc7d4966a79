"""Requests to /v1/chat/completions, read and refused as OpenAI's servers do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "stop": [],
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
}
"""Sampling parameters, with the values that change nothing."""
PLAIN: Mapping[str, Any] = {
    "n": 1,
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
    "top_logprobs": 0,
    "modalities": ["text"],
}
"""Parameters for the form of an answer, each with the only value that is supported."""
READ = ("model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "logprobs", "seed")
SHOWN = ("stream", "stream_options")
OF_NO_ACCOUNT = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "verbosity", "reasoning_effort"),
)
"""Parameters that have no effect on what is sampled."""
ROLES = ("system", "developer", "user", "assistant", "tool")


class Refused(Exception):
    """An error answer in OpenAI's form."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        kind = {401: "authentication_error", 500: "server_error"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The parts of a request that say what to sample and how the client wants the answer."""

    messages: Sequence[Mapping[str, Any]]
    """Messages in the form that chat templates read: contents are text, arguments of calls are objects."""
    tools: Sequence[Mapping[str, Any]] = ()
    most_tokens: int | None = None
    logprobs: bool = False
    model: str = ""
    stream: bool = False
    include_usage: bool = False

    @property
    def to_draw(self) -> dict[str, Any]:
        """The fields that the trainer receives."""
        return {
            "messages": list(self.messages),
            "tools": list(self.tools),
            "most_tokens": self.most_tokens,
            "logprobs": self.logprobs,
        }


def read_request(body: Any, sampling: Mapping[str, Any], *, ignores: bool) -> Asked:
    """Return the request in a JSON body. Raises `Refused` if it asks for anything that `sampling`, the run's sampling
    parameters, and this endpoint do not offer."""
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    _require_plain(given, {**NEUTRAL, **sampling}, ignores=ignores)
    options = given.get("stream_options", {})
    return Asked(
        messages=_messages(given.get("messages")),
        tools=_tools(given.get("tools", []), given.get("tool_choice", "auto")),
        most_tokens=_most_tokens(given),
        logprobs=given.get("logprobs") is True,
        model=str(given.get("model", "")),
        stream=given.get("stream") is True,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def _require_plain(given: Mapping[str, Any], sampling: Mapping[str, Any], *, ignores: bool) -> None:
    for name, value in given.items():
        if name in sampling:
            if not ignores and not _same(value, sampling[name]):
                raise Refused(
                    f"{name} = {value!r:.80}, but the run samples with {sampling[name]!r}, and a policy must be "
                    "trained with the distribution that it is sampled from. Leave it out, or set agent.sampling "
                    "= ignore in the config.",
                    param=name,
                )
        elif name in PLAIN:
            if not _same(value, PLAIN[name]):
                raise Refused(f"{name} = {value!r:.80} is not supported; only {PLAIN[name]!r} is", param=name)
        elif name not in (*READ, *SHOWN, *OF_NO_ACCOUNT):
            raise Refused(f"the parameter {name!r:.80} is not supported", param=name)


def _same(value: Any, other: Any) -> bool:
    if isinstance(other, list):
        return (value if isinstance(value, list) else [value]) == other
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return value == other


def _most_tokens(given: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    most = given.get(name)
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Refused(f"{name} = {most!r:.80}, but it must be an integer of at least 1", param=name)
    return most


def _tools(given: Any, choice: Any) -> list[dict[str, Any]]:
    if choice not in ("auto", "none"):
        raise Refused(f"tool_choice = {choice!r:.80} is not supported; only auto and none are", param="tool_choice")
    if not isinstance(given, list):
        raise Refused("tools is not a list", param="tools")
    for tool in given:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise Refused(f"{tool!r:.80} is not a tool of the type function with a name", param="tools")
    return [] if choice == "none" else [dict(tool) for tool in given]


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise Refused("messages must be a list of at least one message", param="messages")
    found, names = list[dict[str, Any]](), dict[str, str]()
    for place, message in enumerate(given):
        where = f"messages[{place}]"
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise Refused(f"{where} has none of the roles {', '.join(ROLES)}", param=where)
        role = "system" if message["role"] == "developer" else message["role"]
        own: dict[str, Any] = {"role": role, "content": text_of(message.get("content"), where)}
        if role == "assistant" and message.get("tool_calls"):
            if not isinstance(message["tool_calls"], list):
                raise Refused(f"the tool_calls of {where} are not a list", param=where)
            own["tool_calls"] = [_call(one, where) for one in message["tool_calls"]]
            names |= {call["id"]: call["function"]["name"] for call in own["tool_calls"]}
        if role == "tool":
            own["tool_call_id"] = str(message.get("tool_call_id", ""))
            own["name"] = str(message.get("name") or names.get(own["tool_call_id"], ""))
        elif isinstance(message.get("name"), str):
            own["name"] = message["name"]
        found.append(own)
    if found[-1]["role"] == "assistant":
        raise Refused("the last message is the model's own: there is nothing to answer", param="messages")
    return found


def text_of(content: Any, where: str) -> str:
    """Return the text of a content: a text, a list of text parts, or nothing. Raises `Refused` for anything else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise Refused(f"the content of {where} is not text", param=where)
    return "".join(map(str, texts))


def _call(given: Any, where: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refused(f"{where} has a tool call without a function's name", param=where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            read = None
        arguments = read if isinstance(read, dict) else arguments
    named = {"name": function["name"], "arguments": arguments}
    return {"type": "function", "id": str(given.get("id", "")), "function": named}
