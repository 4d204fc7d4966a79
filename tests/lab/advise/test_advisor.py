"""The advisor: its recommendations, their reasons, the steps to take first, and that its configs can be loaded."""

import functools
import json
import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.lab.advise.situations import SITUATIONS

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.credit import no_turns_for
from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.lab.advise.advice import Advice
from posttrain.lab.advise.advisor import _recommended, advise, rank
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.guides import FILE, OWN, guides, in_words, met, names_in
from posttrain.lab.advise.ranges import remarks
from posttrain.lab.advise.starter import OWN_REWARD_MODEL
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.hardware import find_hardware


@functools.cache
def answered(number: int) -> Advice:
    """Return the advice for a situation of the table."""
    return advise(SITUATIONS[number].facts)


# Which algorithm


def test_the_recommendation_and_its_reason():
    assert len(SITUATIONS) >= 40
    for number, situation in enumerate(SITUATIONS):
        advice = answered(number)
        recommended = [told.algorithm for told in advice.recommendations]
        assert recommended[:1] == ([situation.best] if situation.best else []), situation.says
        assert set(situation.among) <= set(recommended), situation.says
        assert not set(situation.ruled_out) & set(recommended), situation.says
        if advice.best is None:
            assert situation.rule in [point.id for point in advice.before], situation.says
            continue
        reasons = {reason.rule: reason for reason in advice.best.reasons}
        assert situation.rule in reasons, situation.says
        assert reasons[situation.rule].sources, situation.says


def test_each_config_can_be_loaded_and_is_within_the_published_ranges(tmp_path):
    for number, situation in enumerate(SITUATIONS):
        for told in answered(number).recommendations:
            path = tmp_path / f"{told.algorithm}.yaml"
            path.write_text(told.config, encoding="utf-8")
            config = load_config(path).config
            check(config)
            assert config.algorithm.name == told.algorithm, situation.says
            assert remarks(config) == [], (situation.says, told.algorithm)


# What accompanies it


@pytest.mark.slow
@catalogue(
    "facts, before",
    [
        ({"data": "verifier", "reward": "noisy"}, "fix-the-reward"),
        ({"data": "verifier", "base_score": 0}, "too-hard"),
        ({"data": "verifier", "base_score": "99%"}, "too-easy"),
        ({"data": "verifier", "base_score": 0.02, "base_pass_at_k": 0.4}, "hard-but-not-hopeless"),
        ({"data": "pairs", "evaluation": False}, "no-evaluation"),
        ({"data": "verifier"}, "measure-the-base"),
        ({"data": "verifier"}, "audit-the-reward"),
        ({"data": "pairs", "online": True}, "train-the-reward-model"),
        ({"data": "ratings", "online": True}, "learn-a-reward-from-ratings"),
        ({"data": "steps"}, "learn-a-reward-from-steps"),
        ({"data": "pairs", "online": True, "sft_done": False}, "sft-before-preferences"),
        ({"data": "verifier", "online": False}, "sort-the-stored-answers"),
        ({"data": "thumbs"}, "balance-thumbs"),
        ({"data": "ratings"}, "threshold-the-ratings"),
        ({"data": "verifier", "rollout_bound": True}, "asynchronous-sampling"),
        ({"data": "verifier", "dense_rewards": True}, "rewards-of-answers"),
        ({"data": "verifier", "answer_length": 8192}, "long-answers-truncated"),
        ({"data": "nothing"}, "something-to-learn-from"),
        ({"data": "verifier", "turns": "tools"}, "try-the-turns"),
        ({"turns": "agent"}, "try-the-agent"),
        ({"data": "verifier", "turns": "tools"}, "does-it-call"),
        ({"data": "verifier", "turns": "tools", "calls_tools": False}, "never-calls"),
        ({"turns": "environment"}, "limits-of-turns"),
        ({"turns": "environment"}, "processes-of-turns"),
        ({"turns": "agent", "dense_rewards": True}, "rewards-of-turns-need-an-environment"),
        ({"data": "pairs", "gpus": 8}, "one-device"),
        ({"data": "pairs", "gpus": 0, "size": 7}, "a-cpu-is-slow"),
    ],
)
def test_what_has_to_be_done_first(facts, before):
    assert before in [point.id for point in advise(facts).before]


