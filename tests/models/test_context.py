"""If the rotary factors depend on the longest row of a pass, the context ends at the length where they still do not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.engines.policies import SIZES as POLICY_SIZES
from tests.models.tiny_architectures import VOCAB, gradients
from tests.tiny import tiny_model as tiny_folder
from tests.tiny import tiny_tokenizer
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from posttrain.config import ModelConfig, load_config
from posttrain.data.examples import render_examples
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.split import Split
from posttrain.engines.local import LocalSampler
from posttrain.errors import ConfigError, DataError
from posttrain.experience.rendering import render_both
from posttrain.models.context import context_window, window_note, window_reason
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import forward_path
from posttrain.models.load import load_model
from posttrain.types import Tokens

WINDOW = 32
SIZES = {name: size for name, size in POLICY_SIZES.items() if name != "max_position_embeddings"}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": WINDOW,
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}


def phi3(window: int = WINDOW) -> hf.Phi3Config:
    return hf.Phi3Config(
        **SIZES,
        max_position_embeddings=4 * WINDOW,
        original_max_position_embeddings=window,
        rope_parameters={**LONGROPE},
    )


def llama(window: int = WINDOW) -> hf.LlamaConfig:
    return hf.LlamaConfig(**SIZES, max_position_embeddings=window, rope_parameters={**DYNAMIC})


CONFIGS = {"longrope": phi3, "dynamic": llama}


def build(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with such large weights that other rotary factors have a visible effect."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def row(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def sampler_of(model: PreTrainedModel) -> LocalSampler:
    return LocalSampler(model, tiny_tokenizer(), (2,), shared=True)


def trained(model: PreTrainedModel, rows: list[list[int]], prompt: int = 4) -> Tensor:
    """The trainer's log-probabilities of all rows in one pass, from token `prompt` on."""
    lengths_B = torch.tensor([len(ids) for ids in rows])
    width = int(lengths_B.max())
    ids_BT = torch.tensor([ids + [0] * (width - len(ids)) for ids in rows])
    places_T = torch.arange(width)
    mask_BT = (places_T >= prompt) & (places_T < lengths_B[:, None])
    return token_logprobs(model, Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B), mask_BT, temperature=1.0).logprobs_BT


