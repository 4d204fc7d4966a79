"""Configs of TRL and verl as ours: the written file loads, means the same number for number, and hides nothing.

`trl/` and `verl/` hold files in the forms that people use. `trl_1_16.json` holds the defaults of TRL's own classes.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from tests.catalogue import catalogue

from posttrain.cli import run
from posttrain.config import check, load_config
from posttrain.config.names import ENTRY_KEYS, Ours, all_names, entry_of, read_entry
from posttrain.errors import ConfigError
from posttrain.lab.convert import convert
from posttrain.lab.convert.meaning import meaning_of
from posttrain.lab.convert.page import _choice, moving_pages
from posttrain.lab.convert.records import FORMS, Given, Unread
from posttrain.lab.convert.sources import read_source
from posttrain.types import Experience, count_totals

HERE = Path(__file__).parent
FILES = sorted([*(HERE / "trl").iterdir(), *(HERE / "verl").iterdir()])
ROWS = 9_600


def settings(conversion, tmp_path):
    """Return every setting of the written file, including defaults, as the loader reads it."""
    path = tmp_path / "run.yaml"
    path.write_text(conversion.text)
    resolved = load_config(path)
    check(resolved)
    return resolved.config


def at(config, key):
    for part in key.split("."):
        config = config[int(part)] if isinstance(config, (list, tuple)) else getattr(config, part)
    return config


def as_yaml(tmp_path, verb, **given):
    """Convert the YAML of TRL's command line, completed with the settings that a run needs."""
    path = tmp_path / f"{verb}.yaml"
    whole = {"model_name_or_path": "a/llama", "dataset_name": "a/dataset", "max_steps": 10}
    whole |= {"reward_funcs": ["accuracy_reward"]} if verb in ("grpo", "rloo", "online_dpo") else {}
    path.write_text(yaml.safe_dump(whole | given))
    return convert(path, form=verb)


EXPECTED = {
    "grpo_lora.py": {
        "algorithm.kl_coef": 0.01, "algorithm.aggregation": "token_mean", "lora.rank": 16, "lora.alpha": 32,
        "train.prompts_per_step": 4, "train.warmup_steps": 50, "train.schedule": "linear", "rollout.engine": "vllm",
        "model.precision": "bfloat16", "rewards.0.name": "math", "report_to": ["wandb"],
    },
    "grpo_dr.py": {
        "algorithm.normalisation": "none", "algorithm.aggregation": "fixed_length_mean", "algorithm.clip_high": 0.28,
        "algorithm.max_completion_length": 2048, "algorithm.clip_low": 0.2, "train.prompts_per_step": 4,
        "train.minibatches": 2, "train.epochs": 2, "train.steps": 100, "checkpoint.every": 20, "data.max_rows": 2000,
        "rewards.0.function": "my_rewards.right_answer", "rewards.1.weight": 0.2, "seed": 7,
        "train.mask_truncated": True,
    },
    "grpo_sequence.yaml": {
        "algorithm.ratio": "sequence", "algorithm.aggregation": "sequence_mean", "algorithm.clip_high": 4e-4,
        "data.train": "openai/gsm8k:main", "train.steps": 2 * ROWS // 4, "train.schedule": "constant",
        "algorithm.correction": {"level": "token", "action": "truncate", "high": 3.0},
    },
    "cispo.sh": {
        "algorithm.trust_region": "weight_clip", "algorithm.max_ratio": 5.0, "train.prompts_per_step": 8,
        "lora.rank": 32, "lora.target_modules": ["q_proj", "v_proj"], "rollout.engine": "vllm", "train.steps": 300,
    },
    "dpo.py": {
        "algorithm.name": "dpo", "algorithm.beta": 0.05, "algorithm.label_smoothing": 0.0, "train.steps": ROWS // 32,
        "train.warmup_steps": ROWS // 320, "data.split": "train_prefs", "data.eval_split": "test_prefs",
        "model.precision": "bfloat16", "reference": None, "evaluation.every": 100, "data.max_length": 2048,
    },
    "ipo.sh": {"algorithm.name": "ipo", "algorithm.tau": 0.01, "algorithm.length_average": True, "train.steps": 1000},
    "sft.yaml": {
        "algorithm.name": "sft", "lora.rank": 32, "lora.alpha": 16, "lora.target_modules": ["q_proj", "v_proj"],
        "train.prompts_per_step": 16, "train.learning_rate": 2e-4, "data.max_length": 1024,
    },
    "kto.py": {
        "algorithm.name": "kto", "algorithm.desirable_weight": 1.33, "train.prompts_per_step": 16, "reference": None,
        "data.max_prompt_length": 512, "train.learning_rate": 5e-7, "train.steps": 200,
    },
    "reward.py": {
        "algorithm.name": "reward_model", "algorithm.center_coef": 0.01, "train.learning_rate": 1e-4, "data.eval": None,
        "data.eval_fraction": 0.05, "train.steps": ROWS // 8,
    },
    "ppo.py": {
        "algorithm.name": "ppo", "algorithm.kl_coef": 0.05, "algorithm.value_coef": 0.1, "algorithm.gae_lambda": 0.95,
        "algorithm.missing_eos_penalty": 1.0, "train.steps": 469, "train.minibatches": 2, "train.epochs": 4,
        "critic.path": "cleanrl/rm-tldr", "critic.learning_rate": 3e-6, "sampling.max_completion_length": 53,
        "sampling.temperature": 0.7, "model.path": "cleanrl/sft-tldr", "rewards.0.model": "cleanrl/rm-tldr",
    },
    "ppo_sentiment.py": {},
    "rloo.py": {},
    "gsm8k_grpo.sh": {
        "algorithm.kl_coef": 0.001, "algorithm.dual_clip": 3.0, "algorithm.aggregation": "token_mean",
        "train.steps": 105,
        "train.prompts_per_step": 1024, "train.minibatches": 4, "sampling.group_size": 5, "evaluation.samples": 0,
        "rewards.0.name": "gsm8k", "data.train": "~/data/gsm8k/train.parquet", "report_to": ["wandb"],
        "train.weight_decay": 0.01, "checkpoint.every": 20, "output": "runs/qwen3_8b", "evaluation.every": 5,
    },
    "ppo.sh": {
        "algorithm.name": "ppo", "algorithm.kl_coef": 0.002, "algorithm.clip_high": 0.2, "algorithm.gae_lambda": 0.95,
        "algorithm.value_clip": 0.5, "algorithm.dual_clip": 3.0, "critic.warmup_steps": 5, "train.warmup_steps": 20,
        "data.train": "~/data/math/train.parquet",
    },
    "dapo.sh": {
        "algorithm.filter": "signal", "algorithm.clip_high": 0.28, "algorithm.dual_clip": 10.0,
        "algorithm.shaping": "soft_overlong", "algorithm.overlong_buffer": 4096, "train.minibatches": 16,
        "train.max_sampling_rounds": 10, "train.steps": ROWS // 512, "evaluation.samples": 0, "sampling.top_k": 0,
    },
    "rloo.yaml": {
        "algorithm.baseline": "leave_one_out", "algorithm.normalisation": "none", "lora.rank": 32,
        "train.minibatches": 1,
        "algorithm.aggregation": "sequence_sum", "train.learning_rate": 3e-6, "train.steps": 3 * ROWS // 128,
        "report_to": ["tensorboard"], "output": "checkpoints/rloo",
    },
    "reinforce_plus_plus.sh": {},
}  # fmt: skip
LEFT = {
    "sft.yaml": ["line 5, packing = true: TRL's batch counts packed sequences"],
    "ppo_sentiment.py": ["rewards is empty"],
    "grpo_dr.py": ["line 8: the script changes the rows (map)"],
    "rloo.py": [
        "line 17, learning_rate = options.learning_rate: its value is known only when the script runs",
        "line 23: importing this file starts training",
    ],
    "reinforce_plus_plus.sh": ["A reward function of verl takes"],
}
"""Facts that the file does not tell. All other files can be used unchanged."""


def test_there_are_ten_forms_of_trl_and_five_of_verl():
    assert {path.name for path in FILES} == {*EXPECTED}
    assert sum(path.parent.name == "trl" for path in FILES) >= 10
    assert sum(path.parent.name == "verl" for path in FILES) >= 5


@catalogue("path", FILES, ids=lambda path: path.name)
def test_a_file_means_here_what_it_means_there(path, tmp_path):
    conversion = convert(path, rows=ROWS)
    for told, begins in zip(conversion.open, LEFT.get(path.name, []), strict=True):
        assert begins in told
    if path.name == "ppo_sentiment.py":
        return
    config = settings(conversion, tmp_path)
    for key, value in EXPECTED[path.name].items():
        found = at(config, key)
        if isinstance(value, dict):
            found = {name: found[name] for name in value}
        assert found == value, key


