"""Knobs: their syntax, their possible values, and what is refused before anything runs."""

from __future__ import annotations

import re

import pytest
from tests.catalogue import catalogue

from posttrain.config import load_config
from posttrain.errors import ConfigError
from posttrain.lab.experiments.sweep.knobs import check_knobs, is_knob, parse_knob, value_at
from posttrain.lab.experiments.sweep.settings import for_trials, given_settings, put, with_values
from posttrain.tasks.demo import demo_config

BASE = given_settings(load_config(demo_config(steps=50)))


@pytest.mark.parametrize(
    ("text", "kind", "samples"),
    [
        ("train.learning_rate=log(1e-5,1e-2)", "log", [1e-5, 1e-2]),
        ("--train.weight_decay = float( 0, 0.1 )", "float", [0, 0.1]),
        ("sampling.group_size=int(2,16)", "int", [2, 16]),
        ("algorithm.kl_coef=choice(0, 0.01, 0.1)", "choice", [0, 0.01, 0.1]),
        ("lora=choice(null, {rank: 4})", "choice", [None, {"rank": 4}]),
    ],
)
def test_each_kind_of_range_is_read_and_written_back(text, kind, samples):
    knob = parse_knob(text)
    assert (knob.kind, knob.samples()) == (kind, samples)
    assert parse_knob(f"{knob.key}={knob.text}") == knob
    assert check_knobs([knob], BASE) == (knob,)


def test_a_logarithmic_range_of_whole_numbers_gives_whole_numbers():
    (knob,) = check_knobs([parse_knob("sampling.group_size=log(2, 16)")], BASE)
    assert knob.whole
    assert knob.holds(4)
    assert not knob.holds(4.5)


@catalogue(
    "text, message",
    [
        (
            "train.learnin_rate=log(1e-5,1e-2)",
            r"train.learnin_rate.* is not a setting\n  Did you mean train.learning_rate",
        ),
        ("algorithm.beta=float(0,1)", r"TRL's and OpenRLHF's beta is algorithm.kl_coef here"),
        ("sampling.group_size=float(2,16)", r"sampling.group_size = 1\d\.\d+; allowed: an integer"),
        ("train.steps=int(-1,3)", r"train.steps = -1; allowed: an integer of at least 1"),
        ("train.learning_rate=log(0,1)", r"above 0 on a logarithmic scale"),
        ("train.learning_rate=log(1e-2,1e-5)", r"a lowest number below the highest"),
        ("train.learning_rate=log(1e-2)", r"two numbers: the lowest and the highest"),
        ("sampling.group_size=int(2.5,16)", r"whole numbers"),
        ("algorithm.kl_coef=choice(0.1, 0.1)", r"two or more different values"),
        ("algorithm.name=choice(grpo, gpro)", r"Did you mean grpo"),
        ("train.learning_rate=1e-3", r"allowed: log\(low, high\)"),
        ("train.learning_rate", r"is not a knob"),
        ("rewards.0.weight=float(0,1)", r"a different reward gives the score a different meaning"),
        ("seed=int(0,9)", r"a seed is luck, not a setting to tune"),
        ("evaluation.prompts=int(1,9)", r"defines how trials are compared"),
    ],
)
def test_what_cannot_be_turned_is_refused_with_its_reason(text, message):
    with pytest.raises(ConfigError, match=message):
        check_knobs([parse_knob(text)], BASE)


RANGES = [
    f"{kind}({low}, {high})"
    for kind in ("log", "float", "int")
    for low in (-3, 0, 1e-5, 0.3, 0.001, 2.5, 2, 8)
    for high in (-3, -1, 0, 0.001, 0.7, 8, 8.5, 2)
]


@catalogue("form", RANGES)
def test_what_is_proposed_for_a_range_can_be_written(form: str):
    """A proposal must not be what was refused, or be refused in turn."""
    try:
        parse_knob(f"algorithm.kl_coef={form}")
    except ConfigError as error:
        proposed = re.findall(r"(?:log|float|int)\([^)]*\)", error.fix)
        fixed = re.findall(r"algorithm\.kl_coef=([-.\de]+)", error.fix)
        assert form not in proposed
        assert proposed or fixed
        for other in proposed:
            parse_knob(f"algorithm.kl_coef={other}")
        for value in fixed:
            assert not is_knob(f"algorithm.kl_coef={value}")
            float(value)


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("sampling.group_size=int(2.5, 8)", "int(2, 8)"),
        ("sampling.group_size=int(8.5, 4)", "int(4, 8)"),
        ("train.learning_rate=log(0, 0.01)", "log(1e-05, 0.01)"),
        ("train.learning_rate=log(0.01, 0.001)", "log(0.001, 0.01)"),
    ],
)
def test_the_first_proposal_suits_the_setting(text: str, proposed: str):
    with pytest.raises(ConfigError) as refused:
        parse_knob(text)
    found = re.findall(r"(?:log|float|int)\([^)]*\)", refused.value.fix)[0]
    assert parse_knob(f"k={found}") == parse_knob(f"k={proposed}")
    check_knobs([parse_knob(f"{text.partition('=')[0]}={found}")], BASE)


def test_equal_ends_are_a_setting_that_is_fixed():
    with pytest.raises(ConfigError, match=r"Write train\.learning_rate=0\.001, which fixes it"):
        parse_knob("train.learning_rate=log(0.001, 0.001)")


def test_no_knob_and_one_twice_are_refused():
    knob = parse_knob("sampling.group_size=int(2,16)")
    with pytest.raises(ConfigError, match="no knob to tune"):
        check_knobs([], BASE)
    with pytest.raises(ConfigError, match="is given twice"):
        check_knobs([knob, knob], BASE)


def test_the_settings_of_a_config_are_what_somebody_gave_and_load_to_the_same():
    config = {**BASE, "lora": {}, "stop": None}
    del config["stop"]
    resolved = load_config(config, ["rewards.0.weight=0.5"])
    given = given_settings(resolved)
    assert given["lora"] == {}
    assert given["rewards"] == [{"name": "exact_match", "weight": 0.5}]
    assert "max_grad_norm" not in given["train"]
    assert load_config(given).config == resolved.config


def test_what_follows_another_setting_still_follows_it():
    """dr_grpo's constant equals sampling.max_completion_length unless given, so it must follow when that changes."""
    given = given_settings(load_config({**BASE, "algorithm": "dr_grpo"}))
    turned = load_config(with_values(given, {"sampling.max_completion_length": 30})).config
    assert value_at(turned, "algorithm.max_completion_length") == 30


def test_trials_can_be_pruned_and_resumed_where_the_config_asks_for_neither():
    tree, said = for_trials(load_config(BASE).config, BASE)
    assert tree["evaluation"]["every"] == tree["checkpoint"]["every"] == 10
    assert "evaluation.every = 10" in said
    assert "output" not in tree
    asked = {**BASE, "evaluation": {"every": 7}}
    tree, said = for_trials(load_config(asked).config, asked)
    assert (tree["evaluation"]["every"], said) == (7, "")


def test_values_are_put_where_their_paths_lead():
    tree = {"rewards": [{"name": "math"}], "lora": None}
    for key, value in {"lora.rank": 4, "rewards.1.name": "format", "train.steps": 3}.items():
        put(tree, tuple(int(step) if step.isdigit() else step for step in key.split(".")), value)
    assert tree == {"rewards": [{"name": "math"}, {"name": "format"}], "lora": {"rank": 4}, "train": {"steps": 3}}
