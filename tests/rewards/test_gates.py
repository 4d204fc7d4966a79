"""Composition: rewards that count only if another one reached its level, who receives them, and forbidden
dependencies."""

from __future__ import annotations

import doctest
import math
import sys

import pytest
from tests.rewards.rollouts import completion, prompt

from posttrain.config.scorers import wrong_gate
from posttrain.errors import ConfigError
from posttrain.experience.metrics import gate_metrics
from posttrain.rewards import Reward, gates, scores
from posttrain.rewards.gates import Gate
from posttrain.types import Mean

NOTED = "<think>2 + 2</think><answer>4</answer>"
RIGHT = Reward(name="regex", label="right", settings={"pattern": ".*4.*"})


def test_form_counts_only_where_the_answer_is_right(score):
    form = Reward(name="format", weight=0.5, gate="right")
    found = score([NOTED, NOTED.replace("4", "5"), "4", "5"], RIGHT, form)
    assert found.rewards_PG == [[1.5, 0.0, 1.0, 0.0]]
    assert found.parts["format"] == [[1.0, 1.0, 0.0, 0.0]]  # logged unchanged
    assert found.counted["format"] == [[1.0, 0.0, 0.0, 0.0]]
    assert found.is_open == {"format": [[True, False, True, False]]}
    assert gate_metrics(found.is_open) == {"rewards/format/gated": Mean(2.0, 4)}


def test_a_gate_may_ask_for_less_than_a_full_score(score):
    fuzzy = Reward(name="fuzzy_match", weight=0)
    form = Reward(
        name="regex", label="form", settings={"pattern": ".*"}, gate={"label": "fuzzy_match", "at_least": 0.5}
    )
    assert score(["red house", "green tree"], fuzzy, form, answer="red brick").rewards_PG == [[1.0, 0.0]]


def test_a_gate_compares_the_score_before_weight_and_gate(score):
    half = Reward(name="regex", label="half", weight=0.5, settings={"pattern": "a.*"})
    behind = Reward(name="regex", label="behind", settings={"pattern": ".*b"}, gate="half")
    last = Reward(name="regex", label="last", settings={"pattern": ".*"}, gate="behind")
    found = score(["ab", "a", "b"], half, behind, last)
    assert found.rewards_PG == [[2.5, 0.5, 1.0]]  # `last` counts for "b", whose own gate is shut


def test_a_penalty_behind_a_gate_is_0_where_it_is_shut(score):
    penalty = Reward(name="repetition", weight=2, settings={"n": 1, "unit": "words"}, gate="right")
    assert score(["4 4", "5 5"], RIGHT, penalty).rewards_PG == [[0.0, 0.0]]


def test_a_gate_that_does_not_apply_takes_what_is_behind_it_out_of_the_sum(score, reward_file):
    sometimes = reward_file("def sometimes(completion): return None if completion == '?' else 1.0", name="sometimes")
    form = Reward(name="regex", label="form", settings={"pattern": ".*"}, gate="sometimes")
    found = score(["!", "?"], Reward(function=sometimes, weight=0), form, Reward(name="finished"))
    assert found.rewards_PG == [[2.0, 1.0]]
    assert found.is_open["form"] == [[True, None]]


@pytest.mark.parametrize("name", ["form", "cosine"])
def test_a_gate_that_fails_leaves_the_completion_unscored_even_without_a_weight(score, reward_file, name):
    fails = reward_file("def fails(completion): return 1 / (completion != '?')", name="fails")
    behind = {
        "form": Reward(name="regex", label="form", settings={"pattern": ".*"}, gate="fails"),
        "cosine": Reward(name="cosine", settings={"max_length": 10}, gate="fails"),
    }
    found = score(["!", "?"], Reward(function=fails, weight=0), behind[name], Reward(name="finished"))
    assert found.scored_PG == [[True, False]]
    assert math.isnan(found.rewards_PG[0][1])


# receivers of the scores


def test_the_cosine_is_told_what_is_right_and_decides_itself(score):
    found = score(["4" * 50, "5" * 50], RIGHT, Reward(name="cosine", settings={"max_length": 100}, gate="right"))
    assert found.parts["cosine"] == [[pytest.approx(0.75), pytest.approx(-0.75)]]
    assert found.rewards_PG == [[pytest.approx(1.75), pytest.approx(-0.75)]]
    assert found.is_open == {}
    assert [verdict.reason for verdict in found.verdicts["cosine"][0]] == ["correct", "wrong"]


