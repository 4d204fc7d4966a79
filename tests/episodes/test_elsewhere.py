"""Unchanged environments of TRL, Gymnasium and verifiers: how we interpret each interface, and runs of 20 steps."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.episodes import elsewhere
from tests.episodes.talkers import calling, talker

import posttrain
from posttrain.episodes.adapters import find_environment, opened
from posttrain.episodes.adapters.gym import _held, _plain
from posttrain.episodes.conduct import Conduct
from posttrain.errors import ConfigError
from posttrain.tasks.catalogue import find_task


def here(function: Callable[[], Any]) -> Any:
    """Call the function in this process instead of a child process; its error becomes a ConfigError in both cases."""
    try:
        return function()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(given=f"{type(error).__name__}: {error}") from error


def conduct(function: str, *, seed: int = 0, **settings: Any) -> Conduct:
    """The environment of one trajectory, as the trajectory's process has it."""
    form, target = find_environment(function)
    setup = {"form": form, "environment": vars(target), "settings": settings}
    return Conduct(opened(setup, here), settings, {}, most_characters=1000, seed=seed)


def said(content: str, **calls: Any) -> dict[str, Any]:
    made = [{"id": f"c{n}", "function": {"name": name, "arguments": a}} for n, (name, a) in enumerate(calls.items())]
    calls_ = [[name, arguments, ""] for name, arguments in calls.items()]
    message = {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}
    return {"message": message, "calls": calls_}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a file where Python finds it, in this and in other processes; returns its path."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, code: str) -> Path:
        (tmp_path / f"{name}.py").write_text(code)
        sys.modules.pop(name, None)
        return tmp_path / f"{name}.py"

    return write


# --- TRL --------------------------------------------------------------------------------------------------------------

ASKED = [{"role": "system", "content": "s"}, {"role": "user", "content": "abc"}]


@pytest.mark.parametrize("name", ["Counter", "factory"])
def test_public_methods_of_an_environment_of_trl_are_tools_and_its_text_ends_the_prompt(written, name):
    one = conduct(f"trl:{written('of_trl', elsewhere.TRL)}:{name}")
    offers = one.offers()
    assert offers["speaks"] is False
    assert [schema["function"]["name"] for schema in offers["schemas"]] == ["increment", "peek"]
    assert offers["schemas"][0]["function"]["parameters"]["properties"]["step"]["type"] == "integer"
    reset = one.reset({"prompt": "abc", "goal": 3}, ASKED)
    assert reset == {"messages": [], "prompt": [ASKED[0], {"role": "user", "content": "abc h 3"}]}
    assert one.step(**said("", increment={"step": 3}))["messages"][0]["content"] == "3"
    assert one.step(**said("", peek={}))["messages"][0]["content"] == "3"
    wrong = one.step(**said("", increment={"step": -1}))
    assert (wrong["messages"][0]["content"], wrong["errors"]) == ("error: ValueError: only up", [True])
    assert one.step(**said("done")) == {"done": True, "reward": 1.0}


def test_an_environment_of_trl_may_say_nothing_and_give_nothing(written):
    one = conduct(f"trl:{written('of_trl_too', elsewhere.TRL)}:Silent")
    assert one.reset({}, ASKED) == {"messages": []}
    assert one.step(**said("done")) == {"done": True}


def test_what_is_no_environment_of_trl_is_refused(written):
    path = written("plain", "class Plain:\n    def step(self, message): ...\n")
    with pytest.raises(ConfigError, match="the environment Plain has no method reset"):
        conduct(f"trl:{path}:Plain")


# --- Gymnasium --------------------------------------------------------------------------------------------------------

LAKE = {"show": "text", "actions": ["left", "down", "right", "up"], "make": {"is_slippery": False}}


def test_a_frozen_lake_is_crossed_in_words():
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    one = conduct("gymnasium:FrozenLake-v1", **LAKE)
    [opening] = one.reset({"prompt": "Play."})["messages"]
    assert opening["content"].startswith("[S]FFF\nFHFH\nFFFH\nHFFG\nAnswer with one of: left, down, right, up.")
    [lost] = one.step(**said("north"))["messages"]
    assert lost["content"] == "This is not an action. Answer with one of: left, down, right, up."
    [moved] = one.step(**said("not up, not left: Down"))["messages"]
    assert moved["content"].splitlines()[1:3] == ["SFFF", "[F]HFH"]
    for word in ("down", "right", "right", "down"):
        one.step(**said(word))
    assert one.step(**said("right")) == {"done": True, "turn_reward": 1.0, "reward": 0.0, "metrics": {"steps": 6.0}}


