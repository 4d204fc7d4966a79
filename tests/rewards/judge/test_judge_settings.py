"""The section `judge` of a reward: the settings that it refuses, and those that are saved."""

from __future__ import annotations

from typing import Any

import pytest
from tests.catalogue import catalogue

from posttrain.config import CheckConfig, JudgeConfig, RewardConfig, check, load_config, to_yaml
from posttrain.errors import ConfigError
from posttrain.rewards import Reward, build_rewards

SERVED = {"model": "judge", "url": "http://localhost:8000/v1"}
RUN: dict[str, Any] = {
    "model": "tiny:sort",
    "algorithm": "grpo",
    "data": {"train": "prompts.jsonl"},
    "train": {"steps": 1},
    "rewards": [{"judge": SERVED}],
}


@catalogue(
    "settings, message",
    [
        ({"model": "folder", "timeout": 5}, r"judge.timeout without judge.url, for a model that runs here"),
        ({"model": "folder", "max_calls": 5}, r"judge.max_calls without judge.url"),
        (
            {**SERVED, "mode": "score", "max_comparisons": 3},
            r"judge.max_comparisons = 3 in mode score; allowed: mode pai",
        ),
        ({**SERVED, "samples": 3, "temperature": 1.0}, r"judge.samples = 3 in mode pairwise; allowed: mode score"),
        ({**SERVED, "mode": "score", "against": "answer"}, r"judge.against = answer in mode score"),
        (
            {**SERVED, "max_comparisons": 3, "against": "answer"},
            r"each answer is compared with the column answer alone",
        ),
        (
            {**SERVED, "mode": "score", "samples": 3},
            r"judge.samples = 3 at judge.temperature = 0: all replies would be",
        ),
        ({**SERVED, "top_p": 0.9}, r"judge.top_p = 0.9 at judge.temperature = 0"),
        ({"model": "policy", "cache": "here"}, r"the policy's replies change with its weights"),
        ({**SERVED, "url": "localhost:8000"}, r"judge.url is not the base of an endpoint"),
        ({**SERVED, "url": "http://localhost:8000/v1?key=1"}, r"judge.url is not the base of an endpoint"),
        ({**SERVED, "url": "http://localhost:8000?key=1"}, r"judge.url is not the base of an endpoint"),
    ],
)
def test_settings_that_would_do_nothing_or_cannot_be_meant(settings, message):
    with pytest.raises(ConfigError, match=message):
        JudgeConfig(**settings)


@pytest.mark.parametrize("secret", [{"api_key_env": "sk-abc123"}, {"url": "https://me:sk-abc123@host/v1"}])
def test_a_key_in_the_wrong_place_is_refused_and_not_repeated(secret):
    with pytest.raises(ConfigError) as error:
        JudgeConfig(**SERVED | secret)
    assert "sk-abc123" not in str(error.value)


@pytest.mark.parametrize("scorer", [RewardConfig, CheckConfig])
def test_an_entry_is_one_of_four_things(scorer):
    assert scorer(judge=SERVED).metric_name == "judge"
    with pytest.raises(
        ConfigError, match="both name and judge are set; allowed: exactly one of name, function, model and"
    ):
        scorer(name="math", judge=SERVED)
    with pytest.raises(ConfigError, match=r"timeout = 3.0 with a judge.*\n  Set judge\.timeout"):
        scorer(judge=SERVED, timeout=3.0)
    with pytest.raises(ConfigError, match=r"settings = .* with a judge"):
        scorer(judge=SERVED, settings={"a": 1})


def test_python_code_may_write_it_as_a_mapping_or_a_section():
    for judge in (SERVED, JudgeConfig(**SERVED)):
        with build_rewards([Reward(judge=judge, label="mine")]) as rewards:
            assert rewards.labels == ("mine",)
    with pytest.raises(ConfigError, match="exactly one of the four"):
        build_rewards([Reward(judge=SERVED, name="math")])


def test_a_misspelt_setting_is_named():
    with pytest.raises(ConfigError, match=r"(?s)rewards.0.judge.retry.*retries"):
        load_config(RUN | {"rewards": [{"judge": {**SERVED, "retry": 3}}]})


def test_a_setting_can_be_changed_on_the_command_line():
    resolved = load_config(RUN, ["rewards.0.judge.mode=score", "rewards.0.judge.temperature=0.7"])
    judge = resolved.config.rewards[0].judge
    assert judge is not None
    assert (judge.mode, judge.temperature, judge.url) == ("score", 0.7, SERVED["url"])


def test_what_is_saved_loads_back_and_holds_no_secret(tmp_path):
    judge = {**SERVED, "request": {"api_key": "sk-abc123", "user": "me"}}
    saved = to_yaml(load_config(RUN | {"rewards": [{"judge": judge}]}))
    assert "sk-abc123" not in saved
    (tmp_path / "run.yaml").write_text(to_yaml(load_config(RUN)))
    assert load_config(tmp_path / "run.yaml").config == load_config(RUN).config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"check": [{"judge": SERVED}]}, r"check.0.judge compares the answers of a group, and a check sees one answer"),
        (
            {"evaluation": {"samples": 0}},
            r"evaluation.samples = 0, but rewards.0.judge compares the answers of a group",
        ),
        (
            {"algorithm": "reinforce", "sampling": {"group_size": 1}},
            r"sampling.group_size = 1, but rewards.0.judge compares",
        ),
    ],
)
def test_a_comparison_needs_somebody_to_compare_with(changes, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config(RUN | changes).config)


@pytest.mark.parametrize("alone", [{"mode": "score"}, {"mode": "reference"}, {"against": "answer"}])
def test_what_looks_at_one_answer_needs_nobody(alone):
    entry = [{"judge": SERVED | alone}]
    check(load_config(RUN | {"rewards": entry, "check": entry, "evaluation": {"samples": 0}}).config)
