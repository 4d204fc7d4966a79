"""Presets that carry a run over from another library reproduce that library's numbers through the config."""

import re
from dataclasses import replace

import pytest
import torch
from tests.algorithms.preference_data import LabelFixture, P
from tests.algorithms.test_correction import FULL_GRADIENT, SAMPLING
from tests.catalogue import catalogue
from tests.worked_examples import pad
from torch import Tensor

from posttrain import presets
from posttrain.algorithms import Algorithm, PolicyGradient, SimPO
from posttrain.config import PRESETS, load_config
from posttrain.errors import ConfigError
from posttrain.types import Batch, Experience, count_totals


def named(name: str, **settings) -> Algorithm:
    config = {"model": "tiny:copy", "data": {"train": "task:copy"}}
    overrides = {f"algorithm.{key}": value for key, value in settings.items()}
    return load_config(config | {"preset": name, "train": {"steps": 1}}, overrides).config.algorithm.build()


def preset(name: str, **settings) -> PolicyGradient:
    algorithm = named(name, **settings)
    assert isinstance(algorithm, PolicyGradient)
    return algorithm


def advantages(algorithm, rewards_PG: Tensor) -> Tensor:
    """Return the advantages without KL, for one token per completion."""
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(rewards_PG.numel(), 1))
    return algorithm.advantages(experience).reshape(rewards_PG.shape)


def learnt(t, algorithm, batch: Batch) -> tuple[float, Tensor]:
    logprobs_BT, batch = t.logprobs_BT, algorithm.prepare(batch)
    loss, _ = algorithm.loss(logprobs_BT, batch, count_totals(batch))
    return loss.item(), torch.autograd.grad(loss, logprobs_BT)[0]


def sampled(t, batch: Batch | None = None) -> Batch:
    """Return the batch, by default fixture T's, with a sampler that agrees with fixture T's old log-probabilities."""
    batch = t.batch() if batch is None else batch
    return replace(batch, sampling_logprobs_BT=t.old_BT)


GROUP_NORMALISED = {
    "trl-grpo": [
        [0.8658754298, -0.8658754298, -0.8658754298, 0.8658754298],
        [-1.018703294, 1.358271059, 0, -0.3395677648],
    ],
    "verl-grpo": [
        [0.8660239038, -0.8660239038, -0.8660239038, 0.8660239038],
        [-1.019045869, 1.358727826, 0, -0.3396819564],
    ],
    "openrlhf-group-norm": [
        [0.8660254023, -0.8660254023, -0.8660254023, 0.8660254023],
        [-1.019049327, 1.358732436, 0, -0.3396831091],
    ],
}
GROUP_NORMALISED["trl-dapo"] = GROUP_NORMALISED["trl-grpo"]


@catalogue("name", [name for name in PRESETS if PRESETS[name].get("algorithm", {}).get("trust_region") == "clip"])
@pytest.mark.parametrize("change", ["trust_region=soft_gate", "trust_region=none", "kl=none"])
def test_what_a_preset_sets_and_a_change_leaves_unread_can_be_set_to_null(name: str, change: str):
    """The line that the error asks to remove is in the preset, so that only null removes it."""
    choice, _, option = change.partition("=")
    settings: dict[str, str | None] = {choice: option}
    for _ in range(6):
        try:
            named(name, **settings)
            return
        except ConfigError as error:
            (unread,) = re.findall(
                r"policy_gradient\.(\w+) = (?s:.*) none of the chosen (?s:.*) set it to null if a preset sets it",
                str(error),
            )
            settings[unread] = None
    pytest.fail(f"{settings} still leave something unread")


@catalogue("name", GROUP_NORMALISED)
def test_each_library_adds_its_own_epsilon(name: str, rewards_PG):
    """TRL adds 1e-4, verl 1e-6 and OpenRLHF 1e-9. Here equal rewards give 0 for all of them."""
    expected = torch.tensor([*GROUP_NORMALISED[name], [0.0] * 4], dtype=torch.float64)
    torch.testing.assert_close(advantages(preset(name, kl_coef=0), rewards_PG), expected, rtol=1e-8, atol=1e-12)


def test_the_standard_deviation_of_a_population_can_be_asked_for(rewards_PG):
    """TRL's asynchronous trainer does so: it divides the squares by n and adds 1e-8."""
    expected = [[0.99999998, -0.99999998, -0.99999998, 0.99999998], [-1.176696765, 1.56892902, 0, -0.3922322549]]
    algorithm = preset("trl-grpo", population=True, std_epsilon=1e-8)
    torch.testing.assert_close(
        advantages(algorithm, rewards_PG)[:2], torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12
    )