def test_rewards_over_a_group_see_its_members_and_no_others(built):
    rewards = built(RIGHT, Reward(name="kimi_length", gate="right"))
    lengths = [(100, True), (200, True), (400, True), (300, False)]
    groups = [
        [completion(("4" if right else "5") * n) for n, right in lengths],
        [completion("4"), completion("4" * 900)],
    ]
    found = rewards.score([prompt(0), prompt(0)], groups)
    assert found.parts["kimi_length"][0] == pytest.approx([0.5, 1 / 6, -0.5, -1 / 6])
    assert found.parts["kimi_length"][1] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(completion, correct): return 2.0 if correct else -2.0", [2.0, -2.0]),
        ("def f(completions, correct, groups): return [c + 10 * g for c, g in zip(correct, groups)]", [1.0, 0.0]),
    ],
)
def test_a_function_of_ones_own_may_ask_too(score, reward_file, code, expected):
    own = Reward(function=reward_file(code, name="f"), label="own", gate="right")
    assert score(["4", "5"], RIGHT, own).parts["own"] == [expected]


def test_without_a_gate_the_parameter_is_a_column_as_any_other(score, reward_file):
    own = reward_file("def f(completion, correct): return float(correct)", name="f")
    assert score(["4"], Reward(function=own, label="own"), correct=7).rewards_PG == [[7.0]]


def test_who_is_told_waits_for_who_was_told(score, reward_file):
    code = "def f(completion, correct): return 1.0 - correct"
    first = Reward(function=reward_file(code, name="f"), label="first", gate="right", weight=0)
    second = Reward(function=reward_file(code, name="f"), label="second", gate="first")
    assert score(["4", "5"], second, first, RIGHT).parts["second"] == [[1.0, 0.0]]


def test_a_length_may_stand_in_a_column(score):
    target = Reward(name="l1_exact", settings={"alpha": 0.1})
    assert score(["1234567"], target, target_length=5).rewards_PG == [[pytest.approx(-0.2)]]


def test_what_was_cut_earns_nothing_behind_a_gate_that_asks_for_an_end(built):
    """OpenRLHF's stop-properly with the coefficient 0; an added penalty gives a coefficient below 0."""
    cut = completion("4")
    cut = type(cut)(ids=cut.ids, logprobs=cut.logprobs, versions=cut.versions, finish_reason="length", text="4")
    right = Reward(name="regex", label="right", settings={"pattern": "4"}, gate="finished")
    missing = Reward(name="finished", label="end", settings={"reward": 0, "penalty": 0.3})
    rewards = built(Reward(name="finished", weight=0), right, missing)
    assert rewards.score([prompt(0)], [[completion("4"), cut]]).rewards_PG == [[1.0, -0.3]]


# settings that are refused


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"a": "c", "b": None}, r'the gate of "a" is "c", and no reward is called that; allowed: b\.'),
        ({"format": "maths", "math": None}, r'did you mean "math"\?'),
        ({"a": "a"}, "go in a circle: a, a"),
        ({"a": "b", "b": "c", "c": "b"}, r'go in a circle: b, c, b; .*\n  Remove the gate of "c"\.'),
    ],
)
def test_gates_lead_to_a_reward_that_has_none(links, message):
    wrong = wrong_gate(links)
    assert wrong is not None
    with pytest.raises(ConfigError, match=message):
        raise wrong


def test_a_circle_is_refused_when_rewards_are_built(built):
    with pytest.raises(ConfigError, match="go in a circle"):
        built(Reward(name="format", gate="finished"), Reward(name="finished", gate="format"))


@pytest.mark.parametrize("name", ["cosine", "kimi_length", "arora_zanette"])
def test_who_has_to_be_told_needs_a_gate(built, name):
    settings = {"max_length": 10} if name == "cosine" else {}
    with pytest.raises(ConfigError, match=f'"{name}" needs to know which completions are correct.*\n.*gate: math'):
        built(Reward(name=name, settings=settings))


@pytest.mark.parametrize("given", [{"name": "math"}, {"label": "math", "above": 1}])
def test_a_gate_is_a_label_and_a_score(given):
    with pytest.raises(ConfigError, match="gate = "):
        Gate.of(given)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("soft_overlong", {"max_length": 10}, "needs settings.buffer"),
        ("soft_overlong", {"max_length": 10, "buffer": 11}, "cannot work with settings"),
        ("json_schema", {}, "needs settings.schema"),
        ("language", {"language": "xx"}, "cannot work with settings.*'xx'"),
        ("format", {"section": ["a"]}, "no setting 'section'; did you mean \"sections\""),
        ("finished", {"truncated": True}, "no setting 'truncated'"),
    ],
)
def test_settings_are_tried_when_rewards_are_built(built, name, settings, message):
    with pytest.raises(ConfigError, match=message):
        built(Reward(name=name, settings=settings))


def test_gates_are_read_where_torch_is_not_loaded():
    import subprocess

    code = "import sys, posttrain.rewards.gates; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("module", [gates, scores])
def test_the_examples_in_the_source_hold(module):
    assert doctest.testmod(module).failed == 0
