"""Trajectories whose turns an agent requests: from requests to ids, and from sampled turns to answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from posttrain.data.dropped import Unusable
from posttrain.episodes.agents.answers import Answer
from posttrain.episodes.agents.transcript import Transcript
from posttrain.episodes.bridge import Bridge, call_id
from posttrain.episodes.calls import Said, proven, template_of
from posttrain.episodes.scene import Scene
from posttrain.episodes.tools import UNKNOWN, require_tools_in_prompt
from posttrain.episodes.turns import Conductor, Turns
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.data.prompts import Renderer
    from posttrain.episodes.play import Play
    from posttrain.episodes.scene import Limits
    from posttrain.episodes.sessions import Reply, Sessions
    from posttrain.types import Completion

Message = Mapping[str, Any]
_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
"""Stands in for an agent's tools when a run proves its chat template, because no request has named any yet."""
ASKED_FOR = "max_tokens"
"""The limit that a request sets on its own turn. The trajectory continues after it."""


@dataclass(frozen=True, kw_only=True)
class AgentScene(Scene):
    """The parts that all trajectories share whose turns an agent requests."""

    with_tools: Bridge | ConfigError
    """The bridge for requests with tools, or the error if the chat template supports no tools."""
    known: dict[str, Bridge] = field(default_factory=dict)
    """Bridges for the tools that requests have named so far, by the JSON text of the tools."""

    @staticmethod
    def proven(
        renderer: Renderer,
        eos_ids: Collection[int],
        sessions: Sessions,
        limits: Limits,
        history: Literal["auto", "split", "keep"],
        context_length: int | None,
    ) -> AgentScene:
        """Return a scene whose chat template is proven for the messages of agents. ConfigError if the template does not
        allow several turns."""
        of_agent: Any = {"history": history, "setting": "agent.history"}
        bridge = Bridge.of(renderer, eos_ids, **of_agent)
        try:
            with_tools = Bridge.of(renderer, eos_ids, tools=[_TOOL], roles=("user", "tool"), **of_agent)
            calls = proven(template_of(renderer), with_tools)
        except ConfigError as refused:
            calls, with_tools = None, refused
        how: Any = {"sessions": sessions, "limits": limits, "context_length": context_length}
        return AgentScene(bridge=bridge, with_tools=with_tools, calls=calls, **how)

    def turns(self, conductor: Conductor) -> AgentTurns:
        return AgentTurns(self, conductor)

    def bridge_of(self, tools: Sequence[Message]) -> Bridge:
        """Return the bridge for contexts with these tools. ConfigError if the template leaves them out, Unusable if
        they spell a special token."""
        if not tools:
            return self.bridge
        if isinstance(self.with_tools, ConfigError):
            raise self.with_tools
        text = json.dumps(tools, sort_keys=True, ensure_ascii=False)
        if text not in self.known:
            spelled = [name for name in self.bridge.literal.names if name in text]
            if spelled:
                raise Unusable(f"a tool spells the special token {spelled[0]}")
            require_tools_in_prompt(self.bridge.renderer, tools)
            self.known[text] = replace(self.with_tools, tools=tuple(tools))
        return self.known[text]


@dataclass
class Talk:
    """The requests of one trajectory."""

    transcript: Transcript = field(default_factory=Transcript)
    tools: Sequence[Message] = ()
    """Tools of the newest request; `most_tokens` and `logprobs` also belong to it."""
    most_tokens: int | None = None
    logprobs: bool = False
    refused: int = 0
    """Number of requests that got no turn."""