def test_trl_grpo_averages_per_completion_and_counts_the_masked_ones(t):
    assert learnt(t, preset("trl-grpo"), sampled(t))[0] == pytest.approx(1.128056945, rel=1e-8)
    masked = sampled(t, t.batch(without_rows=[3]))
    assert learnt(t, preset("trl-grpo"), masked)[0] == pytest.approx(-0.2479293053, rel=1e-8)


def test_the_gradient_of_trls_kl_is_ratio_times_delta(t, assert_ragged):
    """ratio * k3 and k3_corrected have the same gradient. The value is k3's, 1.131242803, and not 1.136246295."""
    loss, gradient_BT = learnt(t, preset("trl-grpo", kl_coef=0.04), sampled(t))
    _, without_BT = learnt(t, preset("trl-grpo"), sampled(t))
    assert loss == pytest.approx(1.131242803, rel=1e-8)
    rho_delta = [
        [0.1576906645, 0.1349858808, -0.0452418709],
        [-0.335160023, 0.2210341836],
        [0.1224241608, -0.2725802741, 0.406641985, 0],
        [2.568507667],
    ]
    assert_ragged((gradient_BT - without_BT) * 4 / 0.04 * t.mask_BT.sum(dim=-1, keepdim=True), rho_delta)


def test_trl_dapo_averages_over_tokens_and_masks_completions_by_their_product(t):
    assert learnt(t, preset("trl-dapo"), sampled(t))[0] == pytest.approx(0.146589988, rel=1e-8)
    apart = replace(t.batch(), sampling_logprobs_BT=SAMPLING)
    assert learnt(t, preset("trl-dapo"), apart)[0] == pytest.approx(-0.2650467556, rel=1e-8)


def test_trl_rloo(t, assert_ragged):
    """The KL is subtracted from the reward before the leave-one-out mean. The completion's ratio is clipped."""
    algorithm = preset("trl-rloo", kl_coef=0.1)
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
    )
    expected = [0.7416666667, -0.5983333333, 0.04166666667, -0.185]
    assert algorithm.advantages(experience)[:, 0].tolist() == pytest.approx(expected, rel=1e-8)
    loss, gradient_BT = learnt(t, algorithm, t.batch())
    assert loss == pytest.approx(1.063674616, rel=1e-8)
    assert_ragged(gradient_BT, [[0, 0, 0], [0, 0], [-0.09231163464] * 4, [1.37598625]])


def test_verl_grpo_averages_over_tokens_and_always_clips_twice(t):
    loss, gradient_BT = learnt(t, preset("verl-grpo"), t.batch())
    assert loss == pytest.approx(0.0461954879, rel=1e-8)
    assert (gradient_BT[3] == 0).all()


def test_openrlhf_group_norm_subtracts_the_kl_after_the_normalisation(t):
    """The advantage is the normalised reward minus 0.01 times the sum of k1 over this and all later tokens."""
    rewards_PG = torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64)
    experience = Experience.from_rewards(
        rewards_PG, completion_mask_BT=t.mask_BT, old_logprobs_BT=t.old_BT, ref_logprobs_BT=t.ref_BT
    )
    normalised_B = ((rewards_PG - rewards_PG.mean()) / (rewards_PG.std() + 1e-9))[0]
    k1_BT = torch.where(t.mask_BT, t.old_BT - t.ref_BT, 0.0)
    expected_BT = normalised_B[:, None] - 0.01 * k1_BT.flip(-1).cumsum(dim=-1).flip(-1)
    actual_BT = preset("openrlhf-group-norm").advantages(experience)
    torch.testing.assert_close(actual_BT[t.mask_BT], expected_BT[t.mask_BT], rtol=1e-10, atol=1e-12)


def test_openrlhf_reinforce_whitens_with_the_population_variance(rewards_PG, lengths_PG):
    mask_BT = torch.arange(5) < lengths_PG.reshape(-1, 1)
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=mask_BT)
    advantages_BT = preset("openrlhf-reinforce", kl_coef=0).advantages(experience)
    expected = [
        [0.9607322874, -1.538733826, -1.538733826, 0.9607322874],
        [-1.038840603, 0.710785676, -0.2890007694, -0.5389473807],
        [0.9607322874, 0.9607322874, 0.9607322874, 0.9607322874],
    ]
    assert advantages_BT[:, 0].tolist() == pytest.approx([x for row in expected for x in row], rel=1e-8)