@catalogue("path", FILES, ids=lambda path: path.name)
def test_no_setting_of_a_file_is_passed_over(path):
    """A different value of the setting changes the config, a comment or a note."""
    source = read_source(path, "")
    whole = meaning_of(source, rows=ROWS)
    for name, given in source.settings.items():
        other = source.settings | {name: Given(Unread("elsewhere()"), given.line)}
        read = meaning_of(replace(source, settings=other), rows=ROWS) != whole
        assert read, name


# --- number for number ------------------------------------------------------------------------------------------------

TOLD = json.loads((HERE / "trl_1_16.json").read_text())
THEIRS = {name: TOLD["TrainingArguments"] | own for name, own in TOLD.items() if name != "TrainingArguments"}
VERBS = {
    "grpo": "GRPOConfig", "rloo": "RLOOConfig", "dpo": "DPOConfig", "kto": "KTOConfig", "sft": "SFTConfig",
    "reward": "RewardConfig", "orpo": "ORPOConfig", "cpo": "CPOConfig",
}  # fmt: skip
OURS_ALONE = {
    "seed": "the streams of random numbers differ in any case",
    "save_steps": "a matter of how much is kept",
    "gradient_checkpointing": "changes no number",
    "max_steps": "given here",
    "output_dir": "a name",
    "model_revision": "the main branch, as null is",
    "bf16": "derived from the machine",
    "disable_dropout": "there is none here",
}
"""Defaults of TRL that are not carried over, and the reason."""
OFF = {"top_entropy_quantile": 1.0} | dict.fromkeys(
    ("sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos",
     "vespo_lambda_neg", "off_policy_mask_threshold"), "not read")  # fmt: skip
"""TRL values that are null here, because they switch something off or the default loss does not read them."""


def test_every_setting_of_trl_is_known():
    names = {name for form in THEIRS.values() for name in form}
    assert [name for name in sorted(names) if entry_of("TRL", name) is None] == []


@catalogue("verb, form", VERBS.items())
def test_what_trl_does_by_default_is_what_is_done_here(verb, form, tmp_path):
    """The test compares every default of TRL's class that corresponds to a single setting of ours."""
    config = settings(as_yaml(tmp_path, verb), tmp_path)
    compared = 0
    for name, theirs in THEIRS[form].items():
        entry = all_names("TRL").get(name)
        if not isinstance(entry, Ours) or not entry.same_value or theirs is None or name in OURS_ALONE:
            continue
        if not entry.fits([f"algorithm.{own}" for own in config.algorithm.settings]):
            continue
        section = entry.key.partition(".")[0]
        if section == "algorithm" and entry.key.partition(".")[2] not in config.algorithm.settings:
            continue
        ours = at(config, entry.key)
        if ours is None and name in OFF:
            assert OFF[name] in (theirs, "not read"), name
            continue
        assert ours == theirs, f"{name} -> {entry.key}"
        compared += 1
    assert compared >= 9


@catalogue(
    "verb, theirs, ours",
    [
        ("grpo", {"loss_type": "dapo"}, {"aggregation": "token_mean"}),
        ("grpo", {"epsilon": 0.2, "epsilon_high": None}, {"clip_low": 0.2, "clip_high": 0.2}),
        ("grpo", {"beta": 0.0, "use_bias_correction_kl": True}, {"kl_coef": 0.0, "kl_estimator": "k3_corrected"}),
        ("grpo", {"scale_rewards": "group"}, {"baseline": "group_mean", "normalisation": "group_std"}),
        ("grpo", {"importance_sampling_level": "token"}, {"ratio": "token"}),
        ("grpo", {"vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0},
         {"correction": {"level": "sequence", "action": "mask", "score": "weight", "high": 3.0, "low": None}}),
        ("rloo", {"beta": 0.05, "normalize_advantages": False}, {"kl_coef": 0.05, "normalisation": "none"}),
        ("dpo", {"loss_type": ["sigmoid"], "beta": 0.1, "f_divergence_type": "reverse_kl"},
         {"name": "dpo", "beta": 0.1, "divergence": "reverse_kl", "label_smoothing": 0.0}),
        ("kto", {"loss_type": "kto", "desirable_weight": 1.0}, {"name": "kto", "beta": 0.1, "desirable_weight": 1.0}),
        ("orpo", {"beta": 0.1}, {"name": "orpo", "beta": 0.1}),
        ("cpo", {"loss_type": "sigmoid", "cpo_alpha": 1.0}, {"name": "cpo", "alpha": 1.0, "beta": 0.1}),
        ("sft", {"loss_type": "nll"}, {"name": "sft", "dft": False}),
    ],
)  # fmt: skip
def test_the_loss_that_trl_has_by_default_is_the_loss_here(verb, theirs, ours, tmp_path):
    """First check that TRL's class has these defaults, then that they lead to these settings."""
    for name, value in theirs.items():
        assert THEIRS[VERBS[verb]][name] == value, name
    algorithm = settings(as_yaml(tmp_path, verb), tmp_path).algorithm
    for name, value in ours.items():
        found = at(algorithm, name)
        if isinstance(value, dict) and isinstance(found, str):
            from posttrain.algorithms.off_policy.names import NAMED

            found = {part: getattr(NAMED[found], part) for part in value}
        assert found == value, name


LOSSES = [
    (verb, loss) for verb, form in VERBS.items() for loss in FORMS["TRL"][form].get("choice", {}).get("loss_type", ())
]


@catalogue("verb, loss", LOSSES)
def test_every_loss_of_trl_loads(verb, loss, tmp_path):
    beside = {"cispo": {"epsilon_high": 5.0}, "simpo": {"cpo_alpha": 0.0}}.get(loss, {})
    given = loss.split("+") if "+" in loss else loss
    conversion = as_yaml(tmp_path, verb, loss_type=given, **beside)
    assert conversion.open == ()
    settings(conversion, tmp_path)


# A name that means something else for another algorithm: verb, what the file gives, and the key that it must not set.
ELSEWHERE = [
    ("cpo", {"loss_type": "simpo"}, "cpo_alpha", "alpha"),
    ("cpo", {"loss_type": "simpo", "cpo_alpha": 0.3}, "cpo_alpha", "alpha"),
    ("cpo", {"loss_type": "sigmoid", "alpha": 0.25}, "alpha", "alpha"),
    ("dpo", {"loss_type": "sigmoid", "rpo_alpha": 0.3}, "rpo_alpha", "alpha"),
    ("dpo", {"loss_type": ["sft"], "f_alpha_divergence_coef": 0.7}, "f_alpha_divergence_coef", "alpha"),
    ("dpo", {"loss_type": "ipo", "discopop_tau": 0.7}, "discopop_tau", "tau"),
]


@pytest.mark.parametrize(("verb", "given", "name", "key"), ELSEWHERE)
def test_a_term_that_the_loss_does_not_have_here_is_left_to_the_user(verb, given, name, key, tmp_path):
    """TRL's simpo adds the likelihood with the weight cpo_alpha, by default 1. simpo's own alpha is AlphaPO's shape."""
    conversion = as_yaml(tmp_path, verb, **given)
    assert len(conversion.open) == 1
    assert name in conversion.open[0]
    assert "has no such term" in conversion.open[0]
    config = settings(conversion, tmp_path)
    assert at(config.algorithm, key) != given.get(name, 1.0)


@pytest.mark.parametrize(
    ("verb", "given", "name", "value"),
    [
        ("cpo", {"loss_type": "simpo", "cpo_alpha": 0, "alpha": 0.25}, "alpha", 0.25),
        ("cpo", {"loss_type": "simpo", "cpo_alpha": 0.0, "alpha": 0.0}, "alpha", 0.0),
        ("cpo", {"loss_type": "sigmoid", "cpo_alpha": 0.5, "alpha": 0.0}, "alpha", 0.5),
        ("dpo", {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7}, "alpha", 0.7),
        ("dpo", {"loss_type": "discopop", "discopop_tau": 0.7}, "tau", 0.7),
    ],
)
def test_a_term_that_the_loss_has_here_is_taken_over(verb, given, name, value, tmp_path):
    conversion = as_yaml(tmp_path, verb, **given)
    assert conversion.open == ()
    assert at(settings(conversion, tmp_path).algorithm, name) == value


def test_an_entry_with_another_meaning_elsewhere_is_guarded():
    """Each name of a setting that several algorithms have with different descriptions says which of them is meant."""
    meant = {name: entry for project in ("TRL", "OpenRLHF") for name, entry in all_names(project).items()}
    guarded = {name for name, entry in meant.items() if isinstance(entry, Ours) and entry.beside}
    assert guarded >= {"cpo_alpha", "rpo_alpha", "nll_loss_coef", "alpha", "f_alpha_divergence_coef", "discopop_tau"}
    for name, entry in meant.items():
        if isinstance(entry, Ours) and entry.key in ("algorithm.alpha", "algorithm.tau"):
            assert entry.beside, name


def gamma_weights(advantages_B1, log_ratio_BT, engine_BT):
    """Return TRL's weights of VESPO: k and lambda by the sign of the advantage, q with the engine's weight."""
    log_q_B1 = (log_ratio_BT + engine_BT).sum(dim=-1, keepdim=True).clamp(math.log(1e-8), 20)
    k_B1, decay_B1 = (torch.where(advantages_B1 >= 0, *pair) for pair in ((2.0, 3.0), (3.0, 2.0)))
    return (decay_B1 + k_B1 * log_q_B1 - decay_B1 * log_q_B1.exp()).exp()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("engine", [0.0, 0.05])
def test_vespo_has_trls_weights_off_policy(seed, engine, tmp_path):
    """The weight is a function of the whole completion's ratio to the sampler, and not of each token's."""
    random = torch.Generator().manual_seed(seed)
    old_BT, sampling_BT, logprobs_BT = (
        -1.5 + size * torch.randn(8, 12, generator=random, dtype=torch.float64) for size in (0.0, engine, 0.1)
    )
    algorithm = settings(as_yaml(tmp_path, "grpo", loss_type="vespo"), tmp_path).algorithm.build()
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 1.0, 1.0]], dtype=torch.float64),
        completion_mask_BT=torch.ones(8, 12, dtype=torch.bool),
        old_logprobs_BT=old_BT,
        sampling_logprobs_BT=sampling_BT,
    )
    batch, logprobs_BT = algorithm.to_batch(experience), logprobs_BT.requires_grad_()
    loss, _ = algorithm.loss(logprobs_BT, batch, count_totals(batch))
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    weights_B1 = gamma_weights(batch.advantages_BT[:, :1], logprobs_BT.detach() - old_BT, old_BT - sampling_BT)
    torch.testing.assert_close(-gradient_BT * 96 / batch.advantages_BT, weights_B1.expand(8, 12))