@pytest.mark.parametrize(
    ("facts", "heading"),
    [
        ({"data": "verifier", "base_score": 0}, "Only after the steps under First (too-hard)"),
        ({"data": "verifier", "base_score": "99%"}, "Only after the steps under First (too-easy)"),
        ({"data": "verifier", "base_score": 0.4}, ""),
        (
            {"data": "verifier", "turns": "tools", "calls_tools": False},
            "Only after the steps under First (never-calls)",
        ),
        ({"data": "verifier,demonstrations", "base_score": 0}, ""),
    ],
)
def test_rewards_that_teach_nothing_yet_are_headed_so(facts, heading):
    text = advise(facts).render()
    assert heading in text
    assert bool(heading) == ("Only after" in text)


def test_a_cpu_trains_adapters_of_a_large_model():
    assert "lora:" in advise(data="pairs", gpus=0, size="7b").best.config


@pytest.mark.slow
@catalogue(
    "facts, contradiction, given_up",
    [
        ({"data": "verifier", "priority": "quality,memory"}, "quality-and-memory", "you may lose a few points"),
        ({"data": "verifier", "priority": "quality,speed"}, "quality-and-speed", "is worse only if"),
        ({"data": "verifier", "online": False}, "online-without-sampling", "most useful on the model's newest"),
        ({"data": "pairs", "goal": "reasoning"}, "reasoning-from-preferences", "not whether they are right"),
        ({"data": "verifier", "one_answer": True}, "groups-of-one", "nothing says how hard"),
        ({"data": "demonstrations", "turns": "tools"}, "turns-without-sampling", "not when a call pays off"),
        (
            {"turns": "environment", "dense_rewards": True, "rollout_bound": True},
            "turns-and-running-ahead",
            "excludes `train.run_ahead`",
        ),
        (
            {"data": "verifier", "dense_rewards": True, "size": 70, "gpus": 1, "gpu_memory": 80},
            "critic-that-does-not-fit",
            "critic.kind = shared",
        ),
    ],
)
def test_contradictory_wishes_get_an_honest_answer(facts, contradiction, given_up):
    said = {point.id: point for point in advise(facts).contradictions}
    assert given_up in said[contradiction].text
    assert said[contradiction].sources


@catalogue(
    "facts, question",
    [
        ({"data": "pairs"}, "ppo-or-dpo"),
        ({"data": "pairs"}, "reference-or-none"),
        ({"data": "verifier"}, "normalise-or-not"),
        ({"data": "verifier"}, "kl-or-none"),
        ({"data": "verifier", "heterogeneous": True}, "batch-mean-or-group-mean"),
        ({"data": "verifier", "reward": "noisy"}, "batch-mean-or-group-mean"),
        ({"data": "verifier", "priority": "quality"}, "critic-or-group"),
        ({"data": "verifier", "moe": True}, "which-ratio-for-experts"),
        ({"data": "verifier", "sft_done": False}, "sft-before-rl"),
        ({"turns": "environment"}, "trajectory-or-turn"),
    ],
)
def test_where_guides_disagree_both_sides_are_told(facts, question):
    said = {point.id: point.text for point in advise(facts).disagreements}
    asked = next(entry for entry in guides().disagreements if entry.id == question)
    assert len(asked.told["sides"]) >= 2
    assert all(side["says"] in said[question] for side in asked.told["sides"])
    assert "Here: " in said[question]


def test_what_is_assumed_is_said():
    assert any("reward = exact" in text for text in advise(data="verifier").assumed)
    assert any("online = false" in text for text in advise(data="pairs").assumed)
    assert advise(data="pairs", online=True, reward="model").assumed == ()


