"""The division of rows among ranks: every row once, units undivided, about equal tokens; and how a rank finds its
place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples
from tests.ranks.scripted import Scripted

from posttrain.errors import ConfigError
from posttrain.models.microbatches import Split, filler, rows_by_rank
from posttrain.ranks.agreement import ONE, deal, on_all
from posttrain.ranks.environment import Place, place_of_process
from posttrain.types import Batch, Tokens

PROMPT = 24
STEP = {"SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_JOB_ID": "77"}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 8))
def test_every_part_is_dealt_once_and_no_rank_has_much_more_than_needed(costs, size):
    dealt = deal(costs, size)
    assert sorted(part for parts in dealt for part in parts) == list(range(len(costs)))
    largest = max(sum(costs[part] for part in parts) for parts in dealt)
    best = max(max(costs, default=0), -(-sum(costs) // size))
    assert largest <= 4 / 3 * best + 1, "the bound of longest first (Graham, 1969), against a lower bound of the best"


def rows(lengths: list[int], prompts: list[int], *, pairs: bool = False) -> Batch:
    """Rows of a prompt of 24 tokens, which rows with the same number share, and an answer of the given length."""
    width = PROMPT + max(lengths)
    ids_BT = torch.arange(width).repeat(len(lengths), 1) + 100 * torch.arange(len(lengths))[:, None]
    for row, prompt in enumerate(prompts):
        ids_BT[row, :PROMPT] = 10_000 + prompt
    lengths_B = torch.tensor(lengths) + PROMPT
    places_T = torch.arange(width)
    mask_BT = (places_T >= PROMPT) & (places_T < lengths_B[:, None])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B)
    return Batch.from_pairs(mask_BT, tokens=tokens) if pairs else Batch.from_examples(mask_BT, tokens=tokens)


@examples(25, 60)
@given(st.data(), st.integers(2, 5), st.booleans())
def test_all_rows_that_train_are_computed_by_one_rank_each_in_equally_many_micro_batches(data, size, pairs):
    count = 2 * data.draw(st.integers(1, 8))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any))
    batch = rows(lengths, data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), pairs=pairs)
    dealt = rows_by_rank(batch, size)
    trained = {row for unit in batch.units if any(lengths[row] for row in unit) for row in unit}
    assert sorted(row for mine in dealt for row in mine) == sorted(trained)
    owner = {row: rank for rank, mine in enumerate(dealt) for row in mine}
    assert all(len({owner[row] for row in unit}) == 1 for unit in batch.units if unit[0] in owner), "a pair is split"
    found = [list(Split(None, 60, Scripted(rank, size, batch))(batch)) for rank in range(size)]
    assert len({len(micros) for micros in found}) == 1, "ranks with fewer passes would leave the others waiting"
    assert sorted(row for micros in found for places, _ in micros for row in places) == sorted(trained)
    for places, micro in (one for micros in found for one in micros):
        if places:
            assert torch.equal(micro.completion_mask_BT, batch.completion_mask_BT[places])
        else:
            assert not micro.completion_mask_BT.any()


def test_rows_of_one_prompt_stay_on_one_rank_where_that_costs_nobody_much():
    batch = rows([8] * 8, [0, 0, 1, 1, 2, 2, 3, 3])
    assert rows_by_rank(batch, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    alone = rows([8] * 8, [0] * 8)
    assert sorted(map(len, rows_by_rank(alone, 2))) == [4, 4], "one prompt is divided: else one rank would have it all"


def test_what_fills_up_is_of_the_kind_of_its_batch_and_trains_nothing():
    batch = rows([3, 2, 4, 1], [0, 1, 0, 1], pairs=True)
    assert filler(batch).units == [[0, 1]]
    assert not filler(batch).completion_mask_BT.any()


def test_one_process_is_the_identity():
    x = torch.ones(2)
    ONE.add_up([x])
    with ONE.together("anything", 1):
        assert ONE.gather("a") == ["a"]
    assert x.tolist() == [1, 1]


def test_an_error_on_one_rank_is_raised_on_all():
    error = ConfigError(given="a", allowed="b", fix="c")
    other = Scripted(0, 2, None, errors=[None, error])
    with pytest.raises(ConfigError, match="a; allowed: b"):
        on_all(other, lambda: 1)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", **MEETING}, Place(rank=2, size=4, local=0)),
        (
            {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", **STEP},
            Place(rank=5, size=8, local=1),
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", **MEETING},
            Place(rank=5, size=8, local=1, beside=4),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", **STEP}
            | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            Place(rank=5, size=8, local=1, beside=4),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", **STEP}
            | {"SLURM_STEP_TASKS_PER_NODE": "5,3"},  # no machine has as many ranks as another
            Place(rank=5, size=8, local=1),
        ),
        (  # ranks of several nodes with unequal numbers of them, in a Slurm step of one task for each node
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "", **MEETING, **STEP}
            | {
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            },
            Place(rank=5, size=8, local=1),
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", **MEETING},
            Place(rank=5, size=8, local=1),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **MEETING}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, None),  # a batch script, outside a step
    ],
)
def test_a_process_knows_its_place_from_whoever_started_it(environment, place):
    assert place_of_process(environment) == place


def test_half_of_an_environment_is_an_error_that_names_what_is_missing():
    with pytest.raises(ConfigError, match="without WORLD_SIZE, LOCAL_RANK"):
        place_of_process({"RANK": "0", **MEETING})
    with pytest.raises(ConfigError, match="RANK=first"):
        place_of_process({"RANK": "first", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **MEETING})
