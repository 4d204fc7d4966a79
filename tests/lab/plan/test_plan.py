"""A plan as a whole: from a config and from flags, as text and as JSON, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.catalogue import catalogue

import posttrain as pt
from posttrain.cli import run
from posttrain.config import CheckpointConfig
from posttrain.errors import ConfigError
from posttrain.lab.plan import timing
from posttrain.lab.plan.api import make_plan, plan_pipeline
from posttrain.lab.plan.architecture import read_architecture
from posttrain.lab.plan.records import Adapters, Workload
from posttrain.lab.plan.verdict import disk_of

CONFIG = {
    "model": "tiny:sort",
    "algorithm": "grpo",
    "data": {"train": "task:sort", "max_prompt_length": 20},
    "rewards": [{"name": "exact"}],
    "sampling": {"group_size": 4, "max_completion_length": 12},
    "train": {"steps": 10, "prompts_per_step": 8},
    "evaluation": {"every": 4},
}


def test_a_config_and_its_flags_give_one_plan():
    by_config = pt.plan(CONFIG)
    assert by_config.step.rows == 32
    assert by_config.step.tokens == 32 * (20 + 12)
    assert by_config.evaluations == 4  # before training, after steps 4 and 8, and at the end
    assert by_config.verdict.answer == "yes"
    run = 10 * by_config.step_seconds + 4 * by_config.evaluation_seconds
    assert by_config.run_seconds == pytest.approx(run)


@pytest.mark.slow
def test_a_size_class_and_gpus_are_enough():
    plan = make_plan(model="7b", algorithm="ppo", gpus="8xH100")
    assert plan.hardware.count == 8
    assert plan.workload.sharding == "full"
    assert plan.dollars is not None
    hours = plan.run_seconds / 3600
    assert plan.dollars == pytest.approx((8 * 1.99 * hours, 8 * 5.0 * hours))
    assert make_plan(model="7b", algorithm="ppo", gpus="8xH100", price=3.0).dollars == pytest.approx((24 * hours,) * 2)


def test_devices_of_an_engine_of_its_own_are_paid_for():
    plan = make_plan(model="7b", algorithm="grpo", gpus="2xH100", engine="separate", engine_ranks=1, price=3.0)
    assert plan.dollars == pytest.approx((3 * 3.0 * plan.run_seconds / 3600,) * 2)
    assert "on 3 x NVIDIA H100 SXM 80 GB (2 to train + 1 to sample)" in plan.render()


def test_what_is_drawn_shorter_takes_less_time_and_the_same_memory():
    longest, mean = (
        make_plan(model="0.5b", algorithm="grpo", gpus="a100", mean_completion_tokens=n) for n in (None, 64)
    )
    assert mean.run_seconds < longest.run_seconds
    assert mean.memory.bytes == longest.memory.bytes


@catalogue(
    "given, message",
    [
        ({"model": "7b"}, "neither a configuration nor both a model and an algorithm"),
        ({"model": "7b", "algorithm": "grop"}, "Did you mean grpo"),
        ({"model": "7b", "algorithm": "grpo", "gpus": "8xH900"}, "allowed: a count and one of h100"),
        ({"config": CONFIG, "gpu": "h100"}, "'gpu' is not an input of a plan; allowed: gpus, engine"),
        ({"config": CONFIG, "price": -3.0}, r"price = -3.0 \(--price\); allowed: 0 or more"),
        ({"config": CONFIG, "engine_ranks": 0}, "engine_ranks = 0 .*allowed: 1 or more"),
        ({"config": CONFIG, "mean_completion_tokens": 13}, "allowed: 1 to 12, which is sampling.max_completion_length"),
        ({"config": CONFIG, "model": "7b"}, "together with a model or an algorithm"),
        ({"model": "no/such-model-8b", "algorithm": "grpo", "gpus": "h100"}, "nearest size class"),
    ],
)
def test_what_cannot_be_planned_says_why(given, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(**given)


def test_a_checkpoint_has_model_weights_and_two_moments():
    """Full training: 4 + 4 + 8 bytes per parameter. Adapters: 4 per parameter, and 16 per number of the adapters."""
    shape = read_architecture("0.5b")
    full = Workload(architecture=shape, algorithm="grpo", needs=frozenset(), steps=100)
    every = CheckpointConfig(every=30, keep=2)
    disk = disk_of(full, every, folder=None, step_tokens=1000)
    assert disk.checkpoint == 16 * shape.parameters
    assert disk.checkpoints == 3  # two are kept while the third is written
    assert disk.total == 3 * 16 * shape.parameters + 100 * 1000 * 16
    adapters = Workload(architecture=shape, algorithm="dpo", needs=frozenset(), data_kind="pairs", lora=Adapters())
    disk = disk_of(adapters, CheckpointConfig(every=0), folder=None, step_tokens=1000)
    assert disk.total == 2 * (4 * shape.parameters + 16 * shape.lora_parameters(16))  # at the start and at the end


def test_disk_and_time_count_the_parameters_that_train():
    """24 layers of width 896: adapters of rank r on q (896 -> 896) and v (896 -> 128) have 24 r (1792 + 1024) numbers.
    A value head has 897 numbers. The head of a scoring model has 896 and replaces the one over the vocabulary."""
    shape = read_architecture("0.5b")
    lora = Adapters(rank=4, targets=("q", "v"))
    ppo = Workload(
        architecture=shape, algorithm="ppo", needs=frozenset({"values"}), lora=lora, critic="lora", critic_rank=8
    )
    policy, critic = 24 * 4 * 2816, 24 * 8 * 2816 + 897
    disk = disk_of(ppo, CheckpointConfig(every=0), folder=None, step_tokens=0)
    assert (disk.model, disk.state) == (4 * (shape.parameters + policy), 12 * (policy + critic))
    assert {name: how.trained_parameters for name, _, how in timing.trained_models(ppo)} == {
        "policy": policy,
        "critic": critic,
    }
    scoring = Workload(architecture=shape, algorithm="reward_model", needs=frozenset({"scores"}), data_kind="pairs")
    disk = disk_of(scoring, CheckpointConfig(every=0), folder=None, step_tokens=0)
    parameters = shape.parameters - shape.counts.head + 896
    assert (disk.model, disk.state) == (4 * parameters, 12 * parameters)
    assert [how.trained_parameters for _, _, how in timing.trained_models(scoring)] == [parameters]


STAGES = {
    "model": "tiny:sort",
    "train": {"steps": 4},
    "stages": [
        {"algorithm": "sft", "data": {"train": "task:examples/sort"}, "train": {"prompts_per_step": 8}},
        {"algorithm": "dpo", "data": {"train": "task:pairs/sort"}, "train": {"prompts_per_step": 16}},
    ],
}


def test_a_pipeline_is_planned_stage_by_stage():
    plan = plan_pipeline(STAGES, gpus="a100")
    assert [stage.workload.algorithm for stage in plan.stages.values()] == ["sft", "dpo"]
    assert [stage.step.rows for stage in plan.stages.values()] == [8, 32]
    assert plan.run_seconds == pytest.approx(sum(stage.run_seconds for stage in plan.stages.values()))
    assert plan.fits
    shape = plan.stages["dpo"].workload.architecture
    assert shape.parameters == plan.stages["sft"].workload.architecture.parameters, (
        "the second stage continues with the first stage's model"
    )
    first, second, total = plan.render().splitlines()[:3]
    assert first.startswith("sft  fits: yes; 8 examples a step")
    assert second.startswith("dpo  fits: yes; 32 rows a step")
    assert total.startswith("all 2 stages: at most about")


WITHOUT_TRANSFORMERS = """
import sys, posttrain as pt, posttrain.lab.explore
from posttrain.cli import run
assert run(["plan", "--model", "7b", "--algorithm", "grpo", "--gpus", "l40s"]) == 0
assert run(["plan", sys.argv[1]]) == 0
assert pt.advise(data="verifier", size="7b").best.algorithm == "grpo"
assert "transformers" not in sys.modules
"""


@pytest.mark.slow
def test_plans_advice_and_the_explorer_need_no_transformers_which_would_take_seconds(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(CONFIG))
    code = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(config)]
    told = subprocess.run(code, capture_output=True, text=True, timeout=600)
    assert told.returncode == 0, told.stderr


def test_the_verb_plans_from_flags_and_from_a_file(tmp_path, capsys):
    flags = ("--model", "7b", "--algorithm", "grpo", "--gpus", "l40s", "--group-size", "16", "--json")
    assert run(["plan", *flags]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] == "no"
    assert plan["step"]["rows"] == 256
    assert plan["changes"][0]["settings"]["lora.rank"] == 16
    assert plan["changes"][0]["bytes"] <= plan["available_bytes"]
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(CONFIG))
    assert run(["plan", str(config), "train.prompts_per_step=16", "--train.steps", "5"]) == 0
    told = capsys.readouterr().out
    assert "16 prompts x 4 completions = 64 answers" in told
    assert "fits: yes" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "8xH100"), "--probe and --gpus 8xH100; allowed: --probe without --gpus"),
        ((), "which has stages; allowed: --probe with the configuration of a single run"),
    ],
)
def test_a_probe_says_what_it_cannot_measure(tmp_path, capsys, arguments, message):
    config = tmp_path / "pipeline.yaml"
    config.write_text(json.dumps(STAGES))
    assert run(["plan", str(config), "--probe", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_misspelt_option_is_named_among_all_that_there_are(capsys):
    assert run(["plan", "--pricee", "3", "--model", "7b", "--algorithm", "grpo"]) == 2
    told = capsys.readouterr().err
    assert "Did you mean --price?" in told
    assert "--max-completion-length, --steps" in told


def test_a_wrong_setting_is_refused(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({**CONFIG, "algorithm": {"name": "grpo", "clip_lwo": 0.1}}))
    assert run(["plan", str(config)]) == 2
    assert "Did you mean algorithm.clip_low" in capsys.readouterr().err


def test_beside_the_verdict_on_several_devices_stands_that_on_the_one_that_trains():
    plan, alone = (
        make_plan(None, {"train.tokens_per_microbatch": 2048}, model="7b", algorithm="ppo", gpus=gpus)
        for gpus in ("32xH100", "H100")
    )
    assert plan.verdict.fits
    said = plan.render()
    assert f"but with train.devices = 1 it trains on one of them ({alone.verdict.sentence()})" in said
    assert "with train.devices = 1 it trains on one of them (fits: no" in plan.line()
    assert plan.to_json()["trains_on_one_device"] == {"fits": "no", "needed_bytes": alone.verdict.needed}
    assert alone.to_json()["trains_on_one_device"] is None
    assert "trains on one of them" not in alone.render()