def test_runners_up_come_with_the_reason_against_them():
    told = {entry.algorithm: entry for entry in advise(data="thumbs").runners_up}
    assert told["dpo"].rule == "no-pairs"
    assert told["dpo"].score is None
    assert told["grpo"].rule == "no-sampling"
    close = {entry.algorithm: entry for entry in advise(data="verifier").runners_up}
    assert "it has fewer points than grpo" in close["reinforce_plus_plus_baseline"].why_not


@pytest.mark.slow
def test_what_would_change_the_answer_does_so():
    advice = advise(data="verifier")
    assert ("moe", "true", "gspo") in [(c.fact, c.value, c.algorithm) for c in advice.would_change]
    for change in advice.would_change:
        assert change.algorithm != "grpo"
        assert advise({"data": "verifier", change.fact: change.value}).best.algorithm == change.algorithm


def test_rollout_bound_gets_a_config_that_samples_while_it_trains():
    """A rule's settings for other sections are in the config, but are not settings of the algorithm."""
    best = advise(data="verifier", rollout_bound=True).best
    config = load_config(yaml.safe_load(best.config)).config
    assert (best.algorithm, best.settings) == ("grpo", {"correction": "decoupled"})
    assert config.algorithm.settings["correction"] == "decoupled"
    assert (config.rollout.engines, config.train.run_ahead, config.train.max_staleness) == (1, 2, 8)
    assert load_config(yaml.safe_load(advise(data="verifier").best.config)).config.rollout.engines == 0


def test_what_rules_set_are_settings_of_a_configuration():
    for rule in guides().rules:
        for algorithm, asked in rule.settings.items():
            base = {"model": "7b", "algorithm": algorithm, "data": {"train": "t.jsonl"}}
            base |= {"rewards": [{"name": "math"}], "train": {"steps": 200}}
            base |= {"environment": {"function": "e.py:World"}} if "credits_turns" in names_in(rule.when) else {}
            check(load_config(base, asked).config)


# Several turns


@catalogue(
    "facts, sections",
    [
        ({"turns": "tools", "data": "verifier"}, {"tools": ["tools.py:look"], "rewards": ["rewards.py:score"]}),
        (
            {"turns": "environment"},
            {"environment": {"function": "environment.py:World", "history": "split"}, "rewards": ["environment"]},
        ),
        ({"turns": "agent"}, {"agent": {"function": "agent.py:run", "history": "split"}, "rewards": ["agent"]}),
    ],
)
def test_what_answers_the_turns_stands_in_the_config(facts, sections):
    config = load_config(yaml.safe_load(advise(facts).best.config)).config
    expected = load_config(
        {"model": "m", "algorithm": "grpo", "data": {"train": "t"}, "train": {"steps": 9}, **sections}
    ).config
    assert all(getattr(config, name) == getattr(expected, name) for name in sections)
    sampling = config.sampling
    assert sampling.max_completion_length * sampling.max_turns < sampling.max_trajectory_length


def test_rewards_of_turns_are_credited_to_turns_where_the_algorithm_can():
    advice = advise(turns="environment", dense_rewards=True, moe=True)
    credits = {}
    for told in advice.recommendations:
        config = load_config(yaml.safe_load(told.config)).config
        credits[told.algorithm] = config.environment.credit
        assert (config.environment.credit == "turn") == (no_turns_for(ALGORITHMS[told.algorithm]()) is None)
    assert set(credits.values()) == {"turn", "trajectory"}, credits
    assert (
        load_config(yaml.safe_load(advise(turns="environment").best.config)).config.environment.credit == "trajectory"
    )