def test_where_the_action_stands_and_what_a_misread_turn_costs_are_settings():
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    one = conduct("gymnasium:FrozenLake-v1", **LAKE, pattern=r"move: (\w+)", misread=-0.5)
    one.reset({})
    misread = one.step(**said("down"))
    assert ("is not an action" in misread["messages"][0]["content"], misread["turn_reward"]) == (True, -0.5)
    assert "[F]HFH" in one.step(**said("I could go right. Move: down"))["messages"][0]["content"]
    assert one.finish() == {"reward": 0.0, "metrics": {"steps": 1.0}}


def test_drawings_of_different_states_differ():
    """Taxi marks passenger, destination and a full taxi by colours alone."""
    taxi = pytest.importorskip("gymnasium").make("Taxi-v4", render_mode="ansi").unwrapped
    drawn = set()
    for taxi.s in range(500):
        passenger, destination = list(taxi.decode(taxi.s))[2:]
        if passenger == destination:
            continue  # the game is over
        drawn.add(_plain(taxi.render()))
    assert len(drawn) == 400
    taxi.s = taxi.encode(0, 0, 0, 1)
    assert "[R blue yellow]" in _plain(taxi.render())
    assert "[G magenta]" in _plain(taxi.render())


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ("\x1b[31mA\x1b[0mB", "[A]B"),
        ("\x1b[31mA\x1b[m \x1b[42;1mB\x1b[39m", "[A red] [B green]"),
        ("\x1b[38;5;34mA\x1b[0m \x1b[;1mB\x1b[0m", "[A 38;5;34] [B ;1]"),
    ],
)
def test_colours_have_their_names_and_others_their_codes(drawn, text):
    assert _plain(drawn) == text


@pytest.mark.parametrize(
    ("pattern", "text", "action"),
    [
        (r"move: (\w+)", "move: up, move: down", "down"),
        (r"move: (\w+)|pass", "move: up, then pass", "pass"),
        (r"move: (\w+)|pass", "pass, no, move: up", "up"),
        (r"move: (\w+)|go (\w+)", "move: up, go down", "down"),
        (r"move: (\w+)|go (\w+)", "go down, move: up", "up"),
        (r"up|down", "up down", "down"),
        (r"(?:please )?(left)?right", "please right", "please right"),
    ],
)
def test_a_pattern_may_have_alternatives_without_a_group(pattern, text, action):
    *_, last = re.finditer(pattern, text)
    assert _held(last) == action


def test_an_action_outside_the_group_of_a_pattern_is_made():
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    one = conduct("gymnasium:FrozenLake-v1", **LAKE, pattern=r"move: (\w+)|down")
    one.reset({})
    assert "[F]HFH" in one.step(**said("move: up, no, down"))["messages"][0]["content"]


@pytest.mark.parametrize(
    ("words", "text", "read"),
    [
        ("numbers", "I pick 1.5", False),
        ("numbers", "step 2: go 3. (of 4)", True),
        ("numbers", "1", True),
        ("names", "left-up", False),
        ("names", "not left - up", True),
    ],
)
def test_part_of_a_number_or_of_a_word_names_no_action(words, text, read):
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    one = conduct("gymnasium:FrozenLake-v1", **(LAKE if words == "names" else {"show": "text"}))
    one.reset({})
    assert ("is not an action" not in str(one.step(**said(text)))) is read


