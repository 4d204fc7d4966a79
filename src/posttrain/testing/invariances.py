"""Invariances of an algorithm, as functions that raise AssertionError if one is broken.

posttrain's own tests call them on randomly generated examples; `check_algorithm` calls them for any algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce

import torch
from torch import Tensor

from posttrain.algorithms import Algorithm, PolicyGradient
from posttrain.testing.steps import (
    NAN,
    Raw,
    gradients,
    leaves_of,
    make_batch,
    make_outputs,
    padded,
    rows_of,
    select,
)
from posttrain.types import Batch, Experience, Metrics, Outputs, Totals, count_totals


def require(holds: bool, otherwise: str) -> None:
    """Raise AssertionError unless `holds`, even under `python -O`."""
    if not holds:
        raise AssertionError(otherwise)


def require_same(actual: object, expected: object, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12, msg=lambda said: f"{what}: {said}")


def require_same_metrics(actual: Metrics, expected: Metrics) -> None:
    found, wanted = ({name: float(m) for name, m in each.items()} for each in (actual, expected))
    require(
        found.keys() == wanted.keys(), f"only one of the two has the metrics {sorted(found.keys() ^ wanted.keys())}"
    )
    for name, value in wanted.items():
        same = math.isclose(found[name], value, rel_tol=1e-10, abs_tol=1e-12)
        require(same or (math.isnan(found[name]) and math.isnan(value)), f"metric {name}: {found[name]}, not {value}")


def merge(a: Metrics, b: Metrics) -> Metrics:
    """Return the metrics of two parts of a step, merged."""
    both = {name: a[name].merge(b[name]) for name in a.keys() & b.keys()}  # type: ignore[arg-type]
    return a | b | both


class Tried:
    """The loss, gradients and metrics of an algorithm on a whole step."""

    def __init__(self, algorithm: Algorithm, raw: Raw) -> None:
        self.outputs = make_outputs(raw, scores="scores" in algorithm.needs)
        self.batch = make_batch(algorithm, raw)
        if self.batch.num_rows != len(self.outputs.logprobs_BT):  # pairs of sampled rows
            assert self.batch.row_ids_B is not None
            chosen = self.outputs.each(lambda x: x.detach()[self.batch.row_ids_B])
            self.outputs = chosen.each(lambda x: x.requires_grad_())
        self.totals = count_totals(self.batch)
        self.loss, self.metrics = algorithm.loss(self.outputs, self.batch, self.totals)

    @property
    def gradients(self) -> dict[str, Tensor]:
        return gradients(self.outputs, self.loss)


# --- splits, ranks and order -----------------------------------------------------------------------------------------


def any_split_sums_to_the_whole(algorithm: Algorithm, raw: Raw, owner: Sequence[int]) -> None:
    """Require that loss, gradient and metrics of micro-batches add up. `owner` assigns each unit (row or pair) to a
    part. Parts differ in size, groups are split across parts, and some parts are empty."""
    whole = Tried(algorithm, raw)
    parts = _parts(whole.batch, owner)
    losses, metrics = zip(
        *(algorithm.loss(rows_of(whole.outputs, rows), whole.batch.rows(rows), whole.totals) for rows in parts),
        strict=True,
    )
    together = torch.stack(losses).sum()
    require_same(together, whole.loss, "the sum of the parts' losses")
    require_same(gradients(whole.outputs, together), whole.gradients, "the sum of the parts' gradients")
    require_same_metrics(reduce(merge, metrics), whole.metrics)


def ranks_count_the_same_denominators(algorithm: Algorithm, raw: Raw, owner: Sequence[int]) -> None:
    """Require that the ranks' totals add up to the totals of the step, so that all ranks divide by the same number."""
    whole = Tried(algorithm, raw)
    parts = [count_totals(whole.batch.rows(rows)) for rows in _parts(whole.batch, owner)]
    summed = Totals(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(Totals)})
    require(summed == whole.totals, f"the totals of the ranks add up to {summed}, but the step has {whole.totals}")


