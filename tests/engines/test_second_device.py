"""Decoding on a device with a queue: no tensor on the wrong device, no operation waits, no value is read early."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from peft import PeftModel
from tests.catalogue import few
from tests.engines.policies import Settings, lora_model, random_prompts, tiny_model, tiny_tokenizer
from tests.engines.second_device import DEVICE, Device, moved, second_device
from torch import nn
from transformers import PreTrainedModel

from posttrain.engines import decoding_path, engine, held, transfer, varlen_attention
from posttrain.engines.engine import Request
from posttrain.engines.local import LocalSampler
from posttrain.engines.weights import cast_in_place
from posttrain.errors import PublishError
from posttrain.models.compute import Compute
from posttrain.models.critic import lora_critic
from posttrain.models.load import LoadedModel
from posttrain.models.policy import hold_in

EOS_IDS = (2, 5, 17, 40)
PLAIN = Settings(max_batch_rows=3, max_completion_length=8)


def policy(name: str, **settings) -> nn.Module:
    """A policy in float64, in which no draw depends on the order of a sum."""
    return (lora_model(**settings) if name == "lora" else tiny_model(name, **settings)).double()


def sampler_of(model: nn.Module, **settings) -> LocalSampler:
    return LocalSampler(model, tiny_tokenizer(), EOS_IDS, **{"shared": True, **settings})


def drawn(sampler: LocalSampler, settings: Settings = PLAIN) -> list:
    groups = sampler.generate(random_prompts((3, 9)), settings, group_size=2, seed=2)
    return [[(one.ids, one.finish_reason, one.text) for one in group] for group in groups]


def passes(device: Device) -> float:
    """The number of passes; ids and log-probabilities of each came back."""
    return device.copies["to the host"] / 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("llama", PLAIN, marks=pytest.mark.slow),
        ("mistral, sliding window", Settings(max_batch_rows=3, max_completion_length=5, top_k=20, top_p=0.8)),
        ("lora", Settings(max_batch_rows=3, max_completion_length=5, stop=("a", "END"))),
        ("lfm2, convolutions", Settings(max_batch_rows=2, max_completion_length=5, temperature=0.0)),
    ],
)
def test_it_draws_what_the_cpu_draws_and_waits_for_nothing_but_old_ids(name, settings):
    model = policy(name)
    expected = drawn(sampler_of(model), settings)
    with second_device() as device:
        sampler = sampler_of(moved(model))
        assert sampler.note == sampler_of(model).note
        device.forget()
        assert drawn(sampler, settings) == expected
        assert device.waits == []
        assert device.events == passes(device) > 0


@pytest.mark.slow
def test_rows_of_several_temperatures_and_given_tokens_wait_for_nothing_either():
    model, (first, second) = policy("llama"), random_prompts((3, 6))
    requests = [
        Request(prompt_ids=ids, max_new_tokens=4, stream=(0, g), temperature=temperature)
        for g, (ids, temperature) in enumerate([(first.ids, 0.5), (first.ids, 0.0), (second.ids, None)])
    ]
    given = [first.ids], [second.ids]
    expected = {n: one.ids for n, one in sampler_of(model).complete(requests, PLAIN, seed=1)}
    scores = sampler_of(model).score(*given, temperature=0.7)[0]
    with second_device() as device:
        sampler = sampler_of(moved(model))
        assert not sampler.note
        device.forget()
        assert {n: one.ids for n, one in sampler.complete(requests, PLAIN, seed=1)} == expected
        assert sampler.score(*given, temperature=0.7)[0] == pytest.approx(scores, abs=1e-5)
        assert device.waits == []


# --- the kernel for rows of different lengths ------------------------------------------------------------------------


@pytest.fixture
def in_any_precision(monkeypatch):
    """Run the kernel in float64, which shows if it combines the right numbers; the real kernel uses half precision."""
    monkeypatch.setattr(decoding_path, "HALF", (torch.float64, torch.bfloat16))


@pytest.mark.slow
@pytest.mark.usefixtures("in_any_precision")
@pytest.mark.parametrize("name", few(["llama", "qwen2, tied", "lora"], "lora"))
def test_rows_that_read_their_own_columns_draw_the_same(name):
    """The cache grows during decoding: 70 columns are more than two blocks of them."""
    model, settings = policy(name, head_dim=8), Settings(max_batch_rows=3, max_completion_length=66)
    prompts = random_prompts((3, 9))
    requests = [
        Request(prompt_ids=prompts[p].ids, max_new_tokens=n, stream=(p, g))
        for p, g, n in ((1, 0, 3), (1, 1, 12), (0, 0, 66 if name == "llama" else 12), (0, 1, 2))
    ]
    expected = {n: one.ids for n, one in sampler_of(model).complete(requests, settings, seed=3)}
    with second_device() as device:
        sampler = sampler_of(moved(model))
        assert sampler.begin().path.implementation == varlen_attention.NAME
        device.forget()
        assert {n: one.ids for n, one in sampler.complete(requests, settings, seed=3)} == expected
        assert device.waits == []
        assert device.launches["varlen_attn"] >= 2 * passes(device)
        assert "scaled_dot_product_attention" not in device.launches


@pytest.mark.usefixtures("in_any_precision")
@pytest.mark.parametrize(
    ("name", "path"),
    [("mistral, sliding window", "slots_sdpa"), ("gemma2, soft caps and sliding window", "slots_eager")],
)
def test_models_that_need_more_than_causality_keep_their_attention(name, path):
    model = policy(name, head_dim=8)
    with second_device():
        assert sampler_of(moved(model)).begin().path.implementation == path


@pytest.mark.usefixtures("in_any_precision")
def test_a_width_that_the_kernel_refuses_is_decoded_another_way():
    model = policy("llama", head_dim=12)
    with second_device():
        assert sampler_of(moved(model)).begin().path.implementation == "slots_sdpa"


@pytest.fixture
def holds_base(monkeypatch):
    monkeypatch.setattr(held, "holds_base", lambda device: device == DEVICE.type)


def loaded(model: nn.Module) -> LoadedModel:
    return LoadedModel(
        model=cast("PreTrainedModel", moved(model)),
        tokenizer=tiny_tokenizer(),
        eos_ids=frozenset(EOS_IDS),
        pad_id=0,
        context_length=96,
        device=DEVICE,
        compute=Compute(dtype=torch.bfloat16),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("holds_base")
@pytest.mark.parametrize("weights", few(["shared", "taken"], "shared"))
def test_adapters_on_a_base_held_in_half_precision_decode_by_the_kernel(weights):
    """Slots are found in float32 first, without the kernel; the kernel is tried in the precision of a call."""
    with second_device() as device:
        policy = held.hold_frozen(loaded(lora_model("llama", head_dim=8)), decodes=True)
        assert decoding_path.decoding_path(policy.model).implementation == "slots_sdpa"
        sampler = LocalSampler.of(policy, weights)
        assert sampler.begin().path.implementation == varlen_attention.NAME
        device.forget()
        drawn(sampler)
        assert device.launches["varlen_attn"]
        assert device.waits == []


@pytest.mark.slow
@pytest.mark.parametrize("weights", few(["shared", "taken", "copied"], "copied"))
def test_slots_are_found_in_float32_however_a_call_decodes(monkeypatch, weights):
    """In bfloat16, no two methods agree for a deep model: a tolerance of 0 simulates such a model."""
    monkeypatch.setattr(decoding_path, "_ROUNDING", 0.0)
    with second_device():
        assert not LocalSampler.of(loaded(float32_policy()), weights).note


@pytest.mark.parametrize(
    "change",
    [pytest.param(lambda out: out * torch.nan, marks=pytest.mark.slow), lambda out: out.flip(0)],
    ids=["NaN", "other rows"],
)
def test_a_kernel_that_gives_something_else_is_not_decoded_by(monkeypatch, change):
    kernel = varlen_attention.varlen_attn
    monkeypatch.setattr(varlen_attention, "varlen_attn", lambda *args, **how: change(kernel(*args, **how)))
    with second_device():
        assert half(moved(float32_policy())).begin().path.implementation == "slots_sdpa"


# --- weights that a call casts once ----------------------------------------------------------------------------------


def half(model: nn.Module) -> LocalSampler:
    return sampler_of(model, dtype=torch.bfloat16)


def float32_policy(name: str = "qwen2, tied") -> nn.Module:
    return (lora_model("llama", head_dim=8) if name == "lora" else tiny_model(name, head_dim=8)).train()


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["qwen2, tied", "lora"], "qwen2, tied"))
def test_a_call_casts_each_weight_once_and_leaves_the_policy_as_it_was(name):
    with second_device() as device:
        policy = moved(float32_policy(name))
        before = dict(policy.named_parameters(remove_duplicate=False))
        sampler = half(policy)
        assert not sampler.note
        device.weights = {x.untyped_storage().data_ptr() for x in policy.parameters()}
        numbers, weights = sum(x.numel() for x in policy.parameters()), len(list(policy.parameters()))
        device.forget()
        for _ in sampler.each(random_prompts((3, 9)), PLAIN, group_size=2, seed=2):
            after = dict(policy.named_parameters(remove_duplicate=False))
            assert after.keys() == before.keys()
            assert all(after[n] is x for n, x in before.items())
        assert passes(device) >= 8
        assert device.launches["cast of a weight to bfloat16"] == weights
        assert device.bytes["cast of a weight to bfloat16"] == 6 * numbers
        assert device.waits == []


@pytest.mark.slow
def test_the_casts_draw_what_a_model_of_that_precision_draws():
    prompts = random_prompts((3, 9))
    with second_device():
        policy = moved(float32_policy())
        found = half(policy).generate(prompts, PLAIN, group_size=2, seed=2)
        cast_in_place(policy, torch.bfloat16)
        expected = sampler_of(policy).generate(prompts, PLAIN, group_size=2, seed=2)
    assert found == expected


@pytest.mark.slow
def test_weights_that_were_written_in_the_middle_of_a_call_are_decoded_with():
    """All weights become zero, so all tokens are equally likely."""
    requests = [Request(prompt_ids=(5, 6, n), max_new_tokens=n, given_ids=(7,) * n) for n in (1, 4)]
    equal = -torch.tensor(64.0).log().item()
    with second_device():
        policy = moved(float32_policy())
        logprobs = {}
        for row in half(policy)._run(requests, engine.Score(1.0), 1):
            logprobs[row.number] = row.logprobs
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(0)
    assert logprobs[0][0] != pytest.approx(equal, abs=1e-3) != logprobs[1][0], "launched before the write"
    assert logprobs[1][1:] == pytest.approx([equal] * 3, abs=1e-3)


@pytest.mark.slow
def test_casts_of_older_weights_do_not_pass_for_the_weights_that_were_published(monkeypatch):
    """The planted fault: casts that outlive their call."""
    with second_device():
        policy = moved(float32_policy())
        sampler = half(policy)
        probe = [[3, 4, 5]], [[6, 7]]
        sampler.probe(*probe, temperature=1.0)
        kept = sampler.begin()
        with kept.in_force():
            pass
        kept.precision.__self__._cast = lambda parameter: kept.precision.__self__._casts[id(parameter)][1]
        monkeypatch.setattr(sampler, "begin", lambda: kept)
        with pytest.raises(PublishError, match="decoding does not read"):
            sampler.probe(*probe, temperature=1.0)


@pytest.mark.parametrize("target_modules", [pytest.param("all-linear", marks=pytest.mark.slow), ["q_proj"]])
def test_a_policy_with_a_frozen_base_and_the_adapter_of_a_critic_is_published(target_modules):
    """A plain pass does not read that adapter, so each delivery reads it in a separate pass."""
    adapted = cast("PeftModel", lora_model("llama", head_dim=8, target_modules=target_modules))
    lora_critic(adapted, rank=2, alpha=4, seed=0)
    model = hold_in(adapted, torch.bfloat16)
    given = [[3, 4, 5]], [[6, 7]]
    with second_device():
        policy = moved(model)
        assert {x.dtype for x in policy.parameters()} == {torch.bfloat16, torch.float32}
        sampler = half(policy)
        assert sampler.probe(*given, temperature=1.0) == sampler.score(*given, temperature=1.0)


@pytest.mark.slow
def test_a_model_that_nobody_trains_is_stored_as_it_computes():
    with second_device() as device:
        sampler = LocalSampler.of(loaded(tiny_model(head_dim=8)), "taken")
        assert {x.dtype for x in sampler.model.parameters()} == {torch.bfloat16}
        assert not sampler.note
        device.forget()
        device.weights = {x.untyped_storage().data_ptr() for x in sampler.model.parameters()}
        drawn(sampler)
        assert "cast of a weight to bfloat16" not in device.launches


# --- faults that the second device finds -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_planted_read_in_the_loop_is_found(monkeypatch):
    class Curious(engine.Draw):
        def __call__(self, logits_BV, rows):
            logits_BV.max().item()
            return super().__call__(logits_BV, rows)

    monkeypatch.setattr("posttrain.engines.local.Draw", Curious)
    with second_device() as device:
        sampler = sampler_of(moved(policy("llama")))
        assert not sampler.note
        device.forget()
        drawn(sampler)
        assert device.waits == ["aten._local_scalar_dense.default"] * int(passes(device))


PLACES = {
    "a copy": lambda numbers, device: torch.tensor(numbers).to(device),
    "a copy of memory that is not pinned": lambda numbers, device: torch.tensor(numbers).to(device, non_blocking=True),
    "a tensor made there": lambda numbers, device: torch.tensor(numbers, device=device),
    "an index that is a list": lambda numbers, device: list(numbers),
}


@pytest.mark.parametrize("place", few(PLACES, "a copy"))
def test_a_planted_wait_for_a_copy_is_found(monkeypatch, place):
    with second_device() as device:
        sampler = sampler_of(moved(policy("llama")))
        assert not sampler.note
        device.forget()
        monkeypatch.setattr(engine, "to_device", PLACES[place])
        drawn(sampler)
        assert set(device.waits) == {"copy to the device"}


def test_a_planted_tensor_of_the_host_is_found(monkeypatch):
    with second_device():
        sampler = sampler_of(moved(policy("llama")))
        assert not sampler.note
        monkeypatch.setattr(engine, "move", lambda host, device: host)
        with pytest.raises(AssertionError, match="tensors of the host and of the device"):
            drawn(sampler)


def test_ids_that_are_read_without_waiting_for_them_are_found(monkeypatch):
    monkeypatch.setattr(transfer.Reading, "lists", lambda self: [tensor.tolist() for tensor in self._host])
    with second_device():
        sampler = sampler_of(moved(policy("llama")), max_batch_rows=1)
        scores = sampler.score([[3, 4]], [[5, 6, 7]], temperature=1.0)
        assert all(score != score for score in scores[0]), "a value that has not arrived is NaN"
