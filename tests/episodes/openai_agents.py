"""Agents that use the `openai` package as its documentation shows, and know nothing of posttrain."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI, OpenAI

client = OpenAI()
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look somewhere.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "Where to look."}},
                "required": ["place"],
            },
        },
    }
]


def opening(row: dict[str, Any]) -> list[Any]:
    """The prompt as messages."""
    prompt = row["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def look(place: str) -> str:
    return {"end": "<|im_end|>", "long": "b c d"}.get(place, "a")


def with_a_tool(row: dict[str, Any]) -> float:
    """The reward is for a call that looks at x first, and for an answer afterwards."""
    messages: list[Any] = opening(row)
    message = client.chat.completions.create(model="gpt-4.1", messages=messages, tools=TOOLS).choices[0].message
    if not message.tool_calls:
        return 0.0
    messages.append(message)
    places = []
    for call in message.tool_calls:
        if call.type != "function" or call.function.name != "look":
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "there is no such tool"})
            continue
        arguments = json.loads(call.function.arguments)
        places.append(arguments.get("place", ""))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": look(**arguments)})
    answer = client.chat.completions.create(model="gpt-4.1", messages=messages, tools=TOOLS).choices[0].message
    return (0.7 if places[:1] == ["x"] else 0.2) + (0.3 if answer.content and not answer.tool_calls else 0.0)


def streams(row: dict[str, Any]) -> float:
    """An agent that streams two turns; the parts of a turn must add up to the whole turn."""
    messages: list[Any] = opening(row)
    words = 0
    for _ in range(2):
        content, calls, reason, usage = "", dict[int, Any](), None, None
        stream = client.chat.completions.create(
            model="gpt-4.1", messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                words += bool(choice.delta.content)
                reason = choice.finish_reason or reason
                for part in choice.delta.tool_calls or ():
                    assert part.function is not None
                    one = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                    one["arguments"] += part.function.arguments or ""
        assert usage is not None
        assert usage.completion_tokens >= 1
        assert reason == ("tool_calls" if calls else "stop")
        said: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            named = [(one["id"], {"name": one["name"], "arguments": one["arguments"]}) for one in calls.values()]
            said["tool_calls"] = [{"id": name, "type": "function", "function": function} for name, function in named]
        messages.append(said)
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "a"} for one in calls.values()]
        messages += results or [{"role": "user", "content": "c"}]
    return float(words)


async def shows_logprobs(row: dict[str, Any]) -> float:
    """The sum of the log-probabilities, as the client reads them."""
    async with AsyncOpenAI() as own:
        assert [model.id async for model in own.models.list()] == ["policy"]
        answer = await own.chat.completions.create(model="x", messages=opening(row), logprobs=True, seed=7)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert " ".join(token.token for token in choice.logprobs.content).split() == (choice.message.content or "").split()
    return sum(token.logprob for token in choice.logprobs.content)
