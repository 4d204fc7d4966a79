"""A harness for verifiers 0.4 that runs in this process: a chat with the task's tools, until a turn calls none.

It does what verifiers' own harness `null` does in a separate process, whose packages `uv` has to install first. Like
any harness, it calls models through verifiers' interception, so that verifiers' traces, limits and stops apply.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.configs.harness import HarnessConfig  # pyright: ignore[reportMissingImports]
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.harness import Harness  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp  # pyright: ignore[reportMissingImports]
from verifiers.v1.runtimes import ProgramResult  # pyright: ignore[reportMissingImports]

__all__ = ["Loop", "LoopConfig"]


class LoopConfig(HarnessConfig):
    """The settings that every harness has, and no others."""


class Loop(Harness[LoopConfig]):
    """The chat loop."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        """Call the endpoint until a turn calls no tool, or until a request is refused: then a stop or limit has ended
        the episode."""
        system, prompt = self.resolve_prompt(data)
        said = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*map(message_to_wire, prompt or ())]
        )
        messages = [*([{"role": "system", "content": system}] if system else []), *said]
        spec = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, places, servers = await connect_mcp({"mcpServers": spec}, stack)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            asked = {"model": ctx.model, **({"tools": tools} if tools else {})}
            while True:
                reply = await client.post(
                    f"{endpoint}/chat/completions",
                    headers={"Authorization": f"Bearer {secret}"},
                    json={**asked, "messages": messages},
                )
                if reply.status_code != httpx.codes.OK:
                    failed = reply.status_code >= 500 and trace.stop_condition is None
                    return ProgramResult(exit_code=int(failed), stdout="", stderr=reply.text[-2000:])
                turn = reply.json()["choices"][0]["message"]
                messages.append(turn)
                if not turn.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                messages += [await _result(call, places, servers) for call in turn["tool_calls"]]


async def _result(call: Any, places: Any, servers: Any) -> dict[str, Any]:
    name = call["function"]["name"]
    try:
        if name not in places:
            raise LookupError(f"there is no tool {name!r}; there are {', '.join(places)}")
        arguments = json.loads(call["function"]["arguments"] or "{}")
        content = await call_mcp(servers, places, name, arguments)
    except Exception as error:
        content = f"error: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
