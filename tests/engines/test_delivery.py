"""The run stops if the sampler decodes with other weights than the trained ones, and in no other case."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.catalogue import few
from tests.engines.policies import (
    CONFIGS,
    EOS,
    lora_model,
    random_prompts,
    real_model,
    tiny_model,
    tiny_tokenizer,
    trainer_logprobs,
)
from torch import nn

import posttrain
from posttrain.engines import DeliveryProof, LocalSampler
from posttrain.engines.call import Call
from posttrain.engines.delivery import check_receipt, deliver, tolerance_for
from posttrain.engines.sampler import Receipt
from posttrain.engines.weights import named_tensors
from posttrain.errors import NonFiniteError, PublishError
from posttrain.types import Max, Metrics, Min

PROOF = DeliveryProof.from_prompts([p.ids for p in random_prompts((9, 40, 1, 6))], tolerance=1e-3)


def check(policy: nn.Module, sampler: LocalSampler, version: int = 1, proof: DeliveryProof = PROOF) -> Metrics:
    return proof.check(trainer_logprobs(policy), policy, sampler, sampler.receipt(), version)


def sampler_of(policy: nn.Module, *, shared: bool = False, **settings) -> LocalSampler:
    return LocalSampler(policy, tiny_tokenizer(), [EOS], shared=shared, version=1, **settings)


def train(policy: nn.Module, learning_rate: float, *, signal: float = 1.0) -> None:
    """One AdamW step; without weight decay a step without signal moves nothing."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    logits = policy(input_ids=torch.tensor([[5, 9, 33]])).logits
    (signal * logits.log_softmax(dim=-1)[..., 7].sum()).backward()
    optimizer.step()
    optimizer.zero_grad()


# ---------------------------------------------------------------- correct deliveries pass


@pytest.mark.parametrize(
    ("name", "shared"),
    few(
        itertools.product(CONFIGS, [True, False]),
        ("qwen2, tied", True),
        *((name, False) for name in ("llama", "qwen2, tied", "gpt2, learned positions", "lfm2, convolutions")),
    ),
)
def test_delivered_weights_pass_and_are_all_compared(name, shared):
    policy = tiny_model(name)
    sampler = sampler_of(policy, shared=shared)
    train(policy, 0.01)
    deliver(policy, sampler, 2)
    metrics = check(policy, sampler, version=2)
    assert metrics["publish/tensors_compared"] == Min(len(list(named_tensors(policy))))
    difference = metrics["publish/probe_max_difference"]
    assert isinstance(difference, Max)
    assert difference.value < 1e-4