def test_openrlhf_reinforce_whitens_the_kl_as_well(t):
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64),
        completion_mask_BT=t.mask_BT,
        old_logprobs_BT=t.old_BT,
        ref_logprobs_BT=t.ref_BT,
    )
    expected = [
        [1.324396546, 1.352074635, 1.296718457],
        [-1.457251372, -1.484929461],
        [-0.1287031126, -0.1010250239, -0.1287031126, -0.07334693515],
        [-0.5992306212],
    ]
    advantages_BT = preset("openrlhf-reinforce", kl_coef=0.1).advantages(experience)
    torch.testing.assert_close(advantages_BT[t.mask_BT], pad(expected)[t.mask_BT], rtol=1e-8, atol=0)


def test_areal_decoupled_weighs_the_clip_around_its_anchor(t, assert_ragged):
    loss, gradient_BT = learnt(t, preset("areal-decoupled"), replace(t.batch(), sampling_logprobs_BT=SAMPLING))
    assert loss == pytest.approx(1.672054045, rel=1e-8)
    assert_ragged(gradient_BT, FULL_GRADIENT)


def test_areal_decoupled_masks_what_is_above_5_and_keeps_its_place(t):
    far_BT = SAMPLING.clone()
    far_BT[3, 0] = -3.8  # w = exp(1.7) = 5.47
    loss, gradient_BT = learnt(t, preset("areal-decoupled"), replace(t.batch(), sampling_logprobs_BT=far_BT))
    assert loss == pytest.approx(-0.3475066601, rel=1e-8)
    assert gradient_BT[3, 0] == 0


@catalogue("name, bound", [("openrlhf-reinforce", 10.0), ("areal-decoupled", 20.0)], ids=lambda case: str(case))
@catalogue("size", [1.0, 9.0, 15.0, 1000.0])
def test_a_clipped_preset_is_the_other_one_on_clipped_rewards(name: str, bound: float, size: float):
    """OpenRLHF and AReaL clip raw rewards by default, before anything is subtracted or divided."""
    rewards_PG = torch.tensor([[1.0, -0.4, 0.3, 0.0], [-1.0, 0.1, 0.2, 0.5]], dtype=torch.float64) * size
    clipped, plain = preset(f"{name}-clipped", kl_coef=0), preset(name, kl_coef=0)
    torch.testing.assert_close(
        advantages(clipped, rewards_PG), advantages(plain, rewards_PG.clamp(-bound, bound)), rtol=0, atol=0
    )
    assert torch.equal(advantages(clipped, rewards_PG), advantages(plain, rewards_PG)) == (size <= bound)


PREFERENCE_LOSSES = {
    "trl-dpo": ({}, 0.6860067668),
    "trl-ipo": ({}, 24.61853232),
    "openrlhf-ipo": ({}, 25.29),
    "trl-orpo": ({}, 2.076810649),
    "trl-simpo": ({"beta": 2.0, "gamma": 1.0}, 1.022567135),
}


@catalogue("name", PREFERENCE_LOSSES)
def test_the_preference_losses_of_other_libraries(name: str):
    settings, expected = PREFERENCE_LOSSES[name]
    assert P.loss(named(name, **settings)) == pytest.approx(expected, rel=1e-8)


def test_trl_kto():
    assert LabelFixture().evaluate(named("trl-kto")).loss.item() == pytest.approx(0.4962525202, rel=1e-8)


def test_the_target_margin_of_trl_is_not_scaled_by_beta():
    """TRL's simpo_gamma = 0.5 means 0.5 in the loss even if beta = 0.1. The SimPO repository uses a ratio."""
    algorithm = named("trl-simpo")
    assert isinstance(algorithm, SimPO)
    assert algorithm.target_margin == 0.5


def test_a_preset_by_its_name_is_the_algorithm_that_a_config_with_it_has():
    assert set(presets) == {name for name, preset in PRESETS.items() if "algorithm" in preset}
    assert presets["trl-grpo"] == replace(preset("trl-grpo"), max_completion_length=None), (
        "a run fills in max_completion_length"
    )
    assert (presets["trl-dpo"].key, presets["verl-grpo"].key) == ("dpo", "policy_gradient")
    with pytest.raises(KeyError, match=r"(?s)there is no preset 'trl-gpro'.*Did you mean 'trl-grpo'\?"):
        presets["trl-gpro"]
    assert "smoke" not in presets, "smoke only sets sizes"
