"""A run is planned before anything is loaded: refused if it cannot fit, warned if it may not, and else left alone."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import run_code

from posttrain.config import RunConfig, load_config
from posttrain.config.pipeline import read_pipeline
from posttrain.errors import ConfigError, DoesNotFit
from posttrain.lab.plan import before_run
from posttrain.lab.plan.api import make_plan, plan_for, plan_pipeline
from posttrain.lab.plan.architecture import size_classes
from posttrain.lab.plan.verdict import Verdict
from posttrain.lab.plan.workload import require_room
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore

CONFIG: dict[str, Any] = {
    "model": "tiny:sort",
    "algorithm": "grpo",
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"group_size": 4, "max_completion_length": 12},
    "train": {"steps": 2, "prompts_per_step": 8},
}


def model_folder(folder: Path, size: str) -> Path:
    """Write a config.json without weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(size_classes()[size]["config"]))
    return folder


def config_with(**changes: Any) -> RunConfig:
    return load_config(CONFIG, changes).config


def plan_into(folder: Path, config: RunConfig) -> str:
    """Plan, and return the output on the screen."""
    screen = io.StringIO()
    with RunStore.create(folder, "") as store:
        before_run.before_run(config, store, TerminalView(stream=screen))
    return screen.getvalue()


def test_a_run_that_cannot_fit_ends_with_exit_code_3_before_its_weights_are_looked_for(tmp_path):
    model = model_folder(tmp_path / "huge", "405b")
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(CONFIG | {"model": str(model), "output": str(tmp_path / "run")}))
    done = run_code("from posttrain.cli import main; main()", "train", str(config))
    assert done.exit_code == 3, done.errors
    assert "DoesNotFit: the run needs" in done.errors
    assert "no weights" not in done.errors
    assert json.loads((tmp_path / "run" / "error.json").read_text())["exit_code"] == 3
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["fits"] == "no"


def test_what_fits_is_said_in_a_line_and_on_file_and_not_among_the_events(tmp_path):
    said = plan_into(tmp_path / "run", config_with())
    assert said.startswith("plan: 32 answers a step, needs ")
    assert "warning" not in said
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["fits"] == "yes"
    assert not (tmp_path / "run" / "events.jsonl").exists()


def with_memory(monkeypatch: pytest.MonkeyPatch, needed_share: float) -> None:
    """Give this machine so much memory that the plan needs `needed_share` of it."""
    measured = before_run.target_here

    def target(config: RunConfig) -> before_run.Target:
        here = measured(config)
        needed = plan_for(config, here, advice=False).memory.bytes
        free = int(needed / needed_share)
        hardware = replace(here.hardware, free_memory=free, device=replace(here.hardware.device, memory=free))
        return replace(here, hardware=hardware)

    monkeypatch.setattr(before_run, "target_here", target)


@pytest.mark.parametrize(
    ("share", "says"),
    [(0.7, "plan: "), (0.9, "fits: probably"), (1.2, "fits: hardly")],
    ids=["yes", "probably", "hardly"],
)
def test_within_the_error_of_the_estimate_a_run_begins_with_a_warning(tmp_path, monkeypatch, share, says):
    with_memory(monkeypatch, share)
    said = plan_into(tmp_path / "run", config_with())
    assert says in said
    assert ("memory may not suffice" in said) == (share > 0.8)


def test_long_answers_that_may_not_come_are_warned_of_and_not_refused(tmp_path, monkeypatch):
    """Answers of 100 tokens would need several times the memory of answers of eight, and the run may produce either."""
    with_memory(monkeypatch, 1.6)
    long = config_with(**{"sampling.max_completion_length": 100, "train.prompts_per_step": 64})
    said = plan_into(tmp_path / "run", long)
    assert "memory may not suffice with the longest answers: fits: no" in said


def test_beyond_the_error_at_the_very_least_it_is_refused_with_what_would_make_it_fit(tmp_path, monkeypatch):
    with_memory(monkeypatch, 40.0)
    with pytest.raises(
        DoesNotFit, match=r"at the very least, but only .* are available.*even if the estimate is off by 25%"
    ):
        plan_into(tmp_path / "run", config_with())


def test_swap_counts_as_room():
    assert Verdict(needed=200, available=100, error=0.25, swap=50).answer == "hardly"
    assert Verdict(needed=200, available=100, error=0.25, swap=49).refused


def test_a_disk_without_room_for_one_checkpoint_is_refused(tmp_path):
    plan = plan_for(config_with(), before_run.target_here(config_with()))
    least = before_run.least_verdict(plan)
    before_run.refuse(plan, least, tmp_path)
    tight = replace(plan, disk=replace(plan.disk, free=int(0.89 * plan.disk.checkpoint)))
    with pytest.raises(DoesNotFit, match=r"a checkpoint needs .* free"):
        before_run.refuse(tight, least, tmp_path)
    before_run.refuse(replace(plan, disk=replace(plan.disk, free=plan.disk.checkpoint)), least, tmp_path)
    few = replace(plan, disk=replace(plan.disk, free=plan.disk.checkpoint))
    assert any("the disk may fill up" in warning for warning in before_run.warnings(few, least))