class AgentTurns(Turns):
    """The rules of trajectories whose turns an agent requests."""

    scene: AgentScene

    def __init__(self, scene: AgentScene, conductor: Conductor) -> None:
        super().__init__(scene, conductor)
        self._talks: WeakKeyDictionary[Play, Talk] = WeakKeyDictionary()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _resume(self, play: Play, reply: Reply) -> None:
        if play.stage == "reset":
            self._talks[play] = Talk()
        if reply.kind != "value":
            self._failed(play, reply.kind, reply.message, reply.traceback)
        elif "request" in reply.value:
            self._request(play, **reply.value["request"])
        elif play.turns:
            play.ended = "done"
            _take(play, reply.value)
            self._complete(play)
        else:
            self._failed(play, "exception", "the agent ended without requesting an answer from its endpoint")

    def _request(self, play: Play, messages: Sequence[Message], **asked: Any) -> None:
        """Have the answer to these messages sampled; `asked` are fields of `Talk`."""
        talk = self._talks[play] = replace(self._talk(play), **asked)
        if play.turns + talk.refused >= self.scene.limits.max_turns:
            play.ended = "max_turns"
            self._end(play)
            return
        try:
            self._go_on(play, talk, messages)
        except Unusable as refused:
            talk.refused += 1
            self.ask(play, "step", refusal=str(refused))

    def _go_on(self, play: Play, talk: Talk, messages: Sequence[Message]) -> None:
        """Continue from the ids of an earlier request, or in a new context."""
        bridge = self.scene.bridge_of(talk.tools)
        found, split = talk.transcript.find(messages, talk.tools), bridge.history == "split"
        if self._is_too_long(play, messages if found is None or split else found.more):
            self._end(play)
            return
        if found is None or split:
            ids = bridge.whole(messages, talk.transcript.outside(messages))
        elif not found.more:
            ids = found.ids
        else:
            bridge.check(found.more)
            ids = bridge.between(found.more, last=found.ids[-1])
            ids = ids if found.newest else (*found.ids, *ids)
        asks_the_prompt = not play.turns and ids == play.prompt.ids
        goes_on = found is not None and found.newest
        play.hear(found.more if goes_on and found is not None else _behind_prompt(play, messages))
        self._enter(play, () if asks_the_prompt else ids, anew=not asks_the_prompt and (split or not goes_on))
        talk.transcript.ask(messages, talk.tools, play.context)

    def _room(self, play: Play, *used: int) -> tuple[str, int]:
        limit, room = super()._room(play, *used)
        most = self._talk(play).most_tokens
        return (ASKED_FOR, most) if most is not None and most <= room else (limit, room)

    def _talk(self, play: Play) -> Talk:
        return self._talks[play]

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn_ended(self, play: Play, turn: Completion) -> None:
        talk = self._talk(play)
        play.draw(turn, self._said(talk, turn))
        message = play.messages[-1] = _with_own_ids(play)
        talk.transcript.answer(message, turn.ids)
        known = {tool["function"]["name"] for tool in talk.tools}
        named = [call["function"]["name"] for call in message.get("tool_calls", ())]
        play.calls += [name if name in known else UNKNOWN for name in named]
        answer = asdict(self._answer(play, talk, turn))
        if turn.truncated and play.ended != ASKED_FOR:
            self.ask(play, "finish", limit=self._limit(play), answer=answer)
            return
        play.ended, play.reason = "", "stop" if turn.truncated else turn.finish_reason
        self.ask(play, "step", answer=answer)

    def _said(self, talk: Talk, turn: Completion) -> Said:
        """Return the turn's text and calls. A turn with an unreadable call is only text, as with other servers: it is
        up to the agent to complain."""
        said = self._read(turn, talk.tools) if talk.tools else Said(turn.text, [])
        return said if said.readable else Said(turn.text, [], answer=said.answer)

    def _answer(self, play: Play, talk: Talk, turn: Completion) -> Answer:
        message, tokenizer = play.messages[-1], self.bridge.renderer.tokenizer
        calls = message.get("tool_calls", ())
        ended = turn.ids[-1:] and turn.ids[-1] in self.bridge.eos_ids
        shown = list(zip(turn.ids, turn.logprobs, strict=True))[: -1 if ended else None] if talk.logprobs else []
        return Answer(
            text=message["content"],
            calls=[_as_json(call) for call in calls],
            reason="length" if turn.truncated else "tool_calls" if calls else "stop",
            prompt_tokens=len(play.context) - len(turn.ids),
            completion_tokens=len(turn.ids),
            version=turn.versions[-1],
            logprobs=[(str(tokenizer.decode([token])), logprob) for token, logprob in shown],
        )

    # --- ends --------------------------------------------------------------------------------------------------------

    def _end(self, play: Play) -> None:
        """End the session at a limit, instead of sampling a turn."""
        self.ask(play, "finish", limit=self._limit(play))

    def _finish(self, play: Play, reply: Reply) -> None:
        _take(play, reply.value)
        super()._finish(play, reply)

    def _limit(self, play: Play) -> str:
        limits = self.scene.limits
        return {
            "max_turns": f"sampling.max_turns = {limits.max_turns}",
            "max_trajectory_length": f"sampling.max_trajectory_length = {limits.max_length}",
            "max_completion_length": f"sampling.max_completion_length = {play.max_turn_length}",
        }.get(play.ended, f"the end of the context, {self.scene.context_length} tokens")


def _take(play: Play, value: Mapping[str, Any]) -> None:
    """Take what an agent has returned: its reward, or the conversation to be judged."""
    play.reward = value.get("reward")
    if "messages" in value:
        play.messages = _behind_prompt(play, value["messages"])
        said = [one["content"] for one in play.messages if one["role"] == "assistant"]
        play.text = said[-1] if said else ""


def _behind_prompt(play: Play, messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the row's prompt, if they begin with it."""
    asked = [(one["role"], one["content"]) for one in play.prompt.messages or ()]
    begins = [(one["role"], one["content"]) for one in messages[: len(asked)]] == asked
    return list(messages[len(asked) :] if begins else messages)


def _with_own_ids(play: Play) -> Message:
    """Return the newest message, with identifiers for its calls that are unique in the session."""
    message = play.messages[-1]
    if "tool_calls" not in message:
        return message
    named = enumerate(message["tool_calls"], len(play.calls))
    return {**message, "tool_calls": [{**call, "id": call_id(number)} for number, call in named]}


def _as_json(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in OpenAI's form, whose arguments are text."""
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {"name": function["name"], "arguments": arguments}}
