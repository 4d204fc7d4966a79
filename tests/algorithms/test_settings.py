"""The settings of every algorithm: they are validated, frozen and documented, and each of them has an effect."""

import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from tests.algorithms.compositions import SETTINGS as COMPOSITIONS
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import (
    ALGORITHMS,
    GDPO,
    GRPO,
    REINFORCE,
    RLOO,
    SFT,
    TOPR,
    Algorithm,
    ComposedPolicyGradient,
    DeepSeekV32,
    Distillation,
    DrGRPO,
    KimiK2,
    KimiK15,
    OnlineDPO,
    PassAtK,
    PolicyGradient,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
)
from posttrain.algorithms.base import NEEDS, DataKind, Need
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, Outputs, count_totals

every_class = catalogue("cls", ALGORITHMS.values(), ids=ALGORITHMS)


@every_class
def test_a_class_is_found_under_its_own_key(cls: type[Algorithm]):
    assert ALGORITHMS[cls.key] is cls


@every_class
def test_settings_are_frozen_comparable_and_survive_a_trip_between_processes(cls: type[Algorithm]):
    algorithm = cls()
    assert algorithm == cls()
    assert hash(algorithm) == hash(cls())
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    with pytest.raises(FrozenInstanceError):
        algorithm.clip_low = 0.3  # type: ignore[attr-defined]


@every_class
def test_settings_survive_replace_asdict_and_their_own_text(cls: type[Algorithm]):
    algorithm = cls()
    assert replace(algorithm) == algorithm
    assert cls(**asdict(algorithm)) == algorithm
    assert eval(repr(algorithm), {cls.__name__: cls}) == algorithm


def test_a_setting_that_is_kept_under_another_name_is_replaced_by_its_own():
    ipo = OnlineDPO(loss="ipo")
    assert replace(ipo, beta=0.3) == OnlineDPO(loss="ipo", beta=0.3)
    assert replace(ipo, loss="hinge", beta=0.3) == OnlineDPO(loss="hinge", beta=0.3)
    assert repr(ipo).startswith("OnlineDPO(loss='ipo', beta=0.1")
    assert replace(ipo, link="hinge") == OnlineDPO(loss="hinge")
    with pytest.raises(ConfigError, match=r"online_dpo\.loss = 'no'"):
        replace(ipo, loss="no")


@pytest.mark.parametrize("given", [{"link": "ipo"}, {"loss": "ipo", "link": "dpo"}], ids=str)
def test_an_attribute_with_another_name_is_no_setting(given):
    with pytest.raises(ConfigError, match="online_dpo has no setting 'link'; allowed: loss"):
        OnlineDPO(**given)


def test_a_variant_is_one_line_and_validated_as_well():
    assert replace(GRPO(), clip_high=0.28) == GRPO(clip_high=0.28)
    with pytest.raises(ConfigError, match=r"grpo.clip_high = -1"):
        replace(GRPO(), clip_high=-1)


def test_settings_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        GRPO(0.2)  # type: ignore[misc]


