"""A tensor of the wrong shape is refused at every entry. Broadcast, it would give a wrong loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.algorithms.test_invariances import TRIED
from tests.algorithms.test_preference_invariances import VARIANTS as PREFERENCE_LOSSES
from tests.algorithms.variants import VARIANTS
from tests.catalogue import THOROUGH, catalogue
from torch import Tensor

from posttrain.algorithms import GRPO, RLOO, PolicyGradient
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.errors import ConfigError
from posttrain.testing.steps import make_batch, make_experience, make_outputs
from posttrain.types import Batch, Experience, Mismatched, Outputs, Tokens, count_totals

B, T, P, G, K = 4, 4, 2, 2, 2
SIZES = {"B": B, "T": T, "P": P, "G": G, "K": K}  # B = T and P = G = K, so that a transposed tensor has the right sizes
PLAIN = [name for name in VARIANTS if THOROUGH or " " not in name]
"""Every algorithm, in `make test-slow` in all variants: what refuses outputs and rewards is the same code in them."""


def shaped(record: type) -> dict[str, str]:
    """Return field -> the letters of its shape."""
    letters = {field.name: field.name.rpartition("_")[2] for field in fields(record)}
    return {name: suffix for name, suffix in letters.items() if set(suffix) <= set(SIZES)}


def right(letters: str) -> Tensor:
    return torch.ones([SIZES[letter] for letter in letters])


def wrong_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield wrong shapes: a scalar, a dimension fewer or more, and each dimension set to 1, longer or shorter."""
    yield ()
    yield (*shape, 1)
    yield (1, *shape)
    for i, size in enumerate(shape):
        yield (*shape[:i], *shape[i + 1 :])
        for other in (1, size + 1, size - 1):
            yield (*shape[:i], other, *shape[i + 1 :])


def wrong(x: Tensor) -> Iterator[Tensor]:
    for shape in dict.fromkeys(wrong_shapes(tuple(x.shape))):
        if shape != tuple(x.shape):
            yield torch.ones(shape, dtype=x.dtype)


RECORDS: dict[type, Callable[..., Any]] = {
    Experience: lambda **given: Experience.from_rewards(given.pop("rewards_PG"), **given),
    Batch: Batch,
    Mismatched: lambda **given: Mismatched(tokens=Tokens(input_ids_BT=right("BT"), lengths_B=right("B")), **given),
    Outputs: lambda **given: Outputs.of(
        Outputs(**given), Batch(completion_mask_BT=right("BT"), groups_B=torch.arange(B))
    ),
}
CAST = {"chosen_B": torch.tensor([True, True, False, False])}


@catalogue("record", RECORDS)
def test_every_tensor_of_every_record_must_have_its_shape(record):
    given = {name: CAST.get(name, right(letters)) for name, letters in shaped(record).items()}
    assert len(given) >= 2
    RECORDS[record](**given)
    for name, x in given.items():
        for other in wrong(x):
            with pytest.raises(ValueError, match=rf"{name} .*shape|completion_mask_BT|rewards_PG|reward_weights_K"):
                RECORDS[record](**{**given, name: other})


def test_the_message_names_both_shapes_and_what_is_needed():
    with pytest.raises(ValueError, match=r"old_logprobs_BT has shape \[4, 1\], but completion_mask_BT \[4, 4\]: one n"):
        Experience.from_rewards(right("PG"), completion_mask_BT=right("BT"), old_logprobs_BT=torch.ones(4, 1))
    with pytest.raises(ValueError, match="values_BT is list, but must be a tensor"):
        Experience.from_rewards(right("PG"), completion_mask_BT=right("BT"), values_BT=[[1.0]])  # type: ignore[arg-type]


BUILDERS: dict[str, tuple[Callable[..., Batch], dict[str, str]]] = {
    "from_pairs": (Batch.from_pairs, {"completion_mask_BT": "BT", "ref_logprobs_BT": "BT"}),
    "from_labels": (
        Batch.from_labels,
        {"completion_mask_BT": "BT", "labels_B": "B", "ref_logprobs_BT": "BT", "mismatched_log_ratios_B": "B"},
    ),
    "from_ratings": (Batch.from_ratings, {"completion_mask_BT": "BT", "targets_B": "B"}),
    "from_steps": (Batch.from_steps, {"completion_mask_BT": "BT", "targets_BT": "BT"}),
}


@catalogue("name", BUILDERS)
def test_every_way_to_build_a_batch_refuses_other_shapes(name):
    build, letters = BUILDERS[name]
    given = {argument: right(shape) for argument, shape in letters.items()}
    build(**given)
    for argument, x in given.items():
        for other in wrong(x):
            if name == "from_ratings" and other.dim() == 2 and len(other) == B:
                continue  # nothing else tells the number of tokens
            with pytest.raises(ValueError, match=r"shape|rows"):
                build(**{**given, argument: other})
    experience = Experience.from_rewards(right("PG"), completion_mask_BT=right("BT"))
    for other in wrong(right("BT")):
        with pytest.raises(ValueError, match="advantages_BT"):
            Batch.from_experience(experience, other)


