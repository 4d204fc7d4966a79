"""Generation with a key-value cache gives the model's own answers, in any mix of rows."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.catalogue import few
from tests.engines.policies import (
    CONFIGS,
    EOS,
    Settings,
    hf_greedy,
    lora_model,
    random_prompts,
    real_model,
    tiny_model,
    tiny_tokenizer,
)
from torch import nn

from posttrain.engines import LocalSampler
from posttrain.engines.delivery import deliver
from posttrain.errors import ConfigError, DataError, ModelError, NonFiniteError, PublishError
from posttrain.types import Completion, Prompt

GREEDY = Settings(temperature=0)
QUICK = ("llama", "gpt2, learned positions", "lfm2, convolutions")
"""One architecture for each way to decode: groups of rows, slots, padded rows. `make test` compares the numbers of all
of them with a plain forward pass, and the tokens of these with transformers."""


def sampler_of(model: nn.Module, eos_ids: tuple[int, ...] = (EOS,), **settings) -> LocalSampler:
    return LocalSampler(model, tiny_tokenizer(), eos_ids, **{"shared": True, **settings})


def warmed(sampler: LocalSampler) -> LocalSampler:
    """The sampler, after it has tried out how to decode with the model."""
    assert sampler.note is not None
    return sampler


def ids_of(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.ids for completion in group] for group in groups]


def full_forward_logprobs(model: nn.Module, prompt: Prompt, ids: tuple[int, ...], temperature: float) -> list[float]:
    """The log-probabilities of one uncached pass over the row, without padding."""
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([[*prompt.ids, *ids]])).logits[0].double() / temperature
    start = len(prompt.ids) - 1
    return logits_TV.log_softmax(dim=-1)[range(start, start + len(ids)), list(ids)].tolist()


@contextmanager
def counted(module: nn.Module) -> Iterator[list[tuple[int, int]]]:
    """The shapes `[rows, tokens]` of all inputs of an embedding."""
    shapes: list[tuple[int, int]] = []
    handle = module.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    yield shapes
    handle.remove()


# ---------------------------------------------------------------- the model's own answers


@pytest.mark.parametrize(
    ("name", "attention"),
    few(
        [*((name, None) for name in CONFIGS), ("llama", "eager"), ("mistral, sliding window", "eager")],
        *((name, None) for name in QUICK),
        ("mistral, sliding window", "eager"),
    ),
)
def test_greedy_answers_are_those_of_transformers_token_for_token(name, attention):
    """Prompts of five lengths in one batch, several EOS ids, some rows finishing long before others."""
    model, eos_ids = tiny_model(name, attention=attention), (2, 5, 17, 40)
    prompts = random_prompts()
    groups = sampler_of(model, eos_ids).generate(prompts, GREEDY, group_size=2, seed=0)
    for prompt, group in zip(prompts, groups, strict=True):
        expected = hf_greedy(model, prompt, GREEDY.max_completion_length, eos_ids)
        assert [c.ids for c in group] == [expected, expected]


@pytest.mark.parametrize("name", few(["stories260K", "stories15M", "minimind2-small"], "stories260K"))
def test_greedy_answers_of_trained_models_are_those_of_transformers(name):
    model, tokenizer = real_model(name)
    texts = ["Once upon a time", "Lily", "The dog saw a big red ball in the park and"]
    prompts = [Prompt(index=i, ids=tuple(tokenizer(text)["input_ids"]), text=text) for i, text in enumerate(texts)]
    groups = LocalSampler(model, tokenizer, [1, 2], shared=True).generate(prompts, GREEDY, group_size=1, seed=0)
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        assert completion.ids == hf_greedy(model, prompt, GREEDY.max_completion_length, [1, 2])
        assert completion.text == tokenizer.decode(completion.ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probabilities_are_those_of_a_forward_pass_over_the_whole_row(name):
    model, prompts, temperature = tiny_model(name), random_prompts(), 0.6
    settings = Settings(temperature=temperature)
    for prompt, group in zip(prompts, sampler_of(model).generate(prompts, settings, group_size=2, seed=1), strict=True):
        for completion in group:
            expected = full_forward_logprobs(model, prompt, completion.ids, temperature)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_log_probabilities_are_at_temperature_1():
    model, prompts = tiny_model(), random_prompts()
    groups = sampler_of(model).generate(prompts, GREEDY, group_size=1, seed=0)
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        expected = full_forward_logprobs(model, prompt, completion.ids, 1.0)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_truncated_sampling_draws_from_the_likeliest_tokens_and_reports_their_renormalised_probabilities():
    model, prompts = tiny_model(), random_prompts()
    settings = Settings(top_k=2)
    for prompt, group in zip(prompts, sampler_of(model).generate(prompts, settings, group_size=2, seed=1), strict=True):
        for completion in group:
            with torch.no_grad():
                logits_TV = model(input_ids=torch.tensor([[*prompt.ids, *completion.ids]])).logits[0]
            for t, (token, logprob) in enumerate(zip(completion.ids, completion.logprobs, strict=True)):
                top = logits_TV[len(prompt.ids) - 1 + t].topk(2)
                assert token in top.indices.tolist()
                kept = top.values.log_softmax(dim=-1)[top.indices.tolist().index(token)]
                assert logprob == pytest.approx(float(kept), abs=1e-4)


@pytest.mark.parametrize("name", few(CONFIGS, *QUICK))
def test_scoring_goes_through_the_decoding_path_and_agrees_with_generation(name):
    sampler, prompts = sampler_of(tiny_model(name)), random_prompts()
    groups = sampler.generate(prompts, Settings(temperature=0.8), group_size=2, seed=1)
    pairs = [(prompt.ids, c) for prompt, group in zip(prompts, groups, strict=True) for c in group]
    scores = sampler.score([p for p, _ in pairs], [c.ids for _, c in pairs], temperature=0.8)
    for (_, completion), score in zip(pairs, scores, strict=True):
        assert score == pytest.approx(completion.logprobs, abs=2e-5)


def test_scores_of_completions_of_any_length_keep_their_order():
    model = tiny_model()
    sampler, (short, long, *_) = sampler_of(model, max_batch_rows=2), random_prompts((2, 9))
    rows = [(short, (5, 6, 7)), (long, ()), (long, (8,)), (short, (9, 9))]
    scores = sampler.score([p.ids for p, _ in rows], [ids for _, ids in rows], temperature=1.0)
    for (prompt, ids), score in zip(rows, scores, strict=True):
        assert score == pytest.approx(full_forward_logprobs(model, prompt, ids, 1.0) if ids else [], abs=1e-4)


def test_scoring_needs_no_more_positions_than_each_row_has():
    """A long prompt with a short completion next to a long completion: learned positions end at 96."""
    model = tiny_model("gpt2, learned positions")
    long, short = random_prompts((94, 2))
    ids = tuple(random_prompts((60,), seed=1)[0].ids)
    scores = sampler_of(model).score([long.ids, short.ids], [ids[:2], ids], temperature=1.0)
    assert scores[0] == pytest.approx(full_forward_logprobs(model, long, ids[:2], 1.0), abs=1e-4)
    assert scores[1] == pytest.approx(full_forward_logprobs(model, short, ids, 1.0), abs=1e-4)


def test_first_tokens_follow_the_distribution_of_the_model():
    """2000 completions of one token: chi-square against the forward pass, bound at the 99.9% quantile."""
    model, (prompt,) = tiny_model(), random_prompts((4,))
    settings = Settings(max_completion_length=1, max_batch_rows=2000)
    (group,) = sampler_of(model).generate([prompt], settings, group_size=2000, seed=5)
    with torch.no_grad():
        expected_V = model(input_ids=torch.tensor([prompt.ids])).logits[0, -1].double().softmax(dim=-1) * len(group)
    observed_V = torch.bincount(torch.tensor([c.ids[0] for c in group]), minlength=len(expected_V)).double()
    rare_V = expected_V < 5  # pooled, as the chi-square test requires
    observed = torch.cat([observed_V[~rare_V], observed_V[rare_V].sum()[None]])
    expected = torch.cat([expected_V[~rare_V], expected_V[rare_V].sum()[None]])
    assert float(((observed - expected) ** 2 / expected).sum()) < 103.4  # 63 degrees of freedom at most


# ---------------------------------------------------------------- reproducibility


@pytest.mark.parametrize("name", few([*QUICK, "mistral, sliding window", "qwen3-moe, experts"], "llama"))
def test_the_same_seed_gives_the_same_completions_whatever_is_decoded_together(name):
    """This holds in float32 on the CPU; it is no theorem, because the other rows can change the last bit of a logit."""
    sampler, prompts = sampler_of(tiny_model(name)), random_prompts()
    expected = ids_of(sampler.generate(prompts, Settings(), group_size=3, seed=9))
    for rows in (1, 4, 7):
        settings = Settings(max_batch_rows=rows)
        assert ids_of(sampler.generate(prompts, settings, group_size=3, seed=9)) == expected, f"batches of {rows} rows"
    backwards = sampler.generate(prompts[::-1], Settings(), group_size=3, seed=9)[::-1]
    assert ids_of(backwards) == expected


def test_more_completions_or_tokens_continue_the_same_streams():
    sampler, prompts = sampler_of(tiny_model(), eos_ids=()), random_prompts()
    few = sampler.generate(prompts, Settings(max_completion_length=6), group_size=2, seed=9)
    more = sampler.generate(prompts, Settings(max_completion_length=12), group_size=4, seed=9)
    for few_group, more_group in zip(few, more, strict=True):
        assert [c.ids for c in few_group] == [c.ids[:6] for c in more_group[:2]]


def test_another_seed_prompt_index_or_place_in_the_group_gives_another_completion():
    sampler, (prompt,) = sampler_of(tiny_model(), eos_ids=()), random_prompts((5,))
    twin = Prompt(index=prompt.index + 1, ids=prompt.ids, text="")
    groups = sampler.generate([prompt, twin], Settings(), group_size=4, seed=1)
    groups += sampler.generate([prompt], Settings(), group_size=4, seed=2)
    assert len({c.ids for group in groups for c in group}) == 12


def test_sampling_neither_reads_nor_moves_the_global_random_state():
    sampler, prompts = sampler_of(tiny_model()), random_prompts()
    torch.manual_seed(1)
    before, first = torch.get_rng_state(), sampler.generate(prompts, Settings(), group_size=2, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert sampler.generate(prompts, Settings(), group_size=2, seed=3) == first


# ---------------------------------------------------------------- how completions end


def test_every_eos_id_ends_a_completion_and_is_part_of_it():
    eos_ids = (2, 5, 17, 40)
    groups = sampler_of(tiny_model(), eos_ids).generate(
        random_prompts(), Settings(max_completion_length=40), group_size=8, seed=0
    )
    completions = [c for group in groups for c in group]
    ended = [c for c in completions if c.finish_reason == "eos"]
    assert {c.ids[-1] for c in ended} == set(eos_ids)
    for c in completions:
        assert len(c.ids) == len(c.logprobs) == len(c.versions)
        assert not set(c.ids[:-1]) & set(eos_ids)
        if c.finish_reason == "length":
            assert len(c.ids) == 40
            assert c.truncated


def test_eos_may_be_the_first_token():
    """EOS comes first in every row: the batch is empty after one step."""
    model = tiny_model()
    (prompt,) = random_prompts((5,))
    first = hf_greedy(model, prompt, 1, [])[0]
    ((completion,),) = sampler_of(model, (first,)).generate([prompt], GREEDY, group_size=1, seed=0)
    assert (completion.ids, completion.finish_reason, completion.truncated) == ((first,), "eos", False)


def test_a_stop_string_ends_a_completion_and_is_cut_from_its_text():
    """The ids are kept up to and including the token that completed the string."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    (prompt,) = random_prompts((5,))
    free = hf_greedy(model, prompt, 16, [])
    text = tokenizer.decode(free)
    stop = text[4:7]  # three characters of several tokens
    cut_at = text.index(stop)
    ((completion,),) = sampler_of(model, ()).generate(
        [prompt], Settings(temperature=0, stop=[stop]), group_size=1, seed=0
    )
    assert (completion.text, completion.finish_reason) == (text[:cut_at], "stop")
    assert completion.ids == free[: len(completion.ids)]
    assert stop in tokenizer.decode(completion.ids)
    assert stop not in tokenizer.decode(completion.ids[:-1])