@pytest.mark.parametrize("extra", [{}, {"scale_rewards": "none"}, {"scale_rewards": "batch"}])
def test_rewards_that_are_normalised_separately_load(extra, tmp_path):
    """TRL does not read scale_rewards then, in whatever order the file gives them."""
    conversion = as_yaml(tmp_path, "grpo", multi_objective_aggregation="normalize_then_sum", **extra)
    assert conversion.open == ()
    algorithm = settings(conversion, tmp_path).algorithm
    assert (algorithm.normalisation, algorithm.std_epsilon, algorithm.population) == ("per_reward", 1e-4, None)


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        ({"importance_sampling_level": "sequence", "beta": 0.04}, "the gradient of the KL differs"),
        ({"importance_sampling_level": "sequence"}, ""),
        ({"importance_sampling_level": "token", "beta": 0.04}, ""),
        ({"top_entropy_quantile": 0.2, "entropy_coef": 0.01}, "over the kept tokens only"),
        ({"top_entropy_quantile": 0.2}, ""),
        ({"top_entropy_quantile": 1.0, "entropy_coef": 0.01}, ""),
    ],
)
def test_settings_that_mean_something_else_together_are_noted(given, noted, tmp_path):
    notes = as_yaml(tmp_path, "grpo", **given).notes
    assert len(notes) == bool(noted)
    assert all(noted in note for note in notes)


@catalogue("estimator", FORMS["verl"]["main_ppo"]["choice"]["algorithm.adv_estimator"])
@catalogue("extra", ["", "algorithm.use_kl_in_reward=True", "actor_rollout_ref.actor.use_kl_loss=True"])
def test_every_advantage_of_verl_loads(estimator, extra, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        f"python -m verl.trainer.main_ppo algorithm.adv_estimator={estimator} actor_rollout_ref.rollout.n=4 {extra} "
        "actor_rollout_ref.model.path=m data.train_files=gsm8k.parquet trainer.total_training_steps=5\n"
    )
    conversion = convert(path)
    config = settings(conversion, tmp_path)
    kl = config.algorithm.settings["kl_coef"]
    dropped = estimator == "gae" and "use_kl_loss" in extra
    assert kl == (0.001 if extra and not dropped else 0.0)
    assert dropped == any("ppo puts the KL into the reward" in note for note in conversion.notes)


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "devices", "prompts", "minibatches", "steps"),
    [
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 1, 4, 1, 60),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 4, 16, 1, 60),
        (
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "steps_per_generation": 12},
            1,
            12,
            3,
            20,
        ),
        ({"per_device_train_batch_size": 8, "generation_batch_size": 64}, 2, 8, 4, 15),
        ({"per_device_train_batch_size": 8, "num_iterations": 2}, 1, 1, 1, 30),
    ],
)
def test_a_step_has_the_prompts_and_updates_that_it_had(given, devices, prompts, minibatches, steps, tmp_path):
    """Groups have 8 completions. TRL counts its 60 updates as steps, while our steps are sampled batches."""
    as_yaml(tmp_path, "grpo", max_steps=60, **given)
    train = settings(convert(tmp_path / "grpo.yaml", form="grpo", devices=devices), tmp_path).train
    assert (train.prompts_per_step, train.minibatches, train.steps) == (prompts, minibatches, steps)


def test_a_batch_that_holds_no_whole_group_is_said(tmp_path):
    conversion = as_yaml(tmp_path, "grpo", per_device_train_batch_size=2, num_generations=8)
    assert any("0.25 prompts" in text and "--devices" in text for text in conversion.open)


def test_passes_need_the_number_of_rows(tmp_path):
    as_yaml(tmp_path, "sft", max_steps=-1, num_train_epochs=2)
    path = tmp_path / "sft.yaml"
    (left,) = convert(path, form="sft").open
    assert left.startswith("train.steps = 2 * rows / 8")
    assert settings(convert(path, form="sft", rows=800), tmp_path).train.steps == 200


PASSES_OF_VERL = "python -m main_ppo data.train_batch_size=512 trainer.total_epochs=10"


@pytest.mark.parametrize(
    ("told", "rows", "steps"),
    [
        ("trl sft --num_train_epochs 3 --per_device_train_batch_size 32", 10_000, 939),
        ("trl sft --num_train_epochs 3 --gradient_accumulation_steps 4", 10_000, 939),
        ("trl sft --num_train_epochs 0.5 --per_device_train_batch_size 32", 100, 2),
        ("trl sft --num_train_epochs 2 --per_device_train_batch_size 32", 5, 2),
        ("trl grpo --num_train_epochs 3 --per_device_train_batch_size 32", 1_001, 750),
        ("trl grpo --num_train_epochs 2 --per_device_train_batch_size 32 --num_iterations 2", 1_003, 500),
        ("trl ppo --num_train_epochs 3 --per_device_train_batch_size 32", 100, 10),
        ("python -m main_ppo data.train_batch_size=512 trainer.total_epochs=10", 1_000, 10),
        ("python -m main_ppo data.train_batch_size=1024 trainer.total_epochs=15", 7_473, 105),
        ("trl sft --num_train_epochs 3 --per_device_train_batch_size 32 --dataloader_drop_last True", 10_000, 936),
        ("trl sft --num_train_epochs 3 --gradient_accumulation_steps 4 --dataloader_drop_last True", 10_001, 939),
        ("trl sft --num_train_epochs 3 --per_device_train_batch_size 32 --dataloader_drop_last False", 10_000, 939),
        ("trl sft --max_steps 7 --dataloader_drop_last $DROP", 10_000, 7),
        (f"{PASSES_OF_VERL} data.train_max_samples=1024", 17_917, 20),
        (f"{PASSES_OF_VERL} data.train_max_samples=-1", 17_917, 340),
        (f"{PASSES_OF_VERL} data.train_max_samples=99999", 17_917, 340),
        (f"{PASSES_OF_VERL} data.gen_batch_size=1536", 17_917, 340),
        (f"{PASSES_OF_VERL} trainer.total_training_steps=99", 17_917, 99),
        (f"{PASSES_OF_VERL} trainer.total_training_steps=999", 17_917, 340),
    ],
)
def test_the_rest_of_a_pass_is_counted_as_the_library_counts_it(told, rows, steps, tmp_path):
    """A smaller batch: ceil per pass in Trainer.set_initial_training_values (transformers 5.23, trainer.py). Left out:
    RepeatSampler.__len__ (TRL 1.16.0, trainer/utils.py) and steps_per_epoch (verl 0.9.1,
    trainer/ppo/v1/trainer_base.py), which divides the kept rows by train_batch_size, whatever gen_batch_size is.
    Filled by the next pass: total_episodes (TRL 0.12.2, trainer/ppo_trainer.py).
    """
    path = tmp_path / "run.sh"
    path.write_text(f"{told}\n")
    assert convert(path, rows=rows).settings["train"]["steps"] == steps


