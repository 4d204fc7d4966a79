"""A pipeline's stages: each gets exactly the model that the stage before trained, or an error says that it does not."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.processes import run_script
from tests.report.synthetic_run import evaluation
from tests.tiny import tiny_model, write_prompts
from transformers import AutoModelForCausalLM

import posttrain
from posttrain.cli import run as command
from posttrain.config import ModelConfig, load_config
from posttrain.config.pipeline import read_pipeline, to_yaml
from posttrain.errors import ConfigError, DataError, GuardStop, HandOverError, ModelError
from posttrain.evaluate.api import evaluate
from posttrain.evaluate.chat import ChatSession
from posttrain.export import api as exporting
from posttrain.export.origin import find_origin
from posttrain.models.load import load_model
from posttrain.pipeline import stage as pipeline_stage
from posttrain.pipeline.handover import HandOver, describe, receive
from posttrain.pipeline.run import Pipeline, look_ahead
from posttrain.pipeline.store import PipelineStore
from posttrain.report.pipeline_page import stage_rows, table_text, write_pipeline_report
from posttrain.store.checkpoint import verify
from posttrain.train import api
from posttrain.train.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    tiny_model(folder / "model")
    prompts = write_prompts(folder / "prompts.jsonl", count=24)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    examples = [{"prompt": row["prompt"], "completion": row["answer"]} for row in rows]
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples))
    (folder / "rewards.py").write_text(
        "def vowels(prompt, completion, **row):\n    return sum(letter in 'aeiou' for letter in completion) / 8\n"
    )
    return folder


def settings(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    train = {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-3}
    sft = {"algorithm": "sft", "data": {"train": str(folder / "examples.jsonl")}, "train": train}
    grpo = {
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}],
        "train": {**train, "learning_rate": 1e-4},
    }
    shared = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "sampling": {"group_size": 2, "max_completion_length": 6},
        "evaluation": {"writing": 0, "prompts": 4, "samples": 0},
        "checkpoint": {"every": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return {**shared, "stages": [sft, grpo], **changes}


@pytest.fixture(scope="module")
def done(folder) -> Pipeline:
    trained = posttrain.train(settings(folder, "done"))
    assert isinstance(trained, Pipeline)
    return trained


@pytest.mark.slow
def test_the_result_names_every_stage_its_model_and_what_was_measured(done, folder):
    assert done.folder == folder / "done"
    assert [(stage.name, stage.algorithm) for stage in done.stages] == [("sft", "sft"), ("grpo", "grpo")]
    assert done.model_path == done.stages[1].model_path == done.folder / "02-grpo/checkpoints/step-000003/model"
    assert done.evaluation["sft"].keys() >= {"baseline", "trained"}
    assert done.summary()["stages"][1]["model_path"] == str(done.model_path)
    assert done.export is None


@pytest.mark.slow
def test_the_second_stage_started_with_what_the_first_one_trained(done):
    config = (done.folder / "02-grpo" / "config.yaml").read_text()
    assert f"path: {done.stages[0].model_path}  # stage:sft" in config
    start = load_file(done.folder / "02-grpo/checkpoints/step-000000/model/model.safetensors")
    trained = load_file(done.stages[0].model_path / "model.safetensors")
    assert all(torch.equal(start[name], tensor) for name, tensor in trained.items())


def test_the_hand_over_is_proven_and_on_file(done):
    proof = done.stages[1].received["model.path"]
    assert proof["stage"] == "sft"
    assert proof["largest_difference"] == 0
    assert proof["same_greedy_answers"] == "4 of 4"
    promised = HandOver.read(done.folder / "handover" / "01-sft.json")
    names = AutoModelForCausalLM.from_pretrained(done.stages[0].model_path).state_dict().keys()
    assert promised.weights.keys() == names
    assert proof["weights_compared"] == len(names)
    assert proof["sha256"] == promised.digest


def test_a_finished_pipeline_resumes_to_itself(done):
    before = (done.folder / "02-grpo" / "metrics.jsonl").stat().st_mtime_ns
    again = posttrain.resume(done.folder)
    assert isinstance(again, Pipeline)
    assert again == replace(done, stages=again.stages)
    assert [stage.received for stage in again.stages] == [stage.received for stage in done.stages]
    assert (done.folder / "02-grpo" / "metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="each stage has its own"):
        posttrain.resume(done.folder, steps=9)


@pytest.mark.slow
def test_a_stage_is_trained_further_in_a_copy_alone(done, tmp_path):
    """A pipeline would neither continue with a stage whose settings changed, nor with later stages that began without
    it."""
    stage = done.folder / "02-grpo"
    before = {path: path.read_bytes() for path in (stage / "config.yaml", done.folder / "pipeline.json")}
    with pytest.raises(ConfigError, match=r"(?s)a stage of the pipeline .*Copy"):
        posttrain.resume(stage, steps=9)
    assert before == {path: path.read_bytes() for path in before}
    steps = posttrain.resume(stage).step
    copied = shutil.copytree(stage, tmp_path / "copied")
    assert posttrain.resume(copied, steps=steps + 1).step == steps + 1
    assert isinstance(posttrain.resume(done.folder), Pipeline)


def test_a_folder_with_a_pipeline_is_not_written_over(done, folder):
    with pytest.raises(ConfigError, match=r"already holds a pipeline[^$]*posttrain resume"):
        posttrain.train(settings(folder, "done"))


# --- the pipeline's folder in place of a model's ---------------------------------------------------------------------


def begun(done: Pipeline, place: Path, *status: str) -> Path:
    """A copy of the pipeline whose stages have these states."""
    folder = shutil.copytree(done.folder, place)
    content = json.loads((folder / "pipeline.json").read_text())
    for stage, now in zip(content["stages"], status, strict=True):
        stage["status"] = now
    (folder / "pipeline.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("words", ["eval", "eval --as pairs --data x.jsonl", "chat -m hi", "export", "export --step 3"])
def test_where_a_run_is_read_an_unfinished_pipeline_is_told_which_stage_to_give(done, tmp_path, capsys, words):
    name, *options = words.split()
    half = begun(done, tmp_path / "half", "finished", "training")
    none = begun(done, tmp_path / "none", "interrupted", "waiting")
    for folder, says in (
        (half, f"its last stage has not finished yet[^$]*Give the folder of a finished stage: '{half / '01-sft'}'"),
        (none, f"no stage of it has finished yet[^$]*`posttrain resume {none}` continues it"),
    ):
        assert command([name, str(folder), *options]) == 2
        assert re.search(f"ModelError: {folder} is the folder of a pipeline[^$]*{says}", capsys.readouterr().err)


@pytest.mark.slow
def test_where_a_run_is_read_a_finished_pipeline_means_its_last_stage(done):
    last = done.folder / "02-grpo"
    assert find_origin(done.folder).run == last
    assert evaluate(done.folder, k=0).to_json() == evaluate(last, k=0).to_json()
    assert Path(ChatSession(done.folder).model_path).is_relative_to(last)


def test_where_a_model_is_read_its_newest_checkpoint_is_named(done, folder, tmp_path):
    shared = settings(folder, "never")
    run = {**shared.pop("stages")[0], **shared, "output": str(tmp_path / "never")}
    stage, none = done.folder / "02-grpo", begun(done, tmp_path / "none", "interrupted", "waiting")
    empty = tmp_path / "empty"
    (empty / "checkpoints").mkdir(parents=True)
    shutil.copy(stage / "config.yaml", empty)
    for path, says in (
        (stage, f"Give '{done.model_path}', the newest checkpoint of the run in this folder."),
        (
            done.folder,
            f" or '{done.model_path}', the newest checkpoint of a finished stage of the pipeline in this folder.",
        ),
        (none, f"No stage of the pipeline in this folder has finished yet; `posttrain resume {none}` continues it."),
        (empty, f"There is no checkpoint yet of the run in this folder; `posttrain resume {empty}` continues it."),
    ):
        with pytest.raises(ModelError, match=f"has no config.json[^$]*{re.escape(says)}"):
            posttrain.train({**run, "model": str(path)})


# --- models that differ from the trained ones between stages ---------------------------------------------------------


def stop(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def before_second(folder) -> Path:
    """A pipeline that was stopped right before its second stage, and moved since."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline_stage, "_receive", lambda stage, *rest: {} if stage.number == 1 else stop())
        with pytest.raises(KeyboardInterrupt) as error:
            posttrain.train(settings(folder, "began-1"))
    assert f"posttrain resume {folder / 'began-1'}` continues it" in error.value.__notes__[-1]
    assert json.loads((folder / "began-1" / "pipeline.json").read_text())["status"] == "interrupted"
    return (folder / "began-1").rename(folder / "before-second")


