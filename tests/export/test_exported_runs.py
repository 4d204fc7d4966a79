"""An export is the trained model, which plain transformers can open, or nothing."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tests.export.conftest import KINDS, Runs, kinds, settings, shared
from tests.house import nodes_of, tree_of
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import posttrain
from posttrain.errors import CheckpointError, ConfigError, DataError, DoesNotFit, ExportError, ModelError
from posttrain.evaluate.chat import ChatSession
from posttrain.export import api, export
from posttrain.export.target import write_hf


def greedy(folder: Path, text: str, tokens: int = 8) -> list[int]:
    """Greedy token ids by the few lines of code that the card shows."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    return model.generate(**inputs, do_sample=False, max_new_tokens=tokens)[0].tolist()


@pytest.mark.parametrize("kind", kinds(name for name in KINDS if name not in ("stopping", "reward_model")))
def test_plain_transformers_gives_the_greedy_tokens_of_the_checkpoint(runs: Runs, kind: str):
    done = runs.export(kind)
    checkpoint = runs.run(kind) / "checkpoints" / "step-000002" / "model"
    assert greedy(done.folder, "abc") == greedy(checkpoint, "abc")
    assert done.replay.identical == done.replay.prompts > 0
    assert done.replay.source == "held-out rows of the run"
    assert done.replay.largest_difference < 1e-4
    assert done.replay.ties == ()
    assert done.step == 2


