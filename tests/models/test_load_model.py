"""Loading: float32 weights, every EOS id, a pad id that ends no answer, and a clear error for every fault."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.tiny_architectures import VOCAB, tiny_model
from tests.models.tiny_folder import tiny_folder, tiny_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification, T5Config

from posttrain.config import ModelConfig
from posttrain.config.urls import working_folder
from posttrain.errors import ConfigError, ModelError
from posttrain.models.load import choose_compute_dtype, choose_device, disable_dropout, load_model

SHARED_MODELS = Path(__file__).parents[3] / "shared/data/models"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("written") / "model")


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy, which the test may change."""
    return shutil.copytree(written, tmp_path / "model")


def load(path: Path | str, **settings):
    return load_model(ModelConfig(path=str(path), **settings), device="cpu")


def edit(file: Path, **values) -> None:
    """Change a JSON file; None removes a key."""
    content = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_weights_are_float32_whatever_the_file_holds(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({k: v.half() for k, v in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder / "config.json", dtype="float16")
    loaded = load(folder, precision="bfloat16")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.compute_dtype == torch.bfloat16
    with loaded.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert loaded.context_length == 64
    assert not loaded.model.training


def test_eos_ids_are_those_of_tokenizer_and_generation_config(folder):
    tiny_tokenizer(eos_token="<other>").save_pretrained(folder)
    assert load(folder).eos_ids == {2, 3, 5}


def test_a_single_eos_id_is_enough(folder):
    edit(folder / "generation_config.json", eos_token_id=None)
    assert load(folder).eos_ids == {2}


@pytest.mark.parametrize(
    ("special", "generation_pad", "expected"),
    [
        ({}, 0, 0),
        ({"pad_token": "</s>"}, 0, 0),  # the tokenizer pads with EOS, the generation config knows better
        ({"pad_token": None}, None, 4),  # nothing declared: the unknown token
        ({"pad_token": "<end>", "unk_token": None}, 2, 1),  # both are EOS: what is left is the BOS token
        ({"pad_token": "</s>", "unk_token": None, "additional_special_tokens": ["<other>"]}, 2, 5),
        ({"pad_token": "</s>", "unk_token": None, "bos_token": None}, 3, 2),  # only EOS ids are special
    ],
)
def test_the_pad_id_ends_nothing_unless_there_is_nothing_else(folder, special, generation_pad, expected):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    tiny_tokenizer(**special).save_pretrained(folder)
    edit(folder / "generation_config.json", pad_token_id=generation_pad)
    edit(folder / "config.json", pad_token_id=2)
    loaded = load(folder)
    assert loaded.pad_id == expected
    assert loaded.tokenizer.pad_token_id == expected
    assert loaded.model.config.pad_token_id == expected


def test_a_changed_pad_token_is_noted(folder):
    tiny_tokenizer(pad_token="</s>").save_pretrained(folder)
    assert load(folder).notes == ("the pad token was '</s>', which also ends answers; '<pad>' is used instead",)


def test_the_embedding_of_the_pad_id_is_trained(folder):
    model = load(folder).model
    embedding = model.get_input_embeddings()
    assert AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().padding_idx == 0
    model(input_ids=torch.tensor([[0, 7, 8]])).logits[0, -1, 9].backward()
    assert (embedding.weight.grad[0] != 0).any()


def test_an_architecture_without_fused_attention_falls_back_and_says_so(tmp_path):
    loaded = load(tiny_folder(tmp_path, "gemma2, soft caps and sliding window"))
    assert loaded.model.config._attn_implementation == "eager"
    assert loaded.notes == ("model.attention: Gemma2ForCausalLM has no fused attention in transformers; eager is used",)


def test_eager_attention_is_honoured(folder):
    assert load(folder).model.config._attn_implementation == "sdpa"
    assert load(folder, attention="eager").model.config._attn_implementation == "eager"


def test_dropout_is_off_in_training_and_stays_in_the_config():
    model = tiny_model("gpt2, learned positions", dtype=torch.float32)
    ids_BT = torch.arange(12).view(1, -1)
    model.train()
    assert not torch.equal(model(ids_BT).logits, model(ids_BT).logits)
    disable_dropout(model)
    assert torch.equal(model(ids_BT).logits, model(ids_BT).logits)
    assert model.config.attn_pdrop == 0.1


def test_a_chat_template_can_come_from_a_file(folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    tokenizer = load(folder, chat_template=str(template)).tokenizer
    assert tokenizer.apply_chat_template([{"role": "user", "content": "w7"}], tokenize=False) == "[w7]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{% for m in messages %}", "cannot render a user turn: TemplateSyntaxError"),
        ("{{ raise_exception('no users') }}", "cannot render a user turn: TemplateError: no users"),
    ],
)
def test_a_chat_template_that_does_not_work_is_refused(folder, tmp_path, content, message):
    template = tmp_path / "template.jinja"
    if content is not None:
        template.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(folder, chat_template=str(template))


