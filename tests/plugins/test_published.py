"""Errors for packages whose plugin is broken, of another kind, or has a name that is taken."""

from __future__ import annotations

import pytest

from posttrain import environment, plugins
from posttrain.algorithms import ALGORITHMS, GRPO
from posttrain.cli import run
from posttrain.config import RolloutConfig, load_config
from posttrain.engines.process import published_engine
from posttrain.errors import ConfigError, PluginError
from posttrain.rewards import Reward, build_rewards
from posttrain.rewards.making import check_names
from posttrain.tasks import find_task

MINE = """
from posttrain.algorithms import GRPO
from posttrain.algorithms.settings import settings

@settings
class Mine(GRPO):
    key = "mine"

@settings
class Other(GRPO):
    key = "another"

def score(completion):
    return 1.0

class Rows:
    def rows(self, n, *, seed=0, split="train"):
        return [{"prompt": f"{split} {i}", "answer": str(i)} for i in range(n)]

ROWS = Rows()
NUMBER = 7
"""
BROKEN = "import a_library_that_is_missing\n"


@pytest.fixture(autouse=True)
def every_warning_anew():
    plugins._warn.cache_clear()


# --- broken plugins ------------------------------------------------------------------------------------------------


def test_an_algorithm_that_cannot_be_imported_names_its_package_and_hurts_no_other(publish, capsys):
    publish("sick", {"algorithms": {"mine": "Mine"}}, BROKEN)
    with pytest.raises(PluginError) as told:
        ALGORITHMS["mine"]
    assert told.value.given == (
        "the algorithm 'mine' of the package sick 2.0 (sick:Mine) cannot be loaded: "
        "ModuleNotFoundError: No module named 'a_library_that_is_missing'"
    )
    assert "Update or uninstall sick" in told.value.fix
    assert "import a_library_that_is_missing" in told.value.fix, "the line that failed"
    assert run(["explain"]) == 0
    listed = capsys.readouterr().out
    assert "BROKEN: the algorithm 'mine' of the package sick 2.0" in listed
    assert "\ngrpo " in listed
    assert run(["explain", "Dr. GRPO"]) == 0
    assert run(["explain", "mine"]) == 2
    with pytest.raises(ConfigError, match="a_library_that_is_missing"):
        load_config({"model": "m", "algorithm": "mine", "data": {"train": "d"}, "train": {"steps": 1}})
    with pytest.raises(ConfigError, match=r"clip_lwo.*not a setting"):  # the message looks through every algorithm
        load_config({"model": "m", "algorithm": {"name": "grpo", "clip_lwo": 1}, "data": "d", "train": {"steps": 1}})


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("Nothing", r"cannot be loaded: AttributeError: module 'odd' has no attribute 'Nothing'"),
        ("NUMBER", r"\(odd:NUMBER\) is 7; allowed: a class derived from posttrain.algorithms.Algorithm"),
        ("Other", r"as algorithm 'mine', with key = 'another'; allowed: .* with the same key"),
    ],
)
def test_what_is_no_algorithm_of_that_name_names_its_package(publish, attribute, said):
    publish("odd", {"algorithms": {"mine": attribute}}, MINE)
    with pytest.raises(PluginError, match=rf"(?s)the algorithm 'mine' of the package odd 2.0 .*{said}"):
        ALGORITHMS["mine"]


def test_an_algorithm_without_a_card_says_so(publish):
    publish("bare", {"algorithms": {"mine": "Mine"}}, MINE.replace("GRPO):", "Algorithm):").replace(
        "import GRPO", "import Algorithm"))  # fmt: skip
    with pytest.raises(PluginError, match=r"of the package bare 2.0 .* has no card: Mine has no card: write card ="):
        ALGORITHMS["mine"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (BROKEN, "importing sick of the package sick 2.0 failed: ModuleNotFoundError"),
        ("", "'score' does not exist in sick of the package sick 2.0"),
    ],
)
def test_a_reward_that_cannot_be_imported_names_its_package(publish, code, said):
    publish("sick", {"rewards": {"mine": "score"}}, code)
    check_names([Reward(name="mine")])  # this needs no import
    with pytest.raises(ConfigError, match=said):
        build_rewards([Reward(name="mine")])


def test_a_task_or_an_engine_of_another_kind_names_its_package(publish):
    publish("odd", {"tasks": {"mine": "NUMBER", "kind": "Rows"}, "engines": {"mine": "NUMBER"}}, MINE)
    for name in ("mine", "kind"):
        with pytest.raises(PluginError, match=rf"the task '{name}' of the package odd 2.0 .* is .*rows\(n, \*, seed"):
            find_task(name)
    with pytest.raises(PluginError, match=r"the engine 'mine' of the package odd 2.0 .* is 7; allowed: a callable"):
        published_engine("mine")


# --- names that are taken --------------------------------------------------------------------------------------------


def test_a_name_of_ours_stays_ours_and_a_warning_names_the_package(publish, capsys):
    publish(
        "greedy",
        {
            "algorithms": {"grpo": "Mine"},
            "rewards": {"exact_match": "score"},
            "tasks": {"sort": "ROWS"},
            "engines": {"vllm": "NUMBER"},
        },
        MINE,
    )
    with pytest.warns(plugins.PluginWarning, match="greedy 2.0 publishes the algorithm 'grpo'; posttrain's own is"):
        assert ALGORITHMS["grpo"] is GRPO
    with pytest.warns(plugins.PluginWarning, match="greedy 2.0 publishes the reward 'exact_match'"):
        check_names([Reward(name="exact_match")])
    with pytest.warns(plugins.PluginWarning, match="greedy 2.0 publishes the task 'sort'"):
        assert "prompt" in find_task("sort").rows(1)[0]
    plugins._warn.cache_clear()
    assert run(["explain", "grpo"]) == 0
    assert "warning    the package greedy 2.0 publishes the algorithm 'grpo'" in capsys.readouterr().err
    levels = {f.found: f.level for f in environment._plugins()}
    for name in ("grpo", "exact_match", "sort", "vllm"):
        assert levels[f"{name} of greedy 2.0 is not used: its name is reserved"] == "WARN"


def test_of_two_packages_with_one_name_neither_is_used(publish):
    points = {"algorithms": {"mine": "Mine"}, "rewards": {"mine": "score"}, "tasks": {"mine": "ROWS"}}
    publish("first", points, MINE)
    publish("second", points, MINE)
    for find in (ALGORITHMS.__getitem__, lambda name: build_rewards([Reward(name=name)]), find_task):
        with pytest.raises(
            PluginError, match=r"two packages publish the \w+ 'mine': (first|second) 2.0 and (first|se)"
        ):
            find("mine")
    assert ALGORITHMS["grpo"] is GRPO


# --- working plugins -------------------------------------------------------------------------------------------------


def test_rows_of_any_kind_are_a_task(publish):
    publish("good", {"tasks": {"mine": "ROWS"}, "engines": {"mine": "score"}}, MINE)
    assert find_task("mine").rows(1, split="eval") == [{"prompt": "eval 0", "answer": "0"}]
    assert RolloutConfig(engine="mine").num_engines == 1
    found = [f"{f.what} {f.found}" for f in environment._plugins() if f.level == "OK"]
    assert {"task mine of good 2.0", "engine mine of good 2.0"} <= set(found)


def test_an_engine_that_nobody_publishes_is_refused_with_what_there_is():
    with pytest.raises(
        ConfigError, match=r"engine = sglang; allowed: local, vllm or the name of an engine that a package"
    ):
        RolloutConfig(engine="sglang")