def _parts(batch: Batch, owner: Sequence[int]) -> list[list[int]]:
    units = batch.units
    dealt = [
        [row for unit, part in zip(units, owner, strict=False) if part == one for row in unit] for one in set(owner)
    ]
    rest = [row for unit in units[len(owner) :] for row in unit]
    return [rows for rows in [*dealt, rest] if rows]


def the_order_of_rows_does_not_matter(algorithm: Algorithm, raw: Raw, order: Sequence[int]) -> None:
    """Require the same loss, gradient and metrics for reordered rows, before `prepare` (given rows) and after it."""
    expected = Tried(algorithm, raw)
    order = [row for row in order if row < expected.batch.num_rows]
    index = torch.tensor(order)
    batches = [expected.batch.rows(index)]
    if isinstance(raw, Batch):
        batches.append(algorithm.prepare(raw.rows(index)))
    for batch in batches:
        loss, metrics = algorithm.loss(rows_of(expected.outputs, index), batch, expected.totals)
        require_same(loss, expected.loss, "the loss of the same rows in another order")
        require_same(gradients(expected.outputs, loss), expected.gradients, "their gradient")
        require_same_metrics(metrics, expected.metrics)


def advantages_follow_their_completions(
    algorithm: PolicyGradient, experience: Experience, prompts: Sequence[int], members: Sequence[int]
) -> None:
    """Require that reordered prompts and completions have the same advantages, in the new order."""
    moved, index_B = select(experience, prompts, members)
    state = algorithm.initial_state()
    actual_BT, expected_BT = algorithm.advantages(moved, state), algorithm.advantages(experience, state)[index_B]
    require_same(actual_BT, expected_BT, "the advantages of the same completions in another order")


def a_token_is_moved_by_its_own_advantage_alone(algorithm: PolicyGradient, raw: Experience) -> None:
    """If `reads_token_advantages`, require that one token's advantage does not change the gradient of other tokens."""
    tried = Tried(algorithm, raw)
    advantages_BT = tried.batch.advantages_BT
    if not algorithm.reads_token_advantages or advantages_BT is None or not advantages_BT.any():
        return
    changed_BT = advantages_BT.clone()
    place = advantages_BT.abs().argmax()
    changed_BT.view(-1)[place] *= -100  # changes the sign of the completion's mean, too
    loss, _ = algorithm.loss(tried.outputs, replace(tried.batch, advantages_BT=changed_BT), tried.totals)
    before, after = (
        found["logprobs_BT"].flatten().index_fill(0, place, 0.0)
        for found in (tried.gradients, gradients(tried.outputs, loss))
    )
    require_same(
        after, before, "the gradients of other tokens, with one token's advantage changed (reads_token_advantages)"
    )


# --- padding and masks -----------------------------------------------------------------------------------------------


def padding_columns_do_not_matter(algorithm: Algorithm, raw: Raw, columns: int) -> None:
    """Require that padding columns of nan leave loss and metrics unchanged and have a gradient of 0."""
    expected, wide = Tried(algorithm, raw), Tried(algorithm, padded(raw, columns))
    require_same(wide.loss, expected.loss, f"the loss with {columns} columns of padding")
    for name, gradient in wide.gradients.items():
        if name.endswith("_BT"):
            require(bool((gradient[:, -columns:] == 0).all()), f"{name} has a gradient in the padding")
            gradient = gradient[:, :-columns]
        require_same(gradient, expected.gradients[name], f"the gradient of {name} with padding")
    require_same_metrics(wide.metrics, expected.metrics)


def rows_without_trained_tokens_do_not_matter(algorithm: Algorithm, raw: Raw, *, counted: bool = False) -> None:
    """Require the same loss without units that have an untrained row. `counted`: they stay in the denominator."""
    whole = Tried(algorithm, raw)
    trained_B = whole.batch.completion_mask_BT.any(dim=-1).tolist()
    kept = [row for unit in whole.batch.units if all(trained_B[row] for row in unit) for row in unit]
    if len(kept) == whole.batch.num_rows:  # the algorithm has already removed them
        return
    index, rows = torch.tensor(kept), whole.batch.num_rows
    dense = whole.batch.rows(index)
    totals = replace(count_totals(dense), rows=rows) if counted else count_totals(dense)
    loss, metrics = algorithm.loss(rows_of(whole.outputs, index), dense, totals)
    require_same(loss, whole.loss, "the loss without the rows that train nothing")
    require_same(gradients(whole.outputs, loss), whole.gradients, "its gradient")
    require_same_metrics(metrics, whole.metrics)