@pytest.mark.parametrize("error", [DataError, ModelError, ConfigError])
@pytest.mark.parametrize("lasting", [True, False])
def test_an_error_that_a_resume_meets_again_is_not_followed_by_the_advice_to_resume(
    before_second, tmp_path, monkeypatch, error, lasting
):
    def changed(*args: Any) -> None:
        raised = error(given="something changed")
        raised.is_lasting = lasting
        raise raised

    folder = shutil.copytree(before_second, tmp_path / "changed")
    monkeypatch.setattr(pipeline_stage, "_receive", changed)
    with pytest.raises(error) as caught:
        posttrain.resume(folder)
    continues = "" if lasting else f"; `posttrain resume {folder}` continues it"
    assert caught.value.__notes__[-1] == f"The pipeline is in {folder}{continues}."


@pytest.fixture
def stopped(before_second, tmp_path) -> Path:
    return shutil.copytree(before_second, tmp_path / "stopped")


def test_weights_that_were_changed_on_disk_are_an_error_that_names_both_stages(stopped, capsys):
    path = stopped / "01-sft/checkpoints/step-000003/model/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert command(["resume", str(stopped)]) == 4
    said = capsys.readouterr().err
    assert "stage grpo does not receive the model that stage sft has trained" in said
    assert "model/model.safetensors has different content than was written" in said


