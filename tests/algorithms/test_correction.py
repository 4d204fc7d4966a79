"""Off-policy correction: the worked numbers, the limits, the refusals and the reported metrics."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from tests.catalogue import catalogue
from tests.worked_examples import pad
from torch import Tensor

from posttrain.algorithms import GRPO, REINFORCE, RLOO, PolicyGradient
from posttrain.algorithms.base import Card
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.off_policy.names import NAMED, CorrectionName
from posttrain.algorithms.off_policy.rules import Rule
from posttrain.algorithms.settings import settings
from posttrain.algorithms.shared import advantages_of, weighted
from posttrain.errors import ConfigError
from posttrain.functional.ratios import clipped_surrogate, token_ratio
from posttrain.functional.reductions import token_mean
from posttrain.types import Batch, Metrics, Outputs, Totals, count_totals

SAMPLING = pad(((-0.52, -1.10, -0.30), (-2.60, -0.70), (-0.12, -1.45, -0.95, -0.38), (-3.40,)))
"""Log-probabilities of fixture T under the sampler."""
WEIGHTS = [[1.02020134, 0.904837418, 1], [1.8221188, 1], [1.02020134, 0.9512294245, 1.051271096, 0.9801986733]]
FULL_GRADIENT = [
    [-0.1287009818, 0, -0.1085804902],
    [0, 0.07736196427],
    [-0.04163243097, -0.02963272883, -0.04885611033, -0.03920794693],
    [2.019560705],
]


@settings
class TokenMean(PolicyGradient):
    """PPO with a clip of 0.2, averaged over the tokens of the step. The worked numbers were computed with it."""

    key = "token_mean"
    card = Card(title="", paper="", summary="", choices={}, use_when="", avoid_when="")

    @property
    def needs(self):
        return frozenset({"old"}) | self.common_needs()

    def loss(self, outputs, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        outputs, batch = self.start(outputs, batch)
        ratio_BT = token_ratio(outputs.logprobs_BT, batch.old_logprobs_BT)
        loss_BT = clipped_surrogate(ratio_BT, advantages_of(batch), 0.2, 0.2)
        loss = token_mean(weighted(loss_BT, batch), batch.completion_mask_BT, totals.tokens)
        return self.finish(loss, outputs, batch, totals)


def sampled(t, sampling_BT: Tensor = SAMPLING) -> Batch:
    return replace(t.batch(), sampling_logprobs_BT=sampling_BT)


def evaluate(t, algorithm: PolicyGradient, batch: Batch | None = None) -> tuple[float, Tensor, Metrics]:
    logprobs_BT, batch = t.logprobs_BT, algorithm.prepare(sampled(t) if batch is None else batch)
    loss, metrics = algorithm.loss(logprobs_BT, batch, count_totals(batch))
    return loss.item(), torch.autograd.grad(loss, logprobs_BT)[0], metrics


def loss_of(t, **correction) -> float:
    return evaluate(t, TokenMean(correction=Correction(**correction)))[0]


# The three modes


def test_uncorrected(t):
    for correction in ("none", "auto"):  # outside of a run, nothing tells how the sampler computes
        assert evaluate(t, TokenMean(correction=correction))[0] == pytest.approx(0.146589988, rel=1e-8)


def test_decoupled_with_the_full_weight(t, assert_ragged):
    """Only the ratio to the anchor carries a gradient. The weight to the sampler is outside the clip."""
    loss, gradient_BT, _ = evaluate(t, TokenMean(correction=Correction(action="full")))
    assert loss == pytest.approx(1.672054045, rel=1e-8)
    assert_ragged(gradient_BT, FULL_GRADIENT)


def test_decoupled_keeps_what_is_below_5(t):
    assert evaluate(t, TokenMean(correction="decoupled"))[0] == pytest.approx(1.672054045, rel=1e-8)


def test_bypass_clips_the_ratio_to_the_sampler(t):
    algorithm = TokenMean(correction="bypass")
    assert evaluate(t, algorithm)[0] == pytest.approx(1.642666284, rel=1e-8)
    _, batch = algorithm.start(t.logprobs_BT, sampled(t))
    ratios = [
        [1.072508181, 1.221402758, 0.904837418],
        [1.221402758, 1.105170918],
        [1.040810774, 0.7408182207, 1.221402758, 0.9801986733],
        [13.46373804],
    ]
    ratio_BT = (t.logprobs_BT - batch.old_logprobs_BT).exp()
    torch.testing.assert_close(ratio_BT[t.mask_BT], pad(ratios)[t.mask_BT], rtol=1e-8, atol=0)


def test_reinforce_weighs_the_present_policy_against_the_sampler(t):
    """-sg[min(product of policy / sampler, 2)] A logprobs, summed over each completion."""
    algorithm = REINFORCE(correction=Correction(anchor="sampler", level="sequence", high=2))
    assert evaluate(t, algorithm)[0] == pytest.approx(-0.4113021558, rel=1e-8)
    _, batch = algorithm.start(t.logprobs_BT, sampled(t))
    assert batch.correction_BT[:, 0].tolist() == pytest.approx([1.185304851, 1.349858808, 0.9231163464, 2], rel=1e-8)


# Weights and masks


def test_worked_truncation(t, assert_ragged):
    loss, gradient_BT, _ = evaluate(t, TokenMean(correction="tis"))
    assert loss == pytest.approx(0.7532823402, rel=1e-8)
    assert_ragged(gradient_BT, [*FULL_GRADIENT[:3], [1.100789]])
    _, batch = TokenMean(correction="tis").start(t.logprobs_BT, sampled(t))
    torch.testing.assert_close(batch.correction_BT[t.mask_BT], pad([*WEIGHTS, [2]])[t.mask_BT], rtol=1e-8, atol=0)


WORKED = [
    (Correction(high=2, normalize=True), 0.6410881838),
    (Correction(low=0.5, high=2), 0.7532823402),
    (Correction(action="mask", low=0.5, high=5), 1.672054045),
    (Correction(action="mask", low=0.5, high=2), -0.3475066601),
    (Correction(action="mask", low=0.5, high=2, rejected_in_denominator=False), -0.3861185112),
    (Correction(action="reject", low=0.5, high=2), -0.4038045121),
    (Correction(action="reject", low=0.5, high=2, rejected_in_denominator=False), -0.4486716801),
    (Correction(level="sequence", high=2), 0.8357422447),
    (Correction(level="sequence", action="mask", high=2), -0.2650467556),
    (Correction(level="sequence", action="mask", high=3), -0.2650467556),
    (Correction(action="mask", score="geometric", low=0.5, high=1.5), -0.3475066601),
    (Correction(action="mask", score="binary_kl", high=0.03), -0.3475066601),
]


@catalogue("correction, expected", WORKED)
def test_worked_losses(t, correction: Correction, expected: float):
    assert evaluate(t, TokenMean(correction=correction))[0] == pytest.approx(expected, rel=1e-8)


@catalogue("correction, expected", WORKED)
def test_worked_losses_in_float32(t, correction: Correction, expected: float):
    batch = sampled(t)
    single = {
        name: getattr(batch, name).float()
        for name in ("advantages_BT", "old_logprobs_BT", "ref_logprobs_BT", "sampling_logprobs_BT")
    }
    algorithm = TokenMean(correction=correction)
    batch = algorithm.prepare(replace(batch, **single))
    loss, _ = algorithm.loss(t.logprobs_BT.float(), batch, count_totals(batch))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


OTHER_SCORES = {
    "token_k2": (0.1, [[1, 1, 1], [0, 1], [1, 1, 1, 1], [0]]),
    "token_k3": (0.3, [[1, 1, 1], [1, 1], [1, 1, 1, 1], [0]]),
    "sum_k2": (0.004, [[0] * 3, [0] * 2, [1] * 4, [0]]),
    "sum_k3": (0.004, [[0] * 3, [0] * 2, [1] * 4, [0]]),
    "mean_k2": (0.1, [[1] * 3, [1] * 2, [1] * 4, [0]]),
    "max_k2": (0.004, [[0] * 3, [0] * 2, [1] * 4, [0]]),
    "max_k3": (0.3, [[1] * 3, [1] * 2, [1] * 4, [0]]),
    "total_variation": (0.05, [[1, 1, 1], [0, 1], [1, 1, 1, 1], [0]]),
    "mean_total_variation": (0.05, [[1] * 3, [1] * 2, [1] * 4, [0]]),
    "binary_kl": (0.012, [[1, 1, 1], [0, 1], [1, 1, 1, 1], [0]]),
    "mean_binary_kl": (0.012, [[1] * 3, [1] * 2, [1] * 4, [0]]),
}
"""delta is 0.02, -0.1, 0 | 0.6, 0 | 0.02, -0.05, 0.05, -0.02 | 1.3: k2 is at most 0.005, 0.18, 0.00125 and 0.845, and
its sums are 0.0052, 0.18, 0.0029 and 0.845. |p - q| is 0.0891 for the last completion, 0.0611 and 0 for the second and
at most 0.0317 for the others. The larger binary KL is 0.0743 for the last, 0.0222 and 0 for the second, and at most
0.0023 for the others."""


@catalogue(
    "correction, kept",
    [
        (Correction(action="reject", low=1 / 1.5, high=1 / 0.5), [[1, 1, 1], [1, 1], [1, 1, 1, 1], [0]]),
        (Correction(level="geometric", action="reject", low=1 / 1.5, high=1 / 0.5), [[1] * 3, [1] * 2, [1] * 4, [0]]),
        (Correction(action="reject", score="mean_k3", high=0.01), [[1] * 3, [0] * 2, [1] * 4, [0]]),
        *((Correction(action="reject", score=s, high=high), kept) for s, (high, kept) in OTHER_SCORES.items()),
    ],
    ids=["token_k1 0.5_1.5", "seq_mean_k1 0.5_1.5", "seq_mean_k3 0.01", *OTHER_SCORES],
)
def test_rejection_as_verl_names_it(t, correction: Correction, kept: list[list[float]]):
    """verl bounds sampler / trainer, so its bounds are the reciprocals of these."""
    _, batch = TokenMean(correction=correction).start(t.logprobs_BT, sampled(t))
    assert torch.equal(batch.correction_BT[t.mask_BT], pad(kept)[t.mask_BT])


def test_the_kl_term_is_not_weighted(t):
    def kl_part(correction) -> float:
        return evaluate(t, GRPO(correction=correction, kl_coef=1.0))[0] - evaluate(t, GRPO(correction=correction))[0]

    assert kl_part("tis") == pytest.approx(kl_part("none"), rel=1e-12)


# A-3PO and M2PO


def test_an_anchor_between_sampler_and_policy_by_age():
    batch = Batch(
        completion_mask_BT=torch.ones(1, 4, dtype=torch.bool),
        advantages_BT=torch.ones(1, 4, dtype=torch.float64),
        sampling_logprobs_BT=torch.full((1, 4), -1.0, dtype=torch.float64),
        versions_BT=torch.tensor([[3, 5, 6, 4]]),
        version=5,  # the update produces version 6
        groups_B=torch.zeros(1, dtype=torch.long),
    )
    _, batch = TokenMean(correction="a3po").start(torch.full((1, 4), -0.4, dtype=torch.float64), batch)
    assert batch.old_logprobs_BT.tolist()[0] == pytest.approx([-0.6, -1, -1, -0.7], rel=1e-12)
    assert batch.correction_BT.tolist()[0] == pytest.approx([math.exp(0.4), 1, 1, math.exp(0.3)], rel=1e-12)


def test_an_anchor_by_age_without_versions_is_refused(t):
    with pytest.raises(ConfigError, match=r"(?s)which policy version sampled each token.*correction = decoupled"):
        evaluate(t, TokenMean(correction="a3po"))


def test_the_largest_log_ratios_leave_until_the_second_moment_is_small():
    """The squares are 1.69, 0.25, 0.04, 0.01, 0.0025 and 0. The first two are dropped. The rest has mean 0.013125."""
    delta_BT = torch.tensor([[1.69, 0.25, 0.04], [0.01, 0.0025, 0.0]], dtype=torch.float64).sqrt()
    batch = Batch(
        completion_mask_BT=torch.ones(2, 3, dtype=torch.bool),
        old_logprobs_BT=delta_BT - 3,
        sampling_logprobs_BT=torch.full((2, 3), -3.0, dtype=torch.float64),
        groups_B=torch.zeros(2, dtype=torch.long),
    )
    kept_BT = GRPO(correction="m2po").prepare(batch).correction_BT != 0
    assert kept_BT.tolist() == [[False, False, True], [True, True, True]]
    assert delta_BT[kept_BT].square().mean().item() == pytest.approx(0.013125, rel=1e-8)
    near = replace(batch, old_logprobs_BT=delta_BT / 10 - 3)
    assert (GRPO(correction="m2po").prepare(near).correction_BT != 0).all(), "already below the bound"


# Limits


@catalogue("name", get_args(CorrectionName))
def test_a_sampler_that_agrees_with_the_trainer_needs_no_correction(t, name: CorrectionName):
    for plain in (GRPO(kl_coef=0.1), RLOO(), TokenMean()):
        if name in ("bypass",) and "old" not in plain.needs:
            continue
        batch = replace(sampled(t, t.old_BT), versions_BT=torch.zeros(4, 4, dtype=torch.long), version=0)
        expected, expected_BT, _ = evaluate(t, plain, batch)
        loss, gradient_BT, metrics = evaluate(t, replace(plain, correction=name), batch)
        assert loss == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=0)
        assert float(metrics.get("is/masked_fraction", torch.zeros(()))) == 0


def test_decoupled_ppo_anchored_at_the_sampler_is_ppo(t):
    """If the anchor is the sampler, the weight is 1, and the clip is around the sampler, like in bypass."""
    at_sampler = replace(sampled(t), old_logprobs_BT=SAMPLING)
    expected, expected_BT, _ = evaluate(t, TokenMean(correction="bypass"))
    for correction in ("none", "decoupled"):
        loss, gradient_BT, _ = evaluate(t, TokenMean(correction=correction), at_sampler)
        assert loss == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=0)


def test_truncation_far_away_is_the_full_weight(t):
    assert loss_of(t, high=1e9) == pytest.approx(loss_of(t, action="full"), rel=1e-12)


def test_on_policy_the_gradient_is_the_truncated_weight_times_the_advantage(t):
    """With one update per batch there are no old log-probabilities: the policy's own take their place."""
    batch = replace(sampled(t), old_logprobs_BT=None)
    _, gradient_BT, _ = evaluate(t, TokenMean(correction="tis"), batch)
    weight_BT = (t.logprobs_BT.detach() - SAMPLING).exp().clamp(max=2)
    expected_BT = -weight_BT * t.advantages_BT / 10
    torch.testing.assert_close(gradient_BT[t.mask_BT], expected_BT[t.mask_BT], rtol=1e-12, atol=0)