def what_stands_outside_the_mask_is_never_read(algorithm: Algorithm, raw: Raw, hidden: float, *more: float) -> None:
    """Require that each of these values outside the mask changes nothing, and that the gradient there is exactly 0."""

    def tried(fill: float) -> tuple[Tensor, dict[str, Tensor]]:
        filled, outside = _filled(raw, fill)
        outputs, batch = make_outputs(filled, scores="scores" in algorithm.needs), make_batch(algorithm, filled)
        if batch.num_rows != len(outputs.logprobs_BT):
            one = Tried(algorithm, filled)
            return one.loss, one.gradients
        if batch.advantages_BT is not None:
            batch = replace(batch, advantages_BT=batch.advantages_BT.masked_fill(outside, fill))
        loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
        found = gradients(outputs, loss)
        for name, gradient in found.items():
            clean = not name.endswith("_BT") or bool((gradient[outside] == 0).all())
            require(clean, f"{name} has a gradient where the mask is 0")
        return loss, found

    expected_loss, expected = tried(-1.0)
    for value in (hidden, *more):
        loss, found = tried(value)
        require(
            torch.equal(loss, expected_loss),
            f"the loss is {loss.item()} with {value} outside the mask, not {expected_loss}",
        )
        for name, gradient in expected.items():
            require(torch.equal(found[name], gradient), f"{value} outside the mask changes the gradient of {name}")


def _filled(raw: Raw, fill: float) -> tuple[Raw, Tensor]:
    outside = ~(raw.scored_mask_BT if isinstance(raw, Experience) else raw.completion_mask_BT)
    names = ("old_logprobs_BT", "sampling_logprobs_BT", "ref_logprobs_BT", "teacher_logprobs_BT", "current_logprobs_BT")
    found = {name: x.masked_fill(outside, fill) for name in names if (x := getattr(raw, name, None)) is not None}
    return replace(raw, **found), outside


def an_all_masked_step_is_zero(algorithm: Algorithm, raw: Raw) -> None:
    """Require a loss of 0 for a step without trained tokens, instead of nan from 0 / 0."""
    _require_zero(algorithm, replace(raw, completion_mask_BT=torch.zeros_like(raw.completion_mask_BT)), "no token")


def nothing_scored_is_zero(algorithm: Algorithm, experience: Experience) -> None:
    """Require a loss of 0 if all rewards failed. Failed rewards are not rewards of 0."""
    unscored = replace(
        experience,
        rewards_PG=torch.full_like(experience.rewards_PG, NAN),
        scored_PG=torch.zeros_like(experience.scored_PG),
    )
    _require_zero(algorithm, unscored, "no scored completion")


def _require_zero(algorithm: Algorithm, raw: Raw, what: str) -> None:
    empty = Tried(algorithm, raw)
    require(empty.loss.item() == 0, f"a step with {what} has a loss of {empty.loss.item()}")
    for name, gradient in empty.gradients.items():
        require(bool((gradient == 0).all()), f"a step with {what} has a gradient in {name}")


# --- numbers ---------------------------------------------------------------------------------------------------------


