"""The rules for what a trajectory does next, after a turn has ended or its environment has answered.

This module neither samples nor waits. It tells a conductor what each trajectory needs next. One conductor samples with
this process's sampler, and may let a count decide which trajectory returns (episodes.py). Another uses the engines of a
run, in the order in which answers arrive (experience/trajectories.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from posttrain.data.dropped import Unusable
from posttrain.episodes.calls import Said
from posttrain.episodes.play import Play, Stage
from posttrain.episodes.tools import UNKNOWN

if TYPE_CHECKING:
    from posttrain.episodes.scene import Scene
    from posttrain.episodes.sessions import Reply
    from posttrain.types import Completion, Prompt

MOST_CALLS = 16
"""Maximum calls that are made in one turn; the results of further calls say so."""
MOST_CHARACTERS = 64
"""Maximum characters of messages for each token that a trajectory may have."""


class Conductor(Protocol):
    """Carries out what trajectories ask for: sampling, and waiting for replies."""

    def draw(self, play: Play, context: tuple[int, ...], room: int) -> None:
        """Sample the next turn after `context`: at most `room` tokens, at least 1. Then call `Turns.turn_ended`."""
        ...

    def wait(self, play: Play) -> None:
        """Wait for the reply to a request of the kind `play.stage`. Then call `Turns.answered`."""
        ...

    def over(self, play: Play, completion: Completion) -> None:
        """Take the completion of a trajectory that has ended."""
        ...


class Turns:
    """The rules of trajectories with tools and an environment."""

    def __init__(self, scene: Scene, conductor: Conductor) -> None:
        self.scene, self.conductor = scene, conductor
        self.sessions, self.bridge = scene.sessions, scene.bridge

    def begin(self, play: Play) -> None:
        """Ask the environment for the messages before the first turn, or have that turn sampled."""
        if self.scene.has_environment:
            self.ask(play, "reset", row=_row(play.prompt), prompt=play.asked)
        else:
            self._submit(play)

    def turn_ended(self, play: Play, turn: Completion) -> None:
        """Take a turn that was sampled, and continue or end the trajectory."""
        said = self._read(turn, self.bridge.tools)
        play.draw(turn, said)
        if turn.truncated:  # its calls are not made
            self._end(play)
            return
        play.ended = ""
        play.calls += [self._known(one.name) for one in said.calls]
        if self.scene.has_environment or said.calls:
            more = [one._replace(problem=f"at most {MOST_CALLS} calls in a turn") for one in said.calls[MOST_CALLS:]]
            calls = [list(one) for one in (*said.calls[:MOST_CALLS], *more)]
            self.ask(play, "step", message=play.messages[-1], calls=calls)
        else:
            play.ended = "done"
            self._complete(play)

    def answered(self, play: Play, reply: Reply) -> None:
        """Take the reply to a request to the trajectory's session."""
        (self._finish if play.stage == "finish" else self._resume)(play, reply)

    def ask(self, play: Play, do: Stage, **arguments: Any) -> None:
        """Send a request to the trajectory's session; open one if there is none."""
        if play.session is None:
            play.session = self.sessions.open(play.world_seed)
        play.stage, play.unanswered = do, list(arguments.get("calls", ()))
        self.sessions.ask(play.session, do, **arguments)
        self.conductor.wait(play)

    # --- turns -------------------------------------------------------------------------------------------------------

    def _submit(self, play: Play) -> None:
        """Have the next turn sampled, if there is room for at least one token."""
        context = play.context
        play.ended, room = self._room(play, len(context))  # `ended` holds if the turn uses up the room
        if room < 1:
            self._end(play)
            return
        self.conductor.draw(play, context, room)

    def _room(self, play: Play, used: int, more: int = 0) -> tuple[str, int]:
        """Return (the limit that the next turn hits first, the tokens left until then) after a context of `used`
        tokens; `more` of these are not in the trajectory yet."""
        rooms = {"max_completion_length": play.max_turn_length}
        if self.scene.limits.max_length is not None:
            rooms["max_trajectory_length"] = self.scene.limits.max_length - play.length - more
        if self.scene.context_length is not None:
            rooms["context"] = self.scene.context_length - used
        return min(rooms.items(), key=lambda item: item[1])

    def _read(self, turn: Completion, tools: Sequence[Mapping[str, Any]]) -> Said:
        """Return the turn's text and calls. If the template writes one result only, keep the first call only."""
        if self.scene.calls is None:
            return Said(turn.text, [])
        tokenizer, ids = self.bridge.renderer.tokenizer, list(turn.ids)
        if ids and ids[-1] in self.bridge.eos_ids:
            ids.pop()
        names = [str(tool["function"]["name"]) for tool in tools]
        said = self.scene.calls.read(str(tokenizer.decode(ids, skip_special_tokens=False)), names)
        return said._replace(calls=said.calls[:1]) if self.bridge.one_result else said

    def _known(self, name: str) -> str:
        return name if any(name == tool["function"]["name"] for tool in self.bridge.tools) else UNKNOWN

    def _resume(self, play: Play, reply: Reply) -> None:
        """Continue with the reply."""
        value = reply.value
        if reply.kind != "value":
            if self.scene.has_environment or reply.kind == "exception":
                self._failed(play, reply.kind, reply.message, reply.traceback)
                return
            self._late(play, reply)
            if play.unanswered:  # tools keep no state: another process can go on
                self.ask(play, "step", message=play.messages[-1], calls=play.unanswered)
                return
            value = {}
        play.earn(value.get("turn_reward"))
        if value.get("done"):
            play.ended = "done"
            self._worth(play, value)
            return
        messages = self._results(play, value)
        if play.stage == "reset" and value.get("prompt", play.asked) != play.asked:
            play.opening = messages = value["prompt"]
        elif play.stage == "reset" and not messages:
            self._submit(play)
            return
        else:
            play.hear(messages)
        if play.turns >= self.scene.limits.max_turns:
            play.ended = "max_turns"
            self._end(play)
            return
        try:
            self._give(play, messages)
        except Unusable as refused:
            self._failed(play, "template", str(refused))

    def _give(self, play: Play, messages: Sequence[Mapping[str, Any]]) -> None:
        """Append the reply's ids and have the next turn sampled; end the trajectory if there is no room for both.

        Raises Unusable if the chat template cannot write the reply."""
        anew = play.stage == "reset" or self.bridge.history == "split"
        if self._is_too_long(play, messages):
            self._end(play)
            return
        if messages is not play.opening:  # `opening` is a prompt and follows no answer
            self.bridge.check(messages)
        if anew:
            ids = self.bridge.whole(*play.conversation)
        else:
            new = play.messages[len(play.messages) - len(messages) :]
            ids = self.bridge.between(new, last=play.ids[-1] if play.ids else None)
        self._enter(play, ids, anew=anew)

    def _enter(self, play: Play, ids: Sequence[int], *, anew: bool) -> None:
        """Append context and have the next turn sampled after it, if there is room for both."""
        more = len(ids) - (len(play.prompt.ids) if anew and not play.ids else 0)
        play.ended, room = self._room(play, (0 if anew else len(play.context)) + len(ids), more)
        if room < 1:
            self._end(play)
            return
        play.give(ids, anew=anew)
        self._submit(play)

    def _is_too_long(self, play: Play, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the messages have too many characters to fit, so that they need not be tokenised."""
        play.ended = "max_trajectory_length" if self.scene.limits.max_length is not None else "context"
        limits = (self.scene.limits.max_length, self.scene.context_length)
        most = MOST_CHARACTERS * min((limit for limit in limits if limit is not None), default=math.inf)
        return sum(len(one["content"]) for one in messages) > most

    def _late(self, play: Play, reply: Reply) -> None:
        """Keep the results so far, and an error for the call that hung or crashed the process; leave the rest."""
        self._leave(play)
        done = [*zip(reply.value.get("messages", ()), reply.value.get("errors", ()), strict=True)]
        for name, *_ in play.unanswered[len(done) : len(done) + 1]:
            done.append(({"role": "tool", "name": self._known(name), "content": f"error: {reply.message}"}, True))
        play.results += done
        play.unanswered = play.unanswered[len(done) :]

    def _results(self, play: Play, value: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the messages of a reply, after the results that the turn already has; count the calls that failed."""
        messages = [*(one for one, _ in play.results), *value.get("messages", ())]
        errors = [*(wrong for _, wrong in play.results), *value.get("errors", ())]
        play.errors += [str(one["name"]) for one, wrong in zip(messages, errors, strict=False) if wrong]
        play.results = []
        return messages

    # --- ends --------------------------------------------------------------------------------------------------------

    def _end(self, play: Play) -> None:
        """End a trajectory at a limit; ask its environment for the reward so far."""
        if play.session is not None and self.scene.has_environment:
            self.ask(play, "finish")
        else:
            self._complete(play)

    def _finish(self, play: Play, reply: Reply) -> None:
        if reply.kind != "value":
            self._failed(play, reply.kind, reply.message, reply.traceback)
            return
        self._worth(play, reply.value)

    def _worth(self, play: Play, value: Mapping[str, Any]) -> None:
        """Take the environment's reward and metrics, and complete the trajectory."""
        play.reward, play.metrics = value.get("reward"), value.get("metrics", {})
        self._complete(play)

    def _failed(self, play: Play, kind: str, message: str, traceback: str = "") -> None:
        """Begin the trajectory again, or give it up without a reward after the last attempt."""
        self._leave(play, kill=True)
        if play.attempt >= self.scene.limits.attempts:
            self.conductor.over(play, play.completion(kind, message, traceback))
        else:
            self.begin(play.anew())

    def _complete(self, play: Play) -> None:
        self._leave(play)
        self.conductor.over(play, play.completion())

    def _leave(self, play: Play, *, kill: bool = False) -> None:
        if play.session is not None:
            (self.sessions.kill if kill else self.sessions.end)(play.session)
            play.session = None


def _row(prompt: Prompt) -> dict[str, Any]:
    """Return the row of the data as the environment sees it."""
    asked = prompt.plain if prompt.plain is not None else [dict(message) for message in prompt.messages or ()]
    return {**prompt.columns, "prompt": asked}