def test_a_completion_of_exactly_the_full_length_that_ends_by_itself_is_not_truncated():
    model, (prompt,) = tiny_model(), random_prompts((5,))
    free = hf_greedy(model, prompt, 4, [])
    settings = Settings(temperature=0, max_completion_length=4)
    assert free[3] not in free[:3]
    ((by_eos,),) = sampler_of(model, (free[3],)).generate([prompt], settings, group_size=1, seed=0)
    ((by_length,),) = sampler_of(model, ()).generate([prompt], settings, group_size=1, seed=0)
    assert (by_eos.ids, by_eos.finish_reason) == (free, "eos")
    assert (by_length.ids, by_length.finish_reason) == (free, "length")


def test_special_tokens_are_not_part_of_the_text():
    model, tokenizer, (prompt,) = tiny_model(), tiny_tokenizer(), random_prompts((5,))
    first = hf_greedy(model, prompt, 1, [])[0]
    tokenizer.add_special_tokens({"cls_token": tokenizer.convert_ids_to_tokens(first)})
    ((completion,),) = LocalSampler(model, tokenizer, [first], shared=True).generate(
        [prompt], GREEDY, group_size=1, seed=0
    )
    assert (completion.ids, completion.text) == ((first,), "")


# ---------------------------------------------------------------- the work of a call