@catalogue("unreported", [math.nan, math.inf, -math.inf])
@catalogue("name", [name for name in NAMED if name != "a3po"])
def test_a_token_that_the_sampler_did_not_report_has_ratio_1_and_is_counted(t, name, unreported: float):
    sampling_BT, agreeing_BT = SAMPLING.clone(), SAMPLING.clone()
    sampling_BT[0, 1] = unreported
    agreeing_BT[0, 1] = (t.logprobs_BT if name == "bypass" else t.old_BT)[0, 1].item()
    loss, gradient_BT, metrics = evaluate(t, TokenMean(correction=name), sampled(t, sampling_BT))
    expected, expected_BT, _ = evaluate(t, TokenMean(correction=name), sampled(t, agreeing_BT))
    assert loss == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-12, atol=0)
    assert float(metrics["mismatch/unreported_fraction"]) == pytest.approx(0.1)
    assert all(math.isfinite(float(metric)) for metric in metrics.values())


def test_padding_is_no_certainty(t):
    """A log-probability of 0 or nan in padding must not reach KPop's logarithms."""
    for fill in (0.0, math.nan, math.inf):
        batch = sampled(t, SAMPLING.nan_to_num(nan=fill, posinf=math.inf))
        batch = replace(batch, old_logprobs_BT=t.old_BT.nan_to_num(nan=fill, posinf=math.inf))
        loss, gradient_BT, _ = evaluate(
            t, TokenMean(correction=Correction(action="mask", score="binary_kl", high=0.03)), batch
        )
        assert loss == pytest.approx(-0.3475066601, rel=1e-8)
        assert gradient_BT.isfinite().all()


