"""The records: rows and groups stay together, a missing reward differs from a zero, and metrics reduce as declared."""

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.types import Batch, Completion, Experience, Max, Mean, Min, Outputs, Tokens, Totals, count_totals

NAN = float("nan")
numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


# Metrics


@given(values=numbers, cut=st.integers(0, 12))
def test_a_mean_of_parts_is_the_mean_of_the_whole(values: list[float], cut: int):
    """This also holds if one part is empty, since it has no weight."""
    parts = [Mean(sum(part), len(part)) for part in (values[:cut], values[cut:])]
    assert float(parts[0].merge(parts[1])) == pytest.approx(sum(values) / len(values), abs=1e-9)


@given(values=numbers)
def test_extremes_of_parts_are_the_extremes_of_the_whole(values: list[float]):
    a, b = values[: len(values) // 2], values[len(values) // 2 :]
    assert Max(max(a)).merge(Max(max(b))).item() == max(values)
    assert Min(min(a)).merge(Min(min(b))).item() == min(values)


def test_a_mean_of_nothing_is_nan_and_not_zero():
    assert math.isnan(Mean(0.0, 0.0).item())


# Experience


def experience(**changes: Any) -> Experience:
    given: dict[str, Any] = {
        "rewards_PG": torch.tensor([[1.0, NAN], [0.0, 0.5]]),
        "completion_mask_BT": torch.tensor([[0, 1, 1], [0, 1, 0], [0, 0, 0], [0, 1, 1]]),
    }
    return Experience.from_rewards(**given | changes)


def test_a_nan_reward_is_unscored_and_a_zero_is_not():
    assert experience().scored_PG.tolist() == [[True, False], [True, True]]


def test_unscored_rows_leave_the_mask_of_the_loss_but_not_the_record():
    assert experience().completion_mask_BT.sum(dim=-1).tolist() == [2, 1, 0, 2]
    assert experience().scored_mask_BT.sum(dim=-1).tolist() == [2, 0, 0, 2]


def test_what_is_scored_can_be_said_explicitly():
    scored_PG = torch.tensor([[1, 0], [0, 1]])
    assert experience(scored_PG=scored_PG).scored_PG.tolist() == [[True, False], [False, True]]


def test_rewards_are_float32_or_wider():
    for dtype, expected in (
        (torch.int64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        rewards_PG = torch.ones(2, 2).to(dtype)
        assert experience(rewards_PG=rewards_PG).rewards_PG.dtype == expected


def test_a_number_per_completion_is_broadcast_over_its_trained_tokens():
    values_PG = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert experience().broadcast(values_PG).tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0], [0, 4, 4]]


def test_rewards_without_groups_are_refused():
    with pytest.raises(ValueError, match=r"must be \[prompts, completions per prompt\], got shape \[4\]"):
        experience(rewards_PG=torch.ones(4))


def test_rewards_that_do_not_match_the_rows_are_refused():
    with pytest.raises(ValueError, match=r"has 4 rows, but rewards_PG \[2, 3\] describes 6 completions"):
        experience(rewards_PG=torch.ones(2, 3))


# Batch and totals


def test_the_totals_count_trained_tokens_and_rows_that_have_any():
    assert count_totals(Batch.from_experience(experience())) == Totals(tokens=4, sequences=2, rows=4)


def test_rows_can_be_picked_in_any_order_and_keep_their_group():
    tokens = Tokens(input_ids_BT=torch.arange(12).reshape(4, 3), lengths_B=torch.tensor([3, 2, 1, 3]))
    batch = Batch.from_experience(experience(tokens=tokens), advantages_BT=torch.arange(12.0).reshape(4, 3))
    picked = batch.rows([3, 0])
    assert picked.num_rows == 2
    assert picked.groups_B.tolist() == [1, 0]
    assert picked.advantages_BT is not None
    assert picked.advantages_BT[:, 0].tolist() == [9.0, 0.0]
    assert picked.completion_mask_BT.tolist() == [[False, True, True], [False, True, True]]
    assert picked.tokens is not None
    assert picked.tokens.input_ids_BT[:, 0].tolist() == [9, 0]
    assert picked.tokens.lengths_B.tolist() == [3, 3]
    assert picked.ref_logprobs_BT is None


def test_examples_are_a_batch_of_their_mask():
    batch = Batch.from_examples(torch.tensor([[0, 1, 1], [0, 1, 0]]))
    assert count_totals(batch) == Totals(tokens=3, sequences=2, rows=2)
    assert batch.groups_B.tolist() == [0, 1]


def test_the_totals_of_parts_add_up():
    batch = Batch.from_experience(experience())
    parts = [count_totals(batch.rows(rows)) for rows in ([0, 1], [2], [3])]
    whole = count_totals(batch)
    for name in ("tokens", "sequences", "rows"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)


def test_records_are_frozen():
    with pytest.raises(FrozenInstanceError):
        experience().rewards_PG = torch.zeros(1, 1)  # type: ignore[misc]


# Outputs and completions


def test_a_bare_tensor_means_log_probabilities():
    logprobs_BT = torch.zeros(1, 2)
    assert Outputs.of(logprobs_BT).logprobs_BT is logprobs_BT
    outputs = Outputs(logprobs_BT=logprobs_BT, entropy_BT=logprobs_BT)
    assert Outputs.of(outputs) is outputs


@pytest.mark.parametrize(("finish_reason", "truncated"), [("eos", False), ("stop", False), ("length", True)])
def test_only_running_out_of_room_is_truncation(finish_reason, truncated: bool):
    completion = Completion(ids=(1,), logprobs=(-0.1,), versions=(0,), finish_reason=finish_reason, text="a")
    assert completion.truncated is truncated
