"""Environments with their own tools, their own prompt, and metrics in addition to their reward."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import pytest
from tests.episodes.talkers import WORLDS, episodes, play, prompts, talker, tokenizer
from tests.episodes.worlds import Answers, Keeper, Mixed

import posttrain
from posttrain.episodes.conduct import Conduct
from posttrain.episodes.sessions import Sessions, Setup
from posttrain.episodes.tools import find_tool
from posttrain.errors import ConfigError
from posttrain.experience.metrics import turn_metrics
from posttrain.rewards.load import resolve


def conduct(environment, tools=None) -> Conduct:
    return Conduct(environment, {}, tools or {}, most_characters=100, seed=0)


def calls(*names: str, problem: str = "") -> dict:
    made = [{"type": "function", "id": "c", "function": {"name": n, "arguments": {"place": "x"}}} for n in names]
    told = [[name, {"place": "x"}, problem] for name in names]
    return {"message": {"role": "assistant", "content": "", "tool_calls": made}, "calls": told}


def test_tools_of_an_environment_share_what_it_remembers():
    one = conduct(Keeper, {"see": lambda place: "a dog"})
    assert one.offers()["speaks"] is False
    assert [schema["function"]["name"] for schema in one.offers()["schemas"]] == ["look"]
    results = [message["content"] for message in one.step(**calls("look", "see", "look"))["messages"]]
    assert results == ["b", "a dog", "c"]
    assert one.step({"role": "assistant", "content": "a"}, []) == {
        "done": True,
        "reward": 2.0,
        "metrics": {"seen": 2.0},
    }


def test_an_environment_that_offers_schemas_answers_calls_itself():
    one = conduct(Answers)
    assert one.offers()["speaks"] is True
    assert [m["content"] for m in one.step(**calls("look", "broken"))["messages"]] == ["x", "x"]
    assert [m["content"] for m in one.step(**calls("look", problem="no JSON"))["messages"]] == ["unreadable"]
    assert one.step({"role": "assistant", "content": "a"}, [])["done"]


def test_functions_and_schemas_are_not_offered_together():
    with pytest.raises(TypeError, match="an environment must answer all calls itself, or none"):
        conduct(Mixed)


@pytest.mark.parametrize("environment", [None, "Keeper", "Guess", "Answers"])
@pytest.mark.parametrize("tools", [(), ("calculator",), ("calculator", f"{WORLDS}:broken")])
def test_an_environment_that_answers_calls_excludes_tools_of_the_run(environment, tools):
    """Its `step` receives all calls, so that tools of the run would be offered and never executed."""
    target = None if environment is None else resolve(f"{WORLDS}:{environment}")
    sessions = Sessions(Setup(environment=target, tools=[find_tool(tool) for tool in tools]))
    refused = environment == "Answers" and bool(tools)
    expected = pytest.raises(ConfigError, match="that answers calls itself") if refused else nullcontext()
    try:
        with expected:
            sessions.start()
    finally:
        sessions.close()


LOOKS = '''
import functools

def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: Where.
    """
    return "A"

def see(place: str) -> str:
    """See a place.

    Args:
        place: Where.
    """
    return "B"

def wrapped(function):
    def wrapper(place: str) -> str:
        """Look.

        Args:
            place: Where.
        """
        return function(place)
    return wrapper

def well_wrapped(function):
    return functools.wraps(function)(wrapped(function))

first, second = wrapped(look), wrapped(see)
well_first, well_second = well_wrapped(look), well_wrapped(see)
part = functools.partial(look, place="x")

class Called:
    def __call__(self, place: str) -> str:
        """Look."""
        return "C"

called = Called()

class Own:
    def tools(self):
        return [globals()[name] for name in NAMES]
'''
TWICE = "two tools are named"
NAMELESS = "cannot be described to the model: it is an object without a name"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (("look", "see"), ""),
        (("well_first", "well_second"), ""),
        (("first",), ""),
        (("look", "look"), TWICE),
        (("first", "see", "second"), TWICE),
        (("look", "well_first"), TWICE),
        (("part",), NAMELESS),
        (("see", "called"), NAMELESS),
    ],
)
def test_each_tool_has_a_name_of_its_own(tmp_path: Path, names: tuple[str, ...], refused: str, own: bool):
    path = tmp_path / "some_tools.py"
    path.write_text(f"{LOOKS}\nNAMES = {names}\n")
    tools = () if own else tuple(find_tool(f"{path}:{name}") for name in names)
    sessions = Sessions(Setup(environment=resolve(f"{path}:Own") if own else None, tools=tools, timeout=30.0))
    try:
        with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
            sessions.start()
        assert refused or len(sessions.schemas) == len(names)
    finally:
        sessions.close()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), None])
def test_metrics_that_are_no_numbers_are_left_out(wrong):
    """One of them would take the mean of the whole step."""

    class Measured:
        def step(self, message):
            return None

        def metrics(self):
            return {"won": wrong, "moves": 2}

    assert conduct(Measured).finish() == {"metrics": {"moves": 2.0}}


@pytest.mark.parametrize("answer", [[], ()])
def test_a_step_without_a_message_is_an_error(answer):
    """Only None ends a conversation. A turn after nothing has no place in it."""

    class Silent:
        def step(self, message):
            return answer

    with pytest.raises(TypeError, match=r"step returned no message: .* or None at the end"):
        conduct(Silent).step({"role": "assistant", "content": "a"}, [])


@pytest.mark.slow
def test_a_prompt_of_the_environments_own_stands_in_place_of_the_rows():
    with episodes("Keeper") as one:
        asked = prompts(8)
        found = list(chain(*play(one, asked, group_size=2)))
    words = tokenizer()
    for completion, prompt in zip(found, [prompt for prompt in asked for _ in range(2)], strict=True):
        begin, end = completion.given[0]
        assert (begin, completion.starts[0]) == (0, 0)
        [letter] = [message["content"] for message in prompt.messages or ()]
        named = "<unk>"  # the tool's name in this tokenizer
        assert words.decode(list(completion.ids[:end])) == f"{named} user {letter} h assistant"
        assert completion.episode is not None
        assert completion.episode.metrics == {"seen": completion.episode.reward or 0.0}
    metrics = turn_metrics(found)
    assert "environment/metrics/seen" in metrics


@pytest.mark.parametrize(
    ("rewards", "warned"),
    [("posttrain.rewards.length.finished", True), pytest.param("environment", False, marks=pytest.mark.slow)],
)
def test_a_run_that_ignores_the_rewards_of_its_environment_warns(tmp_path: Path, rewards: str, warned: bool):
    talker(tmp_path / "model")
    rows = [{"prompt": letter, "secret": letter} for letter in "abcd"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = posttrain.train(
        {
            "model": {"path": str(tmp_path / "model"), "device": "cpu"},
            "algorithm": "grpo",
            "data": {"train": str(tmp_path / "rows.jsonl"), "eval_fraction": 0},
            "environment": f"{WORLDS}:Guess",
            "rewards": [{"function": rewards} if "." in rewards else rewards],
            "sampling": {"group_size": 2, "max_completion_length": 4, "max_turns": 2},
            "train": {"steps": 1, "prompts_per_step": 2},
            "checkpoint": {"every": 0},
            "guards": {"max_truncated": 1.0},
            "report": False,
            "output": str(tmp_path / "run"),
        }
    )
    said = "".join(path.read_text() for path in Path(run.folder).glob("*.jsonl"))
    assert ("the run ignores it: environment is not among rewards" in said) is warned