@pytest.mark.parametrize("rows", [64, 3])
def test_a_prompt_goes_through_the_model_once_for_its_whole_group(rows):
    """Three prompts of 6 tokens, 8 completions of 4 each; the last token needs no further pass."""
    sampler = warmed(sampler_of(model := tiny_model(), ()))
    with counted(model.get_input_embeddings()) as shapes:
        sampler.generate(
            random_prompts((6, 6, 6)),
            Settings(max_completion_length=4, max_batch_rows=rows),
            group_size=8,
            seed=0,
        )
    assert sum(b * t for b, t in shapes) == 3 * 6 + 3 * 8 * 3
    assert sum(t > rows for _, t in shapes) <= 3, "passes that contain prompts"


def test_no_row_is_computed_after_its_end():
    sampler = warmed(sampler_of(model := tiny_model(), (2, 5, 17, 40, 9, 33)))
    with counted(model.get_input_embeddings()) as shapes:
        groups = sampler.generate(random_prompts(), Settings(max_completion_length=40), group_size=8, seed=0)
    lengths = [len(c.ids) for group in groups for c in group]
    assert max(lengths) * len(lengths) > 2 * sum(lengths), "the test needs different lengths"
    assert sum(b * t for b, t in shapes) == sum(len(p.ids) for p in random_prompts()) + sum(lengths) - len(lengths)


