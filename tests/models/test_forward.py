"""`token_logprobs` equals one plain forward pass per row, for any architecture, layout and split."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.catalogue import few
from tests.models.test_shared_prefixes import EXACT, OWN_MASKS
from tests.models.tiny_architectures import CONFIGS, PADDED, gradients, one_row_at_a_time, rows, tiny_model
from torch import Tensor, nn

from posttrain.config import ModelConfig
from posttrain.errors import ModelError, NonFiniteError
from posttrain.models import forward_path as paths
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.models.load import load_model
from posttrain.models.packing import pack
from posttrain.types import Outputs, Tokens

LENGTHS = [9, 3, 14, 1, 9, 6, 2, 7]  # equal ones, one without any scored token (1), one that scores none (2)
LLAMA = "llama, grouped heads"
PARTLY_FLOAT32 = {
    "gemma2, soft caps and sliding window",
    "gemma3, sliding window",
    "cohere, logit scale",
    "llama4, chunked attention",
}
"""Architectures that sum the gradient of their norms, or rotate, in float32 even in a float64 model."""


ALSO_SHARED = {*EXACT.values(), *OWN_MASKS}
"""Architectures whose quick test is that of packed rows with shared prefixes (test_shared_prefixes.py)."""


def weighted(outputs: Outputs) -> Tensor:
    """A loss in which every entry has a different weight, and the entropy has its own."""
    weights = torch.linspace(-1, 2, outputs.logprobs_BT.numel(), dtype=torch.float64).view_as(outputs.logprobs_BT)
    total = (weights * outputs.logprobs_BT).sum()
    return total if outputs.entropy_BT is None else total - (weights.flip(0) * outputs.entropy_BT).sum()


def assert_same_gradients(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    scale = max(g.abs().max().item() for g in expected)
    assert scale > 1e-3, "a gradient of zero proves nothing"
    for a, e in zip(actual, expected, strict=True):
        assert (a - e).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize(
    ("name", "attention"),
    few(
        [(name, attention) for name in CONFIGS for attention in ("sdpa", "eager")],
        *((name, "sdpa") for name in CONFIGS if name == LLAMA or name not in ALSO_SHARED),
        *((name, "eager") for name in ("gemma2, soft caps and sliding window", "gpt-oss, sinks")),
    ),
)
def test_packed_equals_one_row_at_a_time(name, attention):
    """Values, entropies and gradients in float64: 1e-10 with SDPA, 1e-6 with eager attention (float32 softmax)."""
    if attention == "sdpa" and name.startswith(("gemma2", "gpt-oss")):
        pytest.skip("transformers has no SDPA for this architecture")
    model = tiny_model(name, attention=attention)
    tokens, mask_BT = rows(LENGTHS)
    expected = one_row_at_a_time(model, tokens, mask_BT, temperature=0.7)
    expected_gradients = gradients(weighted(Outputs(logprobs_BT=expected[0], entropy_BT=expected[1])), model)

    actual = token_logprobs(model, tokens, mask_BT, temperature=0.7, with_entropy=True, chunk_tokens=5)

    tolerance = 1e-6 if attention == "eager" or name in PARTLY_FLOAT32 else 1e-10
    assert forward_path(model).attention == "packed"
    assert forward_path(model).implementation == f"packed_{attention}"
    torch.testing.assert_close((actual.logprobs_BT, actual.entropy_BT), expected, rtol=0, atol=tolerance)
    assert_same_gradients(gradients(weighted(actual), model), expected_gradients, tolerance)


@pytest.mark.parametrize(
    ("name", "attention", "way"),
    few(
        itertools.product(
            (LLAMA, "mistral, sliding window", "gpt2, learned positions"), ("sdpa", "eager"), ("block mask", "padded")
        ),
        ("mistral, sliding window", "sdpa", "block mask"),
        ("mistral, sliding window", "eager", "padded"),
        ("gpt2, learned positions", "sdpa", "padded"),
        ("gpt2, learned positions", "eager", "block mask"),
    ),
)
def test_the_other_ways_equal_the_packed_one(name, attention, way, monkeypatch):
    model = tiny_model(name, attention=attention)
    tokens, mask_BT = rows(LENGTHS)
    expected = token_logprobs(model, tokens, mask_BT, temperature=1.0, with_entropy=True)
    monkeypatch.setitem(paths._paths, model, replace(forward_path(model), attention=way))
    actual = token_logprobs(model, tokens, mask_BT, temperature=1.0, with_entropy=True)
    tolerance = 1e-10 if attention == "sdpa" else 1e-6
    torch.testing.assert_close(actual.logprobs_BT, expected.logprobs_BT, rtol=0, atol=tolerance)
    assert_same_gradients(gradients(weighted(actual), model), gradients(weighted(expected), model), tolerance)


@pytest.mark.parametrize("name", list(PADDED))
def test_architectures_that_cannot_be_packed_are_padded_and_say_why(name):
    model = tiny_model(name)
    tokens, mask_BT = rows(LENGTHS)
    expected, _ = one_row_at_a_time(model, tokens, mask_BT, temperature=1.0)
    actual = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    torch.testing.assert_close(actual, expected.double(), rtol=0, atol=1e-5)  # mamba computes states in float32
    path = forward_path(model)
    assert path.attention == "padded"
    assert path.note.startswith("packed: ")
    assert not model.config._attn_implementation.startswith("packed_")


def test_entries_that_are_not_scored_are_exactly_zero_and_stop_the_gradient():
    model = tiny_model(LLAMA)
    tokens, mask_BT = rows(LENGTHS)
    outputs = token_logprobs(model, tokens, mask_BT, temperature=1.0, with_entropy=True)
    assert outputs.entropy_BT is not None
    assert (outputs.logprobs_BT[~mask_BT] == 0).all()
    assert (outputs.entropy_BT[~mask_BT] == 0).all()
    assert (outputs.logprobs_BT[mask_BT] < 0).all()
    nothing = gradients((outputs.logprobs_BT * ~mask_BT).sum(), model)
    assert all((g == 0).all() for g in nothing)


def test_no_padding_token_is_computed_and_the_head_sees_scored_positions_only():
    """The test counts rows of the embedding, of the MLP, and of the head's chunks."""
    model = tiny_model("granite, logit scale")  # its head goes through the module, so a hook sees it
    tokens, mask_BT = rows(LENGTHS)
    forward_path(model)
    seen = {"embedding": 0, "mlp": 0, "head": 0}

    def count(part: str):
        return lambda module, args, output: seen.__setitem__(part, seen[part] + output.shape[:-1].numel())

    hooks = [
        model.get_input_embeddings().register_forward_hook(count("embedding")),
        model.model.layers[0].mlp.register_forward_hook(count("mlp")),
        model.get_output_embeddings().register_forward_hook(count("head")),
    ]
    with torch.no_grad():
        token_logprobs(model, tokens, mask_BT, temperature=1.0, chunk_tokens=4)
    for hook in hooks:
        hook.remove()
    needed = pack(tokens, mask_BT).num_tokens
    assert needed == sum(length - 1 for length in LENGTHS if length > 2)  # not the last token, no row without a score
    assert seen == {"embedding": needed, "mlp": needed, "head": int(mask_BT.sum())}