# Metrics


def test_worked_diagnostics(t):
    """The diagnostics describe the raw difference, whatever the correction then does."""
    expected = {
        "mismatch/kl": -0.182,
        "mismatch/k3": 0.159935476,
        "mismatch/abs_mean": 0.216,
        "mismatch/abs_max": 1.3,
        "mismatch/chi2_token": 1.465500503,
        "mismatch/chi2_seq": 3.658999687,
        "mismatch/ppl_ratio": 0.7600938555,
        "mismatch/unreported_fraction": 0,
    }
    for correction in ("none", "tis", "icepop", Correction(action="mask", high=2, rejected_in_denominator=False)):
        _, _, metrics = evaluate(t, TokenMean(correction=correction))
        assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Correction(action="full"), {"is/ess_fraction": 7.303956415 / 10, "is/truncated_fraction": 0}),
        (Correction(high=2), {"is/ess_fraction": 0.9088370653, "is/truncated_fraction": 0.1, "is/masked_fraction": 0}),
        (Correction(level="sequence", action="full"), {"is/ess_fraction": 2.94995094 / 4}),
        (Correction(level="sequence", high=2), {"is/truncated_fraction": 0.25}),
        (Correction(action="mask", low=0.5, high=2), {"is/masked_fraction": 0.1, "is/truncated_fraction": 0}),
    ],
)
def test_worked_shares(t, correction: Correction, expected: dict[str, float]):
    _, _, metrics = evaluate(t, TokenMean(correction=correction))
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-8)


