"""Published ranges: the remarks about settings outside of them, and that our own settings are within them."""

import json
from pathlib import Path

import pytest
from tests.catalogue import catalogue
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.algorithms import ALGORITHMS
from posttrain.config import RunConfig, load_config
from posttrain.config.pipeline import holds_stages, read_pipeline
from posttrain.lab.advise.guides import names_in
from posttrain.lab.advise.ranges import Range, facts_of, ranges, remarks
from posttrain.lab.advise.starter import defaults_of

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))
MODEL = "Qwen/Qwen3-0.6B"


def config(**given) -> RunConfig:
    base = {
        "model": MODEL,
        "algorithm": "grpo",
        "data": {"train": "t.jsonl"},
        "rewards": [{"name": "math"}],
        "train": {"steps": 100},
    }
    return load_config(base | given).config


def offline(algorithm, **train) -> RunConfig:
    return config(algorithm=algorithm, rewards=[], train={"steps": 100, "prompts_per_step": 64, **train})


@catalogue(
    "given, ids",
    [
        (config(train={"steps": 100, "learning_rate": 2e-5}), ["learning-rate-rl"]),
        (config(train={"steps": 100, "learning_rate": 1e-9}), ["learning-rate-rl"]),
        (config(train={"steps": 100, "learning_rate": 2e-5}, lora={"rank": 16}), []),
        (config(train={"steps": 100, "learning_rate": 1e-3}, lora={"rank": 16}), ["learning-rate-rl-lora"]),
        (config(sampling={"group_size": 2}), ["group-size"]),
        (config(sampling={"group_size": 2}, algorithm="rloo"), []),
        (config(algorithm={"name": "grpo", "kl_coef": 0.3}), ["kl-group"]),
        (config(algorithm={"name": "grpo", "kl_coef": 0.04}), []),
        (config(algorithm={"name": "grpo", "clip_low": 0.8, "clip_high": 0.8}), ["clip-low", "clip-high"]),
        (
            config(algorithm={"name": "gspo", "clip_low": 0.2, "clip_high": 0.2}),
            ["clip-sequence-low", "clip-sequence-high"],
        ),
        (config(algorithm={"name": "dapo", "clip_high": 0.2}), ["clip-high-dapo"]),
        (config(algorithm="ppo", sampling={"group_size": 1}), ["batch-ppo"]),
        (config(algorithm={"name": "ppo", "kl_coef": 0.3}), ["kl-critic"]),
        (config(algorithm={"name": "ppo", "gae_lambda": 0.5}), ["gae-lambda"]),
        (config(rewards=[{"model": "rm"}]), ["kl-learned-reward"]),
        (config(sampling={"temperature": 2.0}), ["temperature"]),
        (config(train={"steps": 100, "minibatches": 32}), ["updates-per-batch"]),
        (offline("dpo", learning_rate=5e-7), []),
        (offline("dpo", learning_rate=2e-5), ["learning-rate-preferences"]),
        (offline({"name": "dpo", "beta": 2.0}), ["beta-dpo"]),
        (offline({"name": "simpo", "beta": 0.1}, learning_rate=5e-7), ["beta-simpo"]),
        (offline("simpo", learning_rate=1e-5), ["learning-rate-simpo"]),
        (offline("orpo", learning_rate=5e-7), ["learning-rate-orpo"]),
        (offline("kto", prompts_per_step=4), ["batch-labels"]),
        (offline("sft", learning_rate=1e-3), ["learning-rate-sft"]),
        (offline("sft", learning_rate=1e-7), ["learning-rate-sft"]),
        (offline("reward_model", learning_rate=1e-2), ["learning-rate-scorers"]),
        (config(model="tiny:sort", train={"steps": 100, "learning_rate": 1e-3}, sampling={"group_size": 2}), []),
        (config(train={"steps": 2, "learning_rate": 1e-3}), []),
    ],
)
def test_what_is_pointed_out(given, ids):
    assert [remark.range.id for remark in remarks(given)] == ids


def test_a_remark_says_setting_value_range_source_and_what_follows():
    (remark,) = remarks(config(train={"steps": 100, "learning_rate": 2e-5}))
    assert (remark.setting, remark.value) == ("train.learning_rate", 2e-5)
    assert str(remark).startswith("train.learning_rate = 2e-05 is above the published range of 1e-07 to 5e-06 (1e-6: ")
    assert str(remark).endswith("SFT's 1e-5 to 2e-5, reused, does that.")
    assert remark.to_json() | {"source": "", "follows": ""} == {
        "setting": "train.learning_rate",
        "value": 2e-5,
        "low": 1e-7,
        "high": 5e-6,
        "usual": 1e-6,
        "follows": "",
        "source": "",
        "range": "learning-rate-rl",
    }