def test_padded_rows_leave_the_batch_a_few_at_a_time():
    sampler = warmed(sampler_of(model := tiny_model("lfm2, convolutions"), (2, 5, 17, 40, 9, 33)))
    with counted(model.get_input_embeddings()) as shapes:
        groups = sampler.generate(random_prompts(), Settings(max_completion_length=40), group_size=8, seed=0)
    lengths = [len(c.ids) for group in groups for c in group]
    decoded = sum(b for b, t in shapes if t == 1)
    needed = sum(lengths) - len(lengths)
    assert max(lengths) * len(lengths) > 2 * needed, "the test needs different lengths"
    assert needed <= decoded <= needed / (1 - 1 / 8) + max(lengths)


@pytest.mark.parametrize("name", ["llama", "lfm2, convolutions"])
def test_long_prompts_are_prefilled_a_few_at_a_time(name, monkeypatch):
    """At most 20 tokens per pass, including padding; a longer prompt has a pass of its own."""
    monkeypatch.setattr("posttrain.engines.engine.PREFILL_TOKENS", 20)
    sampler = warmed(sampler_of(model := tiny_model(name), ()))
    with counted(model.get_input_embeddings()) as shapes:
        sampler.generate(random_prompts((3, 9, 5, 30, 10)), Settings(max_completion_length=1), group_size=1, seed=0)
    assert [b * t for b, t in shapes] == ([30, 19, 8] if name == "llama" else [30, 20, 10])