def test_a_checkpoint_that_was_replaced_as_a_whole_is_found_by_its_content(stopped):
    """Its manifest agrees with its files, but it is not the checkpoint that the stage trained."""
    checkpoint = stopped / "01-sft/checkpoints/step-000003"
    path = checkpoint / "model/model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] += 1e-6
    save_file(weights, path, metadata={"format": "pt"})
    from posttrain.store import checkpoint as writing

    for name in (writing.MANIFEST, writing.SEAL):
        (checkpoint / name).unlink()
    writing._seal(checkpoint, 3, {"step": 3})
    assert not isinstance(verify(checkpoint), list)
    with pytest.raises(
        HandOverError, match=r"1 of \d+ weights have different content, for example model\.norm\.weight"
    ):
        posttrain.resume(stopped)


@pytest.mark.slow
def test_a_stage_whose_folder_was_removed_is_trained_again_to_the_same_bits(stopped, done):
    shutil.rmtree(stopped / "01-sft")
    again = posttrain.resume(stopped)
    ours, theirs = (load_file(p.model_path / "model.safetensors") for p in (again, done))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eos_ids": (7,)}, r"answers ended with the token ids \[7\] and now with \[2\]"),
        ({"chat_template": "{{ messages }}"}, "its tokenizer has a different chat template"),
        ({"values": ((0.5,) * 16,) * 4}, "log-probabilities of fixed answers differ by"),
    ],
)
def test_what_else_must_be_the_same(done, change, message):
    promised = HandOver.read(done.folder / "handover" / "01-sft.json")
    model = ModelConfig(path="x", device="cpu")
    if "values" in change:
        change = {"values": tuple((0.5,) * len(row) for row in promised.values)}
    checkpoint = done.stages[0].model_path.parent
    assert receive(checkpoint, promised, model, makes="text", who="b")["largest_difference"] == 0
    with pytest.raises(HandOverError, match=message):
        receive(checkpoint, replace(promised, **change), model, makes="text", who="stage b does not get it")


def test_adapters_are_handed_over_merged(folder):
    trained = posttrain.train(
        settings(folder, "adapters", lora={"rank": 2}), **{"stages.sft.train.steps": 1, "stages.grpo.train.steps": 1}
    )
    proof = trained.stages[1].received["model.path"]
    assert proof["largest_difference"] < 1e-4
    plain = load_model(ModelConfig(path=str(trained.stages[0].model_path), device="cpu"))
    assert describe(plain, 3, makes="text").weights == HandOver.read(trained.folder / "handover/01-sft.json").weights


# --- resumed with other settings, or somewhere else ------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_second(folder) -> Path:
    """A pipeline that was stopped after the first of three steps of its second stage, and moved since."""
    record = Run.record_step

    def stopping(run: Run, *args: Any) -> None:
        record(run, *args)
        if run.folder.name == "02-grpo":
            stop()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "record_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            posttrain.train(settings(folder, "began-2", checkpoint={"every": 1}))
    return (folder / "began-2").rename(folder / "in-second")


@pytest.fixture
def cut(in_second, tmp_path) -> Path:
    return shutil.copytree(in_second, tmp_path / "cut")