def test_a_replay_imports_nothing_of_this_library():
    """Tests fork the process that replays; a real one runs this file alone, in a new interpreter."""
    nodes = nodes_of(tree_of(Path(api.replay_script.__file__)))
    modules = {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {"torch", "transformers"} <= modules
    assert not [name for name in modules if name.startswith(("posttrain", "."))]


def test_trained_adapters_are_in_the_weights_of_the_export(runs: Runs, workshop: Path):
    before, after = (load_file(f / "model.safetensors") for f in (workshop / "model", runs.export("lora").folder))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_reward_model_is_exported_as_a_classifier_with_the_same_scores(runs: Runs):
    done = runs.export("reward_model")
    checkpoint = runs.run("reward_model") / "checkpoints" / "step-000002" / "model"
    ids = torch.tensor([[4, 5, 6, 2]])
    scores = [
        AutoModelForSequenceClassification.from_pretrained(f)(input_ids=ids).logits for f in (done.folder, checkpoint)
    ]
    assert torch.equal(*scores)
    assert done.replay.tokens == 0
    assert done.replay.prompts > 0
    assert (done.folder / "reward_model.json").read_bytes() == (checkpoint / "reward_model.json").read_bytes()


def test_the_generation_config_ends_answers_where_training_did(runs: Runs):
    saved = json.loads((runs.export("full").folder / "generation_config.json").read_text())
    assert (saved["eos_token_id"], saved["pad_token_id"]) == (2, 0)


@pytest.mark.slow
def test_answers_of_an_export_end_where_those_of_its_run_do(runs: Runs):
    run, folder = runs.run("stopping"), runs.export("stopping").folder
    stop = KINDS["stopping"][2]["sampling"]["stop"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.generation_config.stop_strings == stop
    assert AutoModelForCausalLM.from_pretrained(runs.export("full").folder).generation_config.stop_strings is None
    stopped = 0
    for text in ("abc", "xyz", "no", "qrst"):
        inputs = tokenizer(text, return_tensors="pt")
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=24, tokenizer=tokenizer)[0]
        answer = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        ended = [text for text in stop if answer.endswith(text)]
        assert answer.removesuffix(*ended or [""]) == ChatSession(run, max_completion_length=24).ask(text)
        stopped += len(ended)
    assert stopped > 0
    with pytest.raises(ValueError, match="you must pass the model's tokenizer"):
        model.generate(**inputs, max_new_tokens=8)


@pytest.mark.slow
def test_posttrain_opens_an_export_with_stop_strings_and_exports_it_again_with_them(runs: Runs, tmp_path: Path):
    folder = runs.export("stopping").folder
    trained = runs.run("stopping") / "checkpoints" / "step-000002" / "model"
    assert ChatSession(folder, max_completion_length=8).ask("xyz") == ChatSession(trained).ask("xyz")[:8]
    again = export(folder, tmp_path / "again", num_prompts=2, max_new_tokens=8)
    assert AutoModelForCausalLM.from_pretrained(again.folder).generation_config.stop_strings[0] == "zz"
    config = settings(runs.folder, "sft", "examples.jsonl", model=str(folder), output=str(tmp_path / "further"))
    posttrain.train(config)
    onward = export(tmp_path / "further", num_prompts=2, max_new_tokens=8)
    assert AutoModelForCausalLM.from_pretrained(onward.folder).generation_config.stop_strings is None


@pytest.mark.slow
def test_an_earlier_step_and_another_precision_can_be_asked_for(runs: Runs, tmp_path: Path):
    done = export(runs.run("full"), tmp_path / "start", step=0, dtype="bfloat16", num_prompts=2, max_new_tokens=4)
    weights = load_file(done.folder / "model.safetensors")
    started = load_file(runs.folder / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert all(torch.equal(weights[name], started[name].bfloat16()) for name in weights)
    assert done.step == 0


@pytest.mark.slow
def test_adapters_of_peft_are_merged_into_their_base(workshop: Path, tmp_path: Path):
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(workshop / "model"), LoraConfig(r=2, target_modules="all-linear")
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "adapters")
    with pytest.raises(ModelError, match="no such folder"):
        export(tmp_path / "adapters", tmp_path / "never", base=str(tmp_path / "moved"))
    done = export(tmp_path / "adapters", tmp_path / "merged", base=str(workshop / "model"), max_new_tokens=8)
    ids = torch.tensor([[4, 5, 6]])
    logits = AutoModelForCausalLM.from_pretrained(done.folder)(ids).logits
    torch.testing.assert_close(logits, model.eval()(ids).logits, atol=1e-4, rtol=0)
    assert done.replay.source == "built-in prompts"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapters", "merged"]


@pytest.mark.slow
def test_prompts_of_a_file_are_replayed(runs: Runs, workshop: Path, tmp_path: Path):
    (tmp_path / "own.jsonl").write_text('{"prompt": "abc"}\n{"prompt": "dcba"}\n')
    done = export(workshop / "model", tmp_path / "out", prompts=str(tmp_path / "own.jsonl"), max_new_tokens=4)
    assert (done.replay.source, done.replay.prompts) == (str(tmp_path / "own.jsonl"), 2)


@pytest.mark.slow
def test_a_run_whose_data_is_gone_replays_other_prompts_and_says_so(runs: Runs, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(runs.run("sft"), run)
    config = (run / "config.yaml").read_text().replace("examples.jsonl", "gone.jsonl")
    (run / "config.yaml").write_text(config)
    done = export(run, max_new_tokens=4)
    assert done.folder == run / "export" / "hf"
    assert done.replay.source == "built-in prompts"
    assert "can no longer be read" in done.notes[0]


# --- exports that differ from the trained model ----------------------------------------------------------------------


def corrupting(monkeypatch: pytest.MonkeyPatch, weight: str, change: float) -> None:
    """Simulate a disk that changes one number of one weight between writing and opening."""

    def write(loaded, head, folder, **settings):
        written = write_hf(loaded, head, folder, **settings)
        file = folder / "model.safetensors"
        tensors = load_file(file)
        tensors[weight].view(-1)[0] += change
        save_file(tensors, file, metadata={"format": "pt"})
        return written

    monkeypatch.setattr(api, "write_hf", write)


def test_a_changed_weight_is_named_with_the_prompt_and_the_token_that_it_changes(runs, tmp_path, monkeypatch):
    corrupting(monkeypatch, "model.norm.weight", 3.0)
    with pytest.raises(ExportError, match=r"prompt 1 \(.*prompts.jsonl:\d+\), token \d+ .*model.norm.weight") as failed:
        export(runs.run("full"), tmp_path / "out", max_new_tokens=8)
    assert failed.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_change_too_small_to_be_heard_is_found_in_the_weights(runs, tmp_path, monkeypatch):
    corrupting(monkeypatch, "model.layers.1.mlp.up_proj.weight", 1e-6)
    with pytest.raises(ExportError, match=r"holds other values .* for model.layers.1.mlp.up_proj"):
        export(runs.run("full"), tmp_path / "out", max_new_tokens=8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_reward_model_with_a_changed_head_is_named_by_its_row(runs, tmp_path, monkeypatch):
    corrupting(monkeypatch, "score.weight", 1.0)
    with pytest.raises(ExportError, match=r"prompt 1 \(.*pairs.jsonl:\d+\) is scored .* by the exported model"):
        export(runs.run("reward_model"), tmp_path / "out")


@pytest.mark.slow
def test_another_eos_in_the_export_is_found(runs, tmp_path, monkeypatch):
    def write(loaded, head, folder, **settings):
        written = write_hf(loaded, head, folder, **settings)
        saved = json.loads((folder / "generation_config.json").read_text())
        everything = list(range(2, 30))
        (folder / "generation_config.json").write_text(json.dumps(saved | {"eos_token_id": everything}))
        return written

    monkeypatch.setattr(api, "write_hf", write)
    with pytest.raises(ExportError, match="the exported model says nothing, the trained one token"):
        export(runs.run("full"), tmp_path / "out", max_new_tokens=8)


@pytest.mark.slow
def test_a_folder_that_transformers_cannot_open_is_an_error_with_its_words(runs, tmp_path, monkeypatch):
    def write(loaded, head, folder, **settings):
        written = write_hf(loaded, head, folder, **settings)
        (folder / "config.json").write_text('{"model_type": "nonesuch"}')
        return written

    monkeypatch.setattr(api, "write_hf", write)
    with pytest.raises(ExportError, match="plain transformers cannot open and run the exported model"):
        export(runs.run("full"), tmp_path / "out")


# --- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_existing_folder_is_kept_unless_force_replaces_an_export(runs: Runs, workshop: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"exists already and is not empty.*\n.*--force"):
        export(workshop / "model", mine)
    with pytest.raises(ConfigError, match="holds no exported model, so --force does not replace it"):
        export(workshop / "model", mine, force=True)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ConfigError, match="holds the model that you export"):
        export(workshop / "model", workshop, force=True)
    (mine / "thesis.txt").unlink()
    first = export(workshop / "model", mine, num_prompts=1, max_new_tokens=2)
    (first.folder / "left_over.txt").write_text("of the export before")
    export(workshop / "model", mine, num_prompts=1, max_new_tokens=2, force=True)
    assert not (mine / "left_over.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_nothing(workshop: Path, tmp_path: Path):
    """Files of this process may not exceed 30 kB, which acts like a full disk."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000));"
        "from posttrain.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    assert resource.RLIMIT_FSIZE
    command = [sys.executable, "-c", code, "export", str(workshop / "model"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 3, done.stderr
    assert "could not be written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_refused_before_anything_is_written(workshop, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "SPARE", 10**18)
    with pytest.raises(DoesNotFit, match=r"needs .* GB, but .* has .* GB free"):
        export(workshop / "model", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"to": "onnx"}, ConfigError, r"to = 'onnx'; allowed: hf, gguf"),
        ({"dtype": "q8_0"}, ConfigError, "dtype = 'q8_0' with to = 'hf'; allowed: float32, bfloat16, float16"),
        ({"num_prompts": 0}, ConfigError, "num_prompts = 0; allowed: at least 1"),
        ({"step": 7}, ConfigError, "has no such checkpoint; allowed: 0, 2"),
        ({"base": "model"}, ConfigError, "holds no adapter_config.json"),
        ({"max_new_tokens": 64}, DataError, "none of the built-in prompts can be replayed"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(runs: Runs, tmp_path: Path, settings, kind, says):
    with pytest.raises(kind, match=says):
        export(runs.run("full"), tmp_path / "out", **settings)


def test_a_damaged_checkpoint_is_not_exported(runs: Runs, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(runs.run("full"), run)
    file = run / "checkpoints" / "step-000002" / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="step-000002"):
        export(run, tmp_path / "out", step=2)
    with pytest.raises(ConfigError, match=r"step = 1, but .* is not a run"):
        export(file.parent, tmp_path / "out", step=1)


@pytest.mark.slow
def test_the_command_prints_one_object_or_three_lines(runs: Runs, tmp_path: Path, capfd):
    from posttrain.cli import run

    assert run(["export", str(runs.run("full")), str(tmp_path / "out"), "--json", "--max-new-tokens", "4"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["folder"] == str(tmp_path / "out")
    assert found["replay"]["identical"] == found["replay"]["prompts"]
    assert run(["export", str(tmp_path / "none"), "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["type"] == "ModelError"
    assert run(["export", "--help"]) == 0
    assert "Examples:" in capfd.readouterr().out


@pytest.mark.slow
def test_a_pretrained_model_survives_the_loss_of_precision_or_says_where_it_does_not(tmp_path: Path):
    done = export(shared("stories260K"), tmp_path / "half", dtype="bfloat16", max_new_tokens=16)
    assert done.replay.largest_difference < 0.5
    assert done.replay.identical + len(done.replay.ties) == done.replay.prompts
    assert all(tie.gap <= 0.5 for tie in done.replay.ties)
