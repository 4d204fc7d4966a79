"""The public surface that others' code relies on: names, parameters and their order change only with this file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch
from tests.catalogue import catalogue

import posttrain as pt
from posttrain.algorithms import ALGORITHMS, DPO, GRPO, PPO
from posttrain.evaluate.given import evaluate_given
from posttrain.lab.advise.facts import Facts
from posttrain.lab.experiments.compare.api import compare
from posttrain.lab.experiments.sweep.api import sweep
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.target import INPUTS
from posttrain.train.replay import replay
from posttrain.train.run import Run
from posttrain.types import Batch, Experience, Outputs, count_totals

CLIPS = ("clip_low", "clip_high")
EVERY = ("entropy_coef", "correction")
"""Settings of every policy gradient."""
ON_POLICY = ("reinforce", "rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
GROUPED = ("grpo", "dr_grpo", "lite_ppo", "gdpo", "dapo", "deepseek_v32")
PPO_SETTINGS = (*CLIPS, "dual_clip", "value_clip", "value_coef", "entropy_coef", "gamma", "gae_lambda", "kl_coef")
SMOOTHED = ("dpo", "cdpo", "robust_dpo", "length_normalized_dpo", "hinge", "exo", "discopop")
SETTINGS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(ON_POLICY, (*CLIPS, "kl_coef", "gamma", *EVERY)),
    "reinforce": ("baseline", *CLIPS, "kl_coef", "gamma", *EVERY),
    "ppo": (*PPO_SETTINGS, "kl_target", "whiten_advantages", "whiten_rewards", "correction"),
    **dict.fromkeys(GROUPED, (*CLIPS, "dual_clip", "kl_coef", "kl_estimator", *EVERY)),
    "dr_grpo": (*CLIPS, "dual_clip", "kl_coef", "kl_estimator", "max_completion_length", *EVERY),
    "dapo": (*CLIPS, "dual_clip", "kl_coef", "kl_estimator", "overlong_buffer", "dynamic_sampling", *EVERY),
    **dict.fromkeys(("gspo", "gspo_token", "luspo", "gmpo"), (*CLIPS, *EVERY)),
    **dict.fromkeys(("sapo", "vespo", "clip_cov", "kl_cov", "dppo", "opo", "gpg", "topr"), EVERY),
    "cispo": ("max_ratio", *EVERY),
    "pass_at_k": ("k", *EVERY),
    **dict.fromkeys(("kimi_k15", "kimi_k2"), ("tau", *EVERY)),
    "policy_gradient": ("baseline", "normalisation", "ratio", "trust_region", "aggregation", *EVERY),
    **dict.fromkeys(SMOOTHED, ("beta", "label_smoothing")),
    "ipo": ("tau", "length_average"),
    **dict.fromkeys(("rpo", "cpo"), ("beta", "alpha")),
    "dpop": ("beta", "penalty"),
    "simpo": ("beta", "gamma"),
    **dict.fromkeys(("orpo", "bco", "apo_zero", "apo_down", "nca", "sppo", "aot"), ("beta",)),
    "kto": ("beta", "desirable_weight", "undesirable_weight"),
    "online_dpo": ("loss", "beta"),
    "sft": (),
    "reward_model": ("margin", "center_coef"),
    "process_reward_model": (),
    "distillation": ("divergence",),
}


@catalogue("key", SETTINGS)
def test_an_algorithm_has_its_settings(key):
    assert set(SETTINGS[key]) <= inspect.signature(ALGORITHMS[key]).parameters.keys()


CALLS: Mapping[str, tuple[Callable[..., Any], str]] = {
    "Experience.from_rewards": (
        Experience.from_rewards,
        "rewards_PG *completion_mask_BT old_logprobs_BT sampling_logprobs_BT ref_logprobs_BT values_BT "
        "teacher_logprobs_BT rewards_KPG greedy_rewards_P scored_PG truncated_PG versions_BT",
    ),
    "Batch.from_experience": (Batch.from_experience, "experience advantages_BT"),
    "Batch.from_pairs": (Batch.from_pairs, "completion_mask_BT ref_logprobs_BT"),
    "Batch.from_labels": (Batch.from_labels, "completion_mask_BT labels_B ref_logprobs_BT mismatched_log_ratios_B"),
    "Outputs": (Outputs, "logprobs_BT entropy_BT values_BT scores_B"),
    "count_totals": (count_totals, "batch"),
    "pt.evaluate": (pt.evaluate, "model data rewards *k check seed max_completion_length"),
    "pt.replay": (pt.replay, "run *first last"),
}


@pytest.mark.parametrize(("call", "listed"), CALLS.values(), ids=CALLS)
def test_a_function_takes_what_is_promised(call, listed):
    given = inspect.signature(call).parameters
    for place, name in enumerate(listed.split()):
        assert name.lstrip("*") in given
        if "*" not in " ".join(listed.split()[: place + 1]):
            assert list(given)[place] == name
            assert given[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


@pytest.mark.parametrize(
    ("shown", "called"),
    [
        (pt.compare, compare),
        (pt.sweep, sweep),
        (pt.plan, make_plan),
        (pt.replay, replay),
        (pt.evaluate_given, evaluate_given),
    ],
)
def test_help_shows_the_arguments_and_defaults_of_the_function_behind(shown, called):
    def listed(function):
        given = inspect.signature(function).parameters.values()
        return [(each.name, each.kind, "say" if callable(each.default) else each.default) for each in given]

    assert listed(shown) == listed(called)


@pytest.mark.parametrize(("shown", "names"), [(pt.plan, INPUTS), (pt.advise, tuple(Facts.model_fields))])
def test_help_names_the_keywords_that_stand_behind_two_stars(shown, names):
    listed = re.search(r": ((?:\w+,\s+)+\w+)\.", shown.__doc__)
    assert listed is not None
    assert tuple(re.findall(r"\w+", listed[1])) == names


def test_a_loss_is_checked_in_five_lines():
    mask = torch.ones(4, 3, dtype=torch.bool)
    logprobs = torch.full((4, 3), -1.0, dtype=torch.float64, requires_grad=True)
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        completion_mask_BT=mask,
        old_logprobs_BT=logprobs.detach(),
    )
    algorithm = GRPO(clip_low=0.2, clip_high=0.2, kl_coef=0.0)
    batch = Batch.from_experience(experience, algorithm.advantages(experience))
    loss, metrics = algorithm.loss(Outputs(logprobs), batch, count_totals(batch))
    bare, _ = algorithm.loss(logprobs, batch, count_totals(batch))
    loss.backward()
    assert loss.dtype == torch.float64
    assert bare.item() == loss.item()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad[2:], torch.zeros(2, 3, dtype=torch.float64))  # a group with equal rewards
    assert metrics


def test_algorithms_are_frozen_named_and_checked():
    assert (ALGORITHMS["grpo"], ALGORITHMS["ppo"], ALGORITHMS["dpo"]) == (GRPO, PPO, DPO)
    with pytest.raises(TypeError):
        GRPO(0.2)  # type: ignore[misc]
    with pytest.raises((AttributeError, ValueError)):
        GRPO().clip_low = 0.3  # type: ignore[misc]
    with pytest.raises(ValueError, match="clip_low"):
        GRPO(clip_low=-1.0)


@pytest.mark.parametrize("name", ["folder", "metrics", "evaluation", "model_path"])
def test_a_run_has(name):
    assert hasattr(Run, name) or name in {each.name for each in fields(Run)}