def edit(pipeline: Path, stage: int, before: str, after: str) -> None:
    """Edit a line of one stage in pipeline.yaml."""
    file = pipeline / "pipeline.yaml"
    *above, text = file.read_text().split("  - name: ", stage)
    assert before in text
    file.write_text("  - name: ".join([*above, text.replace(before, after, 1)]))


@pytest.mark.slow
def test_a_stage_that_has_begun_does_not_take_other_settings_in_silence(cut):
    edit(cut, 2, "learning_rate: 0.0001", "learning_rate: 0.0002")
    edit(cut, 2, "group_size: 2", "group_size: 4")
    said = r"stage grpo has begun with other settings: sampling\.group_size, train\.learning_rate of [^$]*"
    with pytest.raises(
        ConfigError, match=said + r"agree\. Or, to train these stages again, remove the folder .*02-grpo"
    ):
        posttrain.resume(cut)
    shutil.rmtree(cut / "02-grpo")
    assert posttrain.resume(cut).stages[1].name == "grpo"
    assert "learning_rate: 0.0002" in (cut / "02-grpo" / "config.yaml").read_text()


@pytest.mark.slow
def test_a_stage_that_is_done_does_not_either(cut):
    edit(cut, 1, "steps: 3", "steps: 4")
    with pytest.raises(ConfigError, match=r"stage sft has begun [^$]*train\.steps [^$]*because the stage is finished"):
        posttrain.resume(cut)
    shutil.rmtree(cut / "01-sft")  # the second stage would now continue from another model than it began with
    with pytest.raises(ConfigError, match=r"stage grpo has begun with other settings: model\.path"):
        posttrain.resume(cut)


@pytest.mark.slow
def test_a_stage_that_was_edited_before_it_began_is_shown_with_what_it_became(stopped):
    file = stopped / "pipeline.yaml"
    given = yaml.safe_load(file.read_text())
    given["stages"][1]["algorithm"] = {"name": "rloo"}
    file.write_text(json.dumps(given))  # JSON is YAML
    resumed = posttrain.resume(stopped)
    assert "name: rloo" in (stopped / "02-grpo" / "config.yaml").read_text()
    assert [row.algorithm for row in stage_rows(resumed.folder)] == ["sft", "rloo"]


@pytest.mark.slow
def test_a_stage_that_has_begun_may_get_more_steps(cut):
    edit(cut, 2, "steps: 3", "steps: 5")
    assert posttrain.resume(cut).model_path == cut / "02-grpo/checkpoints/step-000005/model"


def test_a_pipeline_that_was_moved_loads_the_models_that_it_has_proven(cut, done, folder):
    before = load_config(cut / "02-grpo" / "config.yaml").config.model.path
    assert before.startswith(str(folder / "began-2"))
    assert not Path(before).exists()
    again = posttrain.resume(cut)
    proven = cut / again.stages[1].received["model.path"]["checkpoint"] / "model"
    assert load_config(cut / "02-grpo" / "config.yaml").config.model.path == str(proven)
    assert f"output: {cut / '02-grpo'}" in (cut / "02-grpo" / "config.yaml").read_text()
    ours, theirs = (load_file(p.model_path / "model.safetensors") for p in (again, done))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.slow
def test_a_copy_does_not_look_at_the_folder_that_it_was_copied_from(cut, folder):
    left = folder / "began-2/01-sft/checkpoints/step-000003/model"
    left.mkdir(parents=True)
    (left / "config.json").write_text("something else")
    try:
        assert posttrain.resume(cut).stages[1].received["model.path"]["largest_difference"] == 0
    finally:
        shutil.rmtree(folder / "began-2")


@pytest.mark.slow
def test_a_resumed_pipeline_knows_where_its_values_came_from(stopped):
    edit(stopped, 2, "learning_rate: 0.0001  # caller", "learning_rate: 0.0003")
    posttrain.resume(stopped)
    lines = (stopped / "02-grpo" / "config.yaml").read_text().splitlines()
    steps, rate = (next(line for line in lines if f"  {name}: " in line) for name in ("steps", "learning_rate"))
    assert steps.endswith("# caller")
    assert rate.endswith(f"# file:{stopped / 'pipeline.yaml'}")


def test_one_run_does_not_take_the_stages_of_a_pipeline(folder):
    with pytest.raises(ConfigError, match=r"stages, which make a pipeline[^$]*posttrain\.train\(\.\.\.\)"):
        api.train(settings(folder, "never"))


