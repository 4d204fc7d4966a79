"""Invariances of every preference loss: padding, splits, order, and values hidden by a mask change nothing.

In addition, gradients agree with finite differences, every setting changes what is learned, and every card is complete.
"""

import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields, replace
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.preference_data import NAN, Evaluated, evaluate, random_step
from tests.catalogue import THOROUGH, catalogue, examples
from torch import Tensor

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.base import NEEDS, Algorithm
from posttrain.algorithms.labels import LabelLoss
from posttrain.algorithms.pairs import PairLoss
from posttrain.errors import ConfigError
from posttrain.testing.invariances import merge
from posttrain.types import Batch, Outputs, Totals, count_totals

PREFERENCE_ALGORITHMS = {key: cls for key, cls in ALGORITHMS.items() if issubclass(cls, PairLoss | LabelLoss)}
BETA = {"nca": 0.1, "robust_dpo": 0.1, "sppo": 0.1, "bco": 0.1, "discopop": 0.1}
OTHER_SETTINGS: dict[str, list[dict]] = {
    "dpo": [{"label_smoothing": 0.1, "tail_weight": 0.3}, {"divergence": "forward_kl"}, {"divergence": "alpha"}],
    "length_normalized_dpo": [{"label_smoothing": 0.2}],
    "hinge": [{"label_smoothing": 0.2}],
    "discopop": [{"label_smoothing": 0.2}],
    "ipo": [{"length_average": False}],
    "rpo": [{"nll_normalization": "sequence_mean"}, {"nll_normalization": "sum"}],
    "dpop": [{"beta": 0.1, "penalty": 5.0, "alpha": 1.0}],
    "cpo": [{"nll_normalization": "sequence_mean"}],
    "simpo": [{"gamma": 1.0, "alpha": 0.25}, {"label_smoothing": 0.2}],
    "mpo": [{"nll_normalization": "sum", "bco_weight": 0.0}],
    "orpo": [{"nll_normalization": "sum"}],
    "kto": [{"desirable_weight": 3.0, "undesirable_weight": 0.5}],
    "bco": [{"reduction": "class_means"}],
    "aot": [{"comparison": "unpaired"}, {"label_smoothing": 0.1}],
}
VARIANTS: dict[str, Algorithm] = {
    key: cls(**({"beta": BETA[key]} if key in BETA else {})) for key, cls in PREFERENCE_ALGORITHMS.items()
} | {
    f"{key}-{'-'.join(map(str, given.values()))}": PREFERENCE_ALGORITHMS[key](**given)
    for key, variants in OTHER_SETTINGS.items()
    for given in variants
}
every_variant = catalogue("algorithm", VARIANTS.values(), ids=VARIANTS)
every_class = catalogue("cls", PREFERENCE_ALGORITHMS.values(), ids=PREFERENCE_ALGORITHMS)
few_examples = examples(2, 15)
seeds = st.integers(0, 10_000)


def whole_step(algorithm: Algorithm, seed: int = 0) -> tuple[Tensor, Batch]:
    """Return the log-probabilities and the prepared batch of one optimizer step."""
    logprobs_BT, batch = random_step(algorithm.data_kind, seed)
    return logprobs_BT, algorithm.prepare(batch)


