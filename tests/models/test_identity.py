"""Two models that can answer differently have two names; a model that is used twice has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.catalogue import catalogue
from tests.tiny import tiny_model, tiny_tokenizer

from posttrain.cache import code_key, tokenizer_key
from posttrain.config import LoRAConfig, ModelConfig
from posttrain.data.stream import CODE as STREAM_CODE
from posttrain.experience.references import CODE as REFERENCE_CODE
from posttrain.models import identity
from posttrain.models.adapters import apply_lora
from posttrain.models.forward_path import forward_path
from posttrain.models.identity import COMPUTING, model_identity, model_key
from posttrain.models.load import LoadedModel, load_model
from posttrain.rewards.judge.local import CODE as JUDGE_CODE


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("identity") / "model")


def loaded(folder: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(path=str(folder), device="cpu", **settings))


def test_where_a_model_lies_is_no_part_of_it(folder, tmp_path):
    again = tiny_model(tmp_path / "again")
    assert model_key(loaded(folder).model) == model_key(loaded(again).model)


def test_settings_that_leave_the_weights_as_they_are_change_the_name(folder, tmp_path):
    others = [
        tiny_model(tmp_path / "rope", rope_parameters={"rope_type": "default", "rope_theta": 5.0}),
        tiny_model(tmp_path / "norm", rms_norm_eps=1e-3),
        tiny_model(tmp_path / "heads", num_attention_heads=2, num_key_value_heads=1, head_dim=16),
    ]
    keys = [model_key(loaded(one).model) for one in (folder, *others)]
    keys.append(model_key(loaded(folder, attention="eager").model))
    assert len(set(keys)) == len(keys)


def test_the_name_stays_when_a_model_has_been_run_or_gets_adapters(folder):
    """A first pass decides how rows are packed, and changes the model's config."""
    model = loaded(folder).model
    before = model_key(model)
    forward_path(model)
    assert model.config._attn_implementation == "packed_sdpa"
    assert model_key(model) == before
    assert model_key(apply_lora(model, LoRAConfig(rank=2))) == before


def test_how_it_is_computed_and_what_reads_and_writes_its_texts_are_parts_of_an_identity(folder, monkeypatch):
    model, tokenizer = loaded(folder).model, tiny_tokenizer()
    settings = {"compute_dtype": torch.float32, "tokenizer": tokenizer, "eos_ids": {2}}

    def name(**changes: object) -> str:
        return model_identity(model, **settings | changes)  # type: ignore[arg-type]

    names = [
        name(),
        name(compute_dtype=torch.bfloat16),
        name(eos_ids={2, 3}),
        name(tokenizer=tiny_tokenizer("abc")),
        name(code=("engines/*.py",)),
    ]
    for module in (identity.torch, identity.transformers, identity.tokenizers):
        with monkeypatch.context() as changed:
            changed.setattr(module, "__version__", "0.0")
            names.append(name())
    tokenizer.chat_template = "{{ messages }}"
    names.append(name())
    model.to(device="meta")  # type: ignore[call-arg]
    monkeypatch.setattr(identity, "model_key", lambda model: "the same")
    names.append(name())
    assert len(set(names)) == len(names)


def test_a_tokenizer_is_told_by_its_content(folder):
    assert tokenizer_key(loaded(folder).tokenizer) == tokenizer_key(loaded(folder).tokenizer)
    assert tokenizer_key(tiny_tokenizer("abc")) != tokenizer_key(tiny_tokenizer("acb"))


def test_code_is_told_by_every_byte_of_its_modules(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b.py").write_text("y = 1")

    def key(*modules: str) -> str:
        code_key.cache_clear()
        return code_key(*modules, root=tmp_path)

    both, one = key("*.py"), key("a.py")
    (tmp_path / "b.py").write_text("y = 2")
    assert key("*.py") != both
    assert key("a.py") == one
    code_key.cache_clear()


@catalogue("module", [*COMPUTING, *JUDGE_CODE, *REFERENCE_CODE, STREAM_CODE])
def test_the_code_that_names_depend_on_is_there(module):
    assert list((Path(identity.__file__).parent.parent).glob(module))