# --- what is checked first, and how a pipeline is judged -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"data": {"train": "nowhere.jsonl"}}, DataError, "stage grpo: nowhere.jsonl does not exist"),
        ({"rewards": [{"function": "nowhere.py:score"}]}, ConfigError, r"stage grpo: .*nowhere\.py"),
        ({"model": "./nowhere"}, ModelError, r"stage grpo: model\.path = './nowhere': there is no such folder"),
        ({"rewards": [{"model": "./nowhere"}]}, ModelError, r"stage grpo: rewards\.0\.model = './nowhere'"),
        ({"rewards": [{"judge": {"model": "./nowhere", "mode": "score"}}]}, ModelError, r"rewards\.0\.judge\.model = "),
        (
            {"algorithm": {"name": "grpo", "kl_coef": 0.1}, "reference": {"path": "./nowhere"}},
            ModelError,
            r"stage grpo: reference\.path = './nowhere'",
        ),
        (
            {"algorithm": "ppo", "critic": {"path": "./nowhere"}},
            ModelError,
            r"stage ppo: critic\.path = './nowhere': there is no such folder",
        ),
    ],
)
def test_data_rewards_and_models_of_all_stages_are_looked_at_before_the_first_one_trains(folder, change, kind, message):
    given = settings(folder, "ahead")
    given["stages"][1] |= change
    with pytest.raises(kind, match=message) as error:
        posttrain.train(given)
    assert "Nothing was trained" in error.value.__notes__[-1]
    assert not (folder / "ahead" / "01-sft").exists()


