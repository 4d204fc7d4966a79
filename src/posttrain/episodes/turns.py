"""The next step of a trajectory when a turn has ended, or when its environment has answered.

Nothing is drawn and nothing is waited for here: whoever conducts trajectories is told what each needs next. One draws
them with the sampler of this process, counting who comes back when (episodes.py), another with engines of a run, as
answers come (experience/trajectories.py).
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

MOST_CHARACTERS = 64
"""Most characters for each token that a trajectory may have."""


class Conductor(Protocol):
    """Gets for trajectories what they need to go on."""

    def draw(self, play: Play, context: tuple[int, ...], room: int) -> None:
        """Have the next turn drawn: at most `room` tokens, at least 1, behind `context`. Then `Turns.turn_ended`."""
        ...

    def wait(self, play: Play) -> None:
        """Its session was asked for `play.stage`. Then `Turns.answered`."""
        ...

    def over(self, play: Play, completion: Completion) -> None:
        """It has come to this."""
        ...


class Turns:
    """The rules of trajectories with tools and an environment."""

    def __init__(self, scene: Scene, conductor: Conductor) -> None:
        self.scene, self.conductor = scene, conductor
        self.sessions, self.bridge = scene.sessions, scene.bridge

    def begin(self, play: Play) -> None:
        """Ask for what comes before the first turn, or draw that."""
        if self.scene.has_environment:
            self.ask(play, "reset", row=_row(play.prompt), prompt=play.asked)
        else:
            self._submit(play)

    def turn_ended(self, play: Play, turn: Completion) -> None:
        """A turn was drawn."""
        said = self._read(turn)
        play.draw(turn, said)
        play.calls += [self._known(one.name) for one in said.calls]
        if turn.truncated:
            self._end(play)
            return
        play.ended = ""
        if self.scene.has_environment or said.calls:
            self.ask(play, "step", message=play.messages[-1], calls=[list(one) for one in said.calls])
        else:
            play.ended = "done"
            self._complete(play)

    def answered(self, play: Play, reply: Reply) -> None:
        """What was asked of its session has a reply."""
        (self._finish if play.stage == "finish" else self._resume)(play, reply)

    def ask(self, play: Play, do: Stage, **arguments: Any) -> None:
        """Something of its session, which is opened where there is none."""
        if play.session is None:
            play.session = self.sessions.open(play.world_seed)
        play.stage = do
        self.sessions.ask(play.session, do, **arguments)
        self.conductor.wait(play)

    # --- turns -------------------------------------------------------------------------------------------------------

    def _submit(self, play: Play) -> None:
        """Draw the next turn, if there is room for one token."""
        context = play.context
        play.ended, room = self._room(play, len(context))  # where the turn fills all of it
        if room < 1:
            self._end(play)
            return
        self.conductor.draw(play, context, room)

    def _room(self, play: Play, used: int, more: int = 0) -> tuple[str, int]:
        """Which limit the next turn would run into, and after how many tokens, behind a context of `used` tokens, of
        which `more` are not in the trajectory yet."""
        rooms = {"max_completion_length": play.max_turn_length}
        if self.scene.limits.max_length is not None:
            rooms["max_trajectory_length"] = self.scene.limits.max_length - play.length - more
        if self.scene.context_length is not None:
            rooms["context"] = self.scene.context_length - used
        return min(rooms.items(), key=lambda item: item[1])

    def _read(self, turn: Completion) -> Said:
        """The calls in it; the template that writes one result gets the first."""
        if self.scene.calls is None:
            return Said(turn.text, [])
        tokenizer, ids = self.bridge.renderer.tokenizer, list(turn.ids)
        if ids and ids[-1] in self.bridge.eos_ids:
            ids.pop()
        said = self.scene.calls.read(str(tokenizer.decode(ids, skip_special_tokens=False)))
        return said._replace(calls=said.calls[:1]) if self.bridge.one_result else said

    def _known(self, name: str) -> str:
        return name if any(name == tool["function"]["name"] for tool in self.bridge.tools) else UNKNOWN

    def _resume(self, play: Play, reply: Reply) -> None:
        """Go on with what came back."""
        value = reply.value
        if reply.kind != "value":
            if self.scene.has_environment or reply.kind == "exception":
                self._failed(play, reply.kind, reply.message)
                return
            value = self._late(play, reply)  # tools remember nothing: another process goes on
        play.earn(value.get("turn_reward"))
        if value.get("done"):
            play.ended = "done"
            self._worth(play, value)
            return
        messages = value["messages"]
        play.errors += [one["name"] for one, wrong in zip(messages, value.get("errors", ()), strict=False) if wrong]
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
        """The ids of what came back, and then the next turn; neither where there is no room for both.

        Unusable where the chat template cannot write it."""
        anew = play.stage == "reset" or self.bridge.history == "split"
        if self._is_too_long(play, messages):
            self._end(play)
            return
        if messages is not play.opening:  # which is a prompt, and stands behind no answer
            self.bridge.check(messages)
        if anew:
            ids = self.bridge.whole(*play.conversation)
        else:
            ids = self.bridge.between(play.messages[-len(messages) :], last=play.ids[-1] if play.ids else None)
        self._enter(play, ids, anew=anew)

    def _enter(self, play: Play, ids: Sequence[int], *, anew: bool) -> None:
        """Context, and the next turn behind it, where there is room for both."""
        more = len(ids) - (len(play.prompt.ids) if anew and not play.ids else 0)
        play.ended, room = self._room(play, (0 if anew else len(play.context)) + len(ids), more)
        if room < 1:
            self._end(play)
            return
        play.give(ids, anew=anew)
        self._submit(play)

    def _is_too_long(self, play: Play, messages: Sequence[Mapping[str, Any]]) -> bool:
        """More cannot fit, and is not tokenised."""
        play.ended = "max_trajectory_length" if self.scene.limits.max_length is not None else "context"
        limits = (self.scene.limits.max_length, self.scene.context_length)
        most = MOST_CHARACTERS * min((limit for limit in limits if limit is not None), default=math.inf)
        return sum(len(one["content"]) for one in messages) > most

    def _late(self, play: Play, reply: Reply) -> dict[str, Any]:
        """What the model is told of tools that hung or took their process down."""
        self._leave(play)
        names = [self._known(name) for name in play.called]
        messages = [{"role": "tool", "name": name, "content": f"error: {reply.message}"} for name in names]
        return {"messages": messages, "errors": [True] * len(names)}

    # --- ends --------------------------------------------------------------------------------------------------------

    def _end(self, play: Play) -> None:
        """A limit has cut it; its environment says what it was worth so far."""
        if play.session is not None and self.scene.has_environment:
            self.ask(play, "finish")
        else:
            self._complete(play)

    def _finish(self, play: Play, reply: Reply) -> None:
        if reply.kind != "value":
            self._failed(play, reply.kind, reply.message)
            return
        self._worth(play, reply.value)

    def _worth(self, play: Play, value: Mapping[str, Any]) -> None:
        """What its environment made of it."""
        play.reward, play.metrics = value.get("reward"), value.get("metrics", {})
        self._complete(play)

    def _failed(self, play: Play, kind: str, message: str) -> None:
        """Begin it anew, or give it up without a reward."""
        self._leave(play, kill=True)
        if play.attempt >= self.scene.limits.attempts:
            self.conductor.over(play, play.completion(kind, message))
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
    """The row of the data, as the environment sees it."""
    asked = prompt.plain if prompt.plain is not None else [dict(message) for message in prompt.messages or ()]
    return {**prompt.columns, "prompt": asked}