@pytest.mark.parametrize("name", [LLAMA, "gpt2, learned positions"])
def test_rows_may_be_permuted(name):
    model = tiny_model(name)
    tokens, mask_BT = rows(LENGTHS)
    order = torch.tensor([4, 2, 7, 0, 1, 6, 5, 3])
    straight = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    permuted = token_logprobs(model, tokens.rows(order), mask_BT[order], temperature=1.0).logprobs_BT
    torch.testing.assert_close(permuted, straight[order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", few([LLAMA, "qwen3-moe, experts"], LLAMA))
@pytest.mark.parametrize("parts", [[8], [1] * 8, [3, 1, 4]], ids=["1x8", "8x1", "uneven"])
def test_the_gradient_does_not_depend_on_the_split_into_microbatches(name, parts):
    model = tiny_model(name)
    tokens, mask_BT = rows(LENGTHS)
    weights_BT = torch.linspace(-1, 2, mask_BT.numel(), dtype=torch.float64).view_as(mask_BT)
    expected = gradients((weights_BT * one_row_at_a_time(model, tokens, mask_BT, 1.0)[0]).sum(), model)
    model.zero_grad()
    for index in torch.arange(len(LENGTHS)).split(parts):
        outputs = token_logprobs(model, tokens.rows(index), mask_BT[index], temperature=1.0)
        (weights_BT[index] * outputs.logprobs_BT).sum().backward()
    actual = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    assert_same_gradients(actual, expected, 1e-10)


def test_more_padding_changes_nothing():
    """Padding is -1: looking it up in the embedding would fail."""
    model = tiny_model(LLAMA)
    tokens, mask_BT = rows(LENGTHS)
    wider = Tokens(input_ids_BT=nn.functional.pad(tokens.input_ids_BT, (0, 5), value=-1), lengths_B=tokens.lengths_B)
    expected = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    actual = token_logprobs(model, wider, nn.functional.pad(mask_BT, (0, 5)), temperature=1.0).logprobs_BT
    assert torch.equal(actual[:, : mask_BT.shape[1]], expected)
    assert (actual[:, mask_BT.shape[1] :] == 0).all()


def test_only_some_tokens_of_a_row_may_be_scored():
    """Tool output in the middle of a completion is computed, because later tokens see it, but it is not scored."""
    model = tiny_model(LLAMA)
    tokens, mask_BT = rows([12, 12])
    mask_BT[0, 5:9] = False
    expected, _ = one_row_at_a_time(model, tokens, mask_BT, temperature=1.0)
    torch.testing.assert_close(
        token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT, expected, rtol=0, atol=1e-10
    )


def test_temperature_divides_the_logits():
    model = tiny_model(LLAMA)
    tokens, mask_BT = rows([6])
    for temperature in (0.5, 1.0, 2.0):
        expected, _ = one_row_at_a_time(model, tokens, mask_BT, temperature)
        actual = token_logprobs(model, tokens, mask_BT, temperature=temperature).logprobs_BT
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_a_batch_without_any_scored_token_gives_zeros_that_can_be_differentiated():
    model = tiny_model(LLAMA)
    tokens, mask_BT = rows([3, 4])
    outputs = token_logprobs(model, tokens, torch.zeros_like(mask_BT), temperature=1.0, with_entropy=True)
    assert outputs.entropy_BT is not None
    assert outputs.logprobs_BT.dtype == torch.float64
    assert (outputs.logprobs_BT == 0).all()
    (outputs.logprobs_BT + outputs.entropy_BT).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients), "all of the model was called"


@pytest.mark.parametrize("name", [LLAMA, "gemma2, soft caps and sliding window"])
def test_a_weight_that_is_no_number_is_named_and_the_architecture_is_not_blamed(name):
    model = tiny_model(name)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    tokens, mask_BT = rows([3, 4])
    with pytest.raises(NonFiniteError, match=r"1 of the \d+ numbers of model\.layers\.1\.mlp\.up_proj\.weight"):
        token_logprobs(model, tokens, mask_BT, temperature=1.0)


@pytest.mark.parametrize(
    ("name", "attention"),
    few(
        itertools.product((LLAMA, "mistral, sliding window", "gemma3, sliding window"), ("sdpa", "eager")),
        (LLAMA, "sdpa"),
        ("mistral, sliding window", "eager"),
    ),
)
def test_gradient_checkpointing_changes_nothing(name, attention):
    """The recomputed layers must keep rows apart, too: the packing travels with the mask."""
    model = tiny_model(name, attention=attention).train()
    tokens, mask_BT = rows(LENGTHS)
    expected = gradients(weighted(token_logprobs(model, tokens, mask_BT, temperature=1.0)), model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = gradients(weighted(token_logprobs(model, tokens, mask_BT, temperature=1.0)), model)
    assert_same_gradients(actual, expected, 1e-12 if name == LLAMA and attention == "sdpa" else 1e-6)


def test_under_bfloat16_autocast_results_are_float32_and_near():
    model = tiny_model(LLAMA, dtype=torch.float32)
    tokens, mask_BT = rows(LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, _ = one_row_at_a_time(model, tokens, mask_BT, temperature=1.0)
        outputs = token_logprobs(model, tokens, mask_BT, temperature=1.0, with_entropy=True)
    exact = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    assert outputs.logprobs_BT.dtype == torch.float32
    assert exact.dtype == torch.float32
    rounding = (expected - exact).abs().max()
    assert (outputs.logprobs_BT - exact).abs().max() <= 2 * rounding
    assert all(g.dtype == torch.float32 for g in gradients(outputs.logprobs_BT.sum(), model))


def test_generation_does_not_notice_that_a_model_has_been_packed():
    model = tiny_model("mistral, sliding window")
    prompt = {"input_ids": torch.tensor([[5, 9, 4, 8, 7], [6, 7, 8, 9, 3]]), "max_new_tokens": 8, "do_sample": False}
    prompt["attention_mask"] = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    before = model.generate(**prompt)
    token_logprobs(model, *rows(LENGTHS), temperature=1.0)
    assert model.config._attn_implementation == "packed_sdpa"
    assert torch.equal(model.generate(**prompt), before)


def test_a_changed_attention_implementation_is_honoured():
    model = tiny_model(LLAMA)
    assert forward_path(model).implementation == "packed_sdpa"
    model.set_attn_implementation("eager")
    assert forward_path(model).implementation == "packed_eager"


def test_a_copy_of_a_packed_model_is_packed_as_well():
    model = tiny_model(LLAMA)
    tokens, mask_BT = rows(LENGTHS)
    expected = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    twin = copy.deepcopy(model)
    assert torch.equal(token_logprobs(twin, tokens, mask_BT, temperature=1.0).logprobs_BT, expected)
    assert forward_path(twin).body is not forward_path(model).body


def test_trying_leaves_training_flags_alone():
    model = tiny_model("gpt2, learned positions").train()
    model.transformer.h[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    forward_path(model)
    assert {name: module.training for name, module in model.named_modules()} == before


def test_a_model_that_looks_ahead_is_refused():
    model = tiny_model(LLAMA)
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(ModelError, match="gives other hidden states when rows are run together"):
        forward_path(model)


def test_a_module_without_a_head_is_refused():
    with pytest.raises(ModelError, match="Linear has no language-model head"):
        token_logprobs(nn.Linear(2, 2), *rows([4]), temperature=1.0)
    with pytest.raises(ModelError, match="LlamaModel has no language-model head"):
        token_logprobs(tiny_model(LLAMA).model, *rows([4]), temperature=1.0)


@pytest.mark.parametrize("name", few(["stories260K", "minimind2-small"], "stories260K"))
def test_real_models_give_their_own_log_probabilities(name):
    """Packed equals one row at a time, and real text is more likely than the same words in disorder in both."""
    path = Path(__file__).parents[3] / "shared/data/models" / name
    if not path.is_dir():
        pytest.skip(f"no shared data: {name}")
    loaded = load_model(ModelConfig(path=str(path)), device="cpu")
    texts = ["Once upon a time, there was a little girl named Lily.", "girl Lily little a time, was named upon there a"]
    ids = [loaded.tokenizer(text)["input_ids"] for text in texts]
    lengths_B = torch.tensor([len(row) for row in ids])
    ids_BT = torch.tensor([row + [loaded.pad_id] * (int(lengths_B.max()) - len(row)) for row in ids])
    places_T = torch.arange(ids_BT.shape[1])
    mask_BT = (places_T > 0) & (places_T < lengths_B[:, None])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B)
    with torch.no_grad():
        expected, _ = one_row_at_a_time(loaded.model, tokens, mask_BT, temperature=1.0)
        actual = token_logprobs(loaded.model, tokens, mask_BT, temperature=1.0).logprobs_BT
    assert forward_path(loaded.model).attention == "packed"
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-4)
    mean_B = actual.sum(dim=-1) / mask_BT.sum(dim=-1)
    assert mean_B[0] > mean_B[1]