@pytest.mark.slow
def test_the_trainer_takes_every_config_of_several_turns():
    """The rules of advise and those of a run must not contradict each other."""
    wishes = [
        {"turns": "tools", "rollout_bound": True},
        {"turns": "tools", "reward": "judge", "dense_rewards": True},
        {"turns": "environment", "dense_rewards": True, "rollout_bound": True},
        {"turns": "environment", "dense_rewards": True, "moe": True},
        {"turns": "environment", "dense_rewards": True, "priority": "quality", "trouble": "length"},
        {"turns": "environment", "dense_rewards": True, "one_answer": True},
        {"turns": "environment", "dense_rewards": True, "several_rewards": True, "attempts": 8},
        {"turns": "agent", "dense_rewards": True, "rollout_bound": True},
        {"turns": "agent", "reward": "model", "teacher": True},
    ]
    for facts in wishes:
        full = Facts(data="verifier", **facts).assumed()[0]
        for standing in (one for one in rank(full) if one.possible):
            config = load_config(yaml.safe_load(_recommended(standing, full).config)).config
            assert config.has_turns
            check(config)


WISHES: dict[str, list[Any]] = {
    "turns": ["environment", "tools", "agent", None],
    "data": ["verifier", "nothing", "pairs", "demonstrations"],
    "reward": ["noisy", "judge", "model", None],
    "priority": ["quality", "memory", "speed", "stability", None],
    "dense_rewards": [True, None],
    "one_answer": [True, None],
    "several_rewards": [True, None],
    "goal": ["reasoning", None],
    "trouble": ["unstable", "length", None],
    "size": ["0.5b", "7b", None],
    "rollout_bound": [True, None],
}


def wished(number: int) -> dict[str, Any]:
    dice = random.Random(number)
    found = {name: dice.choice(values) for name, values in WISHES.items()}
    return {name: value for name, value in found.items() if value is not None}


CREDITED = [  # a learned reward asks for a KL that rloo puts into the reward of a whole completion
    {"turns": "environment", "dense_rewards": True, "data": data, "reward": "model", "trouble": "unstable", **more}
    for data in ("verifier", "nothing")
    for more in ({"priority": "memory", "goal": "reasoning"}, {"priority": "quality", "size": "7b"})
]


@catalogue("facts", [*CREDITED, *map(wished, range(16))])
def test_every_config_that_is_recommended_is_one_that_the_library_takes(facts):
    check_recommended(facts)


@pytest.mark.slow
@catalogue("facts", map(wished, range(16, 60)))
def test_every_config_of_more_wishes_is_one_that_the_library_takes(facts):
    check_recommended(facts)


def check_recommended(facts):
    for told in advise(facts).recommendations:
        config = load_config(yaml.safe_load(told.config)).config
        check(config)
        assert dict(config.algorithm.settings).items() >= dict(told.settings).items()


MACHINES = [("h100", 79.6), ("rtx-3090", 24), ("a100-80gb", 80), ("8xh100", 79.6), ("t4", 15), ("2xa100-40gb", 40)]


SIZED = [
    {"data": "verifier", "goal": "reasoning", "size": "500m"},
    {"data": "verifier", "priority": "quality", "size": "1.5b"},
    {"data": "pairs", "size": "1.5b"},
    {"data": "demonstrations", "size": "7b"},
    {"data": "nothing", "reward": "model", "size": "0.5b"},
]


@pytest.mark.parametrize(
    ("facts", "gpus", "memory"),
    [  # in `make test` every machine once, each with other facts
        pytest.param(facts, *machine, marks=[] if number % len(SIZED) == place else [pytest.mark.slow])
        for place, facts in enumerate(SIZED)
        for number, machine in enumerate(MACHINES)
    ],
)
def test_the_memory_of_an_advice_is_that_of_a_plan(facts, gpus, memory):
    """The sizes that a config leaves open are as large as the memory allows, for both."""
    count = find_hardware(gpus).count
    for told in advise(**facts, gpus=count, gpu_memory=memory).recommendations:
        config = yaml.safe_load(told.config)
        for reward in config.get("rewards", ()):
            if reward.get("model") == OWN_REWARD_MODEL:
                reward["model"] = config["model"]
        planned = make_plan(config, gpus=gpus).memory
        assert told.cost.bytes == planned.bytes, told.algorithm
        assert dict(told.cost.by_role) == dict(planned.peak.by_role)