def test_a_missing_folder(tmp_path):
    with pytest.raises(ModelError, match=r"there is no such folder; allowed: a folder with config\.json and weights"):
        load(tmp_path / "nothing")


def test_a_url_is_answered_with_a_folder_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "runs"))
    with pytest.raises(ModelError, match=r"'s3://b/run' is a URL; .*\n  Copy its files to a folder, and give that\."):
        load("s3://b/run")
    working_folder("s3://b/run").mkdir(parents=True)
    for url, folder in (("s3://b/run", working_folder("s3://b/run")), (f"file://{tmp_path}", tmp_path)):
        with pytest.raises(ModelError, match=rf"is a URL; .*\n  Give the folder '{re.escape(str(folder))}'\."):
            load(url)


def test_a_name_on_the_hub_that_cannot_be_reached(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="no such folder, and the Hugging Face Hub") as caught:
        load("some-organisation/some-model-that-is-not-here")
    assert caught.value.fix


def test_a_folder_without_config(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)


def test_a_folder_above_the_model_names_the_model(folder):
    with pytest.raises(ModelError, match=r"Did you mean .*model'"):
        load(folder.parent)


def test_a_file_instead_of_a_folder(folder):
    with pytest.raises(ModelError, match="is a file; allowed: a folder"):
        load(folder / "config.json")


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        load(folder)


def test_a_broken_config(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read: .*not a valid JSON file"):
        load(folder)


def test_an_unknown_architecture(folder):
    edit(folder / "config.json", model_type="nonsense")
    with pytest.raises(ModelError, match=r"is unknown to transformers: .*nonsense"):
        load(folder)


def test_code_that_comes_with_a_model_is_not_run(folder):
    marker = folder / "was_run"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\n")
    edit(folder / "config.json", model_type="nonsense", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(ModelError, match="needs Python code that comes with the model"):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["encoder-decoder", "classifier", "base model"])
def test_a_model_that_is_no_causal_language_model(tmp_path, folder, kind):
    if kind == "encoder-decoder":
        T5Config(d_model=8, num_layers=1, num_heads=2, vocab_size=VOCAB).save_pretrained(tmp_path / "other")
        save_file({"w": torch.zeros(1)}, tmp_path / "other/model.safetensors")
    elif kind == "classifier":
        config = LlamaConfig.from_pretrained(folder, num_labels=2)
        LlamaForSequenceClassification(config).save_pretrained(tmp_path / "other")
    else:
        AutoModelForCausalLM.from_pretrained(folder).model.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="is not a causal language model"):
        load(tmp_path / "other")


def test_a_quantised_model(folder):
    edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match="holds weights quantised with gptq"):
        load(folder)


