"""Tiny models: plain Hugging Face folders, the same for the same seed, weak but not hopeless."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config import ModelConfig
from posttrain.data.collate import collate_examples
from posttrain.engines.delivery import routers
from posttrain.models.forward import token_logprobs
from posttrain.models.named import resolve_model_path
from posttrain.tasks import ALPHABET, TASKS, find_builtin, tiny
from posttrain.tasks.tiny import (
    build_model,
    build_tiny_model,
    build_tokenizer,
    cache_folder,
    content_key,
    demonstrations,
    imitate,
    tiny_model_path,
)

SORT = TASKS["sort"]
QUICK = replace(SORT.tiny, demonstrations=8, steps=3, rows_per_step=8, hidden_size=16, intermediate_size=32, heads=2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch):
    """The task `sort` with a model that is built quickly."""
    task = replace(SORT, tiny=QUICK)
    monkeypatch.setitem(TASKS, "sort", task)
    return task


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- the tokenizer ---------------------------------------------------------------------------------------------------


def test_every_character_is_a_token_and_comes_back():
    tokenizer = build_tokenizer()
    ids = tokenizer(ALPHABET).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert len(set(ids)) == len(ALPHABET) + 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == ALPHABET


def test_the_special_tokens_are_four_different_ids_and_eos_is_not_written():
    tokenizer = build_tokenizer()
    special = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    assert special == [tiny.PAD_ID, tiny.BOS_ID, tiny.EOS_ID, 3]
    assert tokenizer.eos_token_id not in tokenizer("abc").input_ids
    assert tokenizer("aÄ").input_ids[-1] == tokenizer.unk_token_id


# --- the model -------------------------------------------------------------------------------------------------------


def test_the_seed_alone_decides_the_weights_and_torch_keeps_its_own_random_state():
    tokenizer = build_tokenizer()
    before = torch.random.get_rng_state()
    first, again, other = (build_model(tokenizer, QUICK, seed=seed).state_dict() for seed in (0, 0, 1))
    assert equal(first, again)
    assert not equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_models_of_the_tasks_have_between_100_thousand_and_a_million_parameters():
    for task in TASKS.values():
        count = sum(p.numel() for p in build_model(build_tokenizer(), task.tiny, seed=0).parameters())
        assert 100_000 < count < 1_000_000


def test_demonstrations_train_the_answer_and_its_end_and_are_no_held_out_problems():
    tokenizer = build_tokenizer()
    example, *_ = demonstrations(SORT, tokenizer, SORT.tiny)
    text = "".join(
        f"[{token}]" if trained else token
        for token, trained in zip(
            tokenizer.convert_ids_to_tokens(example.input_ids), example.completion_mask, strict=True
        )
    )
    row = SORT.rows(1)[0]
    assert text == f"<bos>{row['prompt']}" + "".join(f"[{letter}]" for letter in row["answer"]) + "[<eos>]"


@pytest.mark.slow
def test_imitation_raises_the_probability_of_the_demonstrations_and_of_nothing_it_does_not_see():
    recipe = replace(QUICK, steps=30, learning_rate=1e-2)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, recipe, seed=0)
    examples = demonstrations(SORT, tokenizer, recipe)
    tokens, mask_BT = collate_examples(examples, pad_id=tiny.PAD_ID)

    def loss() -> float:
        with torch.no_grad():
            logprobs_BT = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
        return float(-logprobs_BT[mask_BT].mean())

    before = loss()
    imitate(model, examples, recipe, seed=0)
    assert loss() < 0.7 * before


def test_a_built_model_is_a_hugging_face_folder_and_the_same_for_the_same_seed(tmp_path, quick):
    folders = [build_tiny_model(quick, tmp_path / name, seed=seed) for name, seed in [("a", 0), ("b", 0), ("c", 1)]]
    first, again, other = (weights(folder) for folder in folders)
    assert equal(first, again)
    assert not equal(first, other)
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    assert tokenizer("cab>").input_ids == build_tokenizer()("cab>").input_ids
    assert AutoModelForCausalLM.from_pretrained(folders[0]).generation_config.eos_token_id == tiny.EOS_ID


# --- the cache -------------------------------------------------------------------------------------------------------


def test_a_model_is_built_once(tmp_path, quick, monkeypatch):
    folder = tiny_model_path("sort", cache=tmp_path, seed=0)
    monkeypatch.setattr(tiny, "build_tiny_model", lambda *args, **kwargs: pytest.fail("built again"))
    assert tiny_model_path("sort", cache=tmp_path, seed=0) == folder
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name]


def test_whatever_the_weights_depend_on_is_in_the_key():
    harder = find_builtin("sort:7")
    longer = replace(SORT, tiny=replace(SORT.tiny, steps=SORT.tiny.steps + 1))
    keys = [content_key(SORT, 0), content_key(SORT, 1), content_key(harder, 0), content_key(longer, 0)]
    assert len(set(keys)) == len(keys)
    assert content_key(SORT, 0) == keys[0]


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(tiny, "imitate", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiny_model_path("sort", cache=tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_that_build_the_same_model_both_get_it(tmp_path, quick, monkeypatch):
    build = build_tiny_model

    def overtaken(task, folder, *, seed):
        """Another process finishes first."""
        target = tmp_path / f"sort-seed{seed}-{content_key(task, seed)}"
        build(task, target, seed=seed)
        return build(task, folder, seed=seed)

    monkeypatch.setattr(tiny, "build_tiny_model", overtaken)
    folder = tiny_model_path("sort", cache=tmp_path, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert (folder / "model.safetensors").exists()


def test_only_tiny_names_are_replaced(tmp_path, monkeypatch, quick):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    other = ModelConfig(path="some/model")
    assert resolve_model_path(other, seed=0) is other
    resolved = resolve_model_path(ModelConfig(path="tiny:sort", attention="eager"), seed=3)
    assert Path(resolved.path).name.startswith("sort-seed3-")
    assert resolved.attention == "eager"


def test_a_mixture_of_experts_is_another_model_of_the_same_task(tmp_path, monkeypatch, quick):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    dense = resolve_model_path(ModelConfig(path="tiny:sort"), seed=0)
    mixture = resolve_model_path(ModelConfig(path="tiny-moe:sort"), seed=0)
    assert Path(mixture.path).name.startswith("moe-sort-seed0-")
    model = AutoModelForCausalLM.from_pretrained(mixture.path)
    assert len(routers(model)) == 2
    assert routers(AutoModelForCausalLM.from_pretrained(dense.path)) == []
    assert (model.config.num_experts, model.config.num_experts_per_tok) == (16, 4)
    assert 4 * model.config.moe_intermediate_size == quick.tiny.intermediate_size


def test_wide_heads_are_those_that_a_server_has_attention_for(tmp_path, monkeypatch, quick):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    wide = resolve_model_path(ModelConfig(path="tiny-wide:sort"), seed=0)
    assert Path(wide.path).name.startswith("wide-sort-seed0-")
    plain = resolve_model_path(ModelConfig(path="tiny:sort"), seed=0)
    model, other = (AutoModelForCausalLM.from_pretrained(found.path) for found in (wide, plain))
    assert (model.config.num_attention_heads, other.config.num_attention_heads) == (2, QUICK.heads)
    whole = SORT.in_form("tiny-wide").tiny
    assert whole.hidden_size // whole.heads == 32
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in other.parameters())


def test_the_cache_folder_can_be_chosen(monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("POSTTRAIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join("x", "cache"))
    assert cache_folder() == Path("x", "cache", "posttrain", "tiny")


def test_nothing_is_written_between_the_lines_of_who_builds_one(quick, tmp_path, capfd):
    build_tiny_model(quick, tmp_path / "model")
    assert capfd.readouterr() == ("", "")