def test_rows_of_the_same_seed_begin_in_the_same_state():
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    rows = find_task("gymnasium/Blackjack-v1").rows(8)
    assert rows[0] == {"prompt": "Play Blackjack-v1.", "seed": rows[0]["seed"]}
    openings = [[conduct("gymnasium:Blackjack-v1", seed=s).reset(row)["messages"] for row in rows] for s in (1, 2)]
    assert openings[0] == openings[1]
    assert len({str(one) for one in openings[0]}) >= 4
    alone = {str(conduct("gymnasium:Blackjack-v1", seed=seed).reset({})["messages"]) for seed in range(8)}
    assert len(alone) >= 4
    held_out = find_task("gymnasium/Blackjack-v1").rows(50, split="eval")
    assert not {row["seed"] for row in held_out} & {row["seed"] for row in find_task("gymnasium/Blackjack-v1").rows(50)}


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("Frozen-v1", {}, r"gymnasium.make\('Frozen-v1'\) raised .*Frozen"),
        ("FrozenLake-v1", {"make": {"slippery": 1}}, r"gymnasium.make\('FrozenLake-v1'\) raised TypeError"),
        ("Pendulum-v1", {}, "Pendulum-v1 acts in a space Box, which words cannot express"),
    ],
)
def test_an_environment_of_gymnasium_that_words_cannot_play_is_refused(name, settings, says):
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    with pytest.raises(ConfigError, match=says):
        conduct(f"gymnasium:{name}", **settings)


@pytest.mark.parametrize(("package", "function"), [("gymnasium", "gymnasium:X-v1"), ("verifiers", "verifiers:x")])
def test_without_the_package_the_extra_is_named(monkeypatch, package, function):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf'needs the package {package}.*\n  pip install "posttrain\[environments\]"'):
        conduct(function)


# --- verifiers --------------------------------------------------------------------------------------------------------


def version(wanted: str) -> None:
    installed = require_verifiers()
    old = tuple(map(int, installed.split(".")[:2])) < (0, 4)
    if old != (wanted == "old"):
        pytest.skip(f"verifiers {installed} is installed")


def require_verifiers() -> str:
    """The installed version; a folder of that name on the path is not the package."""
    try:
        return metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        pytest.skip("the extra [environments] is not installed")


@pytest.mark.parametrize(("wanted", "code"), [("new", "VERIFIERS_V1"), ("old", "VERIFIERS_V0")])
def test_a_game_of_verifiers_is_played_by_its_own_loop(written, wanted, code):
    version(wanted)
    name = written(f"game_{wanted}", getattr(elsewhere, code)).stem
    row = next(row for row in find_task(f"verifiers/{name}").rows(40) if row["answer"] == "b")
    one = conduct(f"verifiers:{name}")
    assert one.offers() == {"schemas": [], "speaks": True}
    [opening] = one.reset(row)["prompt"]
    assert (opening["role"], opening["content"][-1]) == ("user", "b")
    assert one.step(**said("d")) == {"messages": [{"role": "user", "content": ">"}]}
    assert one.step(**said("a")) == {"messages": [{"role": "user", "content": "<"}]}
    done = one.step(**said("b"))
    assert (done["done"], done["reward"]) == (True, 1.0)
    assert done["metrics"]["found"] == 1.0
    one.close()


@pytest.mark.parametrize(("wanted", "code"), [("new", "VERIFIERS_V1"), ("old", "VERIFIERS_V0")])
def test_a_game_that_a_limit_cuts_is_worth_what_it_came_to(written, wanted, code):
    version(wanted)
    name = written(f"cut_{wanted}", getattr(elsewhere, code)).stem
    one = conduct(f"verifiers:{name}")
    one.reset(next(row for row in find_task(f"verifiers/{name}").rows(40) if row["answer"] == "b"))
    one.step(**said("d"))
    assert one.finish()["reward"] == 0.25
    one.close()


@pytest.mark.parametrize(
    ("wanted", "code", "tool"), [("new", "VERIFIERS_V1_TOOLS", "guide_look"), ("old", "VERIFIERS_V0_TOOLS", "look")]
)
def test_tools_of_verifiers_are_called_by_its_own_code(written, wanted, code, tool):
    version(wanted)
    name = written(f"tools_{wanted}", getattr(elsewhere, code)).stem
    one = conduct(f"verifiers:{name}")
    assert [schema["function"]["name"] for schema in one.offers()["schemas"]] == [tool]
    one.reset(find_task(f"verifiers/{name}").rows(1)[0])
    [result] = one.step(**said("", **{tool: {"place": "x"}}))["messages"]
    assert (result["role"], result["content"]) == ("tool", "a cat")
    unreadable = said("", **{tool: {}})
    unreadable["calls"] = [[tool, {}, "the arguments are not a JSON object"]]
    assert one.step(**unreadable)["messages"][0]["role"] == "tool"
    assert one.step(**said("a"))["reward"] == 1.0
    one.close()