def test_weights_that_are_missing_are_not_drawn_at_random(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights are missing \(1\): model\.layers\.0\.mlp\.up_proj"):
        load(folder)


def test_weights_of_another_shape(folder):
    edit(folder / "config.json", intermediate_size=32)
    with pytest.raises(ModelError, match=r"weights have another shape \(6\): model\.layers\.0\.mlp"):
        load(folder)


def test_a_tied_head_is_not_missing(tmp_path):
    loaded = load(tiny_folder(tmp_path, "qwen2, tied"))
    assert loaded.model.lm_head.weight is loaded.model.get_input_embeddings().weight


@pytest.mark.parametrize("damage", ["cut off", "header"])
def test_damaged_weights_are_named(folder, damage):
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "cut off":
        content = content[: len(content) // 2]
    else:
        content[12] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        load(folder)


def test_weights_that_cannot_be_opened_are_named(folder):
    """Such as a folder of the Hub's cache whose files are missing or unreadable."""
    (folder / "model.safetensors").rename(folder / "elsewhere")
    (folder / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read: No such file"):
        load(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"eos_token_id": [2, 3], "pad', r"generation_config\.json cannot be read: Unterminated string"),
        ("", r"generation_config\.json cannot be read: Expecting value"),
        ("[2, 3]", r"generation_config\.json holds \[2, 3\]"),
        ('{"eos_token_id": "3"}', r"generation_config\.json: eos_token_id = '3'"),
        ('{"eos_token_id": [2, "3"]}', r"eos_token_id = \[2, '3'\]"),
    ],
)
def test_a_generation_config_that_cannot_be_read_does_not_lose_an_end_of_answers(folder, content, message):
    """transformers treats the file as missing; the model then generated past its own end of text."""
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_folder_without_tokenizer(folder):
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        load(folder)


def test_a_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="the tokenizer cannot be read"):
        load(folder)


def test_a_tokenizer_without_eos(folder):
    for file in folder.glob("*token*"):
        file.unlink()
    tiny_tokenizer(eos_token=None).save_pretrained(folder)
    edit(folder / "generation_config.json", eos_token_id=None)
    edit(folder / "config.json", eos_token_id=None)
    with pytest.raises(ModelError, match=r"neither the tokenizer nor generation_config.json has an end-of-sequence"):
        load(folder)


def test_an_eos_id_that_the_model_cannot_emit(folder):
    for file in folder.glob("*token*"):
        file.unlink()
    tiny_tokenizer(eos_token=None).save_pretrained(folder)
    edit(folder / "generation_config.json", eos_token_id=5000)
    with pytest.raises(ModelError, match=r"\[5000\] lie outside the vocabulary of 61"):
        load(folder)


def test_a_tokenizer_larger_than_the_embedding(folder):
    tiny_tokenizer(size=VOCAB + 3).save_pretrained(folder)
    with pytest.raises(ModelError, match="the tokenizer has ids up to 63, the embedding has 61 rows"):
        load(folder)


def test_an_adapter_without_its_base(tmp_path):
    folder = tmp_path / "my adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="is a LoRA adapter without its base model") as refused:
        load(folder)
    assert f"posttrain export '{folder}' NEW_FOLDER, with --base MODEL if" in str(refused.value)


def test_a_revision_of_a_folder(folder):
    with pytest.raises(ModelError, match=r"model\.revision = 'v2', but model\.path = .* is a folder"):
        load(folder, revision="v2")


def test_a_gguf_file_that_is_not_there(tmp_path):
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ModelError, match=r"there is no such file in .*; allowed: other\.gguf"):
        load(tmp_path, gguf_file="model.gguf")


def test_a_folder_with_nothing_but_a_gguf_file(tmp_path):
    (tmp_path / "model.gguf").touch()
    for path in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(ModelError, match=r"gguf_file: 'model\.gguf'"):
            load(path)


def test_a_gguf_file_that_is_none(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a gguf file")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path, gguf_file="model.gguf")


def test_gguf_without_its_package(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else find_spec(name, *a))
    with pytest.raises(ModelError, match=r"the package gguf is not installed\n  Run: pip install 'posttrain\[gguf\]'"):
        load(tmp_path, gguf_file="model.gguf")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none(folder):
    with pytest.raises(ModelError, match=r"model\.device = 'cuda', but this machine has"):
        load_model(ModelConfig(path=str(folder), device="cuda"))
    assert choose_device("auto") == torch.device("cpu")


def test_precision_is_chosen_for_the_device():
    cpu = torch.device("cpu")
    assert choose_compute_dtype("auto", cpu) == torch.float32
    assert choose_compute_dtype("bfloat16", cpu) == torch.bfloat16


@pytest.mark.parametrize(("name", "eos_ids"), [("stories260K", {1, 2}), ("minimind2-small", {2})])
def test_real_models_load(name, eos_ids):
    if not (SHARED_MODELS / name).is_dir():
        pytest.skip(f"no shared data: {name}")
    loaded = load(SHARED_MODELS / name)
    assert loaded.eos_ids == eos_ids
    assert loaded.pad_id == 0
    assert loaded.notes == ()
