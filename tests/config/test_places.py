"""All mistakes in a configuration are reported together, each with its line or argument."""

from __future__ import annotations

import re

import pytest

from posttrain.algorithms import ALGORITHMS
from posttrain.cli import run
from posttrain.config import check, load_config, setting_names
from posttrain.config.pipeline import read_pipeline
from posttrain.config.text import line_of
from posttrain.errors import ConfigError

YAML = """\
model: tiny:copy        # a comment
algorithm:
  name: grpo
  cliphigh: 0.3
data: {train: task:copy}
rewards:
  - {name: exact_match}
  - name: math
    wieght: 2
train: {steps: 3,
        lerning_rate: 1}
"""
TOML = """\
model = "tiny:copy"  # a comment
algorithm = {name = "grpo", cliphigh = 0.3}
note = \"\"\"
[train]
steps = "not this line"
\"\"\"

[data]
train = "task:copy"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "math"
wieght = 2
[train]
steps = 3
lerning_rate = 1
"""


def refusal(source, *overrides, read=load_config, **named) -> str:
    with pytest.raises(ConfigError) as caught:
        check(read(source, overrides, **named))
    return str(caught.value)


def places(message: str) -> dict[str, str]:
    """Return setting -> place for each numbered mistake."""
    found = re.findall(
        r"^ *\d+\. (?:stage \S+: )?(\S+) .*?\(((?:/[^()]*, )?(?:line \d+|argument .*?))\)", message, re.M
    )
    return {setting.rstrip(":"): place.rpartition(", ")[2] for setting, place in found}


def test_each_mistake_in_a_file_has_its_line(tmp_path):
    (tmp_path / "run.yaml").write_text(YAML)
    assert places(refusal(tmp_path / "run.yaml")) == {
        "algorithm.cliphigh": "line 4",
        "rewards.1.wieght": "line 9",
        "train.lerning_rate": "line 11",
    }
    (tmp_path / "run.toml").write_text(TOML)
    assert places(refusal(tmp_path / "run.toml")) == {
        "algorithm.cliphigh": "line 2",
        "note": "line 3",
        "rewards.1.wieght": "line 14",
        "train.lerning_rate": "line 17",
    }


def test_every_setting_is_found_in_the_line_in_which_it_is_written(tmp_path):
    names = [
        name for name in setting_names("grpo") if name.count(".") == 1 and not name.startswith(("reward", "check"))
    ]
    assert len(names) > 100
    lines, expected = {".yaml": [], ".toml": []}, {}
    for section in dict.fromkeys(name.partition(".")[0] for name in names):
        lines[".yaml"].append(f"{section}:")
        lines[".toml"] += ["# a comment", f"[{section}]"]
        for name in (name for name in names if name.startswith(f"{section}.")):
            key = name.partition(".")[2]
            for suffix, line in ((".yaml", f"  {key}: x"), (".toml", f"{key} = 1")):
                lines[suffix].append(line)
                expected[suffix, name] = len(lines[suffix])
    for suffix, text in lines.items():
        (tmp_path / f"run{suffix}").write_text("\n".join(text))
    for (suffix, name), line in expected.items():
        assert line_of(tmp_path / f"run{suffix}", (), tuple(name.split("."))) == line, (suffix, name)


def test_arguments_rules_names_and_settings_are_told_together(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    arguments = ["train.stesp=4", "seed=x", "--sampling.group-size", "1", "preset=smok", "oops="]
    assert run(["train", str(path), *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ConfigError: 8 problems in {path}\n")
    assert places(told) == {
        "algorithm.cliphigh": "line 4",
        "rewards.1.wieght": "line 9",
        "train.lerning_rate": "line 11",
        "train.stesp": "argument train.stesp=4",
        "seed": "argument seed=x",
        "sampling.group_size": "argument sampling.group-size=1",
    }
    assert "preset = smok; allowed: smoke" in told
    assert "'oops=' has no value" in told
    path.write_text(YAML.replace("exact_match}", "exact_mtach}").replace("wieght", "weight"))
    assert run(["train", str(path), "train.minibatches=999"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ConfigError: 4 problems in {path}\n")
    assert "rewards.name = 'exact_mtach', but there is no such reward" in told


def test_a_rule_is_not_told_of_what_a_wrong_setting_decides():
    base = {"model": "tiny:copy", "data": {"train": "task:copy"}, "train": {"steps": 3}}
    rewarded = base | {"algorithm": "grpo", "rewards": ["exact_match"]}
    alone = {
        "rewards misspelt": base | {"algorithm": "grpo", "rewrads": ["exact_match"]},
        "an entry of rewards": base | {"algorithm": "grpo", "rewards": [{"nmae": "exact_match"}]},
        "no such algorithm": base | {"algorithm": "grop"},
        "steps": rewarded | {"train": {"steps": "many", "warmup_steps": 1000}},
        "a section misspelt": rewarded | {"smapling": {"group_size": 4}},
    }
    for name, config in alone.items():
        assert "problems" not in refusal(config) or name == "an entry of rewards", name
        assert "rewards is empty" not in refusal(config), name
        assert "warmup_steps" not in refusal(config), name


def test_the_mistakes_of_all_stages_have_their_lines(tmp_path):
    path = tmp_path / "stages.yaml"
    path.write_text(
        "model: tiny:copy\ndata: {train: task:copy}\ntrain: {steps: 3}\nstages:\n"
        "  - {algorithm: sft, sead: 1}\n"
        "  - algorithm: grpo\n    rewards: [exact_match]\n    sampling: {group_size: 1}\n"
    )

    def read(source, overrides):
        return read_pipeline(source, overrides)

    message = refusal(path, "stages.sft.train.stesp=2", read=read)
    assert "sead = 1 is not a setting (line 5)" in message
    assert "train.stesp = 2 is not a setting (argument train.stesp=2)" in message
    assert f"needs at least 2 ({path}, line 8)" in message


def test_the_name_of_a_peer_that_depends_on_the_algorithm_says_on_which():
    trl = {"model": "tiny:copy", "data": {"train": "task:copy"}, "train": {"steps": 3}, "beta": 0.04}
    for entry in (trl, trl | {"algorithm": "grop"}):
        message = refusal(entry)
        assert "TRL's and OpenRLHF's beta depends on the algorithm: algorithm.kl_coef (grpo, rloo" in message
        assert "algorithm.beta (dpo" in message
        assert "Set algorithm.beta" not in message
    for name in ALGORITHMS:
        known = [key for key in ("kl_coef", "beta", "tau") if f"algorithm.{key}" in setting_names(name)]
        if known:
            assert f"beta is algorithm.{known[0]} here" in refusal(trl | {"algorithm": name}), name


def test_every_algorithm_that_is_misspelt_gets_a_short_answer_with_the_suggestion():
    for name in ALGORITHMS:
        message = refusal(
            {"model": "tiny:copy", "algorithm": f"{name}x", "data": {"train": "t"}, "train": {"steps": 1}}
        )
        assert len(message) < 200
        assert re.search(r"Did you mean \w+\? `posttrain explain` lists them all.", message), name