@pytest.mark.parametrize(
    ("told", "rows", "said"),
    [
        (PASSES_OF_VERL, 511, "train.steps: 511 rows fill no batch of 512, so verl takes no step"),
        (f"{PASSES_OF_VERL} data.train_max_samples=100", 511, "train.steps: 100 rows fill no batch of 512"),
        (f"{PASSES_OF_VERL} trainer.total_training_steps=5", 511, "train.steps: 511 rows fill no batch of 512"),
        (
            "trl grpo --per_device_train_batch_size 32",
            3,
            "train.steps: 3 rows fill no batch of 4, so TRL takes no step",
        ),
        ("trl sft --dataloader_drop_last True", 7, "train.steps: 7 rows fill no batch of 8"),
        (f"{PASSES_OF_VERL} data.train_max_samples=$N", 511, "data.train_max_samples = $N: its value is known only"),
        ("trl sft --dataloader_drop_last $DROP", 9, "dataloader_drop_last = $DROP: its value is known only"),
    ],
)
def test_steps_that_the_rows_do_not_tell_are_asked_for(told, rows, said, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"{told}\n")
    conversion = convert(path, rows=rows)
    assert any(said in text for text in conversion.open)
    assert "steps" not in conversion.settings["train"]


SIZED = "actor_rollout_ref.model.path=m data.train_files=gsm8k.parquet actor_rollout_ref.rollout.n=4"


@catalogue(
    "command, name, missing",
    [
        ("trl dpo --max_steps 5", "per_device_train_batch_size", ["prompts_per_step"]),
        ("trl sft --max_steps 5", "gradient_accumulation_steps", ["prompts_per_step"]),
        ("trl kto", "per_device_train_batch_size", ["prompts_per_step", "steps"]),
        ("trl dpo", "num_train_epochs", ["steps"]),
        ("trl reward", "max_steps", ["steps"]),
        ("trl grpo --max_steps 5", "per_device_train_batch_size", ["prompts_per_step", "minibatches", "steps"]),
        ("trl grpo --max_steps 5", "steps_per_generation", ["prompts_per_step", "minibatches", "steps"]),
        ("trl grpo --max_steps 5", "num_generations", ["prompts_per_step", "steps"]),
        ("trl rloo --max_steps 5", "num_iterations", ["epochs", "steps"]),
        ("trl ppo --total_episodes 64", "num_mini_batches", ["minibatches", "steps"]),
        (f"python -m main_ppo {SIZED} trainer.total_epochs=1", "data.train_batch_size",
         ["prompts_per_step", "minibatches", "steps"]),
        (f"python -m main_ppo {SIZED} trainer.total_training_steps=5", "data.train_batch_size",
         ["prompts_per_step", "minibatches"]),
        (f"python -m main_ppo {SIZED} trainer.total_training_steps=5", "actor_rollout_ref.actor.ppo_mini_batch_size",
         ["minibatches"]),
        (f"python -m main_ppo {SIZED} trainer.total_training_steps=5", "actor_rollout_ref.actor.ppo_epochs",
         ["epochs"]),
        (f"python -m main_ppo {SIZED}", "trainer.total_epochs", ["steps"]),
    ],
)  # fmt: skip
def test_a_size_that_only_a_run_tells_is_asked_for_and_not_written(command, name, missing, tmp_path):
    path = tmp_path / "run.sh"
    option = f"{name}=$1" if "main_ppo" in command else f"--{name} $1"
    path.write_text(f"{command} {option}\n")
    conversion = convert(path, rows=ROWS)
    whole = {"prompts_per_step", "minibatches", "epochs", "steps"}
    assert not {*missing} & {*conversion.settings["train"]}
    told = " ".join(conversion.open)
    assert f"{name} = $1" in told
    assert {key for key in whole if f"train.{key} " in told or f"train.{key}." in told} == {*missing}


def test_passes_that_only_a_run_tells_are_a_note_if_the_steps_are_given(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("trl dpo --max_steps 5 --num_train_epochs $1 --model_name_or_path m --dataset_name d\n")
    conversion = convert(path)
    assert (conversion.open, conversion.settings["train"]["steps"]) == ((), 5)
    assert any("num_train_epochs = $1" in note for note in conversion.notes)


@pytest.mark.parametrize(
    ("share", "updates", "steps"), [(0.1, 1, 10), (0.1, 2, 5), (0.25, 4, 7), (0.001, 2, 1), (0.07, 1, 7)]
)
def test_a_share_of_the_steps_is_not_divided_by_the_updates_of_a_step(share, updates, steps, tmp_path):
    given = {"warmup_steps": share, "save_steps": share, "num_iterations": updates, "max_steps": 100}
    config = settings(as_yaml(tmp_path, "grpo", **given), tmp_path)
    assert config.train.steps == 100 // updates
    assert (config.train.warmup_steps, config.checkpoint.every) == (steps, steps)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("verb", ["dpo", "grpo", "sft"])
def test_adapters_keep_their_settings_in_any_order(verb, order, tmp_path):
    given = [("use_peft", True), ("lora_r", 64), ("lora_alpha", 128), ("lora_target_modules", ["q_proj"])][::order]
    config = settings(as_yaml(tmp_path, verb, **dict(given)), tmp_path)
    assert [at(config, f"lora.{key}") for key in ("rank", "alpha", "target_modules")] == [64, 128, ["q_proj"]]
    assert at(settings(as_yaml(tmp_path, verb, use_peft=True), tmp_path), "lora.rank") == 16


# --- settings that depend on another one -----------------------------------------------------------------------------


@catalogue("order", [1, -1])
@catalogue(
    "verb, given, ours",
    [
        ("dpo", {"warmup_ratio": 0.1, "warmup_steps": 0}, {"train.warmup_steps": 10}),
        ("dpo", {"warmup_ratio": 0.1, "warmup_steps": 7}, {"train.warmup_steps": 7}),
        ("dpo", {"warmup_ratio": 0.0, "warmup_steps": 7}, {"train.warmup_steps": 7}),
        ("dpo", {"warmup_ratio": 0.1}, {"train.warmup_steps": 10}),
        ("dpo", {"save_strategy": "no", "save_steps": 30}, {"checkpoint.every": 0}),
        ("dpo", {"save_strategy": False, "save_steps": 30}, {"checkpoint.every": 0}),
        ("dpo", {"save_strategy": "steps", "save_steps": 30}, {"checkpoint.every": 30}),
        ("dpo", {"save_steps": 30}, {"checkpoint.every": 30}),
        ("dpo", {"eval_steps": 5}, {"evaluation.every": 0}),
        ("dpo", {"eval_steps": 5, "eval_strategy": "no"}, {"evaluation.every": 0}),
        ("dpo", {"eval_steps": 5, "eval_strategy": False}, {"evaluation.every": 0}),
        ("dpo", {"eval_steps": 5, "eval_strategy": "steps"}, {"evaluation.every": 5}),
        ("dpo", {"use_peft": True}, {"lora.rank": 16, "lora.alpha": 32, "lora.dropout": 0.05}),
        ("sft", {"use_peft": True, "lora_dropout": 0.0}, {"lora.dropout": 0.0}),
        ("sft", {"use_peft": False, "lora_r": 4}, {"lora": None}),
        ("dpo", {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.5]},
         {"algorithm.dpo_weight": 0.8, "algorithm.bco_weight": 0.2, "algorithm.alpha": 1.5}),
        ("grpo", {"reward_funcs": ["get_soft_overlong_punishment"]},
         {"rewards.0.name": "soft_overlong", "rewards.0.settings": {"max_length": 1280, "buffer": 256}}),
        ("sft", {"packing": False}, {"train.prompts_per_step": 8}),
    ],
)  # fmt: skip
def test_settings_of_trl_that_depend_on_each_other(verb, given, ours, order, tmp_path):
    conversion = as_yaml(tmp_path, verb, max_steps=100, **dict([*given.items()][::order]))
    config = settings(conversion, tmp_path)
    assert {key: at(config, key) for key in ours} == ours
    assert conversion.open == ()