def test_the_effective_sample_size_is_that_of_the_step_and_no_mean_of_parts(t):
    algorithm, batch = TokenMean(correction="tis"), sampled(t)
    parts = [
        algorithm.loss(Outputs(t.logprobs_BT[rows]), batch.rows(rows), t.totals)[1]["is/ess_fraction"]
        for rows in ([0, 1, 2], [3])
    ]
    assert [float(part) for part in parts] == pytest.approx([0.9443, 1.0], abs=0.01)
    assert float(parts[0].merge(parts[1])) == pytest.approx(0.9088370653, rel=1e-8)


def test_every_metric_has_a_formula(t):
    _, _, metrics = evaluate(t, TokenMean(correction="tis"))
    assert {*metrics, "kl", "entropy"} == set(TokenMean.shared_metrics), "this batch has no reference and no entropy"


# What the machinery must provide


@catalogue(
    "correction, needs",
    [
        ("tis", {"old"}),
        ("bypass", {"old"}),
        ("m2po", {"old", "old_for_advantages"}),
        (Correction(high=2, normalize=True), {"old", "old_for_advantages"}),
        (Correction(action="mask", high=2, rejected_in_denominator=False), {"old", "old_for_advantages"}),
        (Correction(anchor="loglinear", high=2, normalize=True), {"old", "current"}),
    ],
)
def test_weights_that_depend_on_each_other_need_a_look_before_the_update(correction, needs: set[str]):
    assert GRPO(correction=correction).needs == needs