# ---------------------------------------------------------------- the policy is left alone


def test_modes_of_all_modules_are_restored_and_dropout_is_off_meanwhile():
    model = tiny_model("gpt2, learned positions")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9
    expected = sampler_of(model).generate(random_prompts(), GREEDY, group_size=1, seed=0)
    model.train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    assert sampler_of(model).generate(random_prompts(), GREEDY, group_size=1, seed=0) == expected
    assert [module.training for module in model.modules()] == modes


def test_modes_are_restored_after_an_error_too():
    model = tiny_model().train()
    model.lm_head.weight.data[:] = float("nan")
    with pytest.raises(NonFiniteError, match=r"completion 0 of prompt \d+ are not finite\n.*learning_rate"):
        sampler_of(model).generate(random_prompts(), Settings(), group_size=1, seed=0)
    assert all(module.training for module in model.modules())


def test_a_model_can_be_trained_right_after_it_has_generated():
    model = tiny_model().train()
    sampler_of(model).generate(random_prompts(), Settings(), group_size=2, seed=0)
    model(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_gradient_checkpointing_does_not_switch_the_cache_off():
    model = tiny_model().train()
    expected = ids_of(sampler_of(model).generate(random_prompts(), GREEDY, group_size=1, seed=0))
    model.gradient_checkpointing_enable()
    with counted(model.get_input_embeddings()) as shapes:
        assert ids_of(sampler_of(model).generate(random_prompts(), GREEDY, group_size=1, seed=0)) == expected
    assert [t for _, t in shapes][1:] == sorted((t for _, t in shapes[1:]), reverse=True), "the prompts are read once"


# ---------------------------------------------------------------- engines: shared, own copy, adapters, precision


@pytest.mark.parametrize("shared", few([True, False], False))
def test_a_policy_with_an_adapter_generates_what_its_merged_model_generates(shared):
    policy, prompts = lora_model(), random_prompts()
    found = sampler_of(policy, shared=shared).generate(prompts, GREEDY, group_size=1, seed=0)
    merged = lora_model().merge_and_unload()
    expected = [hf_greedy(merged, prompt, GREEDY.max_completion_length, [EOS]) for prompt in prompts]
    assert [group[0].ids for group in found] == expected
    base = (hf_greedy(tiny_model(), prompt, GREEDY.max_completion_length, [EOS]) for prompt in prompts)
    assert any(map(operator.ne, expected, base)), "an adapter that changes nothing tests nothing"


@pytest.mark.slow
def test_new_weights_and_their_version_are_used_and_recorded_once_they_are_delivered():
    policy, prompts = tiny_model(), random_prompts()
    own, shared = sampler_of(policy, shared=False), sampler_of(policy)
    policy.lm_head.weight.data.neg_()
    stale = own.generate(prompts, GREEDY, group_size=1, seed=0)
    assert {v for (c,) in stale for v in c.versions} == {0}
    for sampler in (own, shared):
        deliver(policy, sampler, 3)
        fresh = sampler.generate(prompts, GREEDY, group_size=1, seed=0)
        assert {v for (c,) in fresh for v in c.versions} == {3}
        assert ids_of(fresh) != ids_of(stale)
        assert [c.ids for (c,) in fresh] == [hf_greedy(policy, p, GREEDY.max_completion_length, [EOS]) for p in prompts]


def test_shared_modules_can_only_be_those_of_the_published_policy():
    with pytest.raises(PublishError, match="modules of a different model"):
        deliver(tiny_model(), sampler_of(tiny_model()), 1)


@pytest.mark.parametrize("shared", [True, False])
def test_decoding_runs_in_the_precision_that_was_asked_for(shared):
    policy = tiny_model()
    sampler = warmed(sampler_of(policy, shared=shared, dtype=torch.bfloat16))
    computed_in = set()
    for layer in sampler.model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _m, _i, output: computed_in.add(output.dtype))
    (group,) = sampler.generate(random_prompts((5,)), Settings(), group_size=4, seed=0)
    assert computed_in == {torch.bfloat16}
    assert policy.dtype == torch.float32
    ids = [c.ids for c in group]
    scores = sampler.score([random_prompts((5,))[0].ids] * 4, ids, temperature=1.0)
    for score, completion in zip(scores, group, strict=True):
        assert score == pytest.approx(completion.logprobs, abs=0.2)


