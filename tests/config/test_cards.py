"""A configuration read without torch is the one that is read with it, and so are its mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.config import check, load_config
from posttrain.config.algorithm import FromClasses
from posttrain.config.cards import FILE, FromCards, schemas, without_torch
from posttrain.errors import ConfigError

BASE = {
    "model": "m",
    "algorithm": "grpo",
    "data": {"train": "train.jsonl"},
    "rewards": [{"name": "math"}],
    "train": {"steps": 3},
}


def test_the_schemas_on_file_are_those_of_the_classes():
    """`python -m posttrain.config.cards` writes them anew."""
    assert json.loads(FILE.read_text(encoding="utf-8")) == json.loads(json.dumps(schemas()))


def test_every_algorithm_has_the_same_settings_by_its_card_as_by_its_class():
    cards, classes = FromCards(), FromClasses()
    assert cards.names() == classes.names()
    for name in cards.names():
        assert cards.complete(name, {}) == classes.complete(name, {}), name
        mine, theirs = cards.declared(name, {}), classes.declared(name, {})
        for fact in ("key", "data_kind", "needs", "group_size_needed"):
            assert getattr(mine, fact) == getattr(theirs, fact), (name, fact)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"algorithm": {"name": "ppo", "kl_coef": 1}},
        {"algorithm": {"name": "grpo", "correction": "tis"}},
        {"algorithm": {"name": "grpo", "correction": {"high": 2.0}}},
        {"algorithm": {"name": "dr_grpo"}},
        {"algorithm.clip_low": "1e-1"},
        {"preset": "trl-rloo", "algorithm.name": "policy_gradient"},
    ],
)
def test_a_configuration_is_the_same_without_torch(overrides: dict[str, Any]):
    base = {k: v for k, v in BASE.items() if k != "algorithm" or "preset" not in overrides}
    with without_torch():
        by_card = load_config(base, overrides)
        check(by_card.config)
    assert by_card == load_config(base, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"algorithm.name": "grppo"},
        {"algorithm.kl_coff": 0.1},
        {"algorithm.clip_low": -1},
        {"algorithm.clip_low": True},
        {"algorithm.clip_low": "much"},
        {"algorithm.kl_estimator": "k9"},
        {"algorithm": {"name": "ppo", "value_coef": None}},
        {"algorithm.beta": 0.1},
        {"sampling.group_size": 1},
    ],
)
def test_mistakes_are_the_same_without_torch(overrides: dict[str, Any]):
    with pytest.raises(ConfigError) as by_class:
        check(load_config(BASE, overrides).config)
    with without_torch(), pytest.raises(ConfigError) as by_card:
        check(load_config(BASE, overrides).config)
    assert str(by_card.value) == str(by_class.value)
