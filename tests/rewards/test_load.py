"""From names to functions: built-ins, entry points, files and dotted paths, and the errors for unknown names."""

import sys

import pytest
from tests.catalogue import catalogue

from posttrain.errors import ConfigError
from posttrain.rewards import Reward

LENGTH = """
def length(completions):
    return [len(text) for text in completions]
"""


def test_a_file_is_found_beside_the_config_and_in_the_working_directory(
    score, reward_file, tmp_path, monkeypatch, built
):
    reward_file(LENGTH)
    rewards = built(Reward(function="my_rewards.py:length"), folder=tmp_path)
    assert rewards.labels == ("length",)
    monkeypatch.chdir(tmp_path)
    assert score(["abc"], "my_rewards.py:length").parts == {"length": [[3.0]]}


def test_a_file_imports_what_lies_beside_it(score, reward_file):
    reward_file("FACTOR = 2\n", file="beside.py")
    function = reward_file("from beside import FACTOR\ndef reward(completion): return FACTOR * len(completion)")
    assert score(["abc"], Reward(function=function)).rewards_PG == [[6.0]]


def test_a_dotted_path_is_imported(score, reward_file, tmp_path, monkeypatch):
    reward_file(LENGTH, file="dotted_rewards.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert score(["abc"], "dotted_rewards.length").parts == {"length": [[3.0]]}


def test_an_installed_package_publishes_a_reward_by_name(score, reward_file, tmp_path, monkeypatch):
    reward_file(LENGTH, file="published_rewards.py")
    info = tmp_path / "published-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: published\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[posttrain.rewards]\nshortness = published_rewards:length\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert score(["abc"], Reward(name="shortness")).parts == {"shortness": [[3.0]]}


@catalogue(
    "reward, message",
    [
        (
            Reward(name="maths"),
            r"'maths', but there is no such reward; did you mean \"math\"\?; allowed: agent, aime, arora_zanette, code",
        ),
        (
            Reward(name="accuracy_reward"),
            r"'accuracy_reward', but there is no such reward; here it is 'math'; allowed",
        ),
        (Reward(function="math"), r"function = 'math'; allowed: .*\n  `name: math` chooses a built-in"),
        (
            Reward(function="nowhere/my_rewards.py:length"),
            "nowhere/my_rewards.py does not exist; allowed: a file relative",
        ),
        (
            Reward(function="no_such_package.f"),
            "importing no_such_package failed: ModuleNotFoundError: No module named",
        ),
        (Reward(), "name = None, function = None, model = None, judge = None; allowed: exactly one"),
        (Reward(name="math", timeout=0), "timeout = 0"),
        (Reward(name="regex"), r"\"regex\" needs settings.pattern"),
        (Reward(name="regex", settings={"patern": "x"}), "has no setting 'patern'; did you mean \"pattern\""),
        (
            Reward(name="regex", settings={"pattern": "("}),
            r"\"regex\" cannot work with .*: pattern = '\(' is not a regular expression",
        ),
        (
            Reward(name="numeric", settings={"relative_tolerance": "much"}),
            r"\"numeric\" cannot work with settings \{'relative_tolerance': 'much'\}",
        ),
        (Reward(name="math", settings={"completion": "x"}), "has no setting 'completion'"),
        ({"nam": "math"}, r"a reward with 'nam'; did you mean \"name\"\?; allowed: name, function, model, judge"),
        ({}, "allowed: exactly one of the four"),
        *(
            (value, f"a reward of type {kind}; allowed: the name of a b")
            for value, kind in ((None, "NoneType"), (3, "int"))
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reward_that_cannot_be_meant_is_refused(reward, message, built):
    with pytest.raises(ConfigError, match=message):
        built(reward)


def test_a_missing_file_suggests_the_one_that_is_there(reward_file, tmp_path, built):
    reward_file(LENGTH)
    with pytest.raises(ConfigError, match=r"my_reward\.py does not exist; did you mean \"my_rewards\.py\"\?"):
        built(Reward(function="my_reward.py:length"), folder=tmp_path)


def test_a_missing_function_lists_those_of_the_file(reward_file, built):
    function = reward_file("from os.path import join\ndef brevity(completion): ...\ndef _hidden(): ...", name="brevty")
    with pytest.raises(
        ConfigError,
        match=r"'brevty' does not exist in .*my_rewards\.py; did you mean \"brevity\"\?; allowed: .*: brevity\.",
    ):
        built(Reward(function=function))


def test_a_file_that_does_not_import_shows_where(reward_file, built):
    function = reward_file("def reward(completion):\n    return 1\nundefined_name\n")
    with pytest.raises(
        ConfigError, match=r"failed: NameError: .*undefined_name.*\n  Traceback.*\n  File .*my_rewards\.py\", line 3"
    ):
        built(Reward(function=function))


def test_a_file_that_kills_the_process_on_import_is_a_config_error(reward_file, built):
    function = reward_file("import os\nprint('about to go', flush=True)\nos._exit(3)")
    with pytest.raises(ConfigError, match=r"failed: the reward process exited with code 3\n  about to go"):
        built(Reward(function=function))


def test_two_rewards_of_one_label_are_refused(built):
    with pytest.raises(ConfigError, match=r"two rewards are called \"math\"\n  Give one of them another `label`"):
        built("math", "math")
    assert built("math", Reward(name="math", label="again", weight=0)).labels == ("math", "again")


def test_a_run_without_any_weight_is_refused(built):
    with pytest.raises(ConfigError, match="no reward has a weight other than 0"):
        built(Reward(name="math", weight=0))
    with pytest.raises(ConfigError, match="no reward is configured"):
        built()


def test_the_users_module_is_not_imported_by_the_training_process(reward_file, tmp_path, monkeypatch, built):
    reward_file(LENGTH, file="kept_away.py")
    monkeypatch.syspath_prepend(tmp_path)
    built("kept_away.length")
    assert "kept_away" not in sys.modules