# ---------------------------------------------------------------- refusals


def test_a_prompt_that_leaves_no_room_for_its_completion_is_refused_before_anything_is_computed():
    model = tiny_model()
    (prompt,) = random_prompts((81,))
    with counted(model.get_input_embeddings()) as shapes, pytest.raises(ConfigError) as error:
        sampler_of(model).generate([prompt], Settings(max_completion_length=16), group_size=1, seed=0)
    assert str(error.value) == (
        "prompt 10 has 81 tokens and its completion may have 16; "
        "allowed: 96 tokens together, the context window of the model.\n"
        "  Set data.max_prompt_length = 80, or lower sampling.max_completion_length."
    )
    assert not shapes


def test_a_prompt_that_just_fits_the_window_is_completed():
    (prompt,) = random_prompts((80,))
    ((completion,),) = sampler_of(tiny_model(), ()).generate([prompt], Settings(), group_size=1, seed=0)
    assert len(completion.ids) == 16


def test_completions_longer_than_the_window_are_refused():
    with pytest.raises(ConfigError, match=r"Set sampling\.max_completion_length below 96"):
        sampler_of(tiny_model()).generate(
            random_prompts((2,)), Settings(max_completion_length=96), group_size=1, seed=0
        )


def test_a_prompt_without_tokens_is_refused():
    empty = Prompt(index=4, ids=(), text="")
    with pytest.raises(DataError, match="prompt 4 has no tokens; allowed: at least one token"):
        sampler_of(tiny_model()).generate([empty], Settings(), group_size=1, seed=0)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ConfigError, match="empty string"):
        sampler_of(tiny_model()).generate(random_prompts(), Settings(stop=[".", ""]), group_size=1, seed=0)


def test_modules_that_are_no_language_model_are_refused():
    with pytest.raises(ModelError, match="got a Linear; allowed: a causal language model of transformers"):
        sampler_of(nn.Linear(2, 2))


def test_a_group_without_completions_is_refused():
    with pytest.raises(ConfigError, match="group_size = 0; allowed: at least 1"):
        sampler_of(tiny_model()).generate(random_prompts(), Settings(), group_size=0, seed=0)


def test_no_prompts_give_no_completions():
    assert sampler_of(tiny_model()).generate([], Settings(), group_size=2, seed=0) == []
