"""GGUF files: read back by transformers, bit for bit; and by llama.cpp, if it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from tests.export.conftest import Runs, shared
from tests.tiny import tiny_tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from posttrain.errors import ConfigError, ExportError, ModelError
from posttrain.export import export

gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install 'posttrain[gguf]'")

from posttrain.export.gguf import writer as tensors  # noqa: E402
from posttrain.export.gguf.architectures import architecture_of  # noqa: E402
from posttrain.export.gguf.vocabulary import vocabulary  # noqa: E402

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL, vocab_size=40, head_dim=16, rope_parameters={"rope_theta": 5e2}),
    "mistral": MistralConfig(**SMALL, vocab_size=40, sliding_window=None, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SMALL, vocab_size=44),
    "qwen3": Qwen3Config(**SMALL, vocab_size=40, head_dim=128),
}  # fmt: skip
"""With tied heads and without, wide heads, more rows than tokens."""


@pytest.mark.slow
def test_stop_strings_lie_beside_the_file(runs: Runs, tmp_path: Path):
    done = export(runs.run("stopping"), tmp_path / "out", to="gguf", num_prompts=2, max_new_tokens=8)
    assert json.loads((done.folder / "generation_config.json").read_text())["stop_strings"][0] == "zz"
    assert "a GGUF file cannot hold them" in (done.folder / "README.md").read_text()


def made(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # norms of 1 and biases of 0 would hide that they were swapped or lost
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype"), [("llama", "float32"), ("mistral", "q8_0"), ("qwen2", "bfloat16"),
                                               ("qwen3", "float16")])  # fmt: skip
def test_transformers_reads_each_family_back_bit_for_bit_and_says_the_same(family, dtype, tmp_path):
    folder = made(FAMILIES[family], tmp_path / "model")
    (tmp_path / "words.jsonl").write_text('{"prompt": "abc"}\n{"prompt": "dcba7"}\n{"prompt": "xyz"}\n')
    prompts = str(tmp_path / "words.jsonl")
    done = export(folder, tmp_path / "out", to="gguf", dtype=dtype, prompts=prompts, max_new_tokens=8)
    assert done.file == tmp_path / "out" / f"model-{dtype}.gguf"
    assert done.replay.weights == len(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    assert done.replay.identical + len(done.replay.ties) == done.replay.prompts == 3
    assert (dtype == "float32") <= (done.replay.largest_difference < 1e-4)


def test_a_trained_run_becomes_one_file_with_a_card_and_its_generation_config(runs: Runs, tmp_path: Path):
    done = export(runs.run("lora"), tmp_path / "out", to="gguf", max_new_tokens=8)
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "README.md", "generation_config.json", "plots", "run-lora-float32.gguf",
    ]  # fmt: skip
    assert done.replay.identical == done.replay.prompts
    tokenizer = AutoTokenizer.from_pretrained(done.folder, gguf_file=done.file.name)
    assert tokenizer("ab c").input_ids == tiny_tokenizer()("ab c").input_ids
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) == (2, 1, 0)
    assert "library_name: gguf" in (done.folder / "README.md").read_text()


@pytest.mark.slow
def test_a_chat_model_keeps_its_vocabulary_and_its_template(tmp_path: Path):
    source = shared("minimind2-small")
    done = export(source, tmp_path / "out", to="gguf", dtype="q8_0", num_prompts=4, max_new_tokens=8)
    reader = gguf.GGUFReader(done.file)
    own = AutoTokenizer.from_pretrained(source)
    assert reader.fields["tokenizer.chat_template"].contents() == own.chat_template
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == own.eos_token_id
    assert reader.fields["general.architecture"].contents() == "llama"
    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds == {"F32", "Q8_0"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs llama-cpp-python")
def test_llama_cpp_says_the_same_greedy_tokens(runs: Runs, tmp_path: Path):
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    done = export(runs.run("full"), tmp_path / "out", to="gguf", max_new_tokens=8)
    model = AutoModelForCausalLM.from_pretrained(runs.export("full").folder)
    ids = tiny_tokenizer()("abc", return_tensors="pt").input_ids
    expected = model.generate(ids, do_sample=False, max_new_tokens=8)[0, ids.shape[1] :].tolist()
    engine = Llama(str(done.file), n_ctx=64, verbose=False)
    stream = engine.generate(ids[0].tolist(), temp=0.0, top_k=1, repeat_penalty=1.0)
    assert [next(stream) for _ in expected] == expected


def test_a_permutation_that_is_left_out_is_found_by_the_replay(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "in_pairs", lambda values, heads: values)
    folder = made(FAMILIES["llama"], tmp_path / "model")
    with pytest.raises(ExportError, match=r"prompt \d+ \(built-in\), token \d+ .*[qk]_proj"):
        export(folder, tmp_path / "out", to="gguf", max_new_tokens=8)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (PreTrainedConfig(), "cannot be written as GGUF here; allowed: llama, mistral, qwen2, qwen3"),
        (LlamaConfig(**SMALL, attention_bias=True), "attention_bias = True, which the GGUF format cannot express"),
        (Qwen3Config(**SMALL, head_dim=8), "head_dim = 8.*allowed: 128"),
        (MistralConfig(**SMALL, sliding_window=16), "sliding_window = 16"),
        (
            LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
            "rope_type = 'linear'.*allowed: plain rotary embeddings",
        ),
    ],
)
def test_what_the_file_cannot_hold_is_refused(config, says):
    with pytest.raises(ModelError, match=says):
        architecture_of(config)


def test_a_word_level_vocabulary_of_words_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["ü"])
    assert vocabulary(tokenizer, 45).tokens[40:] == ["ü", "[PAD41]", "[PAD42]", "[PAD43]", "[PAD44]"]
    with pytest.raises(ModelError, match="the whole word 'ä', which a GGUF file cannot express"):
        vocabulary(tiny_tokenizer("aä"), 5)


def test_a_model_that_scores_is_refused(runs: Runs, tmp_path: Path):
    with pytest.raises(ConfigError, match="is a reward model, but --to gguf writes only language models; allowed: hf"):
        export(runs.run("reward_model"), tmp_path / "out", to="gguf")


def test_without_the_package_the_error_says_what_to_install(runs: Runs, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else find(name, *a))
    with pytest.raises(ModelError, match=r"needs the package gguf.*\n.*pip install 'posttrain\[gguf\]'"):
        export(runs.run("full"), tmp_path / "out", to="gguf")