# Models


@catalogue(
    "facts, algorithm, models",
    [
        ({"data": "nothing", "reward": "model", "priority": "quality"}, "ppo", 4),
        ({"data": "verifier", "priority": "quality"}, "ppo", 3),
        ({"data": "verifier"}, "grpo", 1),
        ({"data": "pairs", "priority": "memory"}, "simpo", 1),
        ({"data": "pairs"}, "dpo", 1),
        ({"data": "pairs", "online": True}, "online_dpo", 3),
        ({"data": "nothing", "teacher": True}, "distillation", 2),
    ],
)
def test_models_in_memory(facts, algorithm, models):
    best = advise(facts).best
    assert (best.algorithm, best.cost.models) == (algorithm, models)


def test_a_cpu_trains_adapters_of_a_model_of_unknown_size():
    named = {"data": "pairs", "model": "someone/a-model-that-no-table-knows"}
    assert "lora:" in advise(**named, gpus=0).best.config
    assert "lora:" not in advise(**named, gpus=1).best.config
    assert "lora:" not in advise(data="pairs", model="Qwen/Qwen3-0.6B", gpus=0).best.config


@pytest.mark.slow
def test_adapters_where_training_all_weights_does_not_fit():
    best = advise(data="verifier", size="7b", gpus=1, gpu_memory=24).best
    assert "lora:" in best.config
    assert "lora:" not in advise(data="verifier", size="0.5b", gpus=1, gpu_memory=80).best.config


@pytest.mark.parametrize(("size", "gpus", "memory"), [("7b", 1, 40), ("70b", 8, 79.6)])
def test_the_config_fits_where_settings_make_it_fit(size, gpus, memory):
    best = advise(data="pairs", size=size, gpus=gpus, gpu_memory=memory).best
    assert best.cost.bytes <= memory * 2**30
    assert "it does not fit" not in best.cost.note


def test_what_nothing_makes_fit_is_said_to_be_too_large():
    best = advise(data="pairs", size="7b", gpus=1, gpu_memory=24).best
    assert ": it does not fit, even with all memory savings" in best.cost.note


def test_a_mixture_of_experts_is_known_by_its_name():
    for facts in ({"model": "30b-a3b"}, {"model": "Qwen/Qwen3-30B-A3B"}, {"size": "30b-a3b"}):
        advice = advise(data="verifier", **facts)
        assert advice.facts.moe
        assert 30 < advice.facts.size < 31
        assert advice.best.algorithm == "gspo"
        assert yaml.safe_load(advice.best.config)["model"] == "Qwen/Qwen3-30B-A3B"
    assert not advise(data="verifier", model="Qwen/Qwen3-0.6B").facts.moe


# The guides as data


@pytest.mark.slow
def test_every_rule_names_facts_values_and_sources_that_exist():
    known = {**Facts().known()}
    told = guides()
    for entry in (*told.rules, *told.contradictions, *told.disagreements, *told.before):
        assert set(names_in(entry.when)) <= set(known), entry.id
        for case in entry.when if isinstance(entry.when, list) else [entry.when]:
            for name, wanted in case.items():
                assert _values(wanted) <= _allowed(name), (entry.id, name)
    for rule in (*told.rules, *told.contradictions, *told.before, *told.failures):
        assert set(rule.source) <= {*told.sources, OWN}
    assert {side["source"] for entry in told.disagreements for side in entry.told["sides"]} <= set(told.sources)


def _values(wanted):
    """Return the names among the values of a condition."""
    if isinstance(wanted, dict):
        return set().union(*(_values(value) for value in wanted.values()))
    values = wanted if isinstance(wanted, list) else [wanted]
    return {value for value in values if isinstance(value, str)} - {"known", "unknown"}


