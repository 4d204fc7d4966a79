"""What a trajectory does after each reply, with replies and turns that the tests write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from tests.episodes.families import bridge_of, eos_of, tokenizer_of

from posttrain.episodes.calls import FORMATS
from posttrain.episodes.play import Play
from posttrain.episodes.scene import Limits, Scene
from posttrain.episodes.sessions import Reply, Setup
from posttrain.episodes.tools import Tool
from posttrain.episodes.turns import MOST_CALLS, Turns
from posttrain.rewards.load import Target
from posttrain.types import Completion, Prompt

ENVIRONMENT = Target(module="tests.episodes.worlds", name="Guess")
CALCULATOR = Tool(module="posttrain.episodes.tools", name="calculator")
ASKED = ({"role": "user", "content": "Q?"},)


class Written:
    """A conductor and sessions in one: keeps what is asked, and takes turns and replies from a test."""

    def __init__(self, *, speaks: bool = True, max_turns: int = 9, history: str = "keep") -> None:
        self.setup = Setup(environment=ENVIRONMENT if speaks else None, tools=() if speaks else (CALCULATOR,))
        bridge = bridge_of("hermes", "user" if speaks else "tool", history)
        calls = None if speaks else FORMATS["hermes"]
        how: Any = {"bridge": bridge, "sessions": self, "limits": Limits(max_turns=max_turns, attempts=1)}
        self.turns = Turns(Scene(calls=calls, context_length=4096, **how), self)
        self.tokenizer, self.asked, self.context = tokenizer_of("hermes"), list[dict[str, Any]](), ()
        self.done: Completion | None = None
        text = bridge.renderer.render(ASKED, add_generation_prompt=True, tools=bridge.tools or None)
        ids = tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
        self.play = Play(0, 0, Prompt(index=0, ids=ids, text=text, messages=ASKED), max_turn_length=512)
        self.turns.begin(self.play)

    def draw(self, play: Play, context: tuple[int, ...], room: int) -> None:
        self.context = context

    def wait(self, play: Play) -> None:
        pass

    def over(self, play: Play, completion: Completion) -> None:
        self.done = completion

    def open(self, seed: int) -> object:
        return object()

    def ask(self, session: object, do: str, **arguments: Any) -> None:
        self.asked.append({"do": do, **arguments})

    def end(self, session: object) -> None:
        pass

    kill = end

    def reply(self, **value: Any) -> None:
        self.turns.answered(self.play, Reply(kind="value", value=value))

    def turn(self, text: str, *, cut: bool = False) -> None:
        ids = (*self.tokenizer(text, add_special_tokens=False).input_ids, *(() if cut else (eos_of("hermes"),)))
        how: Any = {"logprobs": (0.0,) * len(ids), "versions": (0,) * len(ids), "text": text}
        self.turns.turn_ended(self.play, Completion(ids=ids, finish_reason="length" if cut else "eos", **how))

    @property
    def seen(self) -> str:
        return str(self.tokenizer.decode(list(self.context)))


def call(expression: str) -> str:
    return '<tool_call>\n{"name": "look", "arguments": {"at": "' + expression + '"}}\n</tool_call>'


def results(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What tools reply: the arguments, or the problem of a call."""
    said = [(problem or arguments["at"], bool(problem)) for _, arguments, problem in asked["calls"]]
    messages: Sequence[Any] = [{"role": "tool", "name": "look", "content": text} for text, _ in said]
    return {"messages": messages, "errors": [wrong for _, wrong in said]}


def test_a_reply_without_messages_adds_nothing_of_the_conversation_before():
    world = Written()
    world.reply(messages=[])
    world.turn("one")
    world.reply(messages=[{"role": "user", "content": "go on"}])
    world.turn("two")
    world.reply(messages=[])
    assert [world.seen.count(said) for said in ("Q?", "one", "go on", "two")] == [1, 1, 1, 1]


