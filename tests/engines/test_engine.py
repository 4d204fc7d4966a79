"""Continuous batching: each request gets the same tokens in any mix of requests as it would get alone."""

from __future__ import annotations

import doctest
import gc
import weakref
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from tests.engines.policies import (
    EOS,
    VOCAB,
    Settings,
    hf_greedy,
    lora_model,
    random_prompts,
    tiny_model,
    tiny_tokenizer,
)
from torch import nn

from posttrain.cpu import group_attention
from posttrain.engines import LocalSampler, engine, slots
from posttrain.engines.decoding_path import decoding_path
from posttrain.engines.engine import Request
from posttrain.engines.sampling import UniformStream, choose, uniforms
from posttrain.types import Completion, Prompt

IN_SLOTS = [
    "llama",
    "qwen2, tied",
    "qwen3-moe, experts",
    "mistral, sliding window",
    "gemma2, soft caps and sliding window",
]


def sampler_of(model: nn.Module, eos_ids: tuple[int, ...] = (EOS,), **settings) -> LocalSampler:
    return LocalSampler(model, tiny_tokenizer(), eos_ids, **{"shared": True, **settings})


@cache
def policy(name: str) -> nn.Module:
    return lora_model() if name == "lora" else tiny_model(name)


def alone(model: nn.Module, request: Request, eos_ids: tuple[int, ...], seed: int) -> list[int]:
    """The tokens of the simplest sampler: one row, no cache, the whole row through the model for every token."""
    stream, ids = UniformStream(seed, *request.stream), list(request.prompt_ids)
    for _ in range(request.max_new_tokens):
        with torch.no_grad():
            logits_1V = model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1]
        ids.append(choose(logits_1V, Settings(), uniforms([stream.word()]))[0].item())
        if ids[-1] in eos_ids:
            break
    return ids[len(request.prompt_ids) :]


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(engine).failed == doctest.testmod(slots).failed == 0


@pytest.mark.slow
@examples(10, 25)
@given(data=st.data())
def test_a_random_mix_of_requests_gets_what_each_gets_alone(data):
    """Any prompts, repeated or not, any lengths, any number of batch rows: queues, split groups, single tokens."""
    name = data.draw(st.sampled_from([*IN_SLOTS, "lora", "lfm2, convolutions"]))
    model, seed = policy(name), data.draw(st.integers(0, 3))
    prompts = data.draw(st.lists(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=14), min_size=1, max_size=3))
    requests = [
        Request(prompt_ids=tuple(prompts[p]), max_new_tokens=length, stream=(p, g))
        for p, _ in enumerate(prompts)
        for g, length in enumerate(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    ]
    eos_ids = (2, 5, 17, 40) if data.draw(st.booleans()) else ()
    rows = Settings(max_batch_rows=data.draw(st.integers(1, 6)))
    found = dict(sampler_of(model, eos_ids).complete(requests, rows, seed=seed))
    assert sorted(found) == list(range(len(requests)))
    for number, request in enumerate(requests):
        assert list(found[number].ids) == alone(model, request, eos_ids, seed), f"{name}: request {number}"


@pytest.mark.parametrize("name", few(IN_SLOTS, IN_SLOTS[-1]))
def test_rows_far_beyond_a_sliding_window_and_a_block_of_columns(name):
    """60 tokens with windows of 5 and 6; the cache grows during decoding and a short row joins late."""
    model, (long, short) = policy(name), random_prompts((3, 20))
    requests = [Request(prompt_ids=p.ids, max_new_tokens=n) for p, n in ((long, 60), (short, 2), (short, 30))]
    found = dict(sampler_of(model, ()).complete(requests, Settings(temperature=0, max_batch_rows=2), seed=0))
    for number, (prompt, length) in enumerate([(long, 60), (short, 2), (short, 30)]):
        assert found[number].ids == hf_greedy(model, prompt, length, [])


def test_each_request_ends_at_its_own_length():
    lengths = [1, 7, 3, 12, 1, 5]
    (prompt,) = random_prompts((4,))
    requests = [Request(prompt_ids=prompt.ids, max_new_tokens=n, stream=(0, g)) for g, n in enumerate(lengths)]
    found = dict(sampler_of(tiny_model(), ()).complete(requests, Settings(max_batch_rows=2), seed=0))
    assert [len(found[i].ids) for i in range(6)] == lengths
    assert {c.finish_reason for c in found.values()} == {"length"}


def test_a_short_completion_is_handed_over_while_a_long_one_goes_on():
    """Completions are returned in the order in which they end, and the order is the same every time."""
    sampler, prompts = sampler_of(tiny_model(), (2, 5, 17, 40)), random_prompts((9, 5, 5, 3))
    runs = [list(sampler.each(prompts, Settings(max_batch_rows=3), group_size=2, seed=4)) for _ in range(2)]
    assert runs[0] == runs[1]
    places = [(place, g) for place, g, _ in runs[0]]
    assert sorted(places) == [(place, g) for place in range(4) for g in range(2)] != places, "one row overtakes another"
    together: list[list[Completion]] = sampler.generate(prompts, Settings(), group_size=2, seed=4)
    assert all(completion.ids == together[place][g].ids for place, g, completion in runs[0])


def test_between_two_completions_nothing_of_the_sampler_is_in_force():
    """The caller may train, use the model in its original mode, or sample something else between two completions."""
    model, prompts = tiny_model().train(), random_prompts((6, 4))
    sampler = sampler_of(model)
    expected = sampler.generate(prompts, Settings(), group_size=2, seed=1)
    before = model.config._attn_implementation
    for place, g, completion in sampler.each(prompts, Settings(max_batch_rows=2), group_size=2, seed=1):
        assert completion.ids == expected[place][g].ids
        assert torch.is_grad_enabled()
        assert model.training
        assert model.config._attn_implementation == before
        sampler.generate(prompts[:1], Settings(), group_size=3, seed=9)


def test_every_token_is_stamped_with_the_version_that_it_was_drawn_with():
    """Weights may change between two tokens of a row."""
    versions = iter(range(100))
    requests = [Request(prompt_ids=(5, 6), max_new_tokens=n, given_ids=(7,) * n) for n in (2, 4)]
    sampler = sampler_of(tiny_model(), ())
    rows = decoding_path(sampler.model).rows(sampler.model, max_rows=2, holds_prompt=False)
    one = engine.Engine(rows, engine.Score(1.0), max_rows=2, version=lambda: next(versions))
    with torch.no_grad():
        ended = [row for rows in one.run(requests, torch.device("cpu")) for row in rows]
    assert [row.versions for row in ended] == [[0, 1], [0, 1, 2, 3]]


def test_the_attention_of_a_model_is_its_own_again_after_an_error():
    model = tiny_model()
    before = model.config._attn_implementation
    sampler = sampler_of(model)
    assert sampler.note == ""
    handle = model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.raises(RuntimeError):
        sampler.generate(random_prompts(), Settings(), group_size=1, seed=0)
    handle.remove()
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    ("name", "reason"), [("bloom, slopes for positions", "no position_ids"), ("lfm2, convolutions", "IndexError")]
)
def test_a_model_that_keeps_more_than_keys_and_values_is_decoded_generically_and_says_so(name, reason):
    note = sampler_of(tiny_model(name)).note
    assert "padded rows" in note
    assert reason in note