def _allowed(name):
    schema = Facts.model_json_schema()["properties"].get(name, {})
    options = [schema, *schema.get("anyOf", []), schema.get("items", {})]
    return {value for option in options for value in option.get("enum", [])}


def test_no_sentence_speaks_for_one_algorithm_and_against_another():
    for rule in guides().rules:
        for text in {rule.said_of(key).text for key in rule.weigh}:
            signs = {points > 0 for key, points in rule.weigh.items() if rule.said_of(key).text == text}
            assert len(signs) == 1, (rule.id, text)


@catalogue(
    "facts, algorithm, rule, says, source",
    [
        ({"data": "verifier"}, "ppo", "verifier-grpo", "a critic learns", "Generalized Advantage Estimation"),
        ({"data": "verifier"}, "rloo", "verifier-grpo", "no critic is needed", "Back to Basics"),
        ({"reward": "judge"}, "grpo", "judged-answers", "a judge scores every new answer", "how this library is built"),
        ({"data": "pairs", "online": True, "priority": "memory"}, "online_dpo", "memory-reference-free",
         "it needs a reference", "OAIF"),
        ({"data": "verifier,pairs"}, "dpo", "pairs-beside-a-verifier", "the verifier scores", "DeepSeekMath"),
        ({"data": "verifier", "moe": True}, "grpo", "moe-gspo", "ratios of single tokens that it uses", "GSPO"),
    ],
)  # fmt: skip
def test_a_reason_is_true_of_the_algorithm_it_stands_beside(facts, algorithm, rule, says, source):
    standing = next(one for one in rank(Facts(**facts).assumed()[0]) if one.algorithm == algorithm)
    (reason,) = [one for one in standing.reasons if one.rule == rule]
    assert says in reason.text
    assert any(source in cited for cited in reason.sources)


def test_identifiers_are_unique_and_every_source_is_cited():
    told = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for part in ("rules", "contradictions", "disagreements", "before"):
        ids = [entry["id"] for entry in told[part]]
        assert len(ids) == len(set(ids))
    text = FILE.read_text(encoding="utf-8").partition("groups:")[2]
    assert [source for source in told["sources"] if source not in text] == []


def test_every_weight_is_reachable_in_some_situation():
    """Nobody would have looked at a rule that no situation of the table meets."""
    met_by = [Facts(**s.facts).assumed()[0].known() for s in SITUATIONS]
    unseen = [rule.id for rule in guides().rules if not any(met(rule.when, known) for known in met_by)]
    assert unseen == []


def test_failures_are_known_of_everything_that_is_recommended():
    best = [answered(number).best for number in range(len(SITUATIONS))]
    assert [told.algorithm for told in best if told is not None and not told.failures] == []


FACTS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.lists(
            st.sampled_from(["verifier", "pairs", "thumbs", "ratings", "steps", "demonstrations"]), unique=True
        ),
        "reward": st.sampled_from(["noisy", "judge", "model"]),
        "goal": st.sampled_from(["reasoning", "style", "format", "chat", "scorer"]),
        "online": st.booleans(),
        "sft_done": st.booleans(),
        "moe": st.booleans(),
        "size": st.sampled_from([0.5, 7, 70]),
        "gpus": st.sampled_from([0, 1, 8]),
        "gpu_memory": st.just(80),
        "priority": st.lists(st.sampled_from(["quality", "memory", "speed", "stability"]), unique=True),
        "one_answer": st.booleans(),
        "teacher": st.booleans(),
        "turns": st.sampled_from(["tools", "environment", "agent"]),
        "several_rewards": st.booleans(),
        "attempts": st.sampled_from([1, 8]),
        "base_score": st.sampled_from([0, 0.02, 0.5, 1]),
        "trouble": st.lists(st.sampled_from(["unstable", "entropy", "length"]), unique=True),
    },
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(FACTS)
def test_any_facts_get_an_answer_that_is_possible_and_a_config_that_loads(facts):
    told = Facts(**facts)
    advice = advise(told)
    full = advice.facts
    for recommendation in advice.recommendations:
        algorithm = ALGORITHMS[recommendation.algorithm]()
        sampled = algorithm.data_kind == "prompts"
        assert full.online or not sampled
        assert not (full.one_answer and sampled and algorithm.group_size_needed > 1)
        assert load_config(yaml.safe_load(recommendation.config)).config.algorithm.name == algorithm.key
    assert advice.recommendations or advice.before or advice.contradictions or advice.runners_up
    assert json.loads(json.dumps(advice.to_json()))["recommendations"] is not None
    assert advice.render(details=3)


