"""Cards: what is said of an algorithm without torch is what its class says with it."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.algorithms.variants import VARIANTS

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.composition.about import ABOUT
from posttrain.config.presets import PRESETS
from posttrain.errors import ConfigError
from posttrain.explain.cards import CORRECTIONS, RECORDS, describe, learn, values_to_try
from posttrain.lab.advise.cards import FILE, card_of, cards

RENEW = "python -m posttrain.explain --cards src/posttrain/lab/advise/cards.json"


def test_the_file_is_what_the_classes_say():
    told = json.loads(FILE.read_text(encoding="utf-8"))
    assert list(told["algorithms"]) == list(ALGORITHMS), RENEW
    assert told["corrections"] == CORRECTIONS, RENEW
    assert told["options"] == ABOUT, RENEW
    stale = [key for key in ALGORITHMS if told["algorithms"][key] != describe(key)]
    assert not stale, f"{stale}: {RENEW}"


@pytest.mark.parametrize("key", ALGORITHMS)
def test_a_card_knows_the_defaults(key):
    card, algorithm = card_of(key), ALGORITHMS[key]()
    assert card.needs_of() == algorithm.needs
    assert {name for name, need in card.needs.items() if need.by_default} == algorithm.needs
    assert (card.data_kind, card.min_group_size) == (algorithm.data_kind, algorithm.group_size_needed)
    assert card.defaults == TypeAdapter(ALGORITHMS[key]).dump_python(algorithm, mode="json", by_alias=True)


VALUES = {
    key: {name: [*tried, *(RECORDS if name == "correction" else ())] for name, tried in values_to_try(cls).items()}
    for key, cls in ALGORITHMS.items()
}
"""Key -> setting -> values to try."""


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_card_needs_what_the_class_needs(data):
    key = data.draw(st.sampled_from([key for key, values in VALUES.items() if values]))
    names = data.draw(st.lists(st.sampled_from(list(VALUES[key])), min_size=1, max_size=6, unique=True))
    chosen = {name: data.draw(st.sampled_from(VALUES[key][name])) for name in names if VALUES[key][name]}
    try:
        algorithm = ALGORITHMS[key](**chosen)
    except ConfigError:
        return
    assert card_of(key).needs_of(chosen) == algorithm.needs


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_card_of_the_open_composition_needs_what_the_class_needs(data):
    values = VALUES["policy_gradient"]
    choices = ["baseline", "normalisation", "ratio", "trust_region", "kl", "filter", "kl_coef", "correction"]
    chosen = {name: data.draw(st.sampled_from(values[name])) for name in choices if data.draw(st.booleans())}
    chosen |= {"normalisation": "none"} if data.draw(st.booleans()) else {}
    try:
        algorithm = ALGORITHMS["policy_gradient"](**chosen)
    except ConfigError:
        return
    assert card_of("policy_gradient").needs_of(chosen) == algorithm.needs


@pytest.mark.parametrize("name", VARIANTS)
def test_a_card_knows_the_variants(name):
    algorithm = VARIANTS[name]
    chosen = TypeAdapter(type(algorithm)).dump_python(algorithm, mode="json", by_alias=True)
    assert card_of(algorithm.key).needs_of(chosen) == algorithm.needs


def test_a_card_knows_the_presets():
    for preset in PRESETS.values():
        if algorithm := dict(preset.get("algorithm", {})):
            key = algorithm.pop("name")
            assert card_of(key).needs_of(algorithm) == ALGORITHMS[key](**algorithm).needs


def test_the_models_of_ppo_and_of_those_without_a_critic():
    assert {"values", "reference"} <= card_of("ppo").needs_of()
    assert "reference" not in card_of("ppo").needs_of({"kl_coef": 0})
    assert card_of("grpo").needs_of({"kl_coef": 0.04}) - card_of("grpo").needs_of() == {"reference"}
    assert card_of("simpo").needs_of() == frozenset()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: card_of("gppo"), r"(?s)no algorithm 'gppo'; allowed: reinforce, .*posttrain explain"),
        (lambda: card_of("grpo").needs_of({"kl_koef": 1}), r"(?s)grpo has no setting 'kl_koef'; allowed: .*kl_coef"),
    ],
)
def test_what_is_not_known_is_refused(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask()


def test_what_three_settings_decide_is_not_guessed():
    examples = [({"a": a, "b": b, "c": c}, a == b == c == "x") for a in "xy" for b in "xy" for c in "xy"]
    with pytest.raises(AssertionError, match="more than two"):
        learn(examples)


def test_cards_are_read_without_torch():
    code = (
        "import sys; from posttrain.lab.advise.cards import cards; "
        "assert cards()['ppo'].needs_of(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_card_says_what_there_is_to_know():
    for card in cards().values():
        assert card.title, card.key
        assert card.paper, card.key
        assert card.formula, card.key
        assert card.use_when, card.key
        assert card.avoid_when, card.key
        assert card.models, card.key