def a_log_ratio_of_100_stays_finite(algorithm: Algorithm, raw: Raw, difference: float) -> None:
    """Require a finite loss and gradient for a log-ratio of 100 between policy, old policy and reference."""
    if isinstance(raw, Experience):
        assert raw.old_logprobs_BT is not None
        far: Raw = replace(
            raw,
            ref_logprobs_BT=raw.old_logprobs_BT - difference,
            sampling_logprobs_BT=raw.old_logprobs_BT + difference,
        )
    else:
        assert raw.current_logprobs_BT is not None
        rows = torch.arange(raw.num_rows)[:, None]
        sign_B1 = torch.where(rows < raw.num_rows // 2, 1.0, -1.0).to(raw.current_logprobs_BT.dtype)
        reference = {"ref_logprobs_BT": raw.current_logprobs_BT - difference * sign_B1}
        far = replace(raw, **(reference if raw.ref_logprobs_BT is not None else {}))
    tried = Tried(algorithm, far)
    require(bool(tried.loss.isfinite()), f"a log-ratio of {difference} gives a loss of {tried.loss.item()}")
    for name, gradient in tried.gradients.items():
        require(bool(gradient.isfinite().all()), f"a log-ratio of {difference} gives a non-finite gradient in {name}")


def on_policy_the_old_log_probabilities_may_be_left_out(algorithm: Algorithm, experience: Experience) -> None:
    """Require the same loss, gradient and metrics on-policy with and without old log-probabilities (RULE 6)."""
    at_start = replace(experience, sampling_logprobs_BT=experience.old_logprobs_BT)
    given = Tried(algorithm, at_start)
    loss, metrics = algorithm.loss(given.outputs, replace(given.batch, old_logprobs_BT=None), given.totals)
    require_same(loss, given.loss, "the loss without old_logprobs_BT, on-policy")
    require_same(gradients(given.outputs, loss), given.gradients, "its gradient")
    of_reward = {"objective/kl"} - metrics.keys()  # this metric reads the old log-probabilities
    require_same_metrics(metrics, {name: m for name, m in given.metrics.items() if name not in of_reward})


def nan_among_trained_tokens_reaches_the_loss(algorithm: Algorithm, raw: Raw) -> None:
    """Require a non-finite loss for nan at a trained token: if the loss hid it, the run would train a broken model."""
    tried = Tried(algorithm, raw)
    for name, gradient in tried.gradients.items():
        if not gradient.any():
            continue
        broken = leaves_of(tried.outputs)[name].detach().clone()
        broken.view(-1)[gradient.flatten().abs().argmax()] = NAN
        loss, _ = algorithm.loss(replace(tried.outputs, **{name: broken}), tried.batch, tried.totals)
        require(not loss.isfinite(), f"nan in {name} at a trained token gives a loss of {loss.item()}")


# --- gradients and arguments -----------------------------------------------------------------------------------------


def only_the_outputs_carry_gradient(algorithm: Algorithm, raw: Raw) -> None:
    """Require that no gradient flows to rewards, old or reference log-probabilities, even if they require one."""
    names = ("old_logprobs_BT", "ref_logprobs_BT", "rewards_PG", "mismatched_log_ratios_B")
    given = {name: x.clone().requires_grad_() for name in names if (x := getattr(raw, name, None)) is not None}
    tried = Tried(algorithm, replace(raw, **given))
    if not given or not tried.loss.requires_grad:
        return
    found = torch.autograd.grad(tried.loss, list(given.values()), allow_unused=True)
    through = [name for name, gradient in zip(given, found, strict=True) if gradient is not None]
    require(not through, f"the loss has a gradient through {', '.join(through)}")


def no_argument_is_changed(algorithm: Algorithm, raw: Raw) -> None:
    """Require that the algorithm changes neither its inputs nor the outputs, not even through a view."""
    records = (raw, make_outputs(raw))
    before = {f.name: x for one in records for f in fields(one) if isinstance(x := getattr(one, f.name), Tensor)}
    copies = {name: x.detach().clone() for name, x in before.items()}
    Tried(algorithm, raw)
    for name, copy in copies.items():
        require(torch.equal(before[name].nan_to_num(), copy.nan_to_num()), f"{name} was changed")


def outputs_of_another_shape_are_refused(algorithm: Algorithm, raw: Raw) -> None:
    """Require that outputs of a wrong shape are refused, because broadcasting would give a wrong loss."""
    tried = Tried(algorithm, raw)
    read = {name for name, gradient in tried.gradients.items() if bool((gradient != 0).any())}
    for name in read:
        x = leaves_of(tried.outputs)[name]
        wrong: Outputs = replace(tried.outputs, **{name: x.detach()[:1]})
        try:
            algorithm.loss(wrong, tried.batch, tried.totals)
        except ValueError:
            continue
        raise AssertionError(
            f"one row of {name} is broadcast over {len(x)} rows: begin the loss with Outputs.of(outputs, batch)"
        )