@pytest.mark.parametrize("given", [{}, {"lora_target_modules": None}])
def test_adapters_without_named_layers_are_on_those_of_peft(given, tmp_path):
    """TRL passes None on (1.16.0, trainer/model_config.py). PEFT 0.21.2 then takes the layers from
    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING (utils/constants.py): q_proj and v_proj for most decoders."""
    conversion = as_yaml(tmp_path, "sft", use_peft=True, **given)
    assert at(settings(conversion, tmp_path), "lora.target_modules") == ["q_proj", "v_proj"]
    assert "PEFT's default for Llama, Qwen" in conversion.text
    path = tmp_path / "train.py"
    script = SCRIPT.format(told="x", given="max_steps=3").replace('"m"', '"m/Qwen3-4B"')
    for told in ("r=64", "r=64, target_modules=None"):
        path.write_text(script.replace("data)", f"data, peft_config=LoraConfig({told}))"))
        assert convert(path).settings["lora"] == {"rank": 64, "alpha": 8, "target_modules": ["q_proj", "v_proj"]}


@catalogue(
    "kind, layers, said",
    [
        ("gpt2", ["c_attn"], "PEFT's default for models of type gpt2"),
        ("phi", ["q_proj", "v_proj", "fc1", "fc2"], "PEFT's default for models of type phi"),
        ("qwen2", ["q_proj", "v_proj"], "PEFT's default for models of type qwen2"),
        ("phi3", None, "lora.target_modules: PEFT's default for models of type phi3 is an error"),
        (None, None, "lora.target_modules: PEFT chooses the layers by the kind of model, which"),
    ],
)
def test_the_layers_of_peft_are_those_for_the_kind_of_model(kind, layers, said, tmp_path):
    """A config.json on this machine tells the kind, and without one the name tells no family."""
    folder = tmp_path / f"model-{kind}"
    if kind:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    conversion = as_yaml(tmp_path, "sft", use_peft=True, model_name_or_path=str(folder))
    assert conversion.settings["lora"].get("target_modules") == layers
    assert said in conversion.text
    assert bool(conversion.open) == (layers is None)


@pytest.mark.parametrize("name", ["gpt2", "microsoft/phi-2", "llama/zephyr-7b", "adopted", "HuggingFaceTB/SmolLM2-x"])
def test_a_name_that_tells_no_family_leaves_the_layers_to_the_user(name, monkeypatch, tmp_path):
    monkeypatch.setattr("posttrain.lab.convert.layers._kind", lambda model: "")
    (left,) = as_yaml(tmp_path, "sft", use_peft=True, model_name_or_path=name).open
    assert f"which {name} does not tell. It takes q_proj and v_proj for Llama, Qwen" in left
    path = tmp_path / "sft.yaml"
    path.write_text(path.read_text() + "lora_target_modules: [fc1]\n")
    assert convert(path, form="sft").open == ()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("given", "correction"),
    [
        ({"correction": False}, "none"),
        ({"correction": False, "mode": "token_truncate", "cap": 2.0, "clip_min": 0.5}, "none"),
        ({"correction": True}, "trl"),
        ({"mode": "token_truncate", "clip_max": 2.0}, {"level": "token", "action": "truncate", "high": 2.0}),
    ],
)
@pytest.mark.parametrize("loss", ["dapo", "grpo"])
def test_the_correction_of_trl_is_switched_off_as_a_whole(given, correction, order, loss, tmp_path):
    named = {f"vllm_importance_sampling_{name}": value for name, value in [*given.items()][::order]}
    conversion = as_yaml(tmp_path, "grpo", loss_type=loss, **named)
    assert not any("has no setting" in note for note in conversion.notes)
    found = settings(conversion, tmp_path).algorithm.correction
    if isinstance(correction, dict):
        found = {name: found[name] for name in correction}
    assert found == correction


@pytest.mark.parametrize(("value", "correction"), [(True, "bypass"), (False, "none")])
def test_vespo_has_the_engines_weight_unless_it_is_switched_off(value, correction, tmp_path):
    """TRL 1.16.0 hands VESPO a weight of the engine only with the correction (trainer/grpo_trainer.py)."""
    conversion = as_yaml(tmp_path, "grpo", loss_type="vespo", vllm_importance_sampling_correction=value)
    assert settings(conversion, tmp_path).algorithm.correction == correction


def test_the_defaults_of_adapters_are_trls(tmp_path):
    lora = settings(as_yaml(tmp_path, "dpo", use_peft=True), tmp_path).lora
    theirs = TOLD["ModelConfig"]
    assert [at(lora, name) for name in ("rank", "alpha", "dropout")] == [
        theirs[f"lora_{name}"] for name in ("r", "alpha", "dropout")
    ]


@pytest.mark.parametrize("strategy", ["no", "'no'", "No", "steps"])
def test_a_strategy_of_a_command_is_text(strategy, tmp_path):
    path = tmp_path / "run.sh"
    given = f"--save_strategy {strategy} --save_steps 30 --eval_strategy {strategy} --eval_steps 5"
    path.write_text(f"trl dpo --model_name_or_path m --dataset_name d --max_steps 9 {given}\n")
    config = settings(convert(path), tmp_path)
    assert (config.checkpoint.every, config.evaluation.every) == ((30, 5) if strategy == "steps" else (0, 0))


OF_OTHER_LOSSES = [
    "actor.tau_pos=1.0", "actor.tau_neg=1.05", "actor.policy_loss.clip_cov_ratio=0.0002",
    "actor.policy_loss.clip_cov_lb=1.0", "actor.policy_loss.clip_cov_ub=5.0", "actor.policy_loss.kl_cov_ratio=0.0002",
    "actor.policy_loss.ppo_kl_coef=0.1", "actor.policy_loss.dro_beta=0.1",
]  # fmt: skip
"""Defaults in each complete YAML of verl, which its loss "vanilla" does not read."""


@catalogue("order", [1, -1])
@catalogue(
    "given, ours",
    [
        ("optim.lr_warmup_steps=10 optim.lr_warmup_steps_ratio=0.5", {"train.warmup_steps": 10}),
        ("optim.lr_warmup_steps=10 optim.lr_warmup_steps_ratio=0.0", {"train.warmup_steps": 10}),
        ("optim.lr_warmup_steps=0 optim.lr_warmup_steps_ratio=0.5", {"train.warmup_steps": 50}),
        ("optim.lr_warmup_steps=-1 optim.lr_warmup_steps_ratio=0.5", {"train.warmup_steps": 50}),
        ("data.val_batch_size=64", {"evaluation.prompts": 256}),
        ("data.val_max_samples=-1", {"evaluation.prompts": 256}),
        ("data.val_max_samples=64", {"evaluation.prompts": 64}),
        ("model.lora_rank=32", {"lora.rank": 32, "lora.alpha": 16}),
        ("model.lora_rank=32 model.lora_alpha=64", {"lora.rank": 32, "lora.alpha": 64}),
        ("model.lora_rank=0", {"lora": None}),
        ("critic.model.lora_rank=32", {"lora": None}),
        ("algorithm.adv_estimator=gae critic.model.lora_rank=8 critic.model.lora_alpha=4 model.lora_rank=2",
         {"critic.rank": 8, "critic.alpha": 4, "lora.rank": 2, "lora.alpha": 16}),
        *[(f"actor.policy_loss.loss_mode={mode} {' '.join(OF_OTHER_LOSSES)}", {"algorithm.trust_region": "clip"})
          for mode in ("vanilla", "gspo")],
        ("algorithm.filter_groups.enable=False algorithm.filter_groups.max_num_gen_batches=4",
         {"algorithm.filter": "none", "train.max_sampling_rounds": 10}),
        ("model.lora.rank=0 model.lora.alpha=32 model.lora.dropout=0.0", {"lora": None}),
        ("model.lora.rank=8 model.lora.alpha=32", {"lora.rank": 8, "lora.alpha": 32}),
        ("rollout.val_kwargs.temperature=0 rollout.val_kwargs.n=1 rollout.val_kwargs.do_sample=False",
         {"evaluation.samples": 0}),
        ("rollout.val_kwargs.temperature=0.6 rollout.val_kwargs.n=8", {"evaluation.samples": 8}),
        ("rollout.val_kwargs.temperature=0.6 rollout.val_kwargs.do_sample=True", {"evaluation.samples": 1}),
        ("actor.use_kl_loss=True algorithm.use_kl_in_reward=False", {"algorithm.kl_coef": 0.001}),
        ("actor.use_kl_loss=False algorithm.use_kl_in_reward=True", {"algorithm.kl": "reward"}),
        *[(f"algorithm.use_kl_in_reward=True actor.kl_loss_type={kind}", {"algorithm.kl_estimator": "k1"})
          for kind in ("k3+", "mse", "low_var_kl")],
    ],
)  # fmt: skip
def test_settings_of_verl_that_depend_on_each_other(given, ours, order, tmp_path):
    conversion = of_verl(tmp_path, given.split()[::order])
    config = settings(conversion, tmp_path)
    assert {key: at(config, key) for key in ours} == ours
    assert conversion.open == ()


