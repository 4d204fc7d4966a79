"""Several runs in one file: the settings of each stage, and what is refused before anything is trained."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from tests.catalogue import catalogue

from posttrain.config import DataConfig
from posttrain.config.pipeline import holds_stages, notes, read_pipeline, to_yaml
from posttrain.errors import ConfigError

REWARD = {"name": "exact_match"}


def pipeline(**changes: Any) -> dict[str, Any]:
    """Return SFT, a reward model, and two rounds of GRPO that use it as their reward."""
    given = {
        "model": {"path": "start", "gguf_file": "weights.gguf"},
        "seed": 3,
        "train": {"prompts_per_step": 8},
        "data": {"train": "prompts.jsonl", "answer": "gold"},
        "stages": [
            {"algorithm": "sft", "data": {"train": "examples.jsonl"}, "train": {"steps": 5, "learning_rate": 1e-3}},
            {"name": "judge", "algorithm": "reward_model", "data": {"train": "pairs.jsonl"}, "train": {"steps": 6}},
            {
                "algorithm": {"name": "grpo", "clip_high": 0.3},
                "repeat": 2,
                "data": {"part": "{round}/2"},
                "rewards": [REWARD, {"model": "stage:judge"}],
                "train": {"steps": 7, "learning_rate": 1e-5},
            },
        ],
    }
    return {**copy.deepcopy(given), **changes}


def with_stage(place: int, **changes: Any) -> dict[str, Any]:
    given = pipeline()
    given["stages"][place] |= changes
    return given


# settings of the stages


def test_a_stage_has_the_shared_settings_and_its_own_before_them():
    stages = read_pipeline(pipeline()).stages
    assert [stage.name for stage in stages] == ["sft", "judge", "grpo-1", "grpo-2"]
    assert [stage.folder for stage in stages] == ["01-sft", "02-judge", "03-grpo-1", "04-grpo-2"]
    assert [stage.config.data.train for stage in stages] == ["examples.jsonl", "pairs.jsonl"] + ["prompts.jsonl"] * 2
    assert {stage.config.data.answer for stage in stages} == {"gold"}
    assert {(stage.config.seed, stage.config.train.prompts_per_step) for stage in stages} == {(3, 8)}


def test_a_stage_goes_on_with_the_last_policy_and_never_with_a_reward_model():
    stages = read_pipeline(pipeline()).stages
    paths = [stage.config.model.path for stage in stages]
    assert paths == ["start", "stage:sft", "stage:sft", "stage:grpo-1"]
    assert [stage.config.model.gguf_file for stage in stages] == ["weights.gguf", None, None, None]
    assert dict(stages[2].uses) == {"model.path": "sft", "rewards.1.model": "judge"}
    assert [stage.trains_policy for stage in stages] == [True, False, True, True]


def test_a_stage_may_name_another_model_or_an_earlier_stage():
    assert read_pipeline(with_stage(1, model="elsewhere")).stages[1].config.model.path == "elsewhere"
    last = read_pipeline(with_stage(2, model="stage:sft")).stages[-1]
    assert dict(last.uses) == {"model.path": "sft", "rewards.1.model": "judge"}


def test_rounds_have_their_number_in_texts():
    parts = [stage.config.data.part_numbers for stage in read_pipeline(pipeline()).stages]
    assert parts == [None, None, (1, 2), (2, 2)]


def test_the_name_of_a_repeated_stage_means_its_last_round():
    given = pipeline()
    given["stages"].append({**given["stages"][2], "name": "last", "model": "stage:grpo", "repeat": None})
    given["stages"][-1]["data"] = {}
    assert read_pipeline(given).stages[-1].uses["model.path"] == "grpo-2"


def test_names_default_to_the_algorithm_and_are_made_unique():
    given = pipeline()
    given["stages"] = [given["stages"][0], {**given["stages"][0]}, {**given["stages"][0], "name": "third"}]
    assert [stage.name for stage in read_pipeline(given).stages] == ["sft", "sft-2", "third"]


def test_the_shared_settings_of_an_algorithm_are_not_those_of_another():
    given = pipeline(algorithm={"name": "grpo", "clip_high": 0.4})
    given["stages"][2]["algorithm"] = {"clip_low": 0.1}
    settings = read_pipeline(given).stages[2].config.algorithm.settings
    assert (settings["clip_low"], settings["clip_high"]) == (0.1, 0.4)
    assert read_pipeline(given).stages[0].config.algorithm.name == "sft"


def test_models_are_put_in_their_places():
    stage = read_pipeline(pipeline()).stages[2]
    resolved = stage.with_models({"sft": "a/model", "judge": "b/model"})
    assert resolved.config.model.path == "a/model"
    assert resolved.config.rewards[1].model == "b/model"
    assert resolved.config.rewards[0] == stage.config.rewards[0]
    assert resolved.origins["model.path"] == "stage:sft"


def test_what_is_saved_reads_back_to_the_same_pipeline(tmp_path):
    given = read_pipeline(pipeline(export={"to": "gguf"}, stop_if_worse=True))
    path = tmp_path / "pipeline.yaml"
    path.write_text(to_yaml(given, "runs/there"))
    again = read_pipeline(path)
    assert [stage.config for stage in again.stages] == [stage.config for stage in given.stages]
    assert [(s.name, dict(s.uses)) for s in again.stages] == [(s.name, dict(s.uses)) for s in given.stages]
    assert again.settings.model_dump() == given.settings.model_dump() | {"output": "runs/there"}


def test_what_is_a_pipeline_is_told_by_its_stages(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(pipeline()))
    (tmp_path / "b.yaml").write_text("model: tiny:sort\n")
    assert holds_stages(tmp_path / "a.yaml")
    assert not holds_stages(tmp_path / "b.yaml")
    assert holds_stages(pipeline())


# the command line


def test_overrides_change_one_stage_one_round_or_all_of_them():
    changes = ["train.steps=2", "stages.sft.train.steps=3", "stages.2.train.steps=4", "stages.grpo-2.train.steps=5"]
    stages = read_pipeline(pipeline(), changes).stages
    assert [stage.config.train.steps for stage in stages] == [3, 2, 4, 5]
    assert stages[3].resolved.origins["train.steps"] == "command line"


def test_a_model_on_the_command_line_is_the_first_one():
    paths = [stage.config.model.path for stage in read_pipeline(pipeline(), ["model.path=other"]).stages]
    assert paths == ["other", "stage:sft", "stage:sft", "stage:grpo-1"]
    changed = read_pipeline(pipeline(), {"model": {"path": "other", "gguf_file": None}}).stages[0].config.model
    assert (changed.path, changed.gguf_file) == ("other", None)


def test_settings_of_the_pipeline_and_python_mappings():
    changes = {"seed": 9, "output": "there", "export": {"to": "gguf"}, "stages": {"sft": {"train": {"steps": 1}}}}
    given = read_pipeline(pipeline(), changes)
    assert given.settings.output == "there"
    assert given.settings.export is not None
    assert given.settings.export.to == "gguf"
    assert [stage.config.seed for stage in given.stages] == [9] * 4
    assert [stage.config.train.steps for stage in given.stages] == [1, 6, 7, 7]
    assert read_pipeline(pipeline(), ["stop-if-worse=true"]).settings.stop_if_worse


# refusals and warnings


@catalogue(
    "given, message",
    [
        (pipeline(stages=[]), r"stages = \[\]; allowed: a list with the settings of one run"),
        (pipeline(stages="sft"), "stages = sft"),
        (with_stage(0, output="x"), "stage sft: output is set in a stage"),
        (with_stage(0, name="a/b"), r"stage a/b: name = a/b; allowed: letters, digits[^$]*Set name: a-b"),
        (with_stage(2, repeat=0), "stage grpo: repeat = 0; allowed: an integer of at least 1"),
        (with_stage(1, name="sft"), "stage sft: two stages are called sft"),
        (with_stage(0, model="stage:judge"), r"stage sft: model\.path = stage:judge, and no earlier stage"),
        (with_stage(2, rewards=[{"model": "stage:jugde"}]), r"called 'jugde'[^$]*Did you mean stage:judge\?"),
        (
            with_stage(2, rewards=[{"model": "judge"}]),
            r"stages grpo-1, grpo-2: rewards\.0\.model = judge, which is the name of an earlier stage and not "
            r"of a folder; "
            r"allowed: stage:judge[^$]*Set rewards\.0\.model = stage:judge",
        ),
        (with_stage(2, model="sft"), r"model\.path = sft, which is the name of an earlier stage"),
        (with_stage(2, rewards=[{"model": "stage:sft"}]), "that stage trains a policy, which gives no score"),
        (with_stage(2, model="stage:judge"), "that stage trains a model that gives scores, not text"),
        (with_stage(0, data={"train": "stage:judge"}), r"data\.train = 'stage:judge'; allowed: stage:NAME in model"),
        (with_stage(2, data={"part": "3/2"}), r"part = '3/2'; allowed: k/n, the k-th of n parts"),
        (pipeline(data={"trian": "x"}), r"stages sft, judge, grpo-1, grpo-2: data\.trian = x is not a setting"),
        (pipeline(export={"to": "onnx"}), r"export\.to = onnx; allowed: hf or gguf"),
        (with_stage(2, rewards=[]), "stages grpo-1, grpo-2: rewards is empty, but grpo learns from rewards"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_name_of_the_stage(given, message):
    with pytest.raises(ConfigError, match=message):
        read_pipeline(given)


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    given = with_stage(0, train={"stepz": 3})
    given["stages"][2]["rewards"] = []
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError, match=r"2 problems in .*p\.yaml") as error:
        read_pipeline(tmp_path / "p.yaml")
    assert "stage sft: " in str(error.value)
    assert "train.stepz" in str(error.value)
    assert "stages grpo-1, grpo-2: rewards is empty" in str(error.value)


def test_a_reward_model_alone_is_not_exported():
    given = pipeline(export={})
    given["stages"] = [given["stages"][1]]
    with pytest.raises(ConfigError, match="export, but no stage trains a policy"):
        read_pipeline(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages.sfd.train.steps=3", r"there is no stage 'sfd'[^$]*Did you mean sft\?"),
        ("stages.sft=3", r"stages\.sft = 3; allowed: a setting of the stage"),
        ("stages.sft.train.stepz=3", r"stage sft: train\.stepz = 3 is not a setting"),
        ("algorithm.clip_high=0.2", r"stages? sft.*: algorithm\.clip_high = 0\.2 is not a setting of sft"),
    ],
)
def test_overrides_that_cannot_be_meant_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        read_pipeline(pipeline(), [change])


def test_the_learning_rate_of_imitation_is_worth_a_line_where_something_else_uses_it():
    assert notes(read_pipeline(pipeline())) == []
    found = notes(read_pipeline(pipeline(), ["stages.grpo-2.train.learning_rate=1e-3"]))
    assert len(found) == 1
    assert "stage grpo-2 (grpo) has the learning rate 0.001, and stage sft, which imitates, 0.001" in found[0]


def test_a_part_is_read_as_two_numbers():
    assert DataConfig(train="a").part_numbers is None
    assert DataConfig(train="a", part="2/3").part_numbers == (2, 3)
    for wrong in ("0/3", "4/3", "half", "1/0"):
        with pytest.raises(ConfigError, match="the k-th of n parts"):
            DataConfig(train="a", part=wrong)