def test_rewards_behind_a_model_of_an_earlier_stage_are_no_error_before_it_is_trained(folder):
    given = settings(folder, "gated")
    sft, grpo = given["stages"]
    pairs = [{"prompt": "ab", "chosen": f"{n}", "rejected": "b"} for n in range(8)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    scorer = {**sft, "name": "rm", "model": given["model"], "algorithm": "reward_model"}
    scorer["data"] = {"train": str(folder / "pairs.jsonl")}
    vowels = grpo["rewards"][0]
    grpo["rewards"] = [
        vowels,
        {"model": "stage:rm", "label": "learned", "weight": 0.5},
        vowels | {"label": "first", "gate": {"label": "learned", "at_least": 0.0}},
        vowels | {"label": "second", "gate": "first"},
    ]
    config = read_pipeline(given | {"stages": [sft, scorer, grpo]}, {})
    look_ahead(config, PipelineStore.create(folder / "gated", to_yaml(config, "gated"), config.stages))
    broken = {**grpo, "rewards": [*grpo["rewards"], {"function": "nowhere.py:score"}]}
    config = read_pipeline(given | {"stages": [sft, scorer, broken]}, {})
    with pytest.raises(ConfigError, match=r"nowhere\.py"):
        look_ahead(config, PipelineStore.create(folder / "broken", to_yaml(config, "broken"), config.stages))


def worse(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    given = settings(folder, name, **changes)
    given["stages"] = [given["stages"][0], given["stages"][0] | {"name": "ruin"}]
    given["stages"][1] |= {"train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1.0}}
    given["evaluation"] = {"prompts": 24, "samples": 0}
    for stage in given["stages"]:
        stage["data"] = {**stage["data"], "eval_fraction": 0.4}
    return given


@pytest.mark.slow
def test_a_stage_that_made_its_model_worse_is_told(folder, capsys):
    trained = posttrain.train(worse(folder, "worse"))
    assert "warning: stage ruin: The model got worse." in capsys.readouterr().out
    rows = stage_rows(trained.folder)
    assert rows[1].change == "worse"
    assert "stage ruin made its held-out loss worse" in rows[1].warnings[0]
    assert "stage ruin made its held-out loss worse" in write_pipeline_report(trained.folder).read_text()


@pytest.mark.slow
def test_and_stops_the_pipeline_where_that_is_asked_for(folder):
    with pytest.raises(GuardStop, match=r"stage ruin made its held-out loss worse[^$]*stop_if_worse: false in"):
        posttrain.train(worse(folder, "stops", stop_if_worse=True))
    settings_file = folder / "stops" / "pipeline.yaml"
    settings_file.write_text(settings_file.read_text().replace("stop_if_worse: true", "stop_if_worse: false"))
    assert len(posttrain.resume(folder / "stops").stages) == 2


@pytest.mark.parametrize(
    ("after", "told"),
    [(0.9, "better, writes worse"), (0.3, "no change is shown, writes worse"), (0.05, "worse")],
)
def test_a_stage_that_measures_better_and_writes_worse_is_both_in_the_table(tmp_path, after, told):
    grew = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    writing = {"baseline": {}, "trained": {"repetition": grew}, "difference": {"repetition": grew}}
    found = {"baseline": evaluation(0.3), "trained": evaluation(after), "writing": writing}
    (tmp_path / "01-dpo").mkdir()
    (tmp_path / "01-dpo" / "evaluation.json").write_text(json.dumps(found))
    stage = {"name": "dpo", "folder": "01-dpo", "status": "finished"}
    (tmp_path / "pipeline.json").write_text(json.dumps({"stages": [stage]}))
    assert [row.change for row in stage_rows(tmp_path)] == [told]


# --- output ----------------------------------------------------------------------------------------------------------


def test_the_command_line_trains_a_pipeline_and_ends_with_a_table(folder, capsys):
    path = folder / "p.yaml"
    path.write_text(json.dumps(settings(folder, "cli")))
    assert command(["train", str(path), "stages.sft.train.steps=1", "stages.grpo.train.steps=1"]) == 0
    said = capsys.readouterr().out
    assert "stage 1 of 2: sft\n" in said
    assert "stage 2 of 2: grpo\n" in said
    assert "hand-over: the model of stage sft: " in said
    table = table_text(stage_rows(folder / "cli"))
    assert table in said
    assert "02-grpo/checkpoints/step-000001/model" in table
    assert f"pipeline   {folder / 'cli'}" in said
    assert command(["resume", str(folder / "cli"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in summary["stages"]] == ["sft", "grpo"]
    assert command(["train", str(path), "--dry-run", "--json", "seed=4"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert [stage["config"]["seed"] for stage in dry["stages"]] == [4, 4]


@pytest.mark.slow
def test_the_page_shows_the_table_and_leads_to_the_reports_of_the_stages(folder):
    trained = posttrain.train(settings(folder, "page", report=True))
    page = (trained.folder / "report.html").read_text()
    assert '<a href="01-sft/report.html">sft</a>' in page
    assert (trained.folder / "01-sft/report.html").exists()
    assert "the model of stage sft" in page
    assert stage_rows(trained.folder)[0].trained in page


def test_the_page_makes_names_and_errors_harmless(tmp_path):
    content = {"status": "failed", "error": {"type": "E", "message": "<script>"}, "stages": [{"name": "<b>"}]}
    (tmp_path / "pipeline.json").write_text(json.dumps(content))
    page = write_pipeline_report(tmp_path).read_text()
    assert page.count("<script") == 2, "the data and the script of every page"
    assert "&lt;b&gt;" in page


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ({}, None),
        ({"type": "KeyboardInterrupt", "message": ""}, '<div class="trouble"><b>Interrupted</b></div>'),
        ({"type": "GuardStop", "message": "why"}, '<div class="trouble"><b>GuardStop</b><pre>why</pre></div>'),
    ],
)
def test_the_page_tells_of_trouble_where_there_was_some(tmp_path, error, shown):
    content = {"status": "interrupted" if error else "finished", "stages": []} | ({"error": error} if error else {})
    (tmp_path / "pipeline.json").write_text(json.dumps(content))
    page = write_pipeline_report(tmp_path).read_text()
    assert shown in page if shown else 'class="trouble"' not in page


@pytest.mark.slow
def test_the_last_policy_is_exported_and_its_card_tells_of_every_stage(folder, monkeypatch):
    monkeypatch.setattr(exporting, "subprocess", SimpleNamespace(run=run_script))
    trained = posttrain.train(settings(folder, "exported", export={"to": "hf"}))
    assert trained.export == folder / "exported" / "export"
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path) for path in (trained.export, trained.model_path))
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    assert posttrain.resume(trained.folder).export == trained.export
    card = (trained.export / "README.md").read_text()
    assert "`model` after 3 steps of SFT" in card
    assert "and 3 steps of GRPO" in card
    assert re.search(r"^1\. \*\*SFT.*3 steps.*`examples.jsonl`", card, re.MULTILINE)
    assert re.search(r"^2\. \*\*GRPO.*3 steps.*`prompts.jsonl`", card, re.MULTILINE)


def test_a_place_that_is_taken_is_refused_before_anything_is_trained(folder):
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.txt").write_text("years of work")
    given = settings(folder, "refused", export={"output": str(folder / "taken")})
    with pytest.raises(
        ConfigError, match=r"export: .*taken exists already and is not empty[^$]*Set export\.output to another"
    ):
        posttrain.train(given)
    assert not (folder / "refused" / "01-sft").exists()