@pytest.mark.parametrize("name", few(["stories260K", "minimind2-small"], "stories260K"))
@pytest.mark.parametrize("temperature", few([1.0, 0.5], 0.5))
def test_trained_models_pass_within_the_tolerance_for_float32(name, temperature):
    model, tokenizer = real_model(name)
    texts = ["Once upon a time there was a dog who liked to", "What is the capital of France?"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    proof = DeliveryProof.from_prompts(ids, tolerance=tolerance_for(torch.float32), temperature=temperature)
    sampler = LocalSampler(model, tokenizer, [1, 2], shared=False, version=1)
    difference = check(model, sampler, proof=proof)["publish/probe_max_difference"]
    assert float(difference) < proof.tolerance / 10


@pytest.mark.parametrize("shared", [True, False])
def test_adapters_pass_shared_and_merged(shared):
    policy = lora_model()
    sampler = sampler_of(policy, shared=shared)
    train(policy, 0.01)
    deliver(policy, sampler, 2)
    check(policy, sampler, version=2)


@pytest.mark.parametrize("shared", few([True, False], False))
def test_half_precision_passes_within_its_tolerance(shared):
    policy = tiny_model()
    sampler = sampler_of(policy, shared=shared, dtype=torch.bfloat16)
    proof = DeliveryProof.from_prompts(
        [p.ids for p in random_prompts((9, 6))], tolerance=tolerance_for(torch.float32, torch.bfloat16)
    )
    check(policy, sampler, proof=proof)


@pytest.mark.slow
def test_dropout_and_training_mode_do_not_trip_it():
    policy = lora_model(lora_dropout=0.5).train()
    check(policy, sampler_of(policy))
    assert all(module.training for module in policy.modules())


@pytest.mark.parametrize("shared", few([True, False], False))
def test_a_warm_up_step_with_learning_rate_0_passes_although_nothing_changed(shared):
    policy = tiny_model()
    sampler = sampler_of(policy, shared=shared)
    train(policy, 0.0)
    check(policy, sampler)  # whether or not the unchanged weights were sent
    deliver(policy, sampler, 2)
    check(policy, sampler, version=2)


@pytest.mark.parametrize("shared", few([True, False], False))
def test_a_step_without_signal_passes(shared):
    policy = tiny_model()
    sampler = sampler_of(policy, shared=shared)
    train(policy, 0.01, signal=0.0)
    deliver(policy, sampler, 2)
    check(policy, sampler, version=2)


# ---------------------------------------------------------------- wrong deliveries stop the run


def test_a_version_that_did_not_move_on_stops_the_run():
    policy = tiny_model()
    with pytest.raises(PublishError, match=r"runs policy version 1, but should run 2") as error:
        check(policy, sampler_of(policy, shared=True), version=2)
    assert error.value.exit_code == 4


@pytest.mark.parametrize("learning_rate", few([1e-2, 1e-10], 1e-10))
def test_a_stale_copy_is_found_however_small_the_step_was(learning_rate):
    policy = tiny_model()
    sampler = sampler_of(policy)
    before = sampler.score(PROOF.prompt_ids, PROOF.completion_ids, temperature=1.0)
    train(policy, learning_rate)
    with pytest.raises(
        PublishError, match=r"(?s)differs between the trained model and the sampler.*stale or incomplete"
    ):
        check(policy, sampler)
    if learning_rate < 1e-6:  # a change that only the comparison of the content could detect
        deliver(policy, sampler, 2)
        after = sampler.score(PROOF.prompt_ids, PROOF.completion_ids, temperature=1.0)
        moved = max(abs(x - y) for a, b in zip(before, after, strict=True) for x, y in zip(a, b, strict=True))
        assert moved < 2e-6, "the step was meant to be smaller than a rounding error"


def test_a_sampler_that_claims_to_share_modules_but_decodes_with_a_copy_is_found():
    policy = tiny_model()
    sampler = sampler_of(policy, shared=True)
    sampler.model = copy.deepcopy(policy)
    train(policy, 1e-9)
    with pytest.raises(PublishError, match="stale or incomplete"):
        check(policy, sampler)


def test_one_layer_that_was_not_copied_is_named():
    policy = tiny_model()
    sampler = sampler_of(policy)
    old = sampler.model.model.layers[1].mlp.up_proj.weight.clone()
    train(policy, 1e-3)
    deliver(policy, sampler, 2)
    sampler.model.model.layers[1].mlp.up_proj.weight.data.copy_(old)
    with pytest.raises(
        PublishError, match=r"^model\.layers\.1\.mlp\.up_proj\.weight differs .* 0 of the other \d+ tensors"
    ):
        check(policy, sampler, version=2)


def test_an_ignored_adapter_is_found():
    """The copy has only the base model: losses are finite and rewards move, but no learned weight is ever sampled."""
    policy = lora_model()
    sampler = sampler_of(tiny_model())
    with pytest.raises(PublishError, match=r"differs .* and so do 13 of the other"):  # 14 adapted matrices
        check(policy, sampler)


def test_an_adapter_that_is_off_in_the_sampler_is_found_because_it_is_not_read():
    """The sampler has all tensors, but decoding does not use the adapter's."""

    class WithoutAdapter(LocalSampler):
        def score(self, *args, **kwargs):
            with self.model.disable_adapter():
                return super().score(*args, **kwargs)

    policy = lora_model()
    sampler = WithoutAdapter(policy, tiny_tokenizer(), [EOS], shared=True, version=1)
    with pytest.raises(PublishError, match=r"decoding does not read .*lora"):
        check(policy, sampler)


def test_adapters_that_are_switched_off_for_a_while_are_no_failure():
    """Every parameter was read before the adapters were switched off."""
    policy = lora_model()
    sampler = sampler_of(policy, shared=True)
    check(policy, sampler)
    with policy.disable_adapter():
        check(policy, sampler)
    check(policy, sampler)


def test_tensors_in_each_others_place_are_found():
    policy = tiny_model()
    sampler = sampler_of(policy)
    first, second = (sampler.model.model.layers[i].self_attn.k_proj for i in (0, 1))
    first.weight.data, second.weight.data = second.weight.data, first.weight.data
    with pytest.raises(PublishError, match=r"^model\.layers\.0\.self_attn\.k_proj\.weight .* 1 of the other"):
        check(policy, sampler)


def test_a_buffer_that_differs_is_found():
    policy = tiny_model()
    sampler = sampler_of(policy)
    sampler.model.model.rotary_emb.inv_freq.mul_(1.0001)
    with pytest.raises(PublishError, match=r"^model\.rotary_emb\.inv_freq"):
        check(policy, sampler)


def test_a_tensor_that_has_no_counterpart_is_found():
    policy = tiny_model()
    sampler = sampler_of(policy)
    policy.register_parameter("new", nn.Parameter(torch.zeros(1)))
    with pytest.raises(PublishError, match=r"lacks 1 tensors \(new\)"):
        check(policy, sampler)


class DecodesWithACopy(LocalSampler):
    """A sampler that shares the policy's modules and tries them, but decodes with a copy of them."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__(policy, tiny_tokenizer(), [EOS], shared=True, version=1)
        self.other = LocalSampler(copy.deepcopy(policy), tiny_tokenizer(), [EOS], shared=True, version=1)

    def begin(self) -> Call:
        super().begin()
        return self.other.begin()


def test_a_copy_is_found_at_the_first_delivery_though_the_trials_of_a_model_read_it():
    policy = tiny_model()
    with pytest.raises(PublishError, match=r"decoding does not read model\.embed_tokens\.weight"):
        check(policy, DecodesWithACopy(policy))


class CachesTheHead(LocalSampler):
    """A sampler that shares the policy's modules, but multiplies by a transposed head that it cached at the start."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.head_DV = self.model.lm_head.weight.detach().T.contiguous()

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        true_head, self.model.lm_head = self.model.lm_head, _Transposed(self.head_DV)
        try:
            return super().score(prompt_ids, completion_ids, temperature=temperature)
        finally:
            self.model.lm_head = true_head


class _Transposed(nn.Module):
    def __init__(self, head_DV: torch.Tensor) -> None:
        super().__init__()
        self.head_DV = head_DV

    def forward(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return hidden_BTD @ self.head_DV


@pytest.mark.parametrize("learning_rate", few([1e-2, 1e-9], 1e-9))
def test_something_computed_from_older_weights_is_found_though_the_modules_are_shared(learning_rate):
    """The size of the step does not matter: decoding no longer reads the head that was compared."""
    policy = tiny_model()
    sampler = CachesTheHead(policy, tiny_tokenizer(), [EOS], shared=True, version=1)
    train(policy, learning_rate)
    with pytest.raises(PublishError, match=r"decoding does not read lm_head\.weight \(1 tensors\)"):
        check(policy, sampler)


def test_a_stale_head_tied_to_the_embedding_is_found_by_the_probe():
    """The embedding still reads the shared memory, so only the numbers show the difference."""
    policy = tiny_model("qwen2, tied")
    sampler = CachesTheHead(policy, tiny_tokenizer(), [EOS], shared=True, version=1)
    train(policy, 1e-2)
    with pytest.raises(
        PublishError, match=r"token \d of probe \d has log-probability .* in the trainer and .* sampler"
    ):
        check(policy, sampler)


def test_log_probabilities_that_mean_something_else_are_found_by_the_probe():
    """The weights are equal, but the trainer forgets the temperature."""
    policy = tiny_model()
    proof = DeliveryProof.from_prompts([p.ids for p in random_prompts((9,))], tolerance=1e-3, temperature=0.7)

    def at_temperature_1(prompt_ids, completion_ids, *, temperature):
        return trainer_logprobs(policy)(prompt_ids, completion_ids, temperature=1.0)

    sampler = sampler_of(policy)
    with pytest.raises(PublishError, match=r"allowed: at most 0\.00143 \(guards\.publish_tolerance"):
        proof.check(at_temperature_1, policy, sampler, sampler.receipt(), 1)


def test_weights_that_overflowed_are_named_as_such():
    policy = tiny_model()

    def overflowed(prompt_ids, completion_ids, *, temperature):
        return [[float("nan") for _ in ids] for ids in completion_ids]

    sampler = sampler_of(policy)
    with pytest.raises(NonFiniteError, match="token 0 of probe 0 is nan"):
        PROOF.check(overflowed, policy, sampler, sampler.receipt(), 1)


def test_a_sampler_that_returns_no_numbers_never_passes():
    class Broken(LocalSampler):
        def score(self, *args, **kwargs):
            return [[float("nan")] * len(row) for row in super().score(*args, **kwargs)]

    policy = tiny_model()
    sampler = Broken(policy, tiny_tokenizer(), [EOS], shared=True, version=1)
    with pytest.raises(PublishError, match=r"in the trainer and nan in the sampler, a difference of inf"):
        check(policy, sampler)


# ---------------------------------------------------------------- a sampler that exposes no weights


class Elsewhere:
    """A sampler with the `Sampler` interface and nothing else, like an engine in another process."""

    def __init__(self, policy: nn.Module, *, loses: str = "nothing") -> None:
        self._inside, self._loses = sampler_of(policy), loses

    def __getattr__(self, name: str) -> Any:
        if name not in {"version", "owns_weights", "probe", "score", "routes", "held"}:
            raise AttributeError(f"nobody may look at {name}")
        return getattr(self._inside, name)

    def deliver(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> Receipt:
        kept = [(name, tensor) for name, tensor in tensors if self._loses not in name]
        return self._inside.deliver(kept, version)


@pytest.mark.parametrize("learning_rate", few([1e-2, 1e-10], 1e-10))
def test_a_delivery_is_proved_by_its_receipt_alone(learning_rate):
    policy = tiny_model()
    whole, partial = Elsewhere(policy), Elsewhere(policy, loses="layers.1.mlp.up_proj")
    train(policy, learning_rate)
    metrics = PROOF.check(trainer_logprobs(policy), policy, whole, deliver(policy, whole, 2), 2)
    assert metrics["publish/tensors_compared"] == Min(len(list(named_tensors(policy))))
    receipt = deliver(policy, partial, 2)
    with pytest.raises(PublishError, match=r"^model\.layers\.1\.mlp\.up_proj\.weight differs .* 0 of the other"):
        PROOF.check(trainer_logprobs(policy), policy, partial, receipt, 2)


def test_a_receipt_of_an_earlier_delivery_is_refused():
    policy = tiny_model()
    sampler = Elsewhere(policy)
    earlier = deliver(policy, sampler, 2)
    train(policy, 1e-3)
    deliver(policy, sampler, 3)
    with pytest.raises(PublishError, match="runs policy version 2, but should run 3"):
        PROOF.check(trainer_logprobs(policy), policy, sampler, earlier, 3)


def test_what_is_held_comes_back_as_it_was():
    """A checkpoint stores the held weights like this while the sampler's weights are older than the policy's."""
    policy = tiny_model()
    sampler = sampler_of(policy)
    held = {name: tensor.clone() for name, tensor in sampler.held()}
    train(policy, 1e-2)
    deliver(policy, sampler, 2)
    receipt = sampler.deliver(held.items(), 1)
    assert receipt.version == sampler.version == 1
    assert check_receipt(receipt, held.items(), whole=False) == len(held)


# ---------------------------------------------------------------- the probe itself


def test_a_probe_is_the_end_of_a_prompt_and_fits_wherever_the_prompt_fits():
    (row,) = (p.ids for p in random_prompts((40,)))
    proof = DeliveryProof.from_prompts([row, row[:5], row[:1]], tolerance=1.0)
    assert proof.prompt_ids == (row[8:36], row[:3], row[:1])
    assert proof.completion_ids == (row[36:], row[3:5], row[:1] * 2), "the tokens after the first one are decoded"


def test_a_proof_without_a_probe_is_refused():
    with pytest.raises(ValueError, match="at least one probe"):
        DeliveryProof.from_prompts([], tolerance=1.0)


def test_the_coarsest_precision_sets_the_tolerance():
    assert tolerance_for(torch.float32) == 1e-3
    assert tolerance_for(torch.float32, torch.bfloat16) == tolerance_for(torch.bfloat16) > 1e-3


def test_proving_changes_neither_weights_nor_gradients():
    policy = tiny_model().train()
    before = {name: tensor.clone() for name, tensor in named_tensors(policy)}
    check(policy, sampler_of(policy, shared=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_tensors(policy))
    assert all(p.grad is None for p in policy.parameters())


def test_the_head_of_the_test_sampler_works_while_it_is_fresh():
    """This shows that the tests above fail for the reason that they name."""
    policy = tiny_model()
    sampler = CachesTheHead(policy, tiny_tokenizer(), [EOS], shared=True, version=1)
    expected = trainer_logprobs(policy)(PROOF.prompt_ids, PROOF.completion_ids, temperature=1.0)
    found = sampler.score(PROOF.prompt_ids, PROOF.completion_ids, temperature=1.0)
    for row, expected_row in zip(found, expected, strict=True):
        assert row == pytest.approx(expected_row, abs=1e-4)


def test_one_place_names_the_local_sampler():
    source = Path(posttrain.__file__).parent
    naming = {str(path.relative_to(source)) for path in source.rglob("*.py") if "LocalSampler" in path.read_text()}
    processes = {"engines/continuous.py", "engines/worker.py"}  # engines that are local samplers, in other processes
    turns = {"engines/row_stream.py"}  # rows that join and leave
    assert naming == {"engines/__init__.py", "engines/local.py", "train/sharded_sampler.py"} | processes | turns


def test_tensors_are_compared_by_their_bits():
    """A zero of the other sign and one changed bit differ; equal numbers that are not numbers do not."""
    held = {"a": torch.tensor([0.0, float("nan")]), "b": torch.arange(4, dtype=torch.bfloat16).view(2, 2).T}
    receipt = Receipt(version=1, tensors=held)
    assert check_receipt(receipt, {"a": held["a"].clone(), "b": held["b"].float()}.items()) == 2
    for changed in (torch.tensor([-0.0, float("nan")]), torch.tensor([1e-45, float("nan")]), torch.zeros(3)):
        with pytest.raises(PublishError, match="a differs between the trained model and the sampler"):
            check_receipt(receipt, {"a": changed, "b": held["b"]}.items())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_are_compared_as_well(dtype):
    ours = torch.tensor([1 + 2j, 3 - 4j], dtype=dtype)
    receipt = Receipt(version=1, tensors={"a": ours.conj()})
    assert check_receipt(receipt, {"a": torch.tensor([1 - 2j, 3 + 4j], dtype=dtype)}.items()) == 1
    with pytest.raises(PublishError, match="a differs"):
        check_receipt(receipt, {"a": ours}.items())