@catalogue("name", PLAIN)
def test_every_policy_gradient_refuses_outputs_of_another_shape(name):
    algorithm, experience = VARIANTS[name], make_experience()
    batch, outputs = make_batch(algorithm, experience), make_outputs(experience)
    totals = count_totals(batch)
    algorithm.loss(outputs, batch, totals)
    for field in ("logprobs_BT", "entropy_BT", "values_BT"):
        for other in wrong(getattr(outputs, field)):
            with pytest.raises(ValueError, match=f"{field} has shape"):
                algorithm.loss(replace(outputs, **{field: other}), batch, totals)


@catalogue("name", PREFERENCE_LOSSES)
def test_every_preference_loss_refuses_outputs_of_another_shape(name):
    algorithm, ones_BT = PREFERENCE_LOSSES[name], torch.ones(B, T)
    batch = Batch.from_pairs(ones_BT, -ones_BT)
    if algorithm.data_kind == "labels":
        batch = Batch.from_labels(ones_BT, CAST["chosen_B"], -ones_BT, torch.zeros(B))
    batch = algorithm.prepare(replace(batch, current_logprobs_BT=-ones_BT))
    outputs = Outputs(logprobs_BT=-ones_BT, entropy_BT=ones_BT)
    algorithm.loss(outputs, batch, count_totals(batch))
    for field in ("logprobs_BT", "entropy_BT"):
        for other in wrong(ones_BT):
            with pytest.raises(ValueError, match=f"{field} has shape"):
                algorithm.loss(replace(outputs, **{field: other}), batch, count_totals(batch))


# Masks of numbers, and batches without tokens or prompts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_a_mask_of_ones_and_zeros_is_a_mask(dtype):
    experience = make_experience()
    given: dict[str, Any] = {field.name: getattr(experience, field.name) for field in fields(experience)}
    masks = {name: given[name].to(dtype) for name in ("completion_mask_BT", "scored_PG", "truncated_PG")}
    rewards_PG = given.pop("rewards_PG")
    numbers = Experience.from_rewards(rewards_PG, **{**given, **masks})
    for name in masks:
        assert torch.equal(getattr(numbers, name), getattr(experience, name))
    batch = make_batch(GRPO(), experience)
    assert count_totals(replace(batch, completion_mask_BT=batch.completion_mask_BT.to(dtype))) == count_totals(batch)


@catalogue("value", [0.5, 2.0, -1.0, float("nan")])
@catalogue("name", ["completion_mask_BT", "scored_PG", "truncated_PG"])
def test_anything_else_in_a_mask_is_refused(name, value):
    given = {"completion_mask_BT": right("BT"), "scored_PG": right("PG"), "truncated_PG": right("PG")}
    given[name][0, 0] = value
    with pytest.raises(ValueError, match=f"{name} must be 1 or 0"):
        Experience.from_rewards(right("PG"), **given)


@catalogue("name", TRIED)
@catalogue("prompts", [0, P])
def test_a_step_without_a_token_has_a_loss_of_0_and_not_nan(name, prompts):
    algorithm, experience = VARIANTS[name], make_experience()
    rows, tokens = (0, 7) if not prompts else (12, 0)
    taken: dict[str, Any] = {}
    for field, letters in shaped(Experience).items():
        x = getattr(experience, field)
        if x is not None:
            sizes = {"P": 0 if not prompts else 3, "G": 4, "B": rows, "T": tokens, "K": 2}
            taken[field] = x[tuple(slice(0, sizes[letter]) for letter in letters)]
    empty = replace(experience, **taken)
    batch, outputs = make_batch(algorithm, empty), make_outputs(empty)
    loss, metrics = algorithm.loss(outputs, batch, count_totals(batch))
    assert loss.item() == 0
    for metric in metrics.values():
        float(metric)


# Infinite and huge rewards


@catalogue("name", [name for name in PLAIN if isinstance(VARIANTS[name], PolicyGradient)])
@catalogue("value", [float("inf"), -float("inf"), 1e30, -1e30, 1e308])
def test_a_reward_without_bound_is_an_error_and_never_a_group_without_signal(name, value):
    experience = make_experience()
    rewards_PG = experience.rewards_PG.clone()
    rewards_PG[0, 1] = value
    with pytest.raises(ConfigError, match=r"rewards_PG\[0, 1\] = -?(inf|1e\+30|1e\+308); allowed: finite rewards of"):
        VARIANTS[name].advantages(replace(experience, rewards_PG=rewards_PG))  # type: ignore[attr-defined]


def test_it_is_refused_in_every_reward_and_passes_where_it_is_not_scored():
    experience = make_experience()
    assert experience.rewards_KPG is not None
    assert experience.greedy_rewards_P is not None
    for name in ("rewards_KPG", "greedy_rewards_P"):
        endless = getattr(experience, name).clone()
        endless.flatten()[0] = torch.inf
        with pytest.raises(ConfigError, match=name):
            replace(experience, **{name: endless})
    unscored_PG = experience.rewards_PG.masked_fill(~experience.scored_PG, torch.inf)
    assert GRPO().advantages(replace(experience, rewards_PG=unscored_PG)).isfinite().all()