@pytest.mark.parametrize("kind", CONFIGS)
def test_up_to_that_length_sampler_and_trainer_agree_alone_and_beside_a_longer_row(kind):
    model = build(CONFIGS[kind]())
    short, long = row(12, seed=1), row(WINDOW, seed=2)
    alone, beside = trained(model, [short])[0, 4:12], trained(model, [short, long])
    torch.testing.assert_close(beside[0, 4:12], alone, rtol=0, atol=1e-10)
    for rows in ([short], [short, long]):
        scores = sampler_of(model).score([ids[:4] for ids in rows], [ids[4:] for ids in rows], temperature=1.0)
        torch.testing.assert_close(torch.tensor(scores[0], dtype=torch.float64), alone.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        torch.tensor(scores[1], dtype=torch.float64), beside[1, 4:WINDOW].detach(), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("kind", CONFIGS)
def test_up_to_that_length_the_gradient_does_not_depend_on_how_the_rows_are_split(kind):
    model = build(CONFIGS[kind]())
    short, long = row(12, seed=1), row(WINDOW, seed=2)
    together = gradients(trained(model, [short, long]).sum(), model)
    parts = [gradients(trained(model, [ids]).sum(), model) for ids in (short, long)]
    for whole, one, other in zip(together, *parts, strict=True):
        torch.testing.assert_close(whole, one + other, rtol=0, atol=1e-5 * max(1.0, whole.abs().max().item()))


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_changes_a_row_for_a_longer_one_beside_it_from_the_next_token_on(kind):
    """The length that `context_window` gives is the last one at which a row keeps its numbers."""
    model = build(CONFIGS[kind]())
    short = torch.tensor([row(12, seed=1)])

    def first(length: int) -> Tensor:
        ids_1T = torch.cat([short, torch.tensor([row(length, seed=2)])[:, 12:]], dim=1)
        with torch.no_grad():
            return model(input_ids=ids_1T, use_cache=False).logits[0, :12]

    alone = first(12)
    assert (first(WINDOW) - alone).abs().max() < 1e-10
    assert (first(WINDOW + 1) - alone).abs().max() > 1e-3


@pytest.mark.parametrize("kind", CONFIGS)
def test_beyond_that_length_the_sampler_refuses_a_row_and_says_why(kind):
    sampler = sampler_of(build(CONFIGS[kind]()))
    with pytest.raises(ConfigError) as error:
        sampler.score([row(20, seed=1)], [row(13, seed=2)], temperature=1.0)
    assert str(error.value) == (
        "row 0 has 20 tokens and its completion may have 13; "
        f"allowed: 32 tokens together, the context window of the model (beyond them the model's {kind} rotary factors "
        "depend on the longest row of a pass).\n"
        "  Set data.max_prompt_length = 19, or lower sampling.max_completion_length."
    )


@pytest.mark.parametrize("kind", CONFIGS)
def test_beyond_that_length_no_pass_of_the_trainer_takes_a_row(kind):
    model = build(CONFIGS[kind]())
    with pytest.raises(DataError) as error:
        trained(model, [row(12, seed=1), row(WINDOW + 2, seed=2)])
    assert str(error.value) == (
        f"a row has 33 tokens in a forward pass; allowed: 32 tokens, its context (beyond them the model's {kind} "
        "rotary factors depend on the longest row of a pass).\n"
        "  Shorten the rows, or use a model with a longer context."
    )


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_context_shorter_than_the_rows_of_the_trial_is_no_fault_of_the_model(kind):
    """The rows that test how a model can be run would exceed that length themselves."""
    assert forward_path(build(CONFIGS[kind](14))).attention == "packed"


def test_a_loaded_model_has_the_shorter_context_and_says_so(tmp_path: Path):
    folder = tiny_folder(
        tmp_path / "model",
        max_position_embeddings=64,
        rope_parameters={**LONGROPE, "original_max_position_embeddings": 24},
    )
    loaded = load_model(ModelConfig(path=str(folder)))
    assert loaded.context_length == 24
    assert loaded.notes == (
        "the context is 24 tokens, not 64: beyond them the model's longrope rotary factors depend on the longest row "
        "of a pass, so that a row's log-probabilities would depend on the other rows of a pass",
    )
    assert loaded.named("training data") == (
        "training data in a context of 24 tokens (beyond them the model's longrope rotary factors depend on the "
        "longest row of a pass)"
    )


def test_given_answers_beyond_that_length_are_refused_with_the_reason(tmp_path: Path):
    folder = tiny_folder(tmp_path / "model", max_position_embeddings=64, rope_parameters={**LONGROPE})
    loaded = load_model(ModelConfig(path=str(folder)))
    rows = Split([Row(values={"prompt": "a" * 20, "completion": "b" * 20}, origin="rows.jsonl:1")], [])
    config = load_config(
        {
            "model": str(folder),
            "algorithm": "sft",
            "data": {"train": "rows.jsonl", "chat": False},
            "train": {"steps": 1},
        }
    ).config
    renderer = Renderer.of(config.data, loaded.tokenizer, {})
    with pytest.raises(DataError) as error:
        render_both(partial(render_examples, eos_ids=loaded.eos_ids), config, rows, loaded, renderer)
    assert str(error.value).startswith(
        "training data in a context of 32 tokens (beyond them the model's longrope rotary factors depend on the "
        "longest row of a pass): dropped 1 of 1 row: 1 longer than 32 tokens (rows.jsonl:1); allowed: "
    )


@pytest.mark.parametrize("rope_type", ["default", "linear", "yarn", "llama3"])
def test_factors_that_are_the_same_in_every_pass_leave_the_context_as_declared(rope_type):
    scaled = {"factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = hf.LlamaConfig(
        **SIZES, max_position_embeddings=64, rope_parameters={"rope_type": rope_type, "rope_theta": 100.0, **scaled}
    )
    assert (context_window(config), window_reason(config), window_note(config)) == (64, "", [])


def test_a_kind_of_layers_whose_factors_change_decides_for_the_model():
    """Gemma 3, for example, has settings by type of layer."""

    def gemma(full: dict[str, object]) -> hf.Gemma3TextConfig:
        default = {"rope_type": "default", "rope_theta": 100.0}
        both = {"sliding_attention": default, "full_attention": full}
        return hf.Gemma3TextConfig(**SIZES, head_dim=8, max_position_embeddings=64, rope_parameters=both)

    assert context_window(gemma({"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0})) == 64
    assert context_window(gemma({**LONGROPE})) == WINDOW
    assert window_note(gemma({**DYNAMIC})) == []
    assert "dynamic" in window_reason(gemma({**DYNAMIC}))


def test_an_architecture_without_a_limit_has_none():
    config = hf.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2)
    assert (context_window(config), window_reason(config)) == (None, "")


def test_settings_that_are_null_count_as_not_given():
    """A model's own code may store them as null."""
    config = hf.LlamaConfig(**SIZES, max_position_embeddings=64)
    config.rope_parameters = {"rope_type": None, "rope_theta": 100.0}
    assert context_window(config) == 64
    config.rope_parameters = {**LONGROPE, "original_max_position_embeddings": None}
    assert context_window(config) == 64