@pytest.mark.parametrize(("name", "at_trainer"), [("tis", True), ("none", True), ("bypass", False), ("a3po", False)])
def test_only_an_anchor_at_the_trainer_needs_its_pass(name, at_trainer: bool):
    assert GRPO(correction=name).anchors_at_trainer is at_trainer


def test_coupled_weights_without_a_look_take_the_given_rows_for_the_whole_update(t):
    batch = replace(sampled(t), old_logprobs_BT=None, current_logprobs_BT=None)
    algorithm = TokenMean(correction=Correction(high=2, normalize=True))
    _, started = algorithm.start(t.logprobs_BT, algorithm.prepare(batch))
    assert started.correction_BT[t.mask_BT].mean().item() == pytest.approx(1, rel=1e-12)


# Names and refusals


def test_every_name_stands_for_something():
    assert {"auto", "none", *NAMED} == set(get_args(CorrectionName))


@catalogue(
    "given, message",
    [
        ({"high": -1}, r"correction.high = -1; allowed: greater than 0"),
        ({"hihg": 2}, r"(?s)no setting 'hihg'.*Did you mean 'high'"),
        ({"level": "word"}, r"correction.level = 'word'; allowed: 'token', 'sequence' or 'geometric'"),
        ({}, r"(?s)low = None, high = None; allowed: low, high or both.*Set high = 2"),
        ({"low": 3, "high": 2}, r"low = 3.0, high = 2.0; allowed: low below high"),
        ({"action": "full", "high": 2}, r"(?s)low, high and score only with.*Set action = truncate"),
        ({"high": 2, "score": "geometric"}, r"(?s)score = geometric.*Set action = mask"),
        ({"action": "mask", "score": "binary_kl", "low": 0.1}, r"(?s)high without low.*Set high = 0.1"),
        ({"action": "mask", "score": "token", "level": "sequence", "high": 2}, r"only with level token"),
        ({"high": 2, "rejected_in_denominator": False}, r"nothing is rejected"),
        ({"action": "none", "anchor": "sampler", "normalize": True}, r"normalize only with a weight"),
        ({"action": "none"}, r"(?s)these settings correct nothing.*Set correction = none"),
        ({"high": True}, r"a number, not true or false"),
    ],
)
def test_a_correction_that_cannot_be_meant_is_refused(given: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        GRPO(correction=given)


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)grpo.correction = 'tiss'; allowed: 'auto', 'none', 'tis'"):
        GRPO(correction="tiss")