def test_attention_reads_the_columns_of_the_longest_row_in_flight():
    in_use: list[tuple[int, int]] = []
    original = slots.SlotStorage.use

    def noted(self: slots.SlotStorage, num_columns: int, num_used: int) -> None:
        original(self, num_columns, num_used)
        in_use.append((self.num_columns, self.capacity))

    (prompt,) = random_prompts((4,))
    requests = [Request(prompt_ids=prompt.ids, max_new_tokens=n) for n in (86, 3)]
    sampler = sampler_of(tiny_model("gpt2, learned positions"), ())
    assert not sampler.note, "the decoding that finds the sampler's method is not counted here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots.SlotStorage, "use", noted)
        list(sampler.complete(requests, Settings(max_batch_rows=1), seed=0))
    assert [columns for columns, _ in in_use] == [-(-n // 32) * 32 for n in (*range(4, 90), *range(4, 7))]
    assert sorted({capacity for _, capacity in in_use}) == [32, 64, 96], "never less than the rows use"


@pytest.mark.parametrize(
    ("name", "storage"), [("llama", group_attention.SlotBlocks), ("gpt2, learned positions", slots.SlotStorage)]
)
def test_the_memory_of_a_call_is_given_back_when_it_ends(name, storage):
    """It does not wait for the garbage collector: keys and values would take memory during the training pass."""
    made: weakref.WeakSet[object] = weakref.WeakSet()
    original = storage.__init__

    def noted(self: object, *args: object, **settings: object) -> None:
        original(self, *args, **settings)
        made.add(self)
        num_made.append(1)

    num_made: list[int] = []
    sampler, prompts = sampler_of(tiny_model(name)), random_prompts((5, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "__init__", noted)
        gc.disable()
        try:
            sampler.generate(prompts, Settings(), group_size=3, seed=0)
            assert num_made
            assert not made
        finally:
            gc.enable()


@pytest.mark.slow
def test_log_probabilities_do_not_depend_on_the_rows_beside():
    model, prompts = tiny_model("mistral, sliding window"), random_prompts((12, 2, 7))
    settings = Settings(temperature=0.7)
    together = sampler_of(model, ()).generate(prompts, settings, group_size=5, seed=2)
    one_by_one = sampler_of(model, ()).generate(
        prompts, Settings(temperature=0.7, max_batch_rows=1), group_size=5, seed=2
    )
    for a, b in zip(together, one_by_one, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.ids == y.ids
            assert x.logprobs == pytest.approx(y.logprobs, abs=2e-5)


def test_two_prompts_with_the_same_tokens_are_two_groups():
    (prompt,) = random_prompts((5,))
    twin = Prompt(index=prompt.index + 1, ids=prompt.ids, text="")
    sampler = sampler_of(tiny_model(), ())
    both = sampler.generate([prompt, twin], Settings(), group_size=3, seed=1)
    assert [c.ids for c in both[0]] == [c.ids for c in sampler.generate([prompt], Settings(), group_size=3, seed=1)[0]]
    assert len({c.ids for group in both for c in group}) == 6