def assert_same(actual: Evaluated, expected: Evaluated, rows: Sequence[int] | None = None) -> None:
    gradient_BT = expected.gradient_BT if rows is None else expected.gradient_BT[list(rows)]
    torch.testing.assert_close(actual.loss, expected.loss, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(actual.gradient_BT, gradient_BT, rtol=1e-11, atol=1e-13)
    assert {n: float(m) for n, m in actual.metrics.items()} == pytest.approx(
        {n: float(m) for n, m in expected.metrics.items()}, rel=1e-10, abs=1e-12
    )


# Splits and order


@few_examples
@given(seed=seeds, owner=st.lists(st.integers(0, 4), min_size=12, max_size=12))
@every_variant
def test_any_split_by_units_sums_to_the_same_loss_gradient_and_metrics(algorithm: Algorithm, seed: int, owner):
    logprobs_BT, batch = whole_step(algorithm, seed)
    whole, totals, units = evaluate(algorithm, logprobs_BT, batch), count_totals(batch), batch.units
    parts = [[row for unit, o in zip(units, owner, strict=False) if o == part for row in unit] for part in range(5)]
    losses, metrics = zip(
        *(algorithm.loss(logprobs_BT[rows], batch.rows(rows), totals) for rows in parts if rows), strict=True
    )
    loss = torch.stack(losses).sum()
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    assert_same(Evaluated(loss, gradient_BT, reduce(merge, metrics)), whole)


@few_examples
@given(seed=seeds, order=st.permutations(range(12)))
@every_variant
def test_the_order_of_rows_does_not_matter(algorithm: Algorithm, seed: int, order: list[int]):
    """This holds for a permutation before `prepare` and for one after it."""
    logprobs_BT, batch = random_step(algorithm.data_kind, seed)
    expected = evaluate(algorithm, logprobs_BT, algorithm.prepare(batch))
    moved_BT = logprobs_BT.detach()[order].requires_grad_()
    assert_same(evaluate(algorithm, moved_BT, algorithm.prepare(batch.rows(order))), expected, order)
    assert_same(evaluate(algorithm, moved_BT, algorithm.prepare(batch).rows(order)), expected, order)


@every_variant
def test_a_loss_without_prepare_takes_its_rows_for_the_whole_step(algorithm: Algorithm):
    logprobs_BT, batch = random_step(algorithm.data_kind, 3)
    unprepared = replace(batch, current_logprobs_BT=None)
    assert_same(
        evaluate(algorithm, logprobs_BT, unprepared), evaluate(algorithm, logprobs_BT, algorithm.prepare(batch))
    )


@every_variant
def test_parts_of_a_step_that_was_not_prepared_give_its_loss_or_are_refused(algorithm: Algorithm):
    logprobs_BT, batch = random_step(algorithm.data_kind, 3)
    unprepared, totals = replace(batch, current_logprobs_BT=None), count_totals(batch)
    half = len(batch.units) // 2
    parts = [[row for unit in units for row in unit] for units in (batch.units[:half], batch.units[half:])]
    try:
        losses = [algorithm.loss(logprobs_BT[rows], unprepared.rows(rows), totals)[0] for rows in parts]
    except ConfigError as error:
        assert "Call algorithm.prepare(batch)" in str(error)  # noqa: PT017
        assert algorithm.key in ("kto", "bco", "aot")
    else:
        torch.testing.assert_close(sum(losses), evaluate(algorithm, logprobs_BT, unprepared).loss, rtol=1e-11, atol=0)


# Padding and masks


def padded(x_BT: Tensor, fill: float) -> Tensor:
    return torch.nn.functional.pad(x_BT, (0, 3), value=fill)


@every_variant
def test_padding_columns_change_nothing(algorithm: Algorithm):
    logprobs_BT, batch = whole_step(algorithm)
    assert batch.ref_logprobs_BT is not None
    wider = replace(
        batch,
        completion_mask_BT=torch.nn.functional.pad(batch.completion_mask_BT, (0, 3)),
        ref_logprobs_BT=padded(batch.ref_logprobs_BT, NAN),
        current_logprobs_BT=None,
    )
    actual = evaluate(algorithm, padded(logprobs_BT.detach(), NAN).requires_grad_(), wider)
    expected = evaluate(algorithm, logprobs_BT, batch)
    assert (actual.gradient_BT[:, -3:] == 0).all()
    assert_same(replace(actual, gradient_BT=actual.gradient_BT[:, :-3]), expected)


@every_variant
def test_a_unit_with_an_empty_row_changes_nothing(algorithm: Algorithm):
    """The unit counts nowhere, neither in `prepare` nor in any denominator."""
    logprobs_BT, batch = random_step(algorithm.data_kind, 0)
    trained_B = batch.completion_mask_BT.any(dim=-1).tolist()
    kept = [row for unit in batch.units if all(trained_B[row] for row in unit) for row in unit]
    assert len(kept) < batch.num_rows
    without = evaluate(algorithm, logprobs_BT.detach()[kept].requires_grad_(), algorithm.prepare(batch.rows(kept)))
    everything = evaluate(algorithm, logprobs_BT, algorithm.prepare(batch))
    dropped = sorted(set(range(batch.num_rows)) - set(kept))
    assert (everything.gradient_BT[dropped] == 0).all()
    assert_same(without, everything, kept)


@every_variant
@catalogue("hidden", [NAN, torch.inf, -torch.inf, 1e30] if THOROUGH else [NAN, 1e30])
def test_what_stands_outside_the_mask_is_never_read(algorithm: Algorithm, hidden: float):
    def with_fill(fill: float) -> Evaluated:
        logprobs_BT, batch = random_step(algorithm.data_kind, 0)
        outside_BT = ~batch.completion_mask_BT
        assert batch.ref_logprobs_BT is not None
        filled_BT = logprobs_BT.detach().masked_fill(outside_BT, fill)
        batch = replace(
            batch, ref_logprobs_BT=batch.ref_logprobs_BT.masked_fill(outside_BT, fill), current_logprobs_BT=filled_BT
        )
        found = evaluate(algorithm, filled_BT.clone().requires_grad_(), algorithm.prepare(batch))
        assert (found.gradient_BT[outside_BT] == 0).all()
        return found

    actual, expected = with_fill(hidden), with_fill(-1.0)
    assert torch.equal(actual.loss, expected.loss)
    assert torch.equal(actual.gradient_BT, expected.gradient_BT)


@every_variant
def test_an_all_masked_step_is_zero_and_not_nan(algorithm: Algorithm):
    logprobs_BT, batch = random_step(algorithm.data_kind, 0)
    batch = replace(batch, completion_mask_BT=torch.zeros_like(batch.completion_mask_BT))
    assert count_totals(batch) == Totals(tokens=0, sequences=0, rows=12)
    step = evaluate(algorithm, logprobs_BT, algorithm.prepare(batch))
    assert step.loss.item() == 0
    assert (step.gradient_BT == 0).all()


# Numerics


@every_variant
@catalogue("difference", [100.0, -100.0])
@catalogue("dtype", [torch.float32, torch.float64] if THOROUGH else [torch.float32])
def test_a_log_ratio_of_100_per_token_stays_finite(algorithm: Algorithm, difference: float, dtype: torch.dtype):
    logprobs_BT, batch = random_step(algorithm.data_kind, 0)
    logprobs_BT = logprobs_BT.detach().to(dtype).requires_grad_()
    sign_B1 = torch.where(torch.arange(12) < 6, 1.0, -1.0)[:, None].to(dtype)
    batch = replace(
        batch,
        ref_logprobs_BT=logprobs_BT.detach() - difference * sign_B1,
        current_logprobs_BT=logprobs_BT.detach(),
        mismatched_log_ratios_B=None if batch.labels_B is None else torch.full((12,), difference, dtype=dtype),
    )
    step = evaluate(algorithm, logprobs_BT, algorithm.prepare(batch))
    assert step.loss.isfinite()
    assert step.gradient_BT.isfinite().all()
    assert all(torch.tensor(float(metric)).isfinite() for metric in step.metrics.values())


@every_variant
def test_gradients_agree_with_finite_differences(algorithm: Algorithm):
    """This is the gradient of the prepared loss: the results of `prepare` are constants."""
    logprobs_BT, batch = whole_step(algorithm, 1)
    gradient_BT, totals = evaluate(algorithm, logprobs_BT, batch).gradient_BT, count_totals(batch)
    scale = gradient_BT.abs().max().item()
    for b, t in (gradient_BT.abs() > 1e-3 * scale).nonzero()[:: 3 if THOROUGH else 10].tolist():
        values = []
        for step in (1e-5, -1e-5):
            moved_BT = logprobs_BT.detach().clone()
            moved_BT[b, t] += step
            values.append(algorithm.loss(moved_BT, batch, totals)[0].item())
        difference = (values[0] - values[1]) / 2e-5
        assert difference == pytest.approx(gradient_BT[b, t].item(), rel=1e-6, abs=1e-6 * scale)


@pytest.mark.parametrize("comparison", ["paired", "unpaired"])
def test_sorting_has_the_gradient_of_the_sorted_loss(comparison: str):
    """A small step does not change the matching, so the loss that sorts again agrees, too."""
    algorithm = PREFERENCE_ALGORITHMS["aot"](comparison=comparison)
    logprobs_BT, batch = random_step("pairs", 1)
    unprepared = replace(batch, current_logprobs_BT=None)
    gradient_BT = evaluate(algorithm, logprobs_BT, unprepared).gradient_BT
    moved_BT = (logprobs_BT + 1e-7 * gradient_BT.sign()).detach()
    before, _ = algorithm.loss(logprobs_BT, unprepared, totals := count_totals(batch))
    after, _ = algorithm.loss(moved_BT, unprepared, totals)
    assert (after - before).item() == pytest.approx(1e-7 * gradient_BT.abs().sum().item(), rel=1e-4)


@every_variant
def test_only_the_outputs_carry_gradient(algorithm: Algorithm):
    logprobs_BT, batch = random_step(algorithm.data_kind, 0)
    constants = [batch.ref_logprobs_BT, batch.current_logprobs_BT]
    if batch.mismatched_log_ratios_B is not None:
        constants.append(batch.mismatched_log_ratios_B)
    for constant in constants:
        assert constant is not None
        constant.requires_grad_()
    loss, _ = algorithm.loss(logprobs_BT, algorithm.prepare(batch), count_totals(batch))
    assert all(g is None for g in torch.autograd.grad(loss, constants, allow_unused=True))  # type: ignore[arg-type]


@every_variant
def test_no_argument_is_changed(algorithm: Algorithm):
    logprobs_BT, batch = random_step(algorithm.data_kind, 0)
    before = {f.name: getattr(batch, f.name) for f in fields(batch)}
    copies = {name: value.clone() for name, value in before.items() if isinstance(value, Tensor)}
    evaluate(algorithm, logprobs_BT, algorithm.prepare(batch))
    for name, copy in copies.items():
        torch.testing.assert_close(before[name], copy, rtol=0, atol=0, equal_nan=True)


# What is declared

ANOTHER = {
    "beta": 0.7,
    "label_smoothing": 0.3,
    "divergence": "jensen_shannon",
    "alpha": 0.25,
    "tail_weight": 0.5,
    "tau": 0.7,
    "length_average": False,
    "nll_normalization": "sum",
    "penalty": 3.0,
    "gamma": 1.5,
    "gamma_beta_ratio": 0.9,
    "desirable_weight": 2.0,
    "undesirable_weight": 2.0,
    "reduction": "class_means",
    "comparison": "unpaired",
    "dpo_weight": 2.0,
    "bco_weight": 2.0,
}
READ_ONLY_WITH = {("dpo", "alpha"): {"divergence": "alpha"}, ("dpop", "nll_normalization"): {"alpha": 1.0}}


@catalogue(
    "cls, setting",
    [(cls, f.name) for cls in PREFERENCE_ALGORITHMS.values() for f in fields(cls)],  # type: ignore[arg-type]
    ids=lambda case: f"{case[0].key}.{case[1]}",
)
def test_every_setting_changes_what_is_learnt(cls: type[Algorithm], setting: str):
    given = READ_ONLY_WITH.get((cls.key, setting), {})
    logprobs_BT, batch = random_step(cls.data_kind, 5)
    before, after = (
        evaluate(algorithm, logprobs_BT, algorithm.prepare(batch)).gradient_BT
        for algorithm in (cls(**given), cls(**given, **{setting: ANOTHER[setting]}))
    )
    assert not torch.allclose(before, after, rtol=1e-3, atol=0)


@every_class
def test_a_class_is_found_under_its_own_key_and_its_settings_are_frozen(cls: type[Algorithm]):
    algorithm = cls()
    assert PREFERENCE_ALGORITHMS[cls.key] is cls
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert hash(algorithm) == hash(cls())
    with pytest.raises(FrozenInstanceError):
        algorithm.beta = 0.3  # type: ignore[attr-defined]


@every_class
def test_cards_are_complete(cls: type[Algorithm]):
    assert cls.data_kind in ("pairs", "labels")
    assert cls().needs <= NEEDS.keys()
    assert list(cls.card.choices) == ["score", "reference", "margin", "link", "extra"]
    assert (cls.card.choices["reference"] == "no") == ("reference" not in cls().needs)
    for text in (cls.card.title, cls.card.paper, cls.card.summary, cls.card.use_when, cls.card.avoid_when):
        assert text
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    assert list(cls.card.sources) == names
    for name in names:
        assert cls.__pydantic_fields__[name].description, name  # type: ignore[attr-defined]


@every_class
def test_each_logged_metric_has_a_formula_and_each_formula_is_logged(cls: type[Algorithm]):
    logprobs_BT, batch = random_step(cls.data_kind, 0)
    outputs = Outputs(logprobs_BT, entropy_BT=torch.ones_like(logprobs_BT))
    _, metrics = cls().loss(outputs, cls().prepare(batch), count_totals(batch))
    assert cls.card.metrics.keys() == metrics.keys()


def test_a_sum_per_answer_in_place_of_its_tokens_is_refused():
    """Broadcast over the tokens it would give a different loss."""
    mask_BT = torch.ones(4, 3, dtype=torch.bool)
    whole_BT = -torch.ones(4, 3)
    for build in (Batch.from_pairs, lambda mask, ref: Batch.from_labels(mask, torch.ones(4), ref)):
        with pytest.raises(ValueError, match=r"ref_logprobs_BT has shape \[4, 1\], but completion_mask_BT \[4, 3\]"):
            build(mask_BT, whole_BT[:, :1])
    batch = Batch.from_pairs(mask_BT, whole_BT)
    with pytest.raises(ValueError, match=r"logprobs_BT has shape \[4\], but completion_mask_BT \[4, 3\]"):
        PREFERENCE_ALGORITHMS["dpo"]().loss(whole_BT.sum(-1), batch, count_totals(batch))
