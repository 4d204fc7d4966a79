"""Ids are read while later passes are computed: every row draws the same tokens with any lag."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from tests.engines.policies import EOS, VOCAB, Settings, lora_model, tiny_model, tiny_tokenizer
from torch import nn

from posttrain.config import SamplingConfig
from posttrain.engines.continuous import ContinuousSampler
from posttrain.engines.decoding_path import decoding_path
from posttrain.engines.engine import Draw, Engine, Request, Row
from posttrain.engines.local import LocalSampler
from posttrain.engines.port import Task
from posttrain.engines.weights import named_tensors

MODELS = ["llama", "mistral, sliding window", "lora", "lfm2, convolutions"]
LAGS = (1, 3)


@cache
def policy(name: str) -> nn.Module:
    """A policy in float64, in which no draw depends on the other rows of the batch."""
    return (lora_model() if name == "lora" else tiny_model(name)).double()


def sampler_of(model: nn.Module, lag: int, eos_ids: tuple[int, ...] = (EOS,)) -> LocalSampler:
    sampler = LocalSampler(model, tiny_tokenizer(), eos_ids, shared=True)
    sampler.lag = lag
    return sampler


@pytest.mark.slow
@examples(5, 12)
@given(data=st.data())
def test_a_random_mix_of_requests_draws_the_same_with_every_lag(data):
    """Any lengths, numbers of rows, stop ids, stop strings and temperatures."""
    model = policy(data.draw(st.sampled_from(MODELS)))
    prompts = data.draw(st.lists(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=12), min_size=1, max_size=3))
    requests = [
        Request(
            prompt_ids=tuple(prompts[p]),
            max_new_tokens=length,
            stream=(p, g),
            temperature=data.draw(st.sampled_from([None, 0.0, 0.5])),
        )
        for p, _ in enumerate(prompts)
        for g, length in enumerate(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)))
    ]
    eos_ids = data.draw(st.sampled_from([(), (2, 5, 17, 40)]))
    stop = data.draw(st.sampled_from([(), ("a", "END", "é")]))
    given_settings = Settings(max_batch_rows=data.draw(st.integers(1, 6)), stop=stop)
    expected = dict(sampler_of(model, 0, eos_ids).complete(requests, given_settings, seed=5))
    for lag in LAGS:
        found = dict(sampler_of(model, lag, eos_ids).complete(requests, given_settings, seed=5))
        assert found.keys() == expected.keys()
        for number, completion in expected.items():
            assert replace(found[number], logprobs=()) == replace(completion, logprobs=())
            assert found[number].logprobs == pytest.approx(completion.logprobs, abs=1e-6)


@pytest.mark.parametrize("lag", LAGS)
def test_given_tokens_are_scored_the_same(lag):
    prompts, completions = [[5, 6, 7], [9], [8, 3]], [[4, 5, 6, 7], [3] * 9, [12]]
    scores = [sampler_of(policy("llama"), n).score(prompts, completions, temperature=0.7) for n in (0, lag)]
    for found, expected in zip(*scores, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)


def test_an_id_is_read_after_the_next_pass_was_launched():
    """Two rows of two and of four tokens: at lag 1 a step returns the tokens that the step before has drawn."""
    seen: list[list[int]] = []
    model = policy("llama")
    rows = [Row(n, Request(prompt_ids=(5, 6), max_new_tokens=length, stream=(0, n))) for n, length in ((0, 2), (1, 4))]
    engine = Engine(
        decoding_path(model).rows(model, max_rows=2, holds_prompt=False), Draw(Settings(), 0), max_rows=2, lag=1
    )
    engine.queue.extend(rows)
    with torch.no_grad():
        while engine:
            ended = engine.step(torch.device("cpu"))
            seen.append([*(len(row.ids) for row in rows), *(row.drawn for row in rows), len(ended)])
    assert seen == [[0, 0, 1, 1, 0], [1, 1, 2, 2, 0], [2, 2, 2, 3, 1], [2, 3, 2, 4, 0], [2, 4, 2, 4, 1]]


@pytest.mark.parametrize(
    ("lag", "keep_cache"), few([(n, kept) for n in (0, *LAGS) for kept in (False, True)], (0, False), (3, True))
)
def test_rows_that_join_leave_and_meet_the_same_weights_again_draw_the_same(lag, keep_cache):
    """Weights are loaded, and a row is removed and returned, while tokens are still being copied."""
    sampling = SamplingConfig(max_completion_length=20, max_batch_rows=4)
    tasks = [
        Task(row=(p, g), attempt=1, prompt_ids=ids, seed=7, stream=(p, g), max_new_tokens=20)
        for p, ids in enumerate([(3, 4), (5, 6, 7, 8, 9)])
        for g in range(3)
    ]

    def drawn(rows: ContinuousSampler, disturb: bool) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {task.row: [] for task in tasks}
        logprobs: dict[tuple[int, int], list[float]] = {task.row: [] for task in tasks}
        waiting, steps, version = list(tasks), 0, 0
        while waiting or rows:
            rows.submit(waiting[:2])
            waiting, steps = waiting[2:], steps + 1
            pieces = rows.step()
            if disturb and steps % 5 == 3:
                told, left = rows.interrupt([((0, 1), 1)])
                pieces += told
                for piece in told:
                    assert piece.version == version
                known = {piece.row: [*found[piece.row], *piece.ids] for piece in told}
                waiting = [replace(t, drawn_ids=tuple(known.get(t.row, found[t.row]))) for t in left] + waiting
            if disturb and steps % 5 == 0:
                pieces += rows.told()
                version += 1
                rows.load(named_tensors(rows.sampler.model), version)
            for piece in pieces:
                found[piece.row] += piece.ids
                logprobs[piece.row] += piece.logprobs
        assert all(len(logprobs[row]) == len(ids) for row, ids in found.items())
        return found

    expected = drawn(ContinuousSampler(sampler_of(policy("llama"), 0, (2, 5)), sampling), disturb=False)
    disturbed = ContinuousSampler(sampler_of(policy("llama"), lag, (2, 5)), sampling, keep_cache=keep_cache)
    assert drawn(disturbed, disturb=True) == expected