@catalogue(
    "given, correction",
    [
        ("rollout_correction.rollout_is=null rollout_correction.rollout_is_threshold=2.0", "none"),
        ("rollout_correction.rollout_is=null rollout_correction.rollout_is_batch_normalize=False", "none"),
        ("rollout_correction.bypass_mode=False rollout_correction.loss_type=ppo_clip", "none"),
        ("rollout_correction.rollout_is=token", {"level": "token", "action": "truncate", "high": 2.0, "low": None}),
        ("rollout_correction.rollout_is=sequence rollout_correction.rollout_is_threshold=5.0",
         {"level": "sequence", "action": "truncate", "high": 5.0, "low": None, "normalize": False}),
        ("rollout_correction.rollout_is=sequence rollout_correction.rollout_is_batch_normalize=True",
         {"level": "sequence", "high": 2.0, "normalize": True}),
        ("rollout_correction.bypass_mode=True rollout_correction.rollout_is=token", "bypass"),
        ("rollout_is=False rollout_is_threshold=2.0 rollout_is_level=sequence rollout_is_mode=mask", "none"),
        ("rollout_is=True rollout_is_threshold=3.0 rollout_is_level=sequence rollout_is_mode=truncate",
         {"level": "sequence", "action": "truncate", "high": 3.0}),
    ],
)  # fmt: skip
@catalogue("estimator", ["grpo", "gae"])
def test_the_correction_of_verl_is_on_only_where_it_is_on_there(given, correction, estimator, tmp_path):
    """rollout_is = null applies no weight, a threshold alone is a bound that nothing reads, and bypass_mode with
    ppo_clip gets no weight (verl 0.9.1, trainer/ppo/rollout_corr_helper.py and core_algos.py). Before 0.6.1 rollout_is
    was a switch below algorithm (0.6.0, trainer/config/ppo_trainer.yaml)."""
    words = [f"algorithm.{word}" for word in [f"adv_estimator={estimator}", *given.split()]]
    conversion = of_verl(tmp_path, words)
    found = settings(conversion, tmp_path).algorithm.settings["correction"]
    if isinstance(correction, dict):
        found = {name: found[name] for name in correction}
    assert (found, conversion.open) == (correction, ())


@pytest.mark.parametrize(
    "word",
    [
        "rollout_correction.rollout_rs=token_k1 rollout_correction.rollout_rs_threshold=2.0",
        "rollout_correction.rollout_is=token rollout_correction.rollout_is_threshold=0.5_5.0",
        "rollout_correction.bypass_mode=True rollout_correction.loss_type=reinforce",
        "rollout_is=True rollout_is_threshold=2.0 rollout_is_mode=mask",
    ],
)
def test_a_correction_of_verl_that_is_not_taken_over_is_asked_for(word, tmp_path):
    assert len(of_verl(tmp_path, [f"algorithm.{part}" for part in word.split()]).open) == 1


@catalogue(
    "kind, estimator, noted",
    [
        ("low_var_kl", "k3", 0), ("k3", "k3", 0), ("k2", "k2", 0), ("mse", "k2", 0), ("k3+", "k2", 0), ("k1+", "k2", 0),
        ("low_var_kl+", "k2", 0), ("mse+", "k2", 0), ("k1", "k3", 1), ("abs", "k3", 1),
    ],
)  # fmt: skip
def test_a_kl_of_verl_has_the_gradient_that_it_has_there(kind, estimator, noted, tmp_path):
    """With a plus, kl_penalty keeps the value and takes the gradient of k2 (verl 0.9.1, trainer/ppo/core_algos.py)."""
    conversion = of_verl(tmp_path, ["actor.use_kl_loss=True", f"actor.kl_loss_type={kind}"])
    assert settings(conversion, tmp_path).algorithm.kl_estimator == estimator
    assert sum("kl_loss_type" in note for note in conversion.notes) == noted


@pytest.mark.parametrize("word", OF_OTHER_LOSSES)
def test_a_setting_of_another_loss_of_verl_is_a_note_that_says_so(word, tmp_path):
    (note,) = of_verl(tmp_path, [word]).notes
    assert "verl reads it only together with actor.policy_loss.loss_mode" in note


SWITCHED = {
    "actor_rollout_ref.rollout.val_kwargs.temperature=$T actor_rollout_ref.rollout.val_kwargs.n=8":
        ("evaluation.temperature", {"evaluation.samples": 8}),
    "algorithm.rollout_correction.rollout_is=$IS algorithm.rollout_correction.rollout_is_threshold=3.0":
        ("algorithm.correction.level", {"algorithm.correction": {"high": 3.0}}),
    "algorithm.rollout_correction.bypass_mode=$B": ("algorithm.correction", {}),
    "actor_rollout_ref.model.lora_rank=$R actor_rollout_ref.model.lora_alpha=64": ("lora.rank", {"lora.alpha": 64}),
    "actor_rollout_ref.actor.use_kl_loss=$K": ("algorithm.kl_coef and algorithm.kl_estimator", {}),
    "algorithm.filter_groups.enable=$F": ("algorithm.filter", {}),
    "reward_model.enable=$E reward_model.model.path=R": ("rewards", {"rewards": [{"model": "R"}]}),
    "--vllm_importance_sampling_correction $X --vllm_importance_sampling_mode token_truncate "
    "--vllm_importance_sampling_cap 3":
        ("algorithm.correction", {"algorithm.correction": {"level": "token", "action": "truncate", "high": 3}}),
    "--save_strategy $S --save_steps 30": ("checkpoint.every", {"checkpoint.every": 30}),
    "--epsilon $E": ("algorithm.clip_low and algorithm.clip_high", {}),
}  # fmt: skip
"""Words with a value that only a run tells -> our setting to ask for, and what is taken over all the same."""


@catalogue("words, asked, taken", [(words, *told) for words, told in SWITCHED.items()])
def test_what_depends_on_a_value_that_only_a_run_tells_is_taken_over(words, asked, taken, tmp_path):
    path = tmp_path / "run.sh"
    model = "--model_name_or_path m --dataset_name d --reward_funcs accuracy_reward"
    path.write_text(f"trl grpo --max_steps 5 {model} {words}\n")
    conversion = convert(path) if words.startswith("--") else of_verl(tmp_path, words.split())
    (left,) = conversion.open
    assert left.endswith(f"its value is known only when the script runs; set {asked} yourself.")
    assert conversion.notes == ()
    for key, value in taken.items():
        found = conversion.settings
        for part in key.split("."):
            found = found[part]
        assert found == value


@pytest.mark.parametrize("of_reward", ["", "algorithm.kl_ctrl.kl_coef=0.1"])
@pytest.mark.parametrize(("of_loss", "coef"), [("actor.kl_loss_coef=0.05", 0.05), ("", 0.001)], ids=["line", "default"])
def test_what_is_decided_is_not_replaced_by_what_only_may_count(of_reward, of_loss, coef, tmp_path):
    words = ["algorithm.use_kl_in_reward=$KR", "actor.use_kl_loss=True", of_loss, of_reward]
    for order in (words, words[::-1]):
        conversion = of_verl(tmp_path, order)
        assert conversion.settings["algorithm"].get("kl_coef", 0.001) == coef
        assert any("kl_ctrl.kl_coef = 0.1" in note for note in conversion.notes) == bool(of_reward)


def test_a_value_that_changes_nothing_here_is_no_decision(tmp_path):
    conversion = of_verl(tmp_path, ["rollout.val_kwargs.do_sample=$S", "actor.kl_loss_type=$KIND"])
    assert conversion.open == ()
    sampled, kind = conversion.notes
    assert "whatever do_sample is" in sampled
    assert "only together with actor.use_kl_loss" in kind