def test_an_unknown_architecture_is_said_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "rwkv9", "hidden_size": 8}))
    said = plan_into(tmp_path / "run", config_with(**{"model.path": str(folder)}))
    assert said.startswith("plan: cannot tell whether it fits: ")
    assert "rwkv9" in said


def test_a_plan_that_breaks_stops_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(before_run, "plan_for", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in plan_into(tmp_path / "run", config_with())


def test_a_stage_that_cannot_fit_is_refused_before_the_first_one_trains(tmp_path, monkeypatch):
    with_memory(monkeypatch, 40.0)
    with pytest.raises(DoesNotFit, match=r"^stage second: the run needs .* at the very least"):
        before_run.plan_stages({"second": config_with()}, tmp_path)


def test_what_is_not_known_of_a_stage_is_left_to_its_beginning(tmp_path):
    before_run.plan_stages({"unknown": config_with(**{"model.path": str(tmp_path)}), "known": config_with()}, tmp_path)


SMALL = {"model_type": "llama", "vocab_size": 64, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 1, "max_position_embeddings": 256}


def with_context(folder: Path, **changes: Any) -> RunConfig:
    """Return a config whose completions are as long as the context of its model, which has no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    return config_with(**{"model.path": str(folder), "sampling.max_completion_length": 256, **changes})


@pytest.mark.parametrize("changes", [{}, {"algorithm": "dpo", "sampled_pairs": {}}], ids=["prompts", "sampled pairs"])
def test_completions_without_room_for_a_prompt_are_refused_before_weights_are_looked_for(tmp_path, changes):
    config = with_context(tmp_path / "model", **changes)
    with pytest.raises(ConfigError, match=r"^sampling.max_completion_length = 256 in a context of 256 tokens") as told:
        plan_into(tmp_path / "run", config)
    assert told.value.fix == "Set sampling.max_completion_length = 128."
    with pytest.raises(ConfigError, match="no prompt fits"):
        make_plan(config)
    with pytest.raises(ConfigError, match=r"^stage second: sampling.max_completion_length = 256"):
        before_run.plan_stages({"second": config}, tmp_path)


def test_the_plan_of_a_pipeline_names_the_stage_without_room(tmp_path):
    with_context(tmp_path / "model")
    given = {"model": str(tmp_path / "model"), "data": {"train": "task:sort"}, "rewards": CONFIG["rewards"]}
    stages = [{"algorithm": "grpo"}, {"algorithm": "rloo", "sampling": {"max_completion_length": 256}}]
    given |= {"sampling": {"max_completion_length": 12}, "train": CONFIG["train"], "stages": stages}
    with pytest.raises(ConfigError, match=r"^stage rloo: sampling.max_completion_length = 256 in a context of 256"):
        plan_pipeline(given)


@pytest.mark.parametrize("own", [{"revision": "long"}, {"gguf_file": "model.gguf"}], ids=["revision", "GGUF file"])
def test_later_stages_keep_the_configuration_that_the_first_one_loads(tmp_path, own):
    with_context(tmp_path / "model")
    given = {"model": {"path": str(tmp_path / "model"), **own}, "data": {"train": "task:sort"}}
    given |= {"rewards": CONFIG["rewards"], "sampling": {"max_completion_length": 256}, "train": CONFIG["train"]}
    stages = read_pipeline(given | {"stages": [{"algorithm": "grpo"}, {"algorithm": "rloo"}]}).with_start_models()
    assert [stage.model.path for stage in stages.values()] == [str(tmp_path / "model")] * 2
    before_run.plan_stages(stages, tmp_path)


NOT_REFUSED = {
    "room for one token": {"sampling.max_completion_length": 255},
    "given answers": {"algorithm": "dpo", "rewards": []},
    "another revision": {"model.revision": "long"},
    "a GGUF file with its own context": {"model.gguf_file": "model.gguf"},
    "a size": {"model.path": "7b", "sampling.max_completion_length": 10**6},
}


@pytest.mark.parametrize("name", NOT_REFUSED)
def test_what_may_have_room_is_not_refused(tmp_path, name):
    require_room(with_context(tmp_path / "model", **NOT_REFUSED[name]))


@pytest.mark.parametrize("context", [None, "256", 256.0, True, [256], {}])
def test_a_context_that_is_no_integer_is_left_to_the_loading(tmp_path, context):
    config = with_context(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(SMALL | {"max_position_embeddings": context}))
    assert plan_into(tmp_path / "run", config).startswith("plan: ")


def test_a_model_that_the_hub_does_not_give_is_left_to_whoever_loads_it(tmp_path):
    said = plan_into(tmp_path / "run", config_with(**{"model.path": "nobody/has-this-model-of-3b"}))
    assert said.startswith("plan: cannot tell whether it fits: model 'nobody/has-this-model-of-3b' is neither a folder")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_what_an_earlier_run_of_this_process_has_freed_on_a_gpu_is_there_for_the_next():
    before = before_run._hardware(torch.device("cuda")).memory
    used = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    assert before_run._hardware(torch.device("cuda")).memory <= before - 2**30
    del used
    assert before_run._hardware(torch.device("cuda")).memory == pytest.approx(before, rel=0.01)