@catalogue("largest", [1.0, 1e3, 1e15])
@catalogue("dtype", [torch.float32, torch.float64])
def test_the_largest_reward_that_passes_has_the_advantage_that_it_should(largest, dtype):
    rewards_PG = torch.tensor([[largest, 0.0, 0.0, 0.0]], dtype=dtype)
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(4, 1))
    expected = torch.tensor([[1.5], [-0.5], [-0.5], [-0.5]], dtype=dtype)
    torch.testing.assert_close(GRPO().advantages(experience), expected, rtol=1e-5, atol=1e-5)


def test_a_reward_of_nan_that_is_called_scored_is_refused():
    rewards_PG = torch.tensor([[1.0, float("nan"), 0.0]])
    with pytest.raises(ConfigError, match=r"rewards_PG\[0, 1\] = nan; .*\n.* False in scored_PG"):
        Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(3, 1), scored_PG=torch.ones(1, 3))


def test_a_missing_reward_leaves_the_others_of_its_group_finite():
    rewards_PG = torch.tensor([[1.0, float("nan"), 0.0]])
    experience = Experience.from_rewards(rewards_PG, completion_mask_BT=torch.ones(3, 1))
    assert all(a.advantages(experience).isfinite().all() for a in (GRPO(), RLOO()))


@pytest.mark.parametrize("given", [[[1.0, None], [0.0, 1.0]], None, [[1.0, 0.0]]])
def test_rewards_that_are_no_tensor_are_refused_in_words(given):
    with pytest.raises(ValueError, match=f"rewards_PG is {type(given).__name__}, but must be a tensor: .* write nan"):
        Experience.from_rewards(given, completion_mask_BT=torch.ones(2, 1))


def test_log_probabilities_that_are_no_tensor_are_refused_in_words():
    experience = Experience.from_rewards(torch.tensor([[1.0, 0.0]]), completion_mask_BT=torch.ones(2, 1))
    batch = Batch.from_experience(experience, GRPO().advantages(experience))
    with pytest.raises(ValueError, match=r"logprobs_BT is list, but must be a tensor"):
        GRPO().loss([[0.0], [0.0]], batch, count_totals(batch))


def test_rows_are_picked_by_numbers_or_by_a_mask():
    experience = Experience.from_rewards(torch.arange(4.0)[None], completion_mask_BT=torch.ones(4, 2))
    batch = Batch.from_experience(experience, torch.zeros(4, 2))
    for mask in (torch.tensor([True, False, True, True]), [True, False, True, True]):
        assert batch.rows(mask).row_ids_B.tolist() == [0, 2, 3]
    assert batch.rows([3, 0]).row_ids_B.tolist() == [3, 0]


# The order of calls in a step


def five_lines(algorithm: PolicyGradient, experience: Experience, logprobs_BT: Tensor) -> Tensor:
    batch = algorithm.to_batch(experience)
    batch = algorithm.prepare(batch)
    totals = count_totals(batch)
    loss, _metrics = algorithm.loss(logprobs_BT, batch, totals)
    return loss


REJECTING = GRPO(correction=Correction(action="mask", high=1.2, rejected_in_denominator=False))


def rejecting() -> tuple[Experience, Tensor]:
    """Return an experience in which two of the eight tokens have a weight above 1.2."""
    old_BT = torch.full((4, 2), -1.0, dtype=torch.float64)
    sampling_BT = old_BT.clone()
    sampling_BT[0, 0] = sampling_BT[2, 1] = -1.5
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64),
        completion_mask_BT=torch.ones(4, 2),
        old_logprobs_BT=old_BT,
        sampling_logprobs_BT=sampling_BT,
    )
    return experience, old_BT.clone().requires_grad_()


def test_to_batch_prepare_totals_loss():
    """The loss is -A of each token, averaged over the remaining tokens of each completion and then over completions. It
    is 0, because the group's advantages sum to 0. Masked tokens do not change it: a completion has one advantage."""
    experience, logprobs_BT = rejecting()
    loss = five_lines(REJECTING, experience, logprobs_BT)
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    expected = torch.tensor([[0.0, 1.5], [-0.25, -0.25], [-0.5, 0.0], [-0.25, -0.25]], dtype=torch.float64)
    torch.testing.assert_close(gradient_BT, -expected / 4, rtol=1e-5, atol=1e-6)


def test_totals_that_were_counted_before_prepare_are_told_apart_from_a_part_of_an_update():
    experience, logprobs_BT = rejecting()
    batch = REJECTING.to_batch(experience)
    early = count_totals(batch)
    for without_the_rejected in (batch, REJECTING.prepare(batch)):
        with pytest.raises(
            ConfigError, match=r"totals that count 8 tokens, but the correction rejects 2 of them"
        ) as told:
            REJECTING.loss(logprobs_BT, without_the_rejected, early)
        assert "algorithm.prepare(batch) with old_logprobs_BT in it, then count_totals" in told.value.fix
    with pytest.raises(ConfigError, match="some rows of an update whose rows depend on each other"):
        REJECTING.loss(logprobs_BT[:2], batch.rows([0, 1]), early)