def of_verl(tmp_path, words, files="gsm8k.parquet"):
    """Convert a command of verl. Names without a section are the policy's."""
    sections = {
        "optim": "actor_rollout_ref.actor.",
        "model": "actor_rollout_ref.",
        "actor": "actor_rollout_ref.",
        "rollout": "actor_rollout_ref.",
    }
    named = [f"{sections.get(word.partition('.')[0], '')}{word}" for word in words]
    path = tmp_path / "run.sh"
    path.write_text(
        "python -m main_ppo actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=4 "
        f'trainer.total_training_steps=100 algorithm.adv_estimator=grpo data.train_files="{files}" {" ".join(named)}\n'
    )
    return convert(path)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        *[(f"actor.policy_loss.loss_mode={mode}", "loss_mode") for mode in ("gpg", "clip_cov", "geo_mean", "$MODE")],
        ("actor.loss_agg_mode=strange", "loss_agg_mode"),
        ("actor.use_kl_loss=True algorithm.use_kl_in_reward=True", "algorithm.kl chooses one"),
        ("algorithm.use_kl_in_reward=True actor.use_kl_loss=True", "algorithm.kl chooses one"),
    ],
)
def test_a_loss_of_verl_without_a_counterpart_is_asked_for(word, told, tmp_path):
    (left,) = of_verl(tmp_path, word.split()).open
    assert told in left


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"packing": True}, "set train.prompts_per_step and train.steps"),
        ({"loss_type": "strange"}, "loss_type = strange"),
    ],
)
def test_a_setting_of_sft_without_a_counterpart_is_asked_for(given, told, tmp_path):
    assert any(told in text for text in as_yaml(tmp_path, "sft", **given).open)


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ("a/gsm8k.parquet", "gsm8k"),
        ("['a/gsm8k.parquet', 'b/gsm8k.parquet']", "gsm8k"),
        ("a/dapo-math.parquet", "math"),
        ("['a/math.parquet', 'a/aime.parquet']", "math"),
        ("/mnt/math_team/gsm8k/train.parquet", "gsm8k"),
        ("['/gsm8k-group/us/math/train.parquet', '/gsm8k-group/us/aime/test.parquet']", "math"),
        ("['/a/b/math/train.parquet', '/a/b/gsm8k/train.parquet']", None),
        ("['a/gsm8k.parquet', 'a/math.parquet']", None),
        ("['a/math.parquet', 'a/gsm8k.parquet']", None),
        ("a/gsm8k_and_math.parquet", None),
    ],
)
def test_files_that_need_several_rewards_are_asked_for(files, reward, tmp_path):
    conversion = of_verl(tmp_path, [], files)
    assert conversion.settings.get("rewards") == ([{"name": reward}] if reward else [])
    assert any(text.startswith("rewards: verl scores each row") for text in conversion.open) == (reward is None)


@pytest.mark.parametrize(("share", "steps", "warmup"), [(0.05, 29, 1), (0.1, 29, 2), (0.1, 30, 3), (0.01, 29, 0)])
def test_a_share_of_the_steps_is_rounded_as_verl_does(share, steps, warmup, tmp_path):
    words = [f"actor.optim.lr_warmup_steps_ratio={share}", f"trainer.total_training_steps={steps}"]
    assert of_verl(tmp_path, words).settings["train"].get("warmup_steps", 0) == warmup


@pytest.mark.parametrize("name", ["eval_strategy", "evaluation_strategy"])
@pytest.mark.parametrize(("strategy", "every"), [("steps", 10), ("no", 0)])
def test_the_older_name_of_a_setting_means_the_same(name, strategy, every, tmp_path):
    conversion = as_yaml(tmp_path, "dpo", **{name: strategy, "eval_steps": 10})
    assert conversion.settings["evaluation"]["every"] == every
    assert not any("does not know" in note for note in conversion.notes)


@pytest.mark.parametrize("weights", [[0.8, 0.2], [0.8], [1, 1, 1, 1], 0.8])
def test_weights_that_do_not_fit_the_losses_are_asked_for(weights, tmp_path):
    conversion = as_yaml(tmp_path, "dpo", loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=weights)
    assert conversion.settings["algorithm"] == {"name": "mpo"}
    assert any(f"{len(weights) if isinstance(weights, list) else 1} weight" in text for text in conversion.open)


@pytest.mark.parametrize("section", ["reward_model", "reward.reward_model"])
def test_a_reward_model_of_verl_beside_a_function_is_asked_for(section, tmp_path):
    words = [f"{section}.enable=True", f"{section}.model.path=R", "custom_reward_function.path=r.py"]
    assert of_verl(tmp_path, words[:2]).settings["rewards"] == [{"model": "R"}]
    conversion = of_verl(tmp_path, words)
    assert conversion.settings["rewards"] == [{"function": "r.py:compute_score"}]
    assert any("with the function alone" in text for text in conversion.open)
    assert not any("alone" in text for text in of_verl(tmp_path, words[2:]).open)
    assert any("write a function of ours that calls verl's" in text for text in conversion.open)


@catalogue(
    "value, read",
    [
        ("${trainer.project_name}", "p"),
        ("runs/${trainer.project_name}/${trainer.experiment_name}", "runs/p/e"),
        ("${oc.env:MODEL}", Unread("${oc.env:MODEL}")),
        ("${oc.env:MODEL,a}", Unread("${oc.env:MODEL,a}")),
        ("runs/${oc.env:MODEL}", Unread("runs/${oc.env:MODEL}")),
        ("runs/${trainer.missing}/${trainer.project_name}", Unread("runs/${trainer.missing}/${trainer.project_name}")),
        ("runs/${trainer.default_local_dir}", Unread("runs/${trainer.default_local_dir}")),
        (["a/${trainer.project_name}", "b"], ["a/p", "b"]),
        (["a/${oc.env:X}", "b"], Unread("['a/${oc.env:X}', 'b']")),
        ("${oc.select:trainer.missing,{}}", {}),
        ("${oc.select:trainer.missing,[]}", []),
        ("${oc.select:trainer.missing, {a: 1}}", {"a": 1}),
        ("${oc.select:trainer.missing,null}", None),
        ("${oc.select:trainer.missing,${trainer.project_name}}", "p"),
        ("${oc.select:trainer.missing}", Unread("${oc.select:trainer.missing}")),
        ("${oc.select:trainer.missing,[}", Unread("${oc.select:trainer.missing,[}")),
        ("${oc.select:trainer.missing,{a", Unread("${oc.select:trainer.missing,{a")),
    ],
)
def test_references_in_yaml_are_filled_in_or_unread(value, read, tmp_path):
    """The complete YAMLs of verl have all forms of `oc.select` that are valid (0.9.1, trainer/config/_generated*)."""
    path = tmp_path / "ppo.yaml"
    trainer = {"project_name": "p", "experiment_name": "e", "default_local_dir": value}
    path.write_text(yaml.safe_dump({"data": {}, "algorithm": {"adv_estimator": "grpo"}, "trainer": trainer}))
    assert read_source(path).settings["trainer.default_local_dir"].value == read


# --- settings of other models -----------------------------------------------------------------------------------------

OTHERS = [
    f"{section}.{name}={value}"
    for section in ("critic", "reward_model", "reward.reward_model", "reward", "distillation", "distillation.teacher")
    for name, value in (
        ("optim.lr", 0.1), ("optim.lr_warmup_steps", 50), ("optim.weight_decay", 0.5), ("optim.lr_scheduler_type", "x"),
        ("model.enable_gradient_checkpointing", False), ("ppo_max_token_len_per_gpu", 7), ("rollout.n", 9),
        ("forward_max_token_len_per_gpu", 7), ("rollout.prompt_length", 7), ("rollout.response_length", 7),
        ("rollout.temperature", 0.1), ("ppo_epochs", 3), ("grad_clip", 3.0),
    )
]  # fmt: skip


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_setting_of_another_model_is_not_the_policys(estimator, tmp_path):
    path = tmp_path / "run.sh"

    def told(extra):
        path.write_text(
            f"python -m main_ppo {SIZED} algorithm.adv_estimator={estimator} trainer.total_training_steps=5 {extra}\n"
        )
        return convert(path)

    plain = told("")
    for other in OTHERS:
        found = told(other)
        before, after = ({k: v for k, v in one.settings.items() if k != "critic"} for one in (plain, found))
        assert before == after, other
        name = other.partition("=")[0]
        taken = plain.settings.get("critic") != found.settings.get("critic")
        assert taken or any(f"{name} = " in note for note in found.notes), other


# --- reading ----------------------------------------------------------------------------------------------------------

SCRIPT = """
from trl import DPOConfig, DPOTrainer
open({told!r}, "w").write("it was run")
DPOTrainer(model="m", args=DPOConfig({given}), train_dataset=data).train()
"""


def test_a_script_is_never_run(tmp_path):
    path, told = tmp_path / "train.py", tmp_path / "told"
    path.write_text(SCRIPT.format(told=str(told), given="beta=0.3, max_steps=3"))
    assert "beta: 0.3" in convert(path).text
    assert not told.exists()


