"""Rows that join and leave while other rows are decoded, and that get new weights between two tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.tiny import tiny_model

from posttrain.config import ModelConfig, SamplingConfig
from posttrain.engines import make_sampler
from posttrain.engines.continuous import ContinuousSampler
from posttrain.engines.port import Piece, Task
from posttrain.engines.weights import named_tensors
from posttrain.models.load import load_model
from posttrain.types import Prompt

SAMPLING = SamplingConfig(max_completion_length=24, max_batch_rows=5)
PROMPTS = [tuple(range(3, 3 + length)) for length in (2, 9, 5, 4)]
SEED, SIZE = 7, 3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(ModelConfig(path=str(tiny_model(tmp_path_factory.mktemp("model"))), device="cpu"))


@pytest.fixture(scope="module")
def other_weights(loaded):
    torch.manual_seed(1)
    return [(name, x + 0.05 * torch.randn_like(x)) for name, x in named_tensors(loaded.model) if x.dim() == 2]


@pytest.fixture
def continuous(loaded, request):
    own = load_model(ModelConfig(path=loaded.model.name_or_path, device="cpu"))
    return ContinuousSampler(make_sampler(own), SAMPLING, keep_cache=getattr(request, "param", False))


def tasks() -> list[Task]:
    return [
        Task(row=(p, g), attempt=1, prompt_ids=ids, seed=SEED, stream=(p, g), max_new_tokens=24)
        for p, ids in enumerate(PROMPTS)
        for g in range(SIZE)
    ]


def drawn_alone(loaded) -> dict[tuple[int, int], tuple[int, ...]]:
    """The completions of one sampler call for the same prompts."""
    prompts = [Prompt(index=p, ids=ids, text="") for p, ids in enumerate(PROMPTS)]
    groups = make_sampler(loaded).generate(prompts, SAMPLING, group_size=SIZE, seed=SEED)
    return {(p, g): one.ids for p, group in enumerate(groups) for g, one in enumerate(group)}


def finish(sampler: ContinuousSampler) -> list[Piece]:
    pieces = []
    while sampler:
        pieces += sampler.step()
    return pieces


def joined(pieces) -> dict[tuple[int, int], list[Piece]]:
    found: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.row, []).append(piece)
    return found


def ids_of(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.ids)


def test_rows_that_join_at_any_time_are_drawn_as_in_one_call(loaded, continuous):
    waiting, pieces = tasks(), []
    while waiting or continuous:
        continuous.submit(waiting[:2])
        waiting = waiting[2:]
        pieces += continuous.step()
    assert {row: ids_of(found) for row, found in joined(pieces).items()} == drawn_alone(loaded)


def test_a_row_that_was_begun_elsewhere_goes_on_with_its_own_random_numbers(loaded, continuous):
    alone = drawn_alone(loaded)
    begun = [
        replace(task, attempt=2, drawn_ids=alone[task.row][:cut])
        for cut, task in enumerate(tasks(), start=1)
        if len(alone[task.row]) > cut
    ]
    assert len(begun) > SIZE
    continuous.submit(begun)
    found = joined(finish(continuous))
    assert {task.row: task.drawn_ids + ids_of(found[task.row]) for task in begun} == {
        task.row: alone[task.row] for task in begun
    }


def test_what_is_taken_out_can_go_on_elsewhere_and_the_others_do_not_notice(loaded, continuous):
    alone = drawn_alone(loaded)
    continuous.submit(tasks())
    pieces = [piece for _ in range(3) for piece in continuous.step()]
    told, left = continuous.interrupt([((1, 0), 1), ((0, 2), 1), ((3, 2), 1), ((2, 0), 9)])
    assert {task.row for task in left} == {(1, 0), (0, 2), (3, 2)} - {piece.row for piece in pieces if piece.reason}
    pieces += told + finish(continuous)
    found = {row: ids_of(each) for row, each in joined(pieces).items()}
    for row, ids in alone.items():
        if row in {task.row for task in left}:
            assert found.get(row, ()) == ids[: len(found.get(row, ()))]
            assert len(found.get(row, ())) < len(ids)
        else:
            assert found[row] == ids


def rows_across_a_change(continuous, other_weights, before: int = 4) -> dict[tuple[int, int], list[Piece]]:
    continuous.submit(tasks())
    pieces = [piece for _ in range(before) for piece in continuous.step()] + continuous.told()
    continuous.load(other_weights, 1)
    return joined(pieces + finish(continuous))


def test_each_token_has_the_version_and_the_log_probability_of_the_weights_that_drew_it(
    loaded, continuous, other_weights
):
    """Keys and values are recomputed, so the log-probabilities are as if the new weights had scored the whole text."""
    found = rows_across_a_change(continuous, other_weights)
    crossing = [pieces for pieces in found.values() if {0, 1} <= {piece.version for piece in pieces}]
    assert crossing, "some rows are active when the weights change"
    for pieces in crossing:
        versions = [piece.version for piece in pieces]
        assert versions == sorted(versions)
        prompt, ids = PROMPTS[pieces[0].row[0]], ids_of(pieces)
        said = [logprob for piece in pieces for logprob in piece.logprobs]
        counts = [len(piece.ids) for piece in pieces if piece.version == 0]
        old = make_sampler(loaded).score([prompt], [ids], temperature=1.0)[0]
        new = continuous.sampler.score([prompt], [ids], temperature=1.0)[0]
        expected = old[: sum(counts)] + new[sum(counts) :]
        assert said == pytest.approx(expected, abs=1e-5)
        assert old[sum(counts) :] != pytest.approx(new[sum(counts) :], abs=1e-3), "the new weights give other values"


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [True], indirect=True)
def test_a_kept_cache_is_only_nearly_right(continuous, other_weights):
    found = rows_across_a_change(continuous, other_weights)
    differences = []
    for (p, _), pieces in found.items():
        said = [x for piece in pieces for x in piece.logprobs if piece.version == 1]
        if said and pieces[0].version == 0:
            new = continuous.sampler.score([PROMPTS[p]], [ids_of(pieces)], temperature=1.0)[0][-len(said) :]
            differences += [abs(a - b) for a, b in zip(said, new, strict=True)]
    assert 1e-4 < max(differences) < 3