def test_a_ratio_to_the_sampler_takes_no_weight_as_well():
    with pytest.raises(ConfigError, match=r"(?s)anchor = sampler, action = truncate.*count trainer / sampler twice"):
        GRPO(correction={"anchor": "sampler", "high": 2})
    REINFORCE(correction={"anchor": "sampler", "high": 2})  # has no ratio, so here the weight is the ratio


def test_an_anchor_for_a_ratio_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)without a ratio.*Set correction = {anchor: sampler, high: 2}"):
        REINFORCE(correction="bypass")
    REINFORCE(correction="bypass", clip_low=0.2, clip_high=0.2)


def test_a_correction_without_the_samplers_numbers_is_refused(t):
    with pytest.raises(ConfigError, match=r"(?s)no log-probabilities of the sampler.*set correction = none"):
        evaluate(t, GRPO(correction="tis"), t.batch())


@pytest.mark.parametrize(
    ("level", "weights_B"), [("sequence", [4 / 3, 2 / 3]), ("geometric", [4 / 3, 2 / 3]), ("token", [10 / 9, 5 / 9])]
)
def test_normalised_weights_have_mean_1_over_what_has_a_weight(level, weights_B):
    """Weights 2 and 1 belong to completions of four tokens and one. Their mean is 3/2 per completion, 9/5 per token."""
    mask_BT = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    per_token = {"sequence": math.log(2) / 4}.get(level, math.log(2))
    sampling_BT = torch.tensor([[-per_token] * 4, [0.0] * 4, [-3.0] * 4], dtype=torch.float64)
    batch = Batch(
        completion_mask_BT=mask_BT,
        advantages_BT=torch.ones(3, 4, dtype=torch.float64),
        old_logprobs_BT=torch.zeros(3, 4, dtype=torch.float64),
        sampling_logprobs_BT=sampling_BT,
        groups_B=torch.arange(3),
    )
    algorithm = REINFORCE(correction=Correction(level=level, high=10, normalize=True))
    prepared = algorithm.prepare(batch)
    assert prepared.correction_BT is not None
    assert prepared.correction_BT[:2, 0].tolist() == pytest.approx(weights_B, rel=1e-12)
    assert prepared.correction_BT[2].tolist() == [1.0] * 4, "rows without trained tokens keep a weight of 1"


def test_weights_and_several_rules_act_at_once(t):
    """Weights are truncated, a completion with a geometric mean out of bounds is dropped, and one token is dropped."""
    rules = (Rule(score="geometric", low=0.9, high=1.4), Rule(score="token_k2", high=0.1))
    _, batch = TokenMean(correction=Correction(high=1.01, reject=rules)).start(t.logprobs_BT, sampled(t))
    expected = pad([[1.01, 0.904837418, 1], [0, 1], [1.01, 0.9512294245, 1.01, 0.9801986733], [0]])
    torch.testing.assert_close(batch.correction_BT[t.mask_BT], expected[t.mask_BT], rtol=1e-8, atol=0)
    alone = TokenMean(correction=Correction(action="none", reject=rules)).start(t.logprobs_BT, sampled(t))[1]
    assert torch.equal(alone.correction_BT[t.mask_BT], (expected > 0)[t.mask_BT].double()), "rules without a weight"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"score": "sum_k3", "low": 0.1}, "high without low: a divergence is never negative"),
        ({"score": "token"}, "allowed: low or high"),
        ({"score": "weight", "high": 2}, "correction.reject.score = 'weight'"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        Rule(**given)
    with pytest.raises(ConfigError):
        GRPO(correction={"high": 2, "reject": [given]})  # type: ignore[arg-type]