@catalogue(
    "cls, given, message",
    [
        (
            GRPO,
            {"clip_hihg": 0.2},
            r"(?s)grpo has no setting 'clip_hihg'; allowed: .*clip_high.*Did you mean 'clip_high'",
        ),
        (SFT, {"zzz": 1}, r"(?s)sft has no setting 'zzz'.*Remove it"),
        (GRPO, {"beta": 0.04}, r"(?s)grpo has no setting 'beta'.*beta is kl_coef here: set kl_coef = 0.04"),
        (GRPO, {"epsilon_high": 0.28}, r"(?s)'epsilon_high'.*is clip_high here: set clip_high = 0.28"),
        (SFT, {"beta": 0.1}, r"(?s)sft has no setting 'beta'.*Remove it"),
        (GRPO, {"correction": None}, r"(?s)grpo.correction = None; allowed: .*'none', 'tis'"),
        (GRPO, {"clip_low": -0.1}, r"grpo.clip_low = -0.1; allowed: greater than or equal to 0"),
        (GRPO, {"clip_low": "wide"}, r"grpo.clip_low = 'wide'; allowed: a valid number"),
        (GRPO, {"clip_low": None}, r"grpo.clip_low = None; allowed: a valid number"),
        (GRPO, {"kl_coef": True}, r"grpo.kl_coef = True; allowed: a number, not true or false"),
        (GRPO, {"kl_coef": float("inf")}, r"grpo.kl_coef = inf; allowed: a finite number"),
        (GRPO, {"entropy_coef": float("nan")}, r"grpo.entropy_coef = nan; allowed: a finite number"),
        (GRPO, {"kl_estimator": "k4"}, r"grpo.kl_estimator = 'k4'; allowed: 'k2', 'k3'"),
        (GRPO, {"dual_clip": 1.0}, r"grpo.dual_clip = 1.0; allowed: greater than 1"),
        (DrGRPO, {"max_completion_length": 0}, r"max_completion_length = 0; allowed: greater than or equal to 1"),
        (
            DrGRPO,
            {"kl_estimator": "k1"},
            r"(?s)'k1' in the loss: its expected gradient is zero; allowed: k2, k3, k1_c",
        ),
        (REINFORCE, {"baseline": "critic"}, r"'critic'; allowed: 'none', 'batch_mean' or 'moving_average'"),
        (REINFORCE, {"gamma": 1.01}, r"reinforce.gamma = 1.01; allowed: less than or equal to 1"),
        (REINFORCE, {"gamma": float("nan")}, r"reinforce.gamma = nan"),
        (RLOO, {"clip_low": 0.2}, r"(?s)clip_low = 0.2, clip_high = None; allowed: both.*Set both"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(cls: type[Algorithm], given: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        cls(**given)


@catalogue(
    "algorithm, needs",
    [
        (REINFORCE(), set()),
        (REINFORCE(clip_low=0.2, clip_high=0.2), {"old"}),
        (REINFORCE(kl_coef=0.1), {"old_for_advantages", "reference"}),
        (REINFORCE(entropy_coef=0.1), {"entropy"}),
        (RLOO(), set()),
        (RLOO(clip_low=0.2, clip_high=0.2, kl_coef=0.1), {"old", "old_for_advantages", "reference"}),
        (GRPO(), {"old"}),
        (GRPO(kl_coef=0.1), {"old", "reference"}),
        (GRPO(entropy_coef=-0.1), {"old", "entropy"}),
        (DrGRPO(), {"old"}),
        (DrGRPO(kl_coef=0.1), {"old", "reference"}),
        (ReMax(), {"greedy_reward"}),
        (ReMax(kl_coef=0.1), {"greedy_reward", "old_for_advantages", "reference"}),
        (ReinforcePlusPlus(), {"old"}),
        (ReinforcePlusPlus(kl_coef=0.1), {"old", "old_for_advantages", "reference"}),
        (ReinforcePlusPlusBaseline(kl_coef=0.1), {"old", "reference"}),
        (GDPO(), {"old", "reward_components"}),
        (TOPR(), {"old"}),
        (KimiK15(), {"old"}),
        (KimiK2(), {"old"}),
        (KimiK2(ptx_coef=0.1), {"old", "auxiliary"}),
        (PassAtK(), {"old"}),
        (DeepSeekV32(kl_coef=0.1), {"old", "reference"}),
        (Distillation(), {"teacher", "old_for_advantages"}),
        (Distillation(clip_low=0.2, clip_high=0.2), {"teacher", "old", "old_for_advantages"}),
        (SFT(), set()),
    ],
)
def test_what_is_needed_follows_from_the_settings(algorithm: Algorithm, needs: set[Need]):
    """Without a coefficient there is no reference model: nothing is computed that is not declared."""
    assert algorithm.needs == needs
    assert algorithm.needs <= NEEDS.keys()


@every_class
def test_declarations_are_complete(cls: type[Algorithm]):
    assert cls.data_kind in get_args(DataKind)
    assert cls.min_group_size >= 1
    assert cls.card.title
    assert cls.card.paper
    assert cls.card.use_when
    assert cls.card.avoid_when
    if issubclass(cls, PolicyGradient):
        assert list(cls.card.choices) == [
            "baseline",
            "normalisation",
            "ratio",
            "trust_region",
            "kl",
            "aggregation",
            "correction",
            "filter",
            "shaping",
        ]


@every_class
def test_an_algorithm_without_state_keeps_none(cls: type[Algorithm]):
    algorithm = cls()
    if algorithm.initial_state() is None:
        assert algorithm.next_state(None, None) is None  # type: ignore[arg-type]


CLIPPED = [cls for cls in ALGORITHMS.values() if hasattr(cls, "clip_low")]
CLIPPED = [cls for cls in CLIPPED if cls.card.choices["trust_region"] in ("none", "clip", "clip_cov")]
"""Algorithms with a clipped ratio. GMPO is excluded, as it clips in log space, and CISPO, as it clips a weight."""


@catalogue("cls", CLIPPED, ids=lambda cls: cls.key)
@catalogue("ratio, advantage, expected", [(1.5, +1.0, -1.3), (0.5, -1.0, +0.9)])
def test_each_bound_of_the_clip_is_its_own_setting(cls: type, ratio: float, advantage: float, expected: float):
    """With one completion of one token, clip_low 0.1 and clip_high 0.3, all clipped losses are equal."""
    names = {f.name for f in fields(cls)}
    beside = {"max_completion_length": 1, "max_negative_divergence": None}
    given: dict = {name: value for name, value in beside.items() if name in names}
    batch = Batch(
        completion_mask_BT=torch.tensor([[True]]),
        advantages_BT=torch.tensor([[advantage]]),
        old_logprobs_BT=torch.zeros(1, 1),
        groups_B=torch.zeros(1, dtype=torch.long),
    )
    algorithm = cls(clip_low=0.1, clip_high=0.3, **given)
    loss, _ = algorithm.loss(torch.tensor([[ratio]]).log(), batch, count_totals(batch))
    assert loss.item() == pytest.approx(expected)


EVERYTHING_ON = {
    "clip_low": 0.2,
    "clip_high": 0.2,
    "correct_at": 1.5,
    "dual_clip": 3.0,
    "entropy_coef": 0.1,
    "k": 1,
    "kl_coef": 0.1,
    "length_coef": 0.1,
    "max_completion_length": 8,
    "token_budget": 3,
}
ON_IN: dict = {
    "cispo": {"max_ratio": None},
    ("cispo", "max_ratio"): {"max_ratio": 5.0, "clip_low": None, "clip_high": None},
    ("rloo", "gamma"): {"clip_low": None, "clip_high": None},
    "clip_cov": {"cov_low": -5.0, "cov_high": 5.0, "cov_share": 0.5},
    "dapo": {"overlong_buffer": 6},
    "dppo": {"divergence_low": 0.06, "divergence_high": 0.06},
    "kl_cov": {"cov_share": 0.2},
}
"""Settings that must accompany `EVERYTHING_ON` in one algorithm, or to see the effect of one of its settings."""
CHANGED = {
    "baseline": "none",
    "baseline_decay": 0.5,
    "budget_penalty": 0.5,
    "center": False,
    "clip_low": 0.05,
    "clip_high": 0.05,
    "coef": 0.5,
    "correct_at": 1.8,
    "correction": "tis",
    "cov_high": 0.01,
    "cov_low": 0.01,
    "cov_share": 1.0,
    "divergence": "kl",
    "divergence_high": 0.01,
    "divergence_low": 0.01,
    "dual_clip": 1.2,
    "top_entropy_quantile": 0.5,
    "dynamic_sampling": False,
    "entropy_coef": 0.2,
    "floor": -0.1,
    "gae_lambda": 0.5,
    "gamma": 0.5,
    "k": 2,
    "k_neg": 1.0,
    "k_pos": 1.0,
    "kl_coef": 0.2,
    "kl_estimator": "k2",
    "kl_target": 0.1,
    "lambda_neg": 1.0,
    "lambda_pos": 1.0,
    "length_coef": 0.2,
    "max_completion_length": 9,
    "max_negative_divergence": 0.1,
    "max_ratio": 1.01,
    "missing_eos_penalty": 0.5,
    "overlong_buffer": 5,
    "penalty": 0.5,
    "ptx_coef": 0.1,
    "score_clip": 0.3,
    "seed": 1,
    "tau": 0.7,
    "tau_neg": 3.0,
    "tau_pos": 3.0,
    "token_budget": 2,
    "value_clip": None,
    "value_coef": 0.5,
    "whiten_advantages": False,
    "whiten_over": "sequences",
    "whiten_rewards": True,
}
CHANGED_IN: dict[tuple[str, str], Any] = {("topr", "baseline"): 1.5}
"""Values for settings whose name has another kind of value in other algorithms."""
SHOWN_ELSEWHERE = {("policy_gradient", "count_masked_sequences")}
"""Settings that need rows without trained tokens: test_policy_gradient covers them."""
ONE_VALUE_ONLY: dict[tuple[str, str], Any] = {("distillation", "divergence"): "forward_kl"}
"""Settings whose other values are refused with a reason."""


@catalogue(
    "cls, setting",
    [
        (cls, f.name)
        for cls in ALGORITHMS.values()
        for f in fields(cls)
        if issubclass(cls, PolicyGradient) and (cls.key, f.name) not in SHOWN_ELSEWHERE
    ],
    ids=lambda case: f"{case[0].key}.{case[1]}",
)
def test_every_setting_changes_what_is_learnt(t, cls: type[PolicyGradient], setting: str):
    """No setting is dead: each changes a loss, a gradient, an advantage, the state, or the needs of the algorithm."""
    names = {f.name for f in fields(cls)}
    given: dict = {name: value for name, value in EVERYTHING_ON.items() if name in names}
    given |= ON_IN.get(cls.key, {}) | ON_IN.get((cls.key, setting), {})
    changed: Any = CHANGED_IN.get((cls.key, setting), CHANGED.get(setting))
    if cls is ComposedPolicyGradient:
        given, changed = COMPOSITIONS[setting]
    if (cls.key, setting) in ONE_VALUE_ONLY:
        with pytest.raises(ConfigError, match=setting):
            cls(**given | {setting: ONE_VALUE_ONLY[cls.key, setting]})
        return

    first, second = cls(**given), cls(**given | {setting: changed})
    before, after = learnt(first, t), learnt(second, t)
    assert first.needs != second.needs or any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@cache
def learnt(algorithm: PolicyGradient, t) -> list[Tensor]:
    """Return the loss, its gradient and the numbers of the state after two steps. Most settings share their first
    algorithm, so it is computed once."""
    experience = everything(t)
    state = algorithm.initial_state()
    for _ in range(2):
        state = algorithm.next_state(state, experience)
        experience = replace(experience, rewards_PG=2 * experience.rewards_PG)
    batch = algorithm.prepare(replace(algorithm.to_batch(experience, state), current_logprobs_BT=t.old_BT))
    outputs = Outputs(
        logprobs_BT=t.logprobs_BT, entropy_BT=torch.ones_like(t.old_BT), values_BT=torch.ones_like(t.old_BT)
    )
    loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
    numbers = [getattr(state, f.name) for f in fields(state)] if state else []
    return [loss, torch.autograd.grad(loss, outputs.logprobs_BT)[0], torch.tensor(numbers)]


def everything(t) -> Experience:
    """Return completions of which 1 has risen and 2 fallen, both out of the clip, with everything that is needed."""
    return Experience.from_rewards(
        torch.tensor([[0.9, 0.2, 0.5, 0.4]], dtype=torch.float64),
        rewards_KPG=torch.tensor([[[0.9, 0.2, 0.5, 0.4]], [[0.0, 1.0, 1.0, 0.0]]], dtype=torch.float64),
        greedy_rewards_P=torch.tensor([1.5], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        sampling_logprobs_BT=t.old_BT + 0.1,
        ref_logprobs_BT=t.ref_BT,
        teacher_logprobs_BT=t.ref_BT,
        values_BT=-t.ref_BT,
        truncated_PG=torch.tensor([[False, False, True, False]]),
    )


def test_a_subclass_that_defines_no_loss_says_so():
    with pytest.raises(NotImplementedError):
        Algorithm.loss(SFT(), torch.zeros(1, 1), None, None)  # type: ignore[arg-type]