def test_names_are_followed_and_those_that_go_in_a_circle_are_said(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "from trl import DPOConfig as C\nfrom trl import DPOTrainer\nRATE = 2e-6\nA = B\nB = A\n"
        "DPOTrainer(model='m', args=C(learning_rate=RATE, beta=A, max_steps=2 * 3), train_dataset=data)\n"
    )
    conversion = convert(path)
    assert conversion.settings["train"]["learning_rate"] == 2e-6
    assert conversion.settings["train"]["steps"] == 6
    assert any("line 6, beta = A: its value is known only when the script runs" in text for text in conversion.open)


def test_the_order_of_settings_changes_nothing(tmp_path):
    path, texts = tmp_path / "train.py", set()
    for given in ("beta=0.3, loss_type='ipo', max_steps=3", "max_steps=3, loss_type='ipo', beta=0.3"):
        path.write_text(SCRIPT.format(told="x", given=given))
        texts.add(json.dumps(convert(path).settings, sort_keys=True))
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", "import torch\n", "a.py holds no known config; allowed: a call of GRPOConfig"),
        ("a.py", "def f(:\n", "a.py is not Python"),
        (
            "a.py",
            "from trl import TrlParser\nTrlParser(GRPOConfig).parse()\n",
            "takes its settings from its command line",
        ),
        ("a.yaml", "learning_rate: 1\n", "--as grpo"),
        ("a.sh", "echo hello\n", "a command that starts verl.trainer.main_ppo"),
    ],
)
def test_a_file_without_a_config_is_refused(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        convert(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "project"),
    [
        ("dpo.sh", "read -r -d '' commands <<EOF\nopenrlhf.cli.train_dpo --beta 0.1\nEOF\ndeepspeed --module $commands",
         "OpenRLHF"),
        ("run.sh", "deepspeed --module openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-0.6B", "OpenRLHF"),
        ("train.py", "from openrlhf.trainer import DPOTrainer\n", "OpenRLHF"),
        ("gsm8k_grpo.yaml", "allocation_mode: sglang:d4+d4\nactor: {path: Qwen/Qwen3-0.6B}\n", "AReaL"),
        ("rl.sh", "python3 -m areal.launcher.local examples/math/gsm8k_rl.py", "AReaL"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["", "grpo"])
def test_files_of_other_libraries_are_not_taken_for_trl(name, text, project, verb, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"a file of {project}; .*\n.*docs/moving/{project.lower()}\.md"):
        read_source(tmp_path / name, verb)


def test_lines_of_yaml_are_those_of_the_keys(tmp_path):
    """Keys with the same last part are told apart. A merged section has the lines of its anchor."""
    lines = [
        "data: {train_batch_size: 8, shuffle: true}", "algorithm: {adv_estimator: gae}", "critic: &shared",
        "  strategy: fsdp", "  # optim: {lr: 7}", "  optim: {lr: 1e-5}", "actor_rollout_ref:", "  actor:",
        "    optim:", "      lr: 1e-6", "    note: |", "      ppo_epochs: 3", "    'ppo_epochs': 2", "  ref:",
        "    <<: *shared", "    strategy: fsdp2",
    ]  # fmt: skip
    path = tmp_path / "ppo.yaml"
    path.write_text("\n".join(lines))
    settings = read_source(path).settings
    assert settings["actor_rollout_ref.ref.strategy"].value == "fsdp2"
    assert settings["actor_rollout_ref.ref.optim.lr"].value == 1e-5
    found = {name: given.line for name, given in settings.items()}
    assert found == {
        "data.train_batch_size": 1, "data.shuffle": 1, "algorithm.adv_estimator": 2, "critic.strategy": 4,
        "critic.optim.lr": 6, "actor_rollout_ref.actor.optim.lr": 10, "actor_rollout_ref.actor.note": 11,
        "actor_rollout_ref.actor.ppo_epochs": 13, "actor_rollout_ref.ref.strategy": 16,
        "actor_rollout_ref.ref.optim.lr": 6,
    }  # fmt: skip


def test_a_file_of_trl_may_mention_other_libraries(tmp_path):
    text = '# Ported from our openrlhf launcher.\nfrom trl import DPOConfig\nDPOConfig(run_name="/data/areal/1")\n'
    (tmp_path / "dpo.py").write_text(text)
    assert read_source(tmp_path / "dpo.py").form == "DPOConfig"


def test_what_a_file_trains_is_one_of_the_verbs(tmp_path):
    with pytest.raises(ConfigError, match="a file that trains 'grop'; allowed: grpo, rloo, dpo"):
        convert(HERE / "trl/sft.yaml", form="grop")


def test_online_dpo_samples_two_answers(tmp_path):
    config = settings(as_yaml(tmp_path, "online_dpo", loss_type="ipo", beta=0.2), tmp_path)
    assert (config.algorithm.name, config.algorithm.loss, config.algorithm.beta) == ("online_dpo", "ipo", 0.2)
    assert (config.sampling.group_size, config.sampling.temperature, config.sampling.max_completion_length) == (
        2,
        0.9,
        64,
    )


def test_a_value_that_posttrain_does_not_have_is_left_to_the_user(tmp_path):
    conversion = as_yaml(tmp_path, "dpo", loss_type="nonsense", optim="sgd", something=1)
    assert any("loss_type = nonsense" in text and "sigmoid" in text for text in conversion.open)
    assert any("optim = sgd: its counterpart is train.optimizer" in note for note in conversion.notes)
    assert any("something = 1: posttrain does not know it" in note for note in conversion.notes)


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_verb_writes_a_file_once(tmp_path, capsys):
    to = tmp_path / "run.yaml"
    assert run(["convert", str(HERE / "trl/ipo.sh"), "--to", str(to)]) == 0
    assert "The config is ready to use" in capsys.readouterr().err
    check(load_config(to))
    assert run(["convert", str(HERE / "trl/ipo.sh"), "--to", str(to)]) == 2


def test_the_verb_answers_with_one_object(capsys):
    assert run(["convert", str(HERE / "verl/dapo.sh"), "--rows", "5120", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["train"]["steps"] == 10
    assert told["open"] == []


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text"), moving_pages().items())
def test_a_page_of_docs_moving_is_what_the_tables_say(name, text):
    assert (HERE.parents[2] / "docs" / "moving" / name).read_text(encoding="utf-8") == text


def typed_by_hand():
    """Yield each cell of the tables, as settings that one would type, beside the settings that the form implies."""
    for project in ("TRL", "verl"):
        for form, told in FORMS[project].items():
            base = dict(told.get("sets", {}))
            for values in told.get("choice", {}).values():
                base |= {"preset": base.get("preset") or next(iter(values.values())).get("preset")}
                for value, ours in values.items():
                    yield f"{form} {value}", ({} if "algorithm.name" in ours else base) | typed(_choice(ours)), ours
            for entry in told.get("settings", {}).values() if base.get("preset") else ():
                if isinstance(entry, dict) and {*entry} == {"values"}:
                    for value, ours in entry["values"].items():
                        yield f"{form} {value}", base | typed(_choice(ours)), ours


def typed(cell):
    return {key: yaml.safe_load(value) for key, value in re.findall(r"`([\w.]+): (.*?)`", cell)}


@catalogue("tree, ours", [rest for _, *rest in typed_by_hand()], ids=[name for name, *_ in typed_by_hand()])
def test_the_settings_of_a_page_can_be_typed_by_hand(tree, ours):
    """They load, and they include each null, without which a value of the preset would stay."""
    assert (
        tree.items() >= {key: value for key, value in ours.items() if key not in ("with", "defaults", "note")}.items()
    )
    whole = {"model": "a/model", "data": {"train": "a/dataset"}, "rewards": [{"name": "math"}], "train": {"steps": 1}}
    preset = {"preset": tree["preset"]} if tree.get("preset") else {}
    overrides = {key: value for key, value in tree.items() if key != "preset"}
    if tree.get("algorithm.name") or preset:
        load_config(whole | preset, overrides)


@pytest.mark.parametrize("cut", [{"nothing": "One", "two": None}, {"near": "x", "note": "One", "and two": None}])
def test_a_text_that_a_comma_cuts_is_refused(cut):
    with pytest.raises(ValueError, match="in quotes"):
        read_entry(cut)


def test_every_entry_of_forms_yaml_has_known_keys():
    def entries(form):
        yield from form.get("settings", {}).values()
        for values in form.get("choice", {}).values():
            yield from (entry for told in values.values() for entry in told.get("with", {}).values())

    forms = [form for project in ("TRL", "verl") for form in FORMS[project].values()]
    strange = [entry for form in forms for entry in entries(form) if isinstance(entry, dict) and {*entry} - ENTRY_KEYS]
    assert strange == []