@pytest.mark.parametrize("text", [call("42"), call("1") + call("42"), "So " + call("42"), call("42")[:-20]])
@pytest.mark.parametrize("cut", [False, True])
def test_a_call_is_not_the_answer_of_a_trajectory_that_a_limit_ends(text: str, cut: bool):
    world = Written(speaks=False, max_turns=2)
    world.turn(call("1"))
    world.reply(**results(world.asked[-1]))
    world.turn(text, cut=cut)
    if not cut:
        world.reply(**results(world.asked[-1]))
    assert world.done is not None
    assert world.done.episode is not None
    assert world.done.truncated
    assert "42" not in world.done.text
    assert world.done.text == text.partition("<tool_call>")[0].strip()


def test_the_traceback_of_an_environment_that_raised_is_kept():
    world = Written()
    trace = 'File "my_env.py", line 9, in step'
    world.turns.answered(world.play, Reply(kind="exception", message="KeyError: 4", traceback=trace))
    assert world.done is not None
    assert world.done.episode is not None
    assert (world.done.episode.detail, world.done.episode.traceback) == ("KeyError: 4", trace)


def test_the_prompt_that_replaced_that_of_the_row_is_kept():
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of France?"}]
    for own in (None, opening):
        world = Written(max_turns=1)
        world.reply(messages=[], **({} if own is None else {"prompt": own}))
        world.turn("Paris")
        world.reply(done=True, reward=1.0)
        assert world.done is not None
        assert world.done.episode is not None
        assert world.done.episode.opening == (None if own is None else tuple(own))
        assert Completion.from_json(json.loads(json.dumps(asdict(world.done)))) == world.done


def test_calls_of_a_turn_that_was_cut_are_not_counted():
    world = Written(speaks=False)
    world.turn(call("1") + call("2"), cut=True)
    assert not world.asked
    assert world.done is not None
    assert world.done.episode is not None
    assert world.done.episode.calls == ()


@pytest.mark.parametrize("more", [0, 1, 4])
def test_calls_above_the_most_get_an_error_as_their_result(more: int):
    world = Written(speaks=False)
    world.turn("".join(call(str(number)) for number in range(MOST_CALLS + more)))
    problems = [problem for _, _, problem in world.asked[-1]["calls"]]
    assert problems == [""] * MOST_CALLS + [f"at most {MOST_CALLS} calls in a turn"] * more
    world.reply(**results(world.asked[-1]))
    world.turn("done")
    assert world.done is not None
    assert world.done.episode is not None
    assert len(world.done.episode.calls) == MOST_CALLS + more
    assert len(world.done.episode.errors) == more
    assert [one["role"] for one in world.done.episode.messages].count("tool") == MOST_CALLS + more


CALLS = [call(str(number)) for number in range(4)]


def failed(world: Written, done: int, kind: Any) -> None:
    """Reply that the process has ended after `done` results."""
    told = results({"calls": world.asked[-1]["calls"][:done]})
    world.turns.answered(world.play, Reply(kind=kind, value=told, message="no result after 5 s"))


@pytest.mark.parametrize("kind", ["timeout", "crash"])
@pytest.mark.parametrize("late", [(0,), (1,), (3,), (0, 1), (1, 3), (0, 1, 2, 3)])
def test_only_the_call_that_hangs_or_crashes_gets_an_error(kind, late):
    world = Written(speaks=False)
    world.turn("".join(CALLS))
    answered = 0
    for place in late:
        assert len(world.asked[-1]["calls"]) == 4 - answered
        failed(world, place - answered, kind)
        answered = place + 1
    if answered < 4:
        world.reply(**results(world.asked[-1]))
    world.turn("Done.")
    assert world.done is not None
    told = [one for one in world.done.episode.messages if one["role"] == "tool"]
    errors = [one["content"] == "error: no result after 5 s" for one in told]
    assert errors == [place in late for place in range(4)]
    assert len({one["tool_call_id"] for one in told}) == 4
    assert len(world.done.episode.errors) == len(late)