def test_the_order_of_facts_does_not_matter():
    a = rank(Facts(data=("pairs", "thumbs"), priority=("memory", "speed")).assumed()[0])
    b = rank(Facts(priority=("speed", "memory"), data=("thumbs", "pairs")).assumed()[0])
    assert a == b


# Conditions


@catalogue(
    "condition, known, holds",
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": [1, 2]}, {"a": (2, 3)}, True),
        ({"a": {"all": [1, 2]}}, {"a": (2, 3)}, False),
        ({"a": {"not": 1}}, {"a": None}, True),
        ({"a": {"not": [1, 2]}}, {"a": (2,)}, False),
        ({"a": {"at_least": 2, "below": 4}}, {"a": 3}, True),
        ({"a": {"at_least": 2, "below": 4}}, {"a": 4}, False),
        ({"a": {"above": 0}}, {"a": None}, False),
        ({"a": {"not": {"above": 0}}}, {"a": None}, True),
        ({"a": "unknown"}, {"a": ()}, True),
        ({"a": "known"}, {"a": False}, True),
        ({"a": True}, {"a": None}, False),
        ([{"a": 1}, {"b": 1}], {"a": 0, "b": 1}, True),
        ({}, {}, True),
    ],
)
def test_conditions(condition, known, holds):
    assert met(condition, known) is holds


def test_conditions_in_words():
    words = in_words([{"data": {"all": ["pairs"], "not": "thumbs"}, "size": {"at_least": 7}}, {"moe": True}])
    assert words == "data = pairs, not (data = thumbs), size >= 7; or moe = yes"


# Facts that cannot be


@catalogue(
    "facts, message",
    [
        ({"data": "pair"}, r"(?s)data.0 = pair; allowed: verifier, pairs, .*Did you mean pairs"),
        ({"dta": "pairs"}, r"(?s)dta = pairs is not a setting.*Did you mean data"),
        ({"size": "large"}, r"size = large; allowed: a number above 0"),
        ({"priority": ["cheap"]}, r"priority.0 = cheap; allowed: quality, memory, speed or stability"),
        ({"base_score": 7}, r"base_score = 7; allowed: a number from 0 to 1"),
        ({"base_score": 0.5, "base_pass_at_k": 0.2}, r"(?s)base_pass_at_k = 0.2 below base_score = 0.5.*Swap"),
        ({"data": "nothing,pairs"}, r"(?s)nothing together with other data.*Remove `nothing` from data"),
        ({"turns": "agent", "calls_tools": True}, r"calls_tools with turns = agent: there are no tools to call"),
        ({"data": "pairs", "reward": "exact"}, r"reward = exact, but data = .* has no verifier"),
    ],
)
def test_facts_that_cannot_be_meant_are_refused(facts, message):
    with pytest.raises(ConfigError, match=message):
        advise(facts)


def test_facts_come_from_one_side():
    with pytest.raises(ConfigError, match="one of the two"):
        advise(Facts(), data="pairs")


@pytest.mark.parametrize(("context", "length"), [(256, 128), (4096, 1024), (None, 1024)])
def test_no_answer_is_longer_than_half_of_what_the_model_reads(tmp_path, context, length):
    shape = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": context}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    best = advise(data="verifier", model=str(tmp_path)).best
    assert best is not None
    assert yaml.safe_load(best.config)["sampling"]["max_completion_length"] == length