def test_a_seat_that_is_not_trained_needs_a_model_of_its_own(written):
    version("new")
    name = written("talked", elsewhere.VERIFIERS_V1).stem
    with pytest.raises(ConfigError, match="the seats assistant, user; assistant is trained, but user has no model"):
        conduct(f"verifiers:{name}", id="user-sim")
    with pytest.raises(ConfigError, match=r"environment.settings.trains = judge; allowed: assistant, user"):
        conduct(f"verifiers:{name}", id="user-sim", trains="judge")


def test_an_environment_of_verifiers_that_is_not_there_is_named():
    require_verifiers()
    with pytest.raises(ConfigError, match="the environment verifiers:atlantis cannot be made"):
        conduct("verifiers:atlantis")


# --- 20 steps of each -------------------------------------------------------------------------------------------------


def train(folder: Path, **more: Any) -> Any:
    """Train a model that knows almost no word, in an environment that does not know posttrain."""
    talker(folder / "talker", context=128)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in "abcdefgh" * 3))
    return posttrain.train(
        {
            "model": {"path": str(folder / "talker"), "device": "cpu"},
            "algorithm": "grpo",
            "data": {"train": str(folder / "rows.jsonl"), "eval": str(folder / "rows.jsonl")},
            "rewards": ["environment"],
            "sampling": {"group_size": 4, "max_completion_length": 12, "max_turns": 3},
            "train": {"steps": 20, "prompts_per_step": 2, "learning_rate": 1e-3},
            "evaluation": {"prompts": 2, "samples": 1, "writing": 0},
            "checkpoint": {"every": 0},
            "guards": {"max_truncated": 1.0, "no_signal_steps": 20},
            "report": False,
            "output": str(folder / "run"),
            **more,
        }
    )


def told(run: Any, name: str) -> list[float]:
    return [line[name] for line in run.metrics if name in line and "step" in line]


@pytest.mark.slow
def test_a_tool_function_of_trl_trains(written, tmp_path):
    path = written("of_trl_run", elsewhere.TRL)
    run = train(tmp_path, tools=[f"{path}:look"], rewards=[{"function": "posttrain.rewards.length.finished"}])
    assert len(told(run, "tools/calls")) == 20
    assert sum(told(run, "tools/calls/look")) > 1


@pytest.mark.slow
def test_an_environment_of_trl_trains(written, tmp_path):
    code = elsewhere.TRL.replace("def increment(self, step: int)", "def look(self, place: str)")
    code = code.replace("step: By how much.", "place: Where.").replace("if step < 0:", "if not place:")
    path = written("of_trl_too_run", code.replace("self.value += step", "self.value += 1"))
    assert calling("look", place="x")
    run = train(tmp_path, environment=f"trl:{path}:Counter")
    assert len(told(run, "rewards/environment/mean")) == 20
    assert sum(told(run, "tools/calls/look")) > 1


@pytest.mark.slow
def test_an_environment_of_gymnasium_trains(tmp_path):
    pytest.importorskip("gymnasium", reason="the extra [environments] is not installed")
    settings = {"actions": ["a", "b"], "misread": -0.1}
    run = train(
        tmp_path,
        data={"train": "task:gymnasium/Blackjack-v1", "eval": "task:gymnasium/Blackjack-v1", "max_rows": 24},
        environment={"function": "gymnasium:Blackjack-v1", "settings": settings},
    )
    assert len(told(run, "environment/metrics/steps")) == 20
    assert len(set(told(run, "rewards/environment/mean"))) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "code"), [("new", "VERIFIERS_V1"), ("old", "VERIFIERS_V0")])
def test_a_game_of_verifiers_trains(written, tmp_path, wanted, code):
    version(wanted)
    name = written(f"trains_{wanted}", getattr(elsewhere, code)).stem
    run = train(
        tmp_path,
        data={"train": f"task:verifiers/{name}", "eval": f"task:verifiers/{name}"},
        environment={"function": f"verifiers:{name}", "timeout": 120},
    )
    assert len(told(run, "environment/metrics/found")) == 20
    assert sum(told(run, "turns/mean")) > 20
    assert len(set(told(run, "rewards/environment/mean"))) > 1