def test_small_models_stand_larger_rates(tmp_path):
    shape = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
    shape |= {"num_hidden_layers": 8, "vocab_size": 6400, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    small = config(model=str(tmp_path), train={"steps": 100, "learning_rate": 2e-5})
    assert 0.01 < facts_of(small)["parameters"] < 0.2
    assert remarks(small) == []


@pytest.mark.parametrize(
    ("steps", "data", "passes", "ids"),
    [
        (10, {"eval": "e.jsonl"}, 1.0, []),  # 640 rows, 64 in each step
        (30, {"eval": "e.jsonl"}, 3.0, []),
        (45, {"eval": "e.jsonl"}, 4.5, ["passes-over-pairs"]),
        (5, {"eval": "e.jsonl"}, 0.5, ["passes-over-pairs"]),
        (9, {}, 1.0, []),  # one tenth is held out
        (15, {"eval": "e.jsonl", "part": "2/3"}, 4.5, ["passes-over-pairs"]),
        (10, {"eval": "e.jsonl", "max_rows": 128}, 5.0, ["passes-over-pairs"]),
    ],
)
def test_pairs_are_to_be_seen_once_to_three_times(tmp_path, steps, data, passes, ids):
    (tmp_path / "pairs.jsonl").write_text("{}\n" * 640 + "\n")
    data = {"train": str(tmp_path / "pairs.jsonl"), **data}
    told = config(
        algorithm="dpo",
        rewards=[],
        data=data,
        train={"steps": steps, "prompts_per_step": 64, "learning_rate": 5e-7},
    )
    assert facts_of(told)["passes"] == passes
    assert [remark.range.id for remark in remarks(told)] == ids


def test_passes_over_what_is_not_here_are_not_known():
    assert facts_of(offline("dpo"))["passes"] is None


@catalogue("path", RECIPES, ids=lambda path: path.stem)
def test_our_recipes_are_within_the_ranges(path):
    stages = read_pipeline(path).stages if holds_stages(path) else ()
    configs = [stage.with_models(dict.fromkeys(stage.uses.values(), "tiny:sort")).config for stage in stages]
    configs = configs or [load_config(path).config]
    assert [str(remark) for one in configs for remark in remarks(one)] == []


def test_every_range_can_be_read():
    _, told = ranges()
    ids = [one.id for one in told]
    assert len(ids) == len(set(ids))
    known = set(facts_of(config()))
    settings = {f"algorithm.{name}" for kind in ALGORITHMS.values() for name in defaults_of(kind)}
    for one in told:
        assert set(names_in(one.when)) <= known, one.id
        assert one.setting in known | settings | {
            "train.learning_rate",
            "train.prompts_per_step",
            "sampling.group_size",
            "sampling.temperature",
        }
        assert (one.low or 0) <= one.usual <= (one.high or one.usual), one.id
        assert one.source, one.id
        assert one.above or one.high is None or _is_a_bound(one), one.id
        assert one.below or one.low in (None, 0, 1), one.id


def _is_a_bound(one: Range) -> bool:
    """Return whether a value above the range is refused anyway."""
    return one.setting in ("algorithm.gae_lambda", "algorithm.gamma")


@pytest.mark.slow
def test_training_warns_of_it_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "posttrain.lab.advise.ranges.FROM_SCRATCH", 0.0
    )  # the model below has a few thousand parameters
    rows = [{"prompt": word, "completion": word[::-1]} for word in ("abc", "bcd", "cde", "def")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = pt.train(
        {
            "model": str(tiny_model(tmp_path / "model")),
            "algorithm": "sft",
            "data": {"train": str(tmp_path / "train.jsonl"), "eval_fraction": 0.25},
            "train": {"steps": 5, "prompts_per_step": 2, "learning_rate": 1e-3},
            "checkpoint": {"every": 0},
            "output": str(tmp_path / "run"),
            "report": False,
        }
    )
    assert run.step == 5
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    said = {event["about"]: event["message"] for event in events if "about" in event}
    assert said["train.prompts_per_step"].startswith(
        "train.prompts_per_step = 2 is below the published range of 4 to 512"
    )
