"""Parameter counts, compared with the models that transformers builds and with published numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from posttrain.errors import ConfigError, ModelError
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.architecture import architecture_of, read_architecture, size_classes
from posttrain.lab.plan.roles import trained_parameters
from posttrain.lab.plan.shape import families

MODELS = Path(__file__).parents[4] / "shared" / "data" / "models"
SMALL: dict[str, Any] = {"vocab_size": 512, "num_hidden_layers": 3, "pad_token_id": 0}
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 64, "n_routed_experts": 8},
    "gpt2": {"vocab_size": 512, "n_layer": 3, "n_embd": 96, "n_head": 4},
    "gemma3_text": {"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 130},
}


def built(kind: str, **sizes: Any) -> torch.nn.Module:
    """Return the model that transformers builds from such a config, without memory for its weights."""
    config = AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def count(model: torch.nn.Module, *names: str) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if any(n in name for n in names))


@pytest.mark.slow
def test_every_family_is_counted_as_transformers_builds_it() -> None:
    """This also holds for a file that leaves out old defaults of its class, as published files do."""
    for kind, family in families().items():
        sizes = SMALL | OTHER_SIZES.get(kind, {})
        model: Any = built(kind, **sizes)
        told = model.config.to_dict()
        total, counts = sum(p.numel() for p in model.parameters()), architecture_of(told).counts
        assert counts.total == total, kind
        assert counts.experts == count(model, ".experts.", "mlp.gate.weight", "mlp.router"), kind
        head = 0 if model.config.tie_word_embeddings else count(model, "lm_head", "embed_out")
        assert counts.head == head, kind
        assert counts.embeddings == count(model, "embed_tokens", "embed_in", "wte", "wpe"), kind
        for name in {"tie_word_embeddings", *family.defaults} - sizes.keys():
            told.pop(name, None)
        assert architecture_of(told).parameters == total, kind


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen3_moe", {"decoder_sparse_step": 2}),
        ("qwen2_moe", {"decoder_sparse_step": 3, "num_experts": 4}),
        ("qwen3_moe", {"mlp_only_layers": [0, 2]}),
        ("deepseek_v3", {"first_k_dense_replace": 9, **OTHER_SIZES["deepseek_v3"]}),
    ],
)
def test_layers_of_a_mixture_without_experts_are_counted_as_such(kind: str, settings: dict[str, Any]) -> None:
    model: Any = built(kind, **SMALL, **settings)
    assert architecture_of(model.config.to_dict()).parameters == sum(p.numel() for p in model.parameters())


def test_size_classes_have_the_published_number_of_parameters() -> None:
    for size, known in size_classes().items():
        assert read_architecture(size).parameters == known["parameters"], size
        assert read_architecture(known["model"]).parameters == known["parameters"], size


def test_mixtures_are_named_by_their_total_and_active_parameters() -> None:
    active = {size: read_architecture(size).active_parameters / 1e9 for size in ("30b-a3b", "235b-a22b", "671b-a37b")}
    assert {size: round(billions) for size, billions in active.items()} == {
        "30b-a3b": 3, "235b-a22b": 22, "671b-a37b": 38
    }  # fmt: skip


@pytest.mark.parametrize("name", ["stories260K", "stories15M", "minimind2-small"])
def test_real_models_are_counted_from_their_folder(name: str) -> None:
    folder = MODELS / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    header_size = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    header = json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + header_size])
    shapes = [entry["shape"] for key, entry in header.items() if key != "__metadata__"]
    assert read_architecture(str(folder)).parameters == sum(torch.Size(shape).numel() for shape in shapes)


def test_adapters_of_all_linear_layers_are_counted_as_peft_makes_them() -> None:
    from peft import LoraConfig, get_peft_model

    model: Any = built("qwen2", **SMALL, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    architecture = architecture_of(model.config.to_dict())
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert architecture.lora_parameters(8) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert architecture.lora_parameters(8, ("q", "v")) < architecture.lora_parameters(8)


def linears(model: torch.nn.Module) -> dict[str, dict[str, int]]:
    """Map the end of each linear module's name, and the end with its parent, to modules and their sizes."""
    found: dict[str, dict[str, int]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            *_, parent, leaf = ["", *name.split(".")]
            for end in {leaf, f"{parent}.{leaf}".removeprefix(".")}:
                found.setdefault(end, {})[name] = sum(module.weight.shape)
    return found


def test_every_module_that_can_have_adapters_is_counted_by_its_name() -> None:
    """Routers and gates of shared experts are not, and shared experts only by the last part of their names."""
    for kind in families():
        model: Any = built(kind, **(SMALL | OTHER_SIZES.get(kind, {})))
        architecture = architecture_of(model.config.to_dict())
        for end, found in linears(model).items():
            if end in ("gate", "mlp.gate") or "shared_expert" in end:
                assert architecture.named(end) == (), (kind, end)
                continue
            counted = architecture.lora_parameters(8, architecture.named(end))
            assert counted == 8 * sum(found.values()), (kind, end)
        assert architecture.named("a_proj_of_another_family") == ()


def test_adapters_on_modules_that_the_plan_does_not_know_are_told(tmp_path: Path) -> None:
    model: Any = built("gpt2", **OTHER_SIZES["gpt2"])
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    told = {}
    for modules in ("c_attn", "attn.c_proj", "c_proj,odd"):
        settings = [f"lora.target_modules=[{modules}]"]
        plan = make_plan(model=str(tmp_path), algorithm="sft", gpus="h100", overrides=settings)
        told[modules] = trained_parameters(plan.workload)["policy"]
        note = "adapters on odd are not counted: the plan knows no such module of the family gpt2"
        assert (note in " ".join(plan.render().split())) == ("odd" in modules)
    assert told == {"c_attn": 16 * 3 * 4 * 96, "attn.c_proj": 16 * 3 * 2 * 96, "c_proj,odd": 16 * 3 * (2 + 5) * 96}


def test_architectures_that_cannot_be_counted_are_named() -> None:
    with pytest.raises(ModelError, match=r"type 'mamba'.*allowed: .*llama.*qwen3_moe"):
        architecture_of({"model_type": "mamba", "hidden_size": 64})
    with pytest.raises(ModelError, match="hidden_size = None; allowed: a whole number"):
        architecture_of({"model_type": "llama"})
    with pytest.raises(ModelError, match="parts other than text"):
        architecture_of({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}})


def test_a_model_that_was_trained_further_has_the_shape_of_the_model() -> None:
    for name in ("Qwen/Qwen2.5-7B-Instruct", "qwen/qwen2.5-7b-it"):
        assert read_architecture(name).counts == read_architecture("7b").counts
    with pytest.raises(ConfigError, match="nor a known model's name"):
        read_architecture("Qwen/Qwen2.5-7B-Coder")


def test_a_name_that_says_nothing_is_answered_with_the_size_classes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'6\.9b' is neither a folder.*0.5b, .*7b.*30b-a3b"):
        read_architecture("6.9b")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds no settings"):
        read_architecture(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_architecture(str(tmp_path))
