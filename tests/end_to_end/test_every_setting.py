"""Promise 6: no dead setting. Each setting changes what a run computes, records, keeps or refuses.

A row of the table CASES has a setting, another value for it, and what must then differ from the run without that
change: a metric, a column of the rollouts, the weights, an evaluation, an event or a file. If the value is refused, the
row has the message instead. Settings of memory and speed must change how much is computed at a time (`effort`, counted
during the run), and must not change the results.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import datasets.config
import gguf
import huggingface_hub.constants
import pytest
import torch
import transformers.dynamic_module_utils
from datasets.packaged_modules.json.json import Json
from tests.algorithms.compositions import SETTINGS
from tests.algorithms.test_settings import SHOWN_ELSEWHERE
from tests.catalogue import catalogue
from tests.end_to_end import parts
from tests.end_to_end.judging import HERE, KEY, LOSSES, ONCE, SERVED, VERDICTS, verdicts_by_hash
from tests.end_to_end.recorded import Place, Record
from tests.end_to_end.turns import AGENT, CALLS, ENVIRONMENT, PAID, REWRITES, TALKER, TURNS, write_turns
from tests.tiny import tiny_model
from transformers import LlamaForCausalLM

from posttrain.algorithms import ALGORITHMS, PolicyGradient
from posttrain.algorithms.labels import LabelLoss
from posttrain.algorithms.off_policy.correction import Correction
from posttrain.algorithms.pairs import PairLoss
from posttrain.algorithms.settings import attributes
from posttrain.config import CriticConfig, JudgeConfig, ModelConfig, RunConfig, describe_fields, load_config
from posttrain.episodes.acting import Acting
from posttrain.episodes.sessions import Sessions
from posttrain.lab.plan import before_run
from posttrain.models.reward_head import ScoringFacts, load_reward_model, save_reward_model

CHARACTERS = "0123456789 "
SMALL = {"characters": CHARACTERS, "num_hidden_layers": 1}
NUMERIC = {"name": "numeric", "settings": {"absolute_tolerance": 2500}}

PLAIN: dict[str, Any] = {
    "model": {"path": "model", "device": "cpu"},
    "algorithm": "grpo",
    "data": {"train": "prompts.jsonl", "eval_fraction": 0},
    "rewards": [NUMERIC],
    "sampling": {"group_size": 4, "max_completion_length": 4},
    "train": {"steps": 1, "prompts_per_step": 2, "learning_rate": 1e-2},
    "evaluation": {"writing": 0, "prompts": 4, "samples": 1},
    "checkpoint": {"every": 0},
    "guards": {"max_truncated": 1.0},
    "report": False,
}
"""One step of a random model over digits. The reward is 1 for a number close to the answer, else 0."""
MEASURED = {"data.eval_fraction": 0.25}
SEEN_IN_THE_SECOND_STEP = {
    *(f"critic.{name}" for name in ("rank", "alpha", "learning_rate", "warmup_steps", "max_grad_norm")),
    *(f"data.{name}" for name in ("answer", "max_length")),
    *(f"rewards.N.judge.{name}" for name in ("strip_reasoning", "max_total_tokens")),
    *(f"train.{name}" for name in ("steps", "stop_after_tokens", "stop_after_seconds", "schedule", "optimizer")),
    *(f"train.{name}" for name in ("min_learning_rate_ratio", "publish_every", "max_sampling_rounds")),
    *("train.run_ahead", "evaluation.every", "checkpoint.every"),
    *(f"{name}.{of}" for name in ALGORITHMS for of in ("kl_coef", "kl_estimator", "beta", "label_smoothing")),
    *("remax.clip_low", "grpo_passk.clip_high", "kimi_k15.correct_at"),
    *(f"policy_gradient.{name}" for name in ("kl", "filter")),
    *("online_dpo.ties", "dpo.divergence", "dpo.alpha", "dpo.tail_weight"),
    *("discopop.tau", "kto.undesirable_weight", "bco.reduction", "aot.comparison", "reward_regression.regress"),
}
"""Settings that leave the first step unchanged. Their runs take two steps."""


@dataclass(frozen=True)
class Case:
    """A setting with another value."""

    setting: str
    """Name of the setting as in `describe_fields`, or ALGORITHM.SETTING."""
    value: Any
    changes: str = ""
    """What must differ: the name of an entry in the record, or the part of the name before a slash."""
    refused: str = ""
    """A regular expression for the error with which the run must be refused or stopped instead."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are added to the plain ones, with and without the change."""
    keeps: str = ""
    """Name of the entries that must stay the same, up to rounding."""
    needs: str = ""
    """A package of an extra. Without it the case is skipped."""

    @property
    def algorithm(self) -> str:
        """The algorithm that the setting belongs to, or an empty string for a setting of the run."""
        key, dot, _ = self.setting.partition(".")
        return key if dot and key in ALGORITHMS else ""

    @property
    def before(self) -> dict[str, Any]:
        steps = {"train.steps": 2} if self.setting in SEEN_IN_THE_SECOND_STEP else {}
        measured = MEASURED if self.changes.startswith(("evaluation", "answers")) else {}
        return {**({"algorithm": self.algorithm} if self.algorithm else {}), **steps, **measured, **self.given}

    @property
    def after(self) -> dict[str, Any]:
        name = self.setting.removeprefix(f"{self.algorithm}.")
        path = f"algorithm.{name}" if self.algorithm else self.setting.replace(".N", ".0")
        return {**self.before, path: self.value}

    @property
    def with_effort(self) -> bool:
        return self.changes.startswith("effort")

    def on_a_deep_model(self) -> Case:
        """Return the case with a model of two layers, unless it is about models. Such a model learns what alarms notice
        and what moves a bound."""
        own = any(name.partition(".")[0] == "model" for name in (self.setting, *self.given))
        return self if own else replace(self, given={"model.path": "deep_model", **self.given})


def reward(function: str, **settings: Any) -> dict[str, Any]:
    return {"function": f"rewards.py:{function}", **settings}


SEVERAL_UPDATES = {"train.epochs": 3, "train.learning_rate": 0.05}
"""The policy moves within a step, so ratios and their bounds matter."""
CLIPPED = SEVERAL_UPDATES | {"algorithm.clip_low": 0.9, "algorithm.clip_high": 9.0}
UNEVEN = {"sampling.stop": ["7"]}
"""Answers have different lengths."""
NARROW = SEVERAL_UPDATES | {"algorithm.divergence_low": 0.005, "algorithm.divergence_high": 0.005}
TRUST_REGIONS = ("dapo", "gspo", "gspo_token", "gmpo", "cispo", "sapo", "vespo", "clip_cov", "kl_cov", "dppo")
VESPO_WEIGHTS = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
LORA = {"lora": {"rank": 4}}
PPO = {"algorithm": "ppo", "train.minibatches": 2}
CHAT = {"model.chat_template": "chat.jinja"}
HUB_DATA = {"data.train": "numbers"}
CHECK = {"check": [NUMERIC]}
DENSE_CRITIC = {"critic.kind": "shared", "rewards": [reward("digits")]} | SEVERAL_UPDATES
MOVING_AVERAGE = {"algorithm.baseline": "moving_average", "train.steps": 3, "rewards": [reward("digits")]}
FAILING = {"rewards": [reward("fails_sometimes")], "guards.max_unscored": 1.0}
GATED = {"rewards": [reward("digits", gate={"label": "numeric"}), NUMERIC, reward("length", weight=0)]}
TAUGHT = {"algorithm": "distillation", "teacher": "model"}
BY_ANOTHER = TAUGHT | {"teacher": "other_model"}
PTX = {"algorithm": "kimi_k2", "algorithm.ptx_coef": 0.5, "data.auxiliary": "examples.jsonl"}
SLOW = {"rewards": [reward("slow")], "guards.max_unscored": 1.0}
LONG_PROMPTS = {"data.system_prompt": "31415 92653 58979 32384 62643 "}
TALKS = CHAT | {"algorithm": "sft", "data.train": "talks.jsonl", "rewards": []}
PAIRS = {"data.train": "pairs.jsonl", "rewards": [], "train.learning_rate": 1e-3}
LABELS = {"data.train": "labels.jsonl", "rewards": [], "train.learning_rate": 1e-2}
RATED = PAIRS | {"data.train": "ratings.jsonl"}
IN_STEPS = PAIRS | {"data.train": "steps.jsonl"}
STAGE = {"data": {"train": "pairs.jsonl"}, "train": {"steps": 1, "learning_rate": 1e-2}, "report": False}
ROUND = {"algorithm": "dpo", "sampled_pairs": {}, "rewards": [reward("digits")], "train.learning_rate": 1e-3}
LEARNED = {"rewards": [{"model": "reward_model"}], "reward_model": STAGE}
SMOOTHED = ("dpo", "cdpo", "robust_dpo", "length_normalized_dpo", "hinge", "exo", "discopop", "aot")
BETA_OF_PAIRS = (*SMOOTHED, "rpo", "dpop", "cpo", "mpo", "simpo", "orpo", "apo_zero", "apo_down", "nca", "sppo")
CHECKED = {"check": [{"name": "exact_match"}], "alarms.baseline_disagreement": 0.01, "alarms.cusum_limit": 1.0}
"""The check rejects answers that the reward accepts."""
SEEN_AT_ONCE = {"alarms.reference_steps": 1, "train.learning_rate": 0.05, "train.steps": 8}
GAMED = (
    SEEN_AT_ONCE
    | MEASURED
    | {
        "rewards": [reward("sevens")],
        "check": [reward("no_sevens")],
        "evaluation.every": 1,
        "alarms.heldout_window": 1,
        "sampling.max_completion_length": 40,
    }
)
"""The reward pays for answers that the check forbids, and the model learns them in a few steps."""
FAILS_MORE = SEEN_AT_ONCE | {"rewards": [reward("fails_at_several_sevens")], "guards.max_unscored": 1.0}
READS = {"name": "exact_match", "settings": {"extract": "(.)"}, "weight": 0.0}
ALIKE = SEEN_AT_ONCE | {"rewards": [reward("sevens"), READS]}
"""The first character is read as the answer, and becomes a 7 whatever the gold answer is."""
HELD = {"algorithm.kl_coef": 0.01, "train.steps": 62, "evaluation.samples": 0, "guards.no_signal_steps": 99}
STALE = {"train.steps": 2, "train.publish_every": 2, "train.learning_rate": 0.05}
"""The second step learns from completions that the weights of the first step wrote."""
MASKED = {"action": "mask", "low": 0.8, "high": 1.25}
CORRECTED: dict[str, dict[str, Any]] = {
    **{
        key: {}
        for key in ("reinforce", "rloo", "grpo", "dr_grpo", "lite_ppo", "luspo", "opo", "gpg", "maxrl", "grpo_passk")
    },
    **{key: {} for key in ("remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "topr")},
    **{key: {} for key in ("kimi_k15", "kimi_k2", "deepseek_v32")},
    "pass_at_k": {"algorithm.k": 2},
    "distillation": {"teacher": "other_model"},
}
"""Algorithms, and the other settings that their run needs."""
RUN_OF: dict[str, dict[str, Any]] = {
    **{name: {"teacher": "other_model"} for name in ("coef", "floor")},
    **{name: {"critic.kind": "shared"} for name in ("gae_lambda", "value_coef")},
    "value_clip": {"critic.kind": "shared", **SEVERAL_UPDATES},
    **dict.fromkeys(("ratio", "trust_region", "max_ratio", "clip_low", "clip_high", "dual_clip"), SEVERAL_UPDATES),
    **dict.fromkeys(("tau_pos", "tau_neg", *VESPO_WEIGHTS, "penalty", "tau", "kl_coef"), SEVERAL_UPDATES),
    **dict.fromkeys(("divergence", "divergence_low", "divergence_high", "kl_estimator"), SEVERAL_UPDATES),
    "max_negative_divergence": SEVERAL_UPDATES,
    "filter": SEVERAL_UPDATES | MEASURED,  # one of these prompts has no signal
    **dict.fromkeys(("baseline", "aggregation", "whiten_over", "center", "shaping", "length_coef"), UNEVEN),
    **dict.fromkeys(("token_budget", "budget_penalty"), UNEVEN),
    "baseline_decay": {"train.steps": 3, "rewards": [reward("digits")]},
    "correction": STALE,
    "count_masked_sequences": {"train.mask_truncated": True, **UNEVEN},
}
"""Settings that a run needs to show the effect of a setting of the open composition."""
OTHERWISE: dict[str, tuple[dict[str, Any], Any]] = {
    "k": ({"baseline": "pass_at_k", "normalisation": "none", "k": 1}, 2),
    "correct_at": ({"baseline": "pass_at_k", "normalisation": "none", "k": 2}, 2.0),
    "correction": ({}, {"high": 1.0}),
}
"""Replacements for entries of that table, because the answers of a run have different rewards."""
COMPOSED = {
    name: (RUN_OF.get(name, {}) | {f"algorithm.{choice}": option for choice, option in beside.items()}, value)
    for name, (beside, value) in (SETTINGS | OTHERWISE).items()
}
NO_GPU = not torch.cuda.is_available()


LIFTED = {"guards.max_unscored": 1.0, "guards.no_signal_steps": 9}
PAIRWISE = {"rewards": [{"judge": SERVED | {"mode": "pairwise"}}]}


def judge_cases() -> Iterator[Case]:
    """Yield a case for each setting of a judge. The local judge model is random and gives no verdict."""
    yield Case("rewards.N.judge", {"rubric": "Be brief."}, "rollouts/reward", given={"rewards": [{"judge": SERVED}]})
    yield Case("check.N.judge", {"rubric": "Be brief."}, "evaluation/check", given={"check": [{"judge": SERVED}]})
    name = "rewards.N.judge"
    for setting, (judge, value) in VERDICTS.items():
        yield Case(f"{name}.{setting}", value, "rollouts/reward", given={"rewards": [{"judge": judge}]})
    for setting, (judge, value) in LOSSES.items():
        unscored = "metrics/unscored_fraction"
        yield Case(f"{name}.{setting}", value, unscored, given={"rewards": [{"judge": judge}]} | LIFTED)
    yield Case(f"{name}.max_comparisons", 2, "metrics/judge/calls", given=PAIRWISE | LIFTED)
    alone = {"rewards": [{"judge": HERE}], "sampling.max_batch_rows": 1} | LIFTED
    yield Case(f"{name}.concurrency", 2, "effort/decoded_rows", given=alone)
    unmoved = {"rewards": [{"judge": ONCE}], "train.learning_rate": 0.0} | LIFTED
    yield Case(f"{name}.cache", False, "evaluation/trained/errors", given=unmoved)


CASES = [
    Case("model.path", "other_model", "weights"),
    Case("model.gguf_file", "other.gguf", "weights", given={"model": {"path": "gguf", "gguf_file": "model.gguf"}}),
    Case("model.revision", "v2", "weights", given={"model": "me/tiny"}),
    Case("model.revision", "v2", refused="ModelError: model.revision = 'v2', but .* is a folder"),
    Case(
        "model.trust_remote_code",
        False,
        refused="ModelError: .* needs Python code that comes with the model",
        given={"model": "custom_model", "model.trust_remote_code": True},
    ),
    Case("model.attention", "eager", "weights"),
    Case("model.chat_template", "chat.jinja", "rollouts/prompt"),
    Case("model.chat_template_kwargs", {"shout": True}, "rollouts/prompt", given=CHAT),
    Case("model.precision", "bfloat16", "weights"),
    Case("model.device", "cuda", refused="ModelError: model.device = 'cuda', but this machine has")
    if NO_GPU
    else Case("model.device", "cuda", "weights"),
    Case("lora", {"rank": 4}, "files"),
    Case("lora.rank", 2, "weights", given=LORA),
    Case("lora.alpha", 8, "weights", given=LORA),
    Case("lora.dropout", 0.5, "weights", given=LORA),
    Case("lora.target_modules", ["q_proj"], "weights", given=LORA),
    Case("algorithm.name", "rloo", "weights"),
    Case("critic", {"kind": "shared"}, "weights", given=PPO),
    Case("critic", {}, refused="ConfigError: the section critic, but grpo .* has none"),
    Case("critic.kind", "shared", "weights", given=PPO),
    Case("critic.path", "other_model", "weights", given=PPO),
    Case("critic.rank", 2, "weights", given=PPO | LORA),
    Case("critic.alpha", 8, "weights", given=PPO | LORA),
    Case("critic.learning_rate", 1e-3, "weights", given=PPO),
    Case("critic.warmup_steps", 1, "weights", given=PPO),
    Case("critic.max_grad_norm", 0.0, "weights", given=PPO),
    Case("teacher", {"path": "other_model"}, refused="ConfigError: teacher = other_model, but grpo .* never uses it"),
    Case("teacher.path", "other_model", "weights", given=TAUGHT),
    Case("teacher.revision", "v2", "weights", given=TAUGHT | {"teacher": "me/tiny"}),
    Case(
        "teacher.trust_remote_code",
        False,
        refused="ModelError: .* needs Python code that comes with the model",
        given=TAUGHT | {"teacher": {"path": "custom_model", "trust_remote_code": True}},
    ),
    Case("data.train", "other_prompts.jsonl", "rollouts/prompt"),
    Case("data.auxiliary", "other_examples.jsonl", "metrics/ptx/nll", given=PTX),
    Case("data.auxiliary_rows", 2, "weights", given=PTX),
    Case("data.eval", "other_prompts.jsonl", "answers/baseline"),
    Case("data.split", "validation", "rollouts/prompt", given=HUB_DATA),
    Case("data.eval_split", "validation", "answers/baseline", given=HUB_DATA | {"data.eval": "numbers"}),
    Case("data.eval_fraction", 0.1, "answers/baseline"),
    Case("data.hold_out", "rows", "answers/baseline", given={"data.train": "repeated_prompts.jsonl"}),
    Case("data.columns", {"prompt": "hint"}, "rollouts/prompt"),
    Case("data.prompt", "hint", "rollouts/prompt"),
    Case("data.prompt", "{prompt} {hint}", "rollouts/prompt"),
    Case("data.system_prompt", "99 ", "rollouts/prompt"),
    Case("data.chat", False, "rollouts/prompt", given=CHAT),
    Case("data.train_on", "last", "weights", given=TALKS),
    Case("sft.dft", True, "weights", given=TALKS),
    Case("data.answer", "other_answer", "rollouts/reward"),
    Case("data.max_prompt_length", 4, "rollouts/prompt"),
    Case("data.max_length", 7, "metrics/loss", given=PAIRS | {"algorithm": "dpo"}),
    Case("data.max_rows", 8, "rollouts/prompt"),
    Case("data.stratify", "parity", "rollouts/prompt"),
    Case("data.part", "2/2", "rollouts/prompt"),
    Case("data.streaming", True, "events", given=PAIRS | {"algorithm": "dpo"}, keeps="weights"),
    Case("data.max_dropped", 0.0, refused="DataError: training data: dropped", given={"data.max_prompt_length": 4}),
    Case("rewards", [NUMERIC, {"name": "exact_match"}], "metric names"),
    Case("rewards.N.name", "exact_match", "rollouts/reward", given={"rewards": [{"name": "numeric"}]}),
    Case("rewards.N.function", "rewards.py:length", "rollouts/reward", given={"rewards": [reward("digits")]}),
    Case("rewards.N.model", "other_reward_model", "rollouts/reward", given={"rewards": [{"model": "a_reward_model"}]}),
    Case("rewards.N.weight", 0.5, "rollouts/reward"),
    Case("rewards.N.timeout", 0.05, "metrics/unscored_fraction", given=SLOW),
    Case("rewards.N.settings", {"absolute_tolerance": 500}, "rollouts/reward"),
    Case("rewards.N.label", "close", "metric names"),
    Case("rewards.N.gate", "numeric", "rollouts/reward", given={"rewards": [reward("digits"), NUMERIC]}),
    Case("rewards.N.gate.label", "length", "rollouts/reward", given=GATED),
    Case("rewards.N.gate.at_least", 0.0, "rollouts/reward", given=GATED),
    *judge_cases(),
    Case("check", [NUMERIC], "evaluation/baseline/check"),
    Case("check.N.name", "exact_match", "evaluation/check", given={"check": [{"name": "numeric"}]}),
    Case("check.N.function", "rewards.py:length", "evaluation/check", given={"check": [reward("digits")]}),
    Case("check.N.model", "other_reward_model", "evaluation/check", given={"check": [{"model": "a_reward_model"}]}),
    Case(
        "check.N.timeout",
        0.05,
        "evaluation/baseline/errors",
        given={"check": [reward("slow")], "guards.max_unscored": 1.0},
    ),
    Case("check.N.settings", {"absolute_tolerance": 9000}, "evaluation/check", given=CHECK),
    Case("check.N.label", "close", "evaluation/check", given=CHECK),
    Case("reward_model", {**STAGE, "train": {"steps": 3, "learning_rate": 1e-2}}, "rollouts/reward", given=LEARNED),
    Case("sampling.group_size", 3, "rollouts/row"),
    Case("sampling.max_completion_length", 3, "metrics/completions/max_length"),
    Case("sampling.temperature", 0.5, "rollouts/completion"),
    Case("sampling.top_p", 0.9, refused="ConfigError: sampling.top_p = 0.9 in training"),
    Case("sampling.top_k", 5, refused="ConfigError: sampling.top_k = 5 in training"),
    Case("sampling.min_p", 0.1, refused="ConfigError: sampling.min_p = 0.1 in training"),
    Case("sampling.stop", ["7"], "rollouts/finish_reason"),
    Case("sampling.max_turns", 2, "rollouts/episode", given=TURNS),
    Case("sampling.max_turns", 2, refused="ConfigError: sampling.max_turns = 2, but each answer has one turn"),
    Case("sampling.max_trajectory_length", 20, "rollouts/episode", given=TURNS),
    Case("environment.function", "worlds.py:Chatty", "rollouts/episode", given=TURNS),
    Case("environment.settings", {"word": "b"}, "rollouts/completion_ids", given=TURNS),
    Case("environment.timeout", 0.1, "rollouts/episode", given=LIFTED | ENVIRONMENT["slow"]),
    Case("environment.attempts", 1, "rollouts/episode", given=LIFTED | ENVIRONMENT["broken"]),
    Case("environment.history", "split", "rollouts/completion_ids", given=REWRITES),
    Case("environment.history", "auto", refused="ConfigError: the chat template rewrites history", given=REWRITES),
    Case("environment.max_result_length", 3, "rollouts/completion_ids", given=CALLS),
    Case("environment.credit", "turn", "rollouts/advantages", given=PAID),
    Case("environment.credit", "token", "rollouts/advantages", given=PAID | {"algorithm": "reinforce_plus_plus"}),
    Case(
        "environment.credit", "token", given=PAID, refused="environment.credit = token, but grpo as configured has one"
    ),
    Case("environment.turn_discount", 0.5, "rollouts/advantages", given=PAID | {"environment.credit": "turn"}),
    Case(
        "environment.turn_discount", 0.5, given=PAID, refused="turn_discount = 0.5 with environment.credit = trajectory"
    ),
    Case("agent.function", "askers.py:edits", "rollouts/episode", given=AGENT["talks"]),
    Case("agent.command", [sys.executable, "askers.py", "edits"], "rollouts/episode", given=AGENT["program"]),
    Case("agent.settings", {"turns": 1}, "rollouts/episode", given=AGENT["talks"]),
    Case("agent.timeout", 0.2, "rollouts/episode", given=LIFTED | AGENT["slow"]),
    Case("agent.attempts", 1, "rollouts/episode", given=LIFTED | AGENT["breaks"]),
    Case("agent.history", "split", "rollouts/completion_ids", given=AGENT["keep"]),
    Case("agent.sampling", "ignore", "rollouts/episode", given=LIFTED | AGENT["cold"]),
    Case(
        "agent.host",
        "192.0.2.1",
        given=AGENT["talks"],
        refused="ConfigError: agent.host = 192.0.2.1 cannot be listened on",
    ),
    Case("tools", ["worlds.py:look"], "rollouts/prompt", given=TALKER),
    Case("sampling.max_batch_rows", 2, "effort/decoded_rows", keeps="rollouts/completion"),
    Case("train.steps", 1, "metrics/step"),
    Case("train.stop_after_tokens", 1, "metrics/step"),
    Case("train.stop_after_seconds", 1e-9, "metrics/step"),
    Case("train.prompts_per_step", 3, "rollouts/row"),
    Case("train.learning_rate", 0.02, "weights"),
    Case("train.optimizer", "adamw_8bit", "weights", given={"model.path": "wide_model"}, needs="torchao"),
    Case("train.schedule", "linear", "weights"),
    Case("train.warmup_steps", 1, "weights"),
    Case("train.min_learning_rate_ratio", 0.5, "weights", given={"train.schedule": "linear"}),
    Case("train.weight_decay", 0.1, "weights"),
    Case("train.adam_beta1", 0.5, "weights"),
    Case("train.adam_beta2", 0.9, "weights"),
    Case("train.adam_eps", 1e-3, "weights"),
    Case("train.max_grad_norm", 0.0, "weights"),
    Case("train.minibatches", 2, "weights"),
    Case("train.epochs", 2, "weights"),
    Case("train.tokens_per_microbatch", 20, "effort/training_passes", keeps="metrics/grad_norm"),
    Case("train.logprob_chunk_tokens", 8, "effort/largest_logits", keeps="metrics/grad_norm"),
    Case("train.gradient_checkpointing", True, "effort/kept_numbers", keeps="metrics/grad_norm"),
    Case(  # tests/models/test_compiled.py shows its effect
        "train.compile", True, given={"train.gradient_checkpointing": True}, refused="train.compile = true with"
    ),
    Case("train.mask_truncated", True, "weights"),
    Case(  # tests/ranks shows its effect
        "train.devices", 2, given={"train.compile": True}, refused="train.compile = true with train.devices = 2"
    ),
    Case("train.shard", 2, refused="train.shard = 2 with train.devices = 1"),  # tests/ranks shows its effect
    Case("train.tensor", 2, refused="train.tensor = 2 with train.devices = 1"),  # tests/ranks shows its effect
    Case(
        "train.cpu_offload", True, refused="train.cpu_offload = true with train.devices = 1"
    ),  # tests/ranks shows its effect
    Case(  # tests/engines/test_vllm.py shows its effect
        "rollout.engine", "vllm", given={"rollout.keep_cache": True}, refused="keep_cache = true with rollout.engine"
    ),
    Case("rollout.url", ["http://127.0.0.1:1"], refused="rollout.engine = local, which uses no server"),
    Case("rollout.placement", "shared", refused="rollout.engine = local, which has no server to place"),
    Case("rollout.engines", 1, "metrics/queue"),
    Case("cluster", "ray", refused="cluster with rollout.engines = 0"),  # tests/cluster shows its effect
    Case("cluster.address", "local", refused="cluster with rollout.engines = 0"),
    Case("train.run_ahead", 1, "metrics/staleness/mean", given={"rollout.engines": 1, "train.max_staleness": 1}),
    Case("train.max_staleness", 1, refused="ConfigError: train.max_staleness = 1"),
    Case("train.publish_every", 2, "metrics/staleness/mean"),
    Case(
        "train.max_sampling_rounds",
        1,
        refused="GuardStop: step .* in 1 rounds of sampling had a signal",
        given={"algorithm": "dapo", "algorithm.dynamic_sampling": True},
    ),
    Case("evaluation.every", 1, "events", given=MEASURED),
    Case("evaluation.prompts", 2, "answers/baseline"),
    Case("evaluation.samples", 2, "answers/baseline"),
    Case("evaluation.temperature", 0.1, "answers/baseline"),
    Case("evaluation.max_completion_length", 2, "answers/baseline"),
    Case("evaluation.confidence", 0.5, "evaluation/baseline/greedy/score/low"),
    Case("evaluation.forgetting", "text.txt", "evaluation/forgetting"),
    Case("evaluation.other_prompts", "prompts.jsonl", "evaluation/others"),
    Case(
        "evaluation.max_drift", 0.5, "evaluation/others/max_drift", given={"evaluation.other_prompts": "prompts.jsonl"}
    ),
    Case("evaluation.writing", 2, "evaluation/writing"),
    Case("checkpoint.every", 1, "files"),
    Case("checkpoint.keep", 1, "files"),
    Case("guards.max_unscored", 0.0, refused="RewardError: step 1: .* got no reward", given=FAILING),
    Case("guards.max_unscored", 0.0, refused="RewardError: .* completions .* have no reward", given=FAILING | MEASURED),
    Case(
        "guards.no_signal_steps",
        1,
        refused="GuardStop: step 1: all 8 answers got reward 0",
        given={"rewards": [{"name": "numeric"}]},
    ),
    Case("guards.max_truncated", 0.0, "events"),
    Case("guards.truncated_steps", 1, refused="GuardStop: step 1: .* were cut", given={"guards.max_truncated": 0.0}),
    Case("guards.publish_tolerance", 1e-12, refused="PublishError: token .* in the sampler", given=LONG_PROMPTS),
    Case("alarms.enabled", False, "metric names"),
    Case("alarms.on_alarm", "stop", refused="AlarmStop: stopped after step 1: the independent check", given=CHECKED),
    Case("alarms.on_alarm", "pause", refused="AlarmStop: paused after step 1: the independent check", given=CHECKED),
    Case("alarms.check_sample", 1, "metrics/check/checked", given=CHECKED),
    Case("alarms.accepted_at", 0.0, "metrics/check/accepted", given=CHECKED),
    Case("alarms.check_accepts_at", 0.0, "metrics/check/rejected", given=CHECKED),
    Case("alarms.baseline_disagreement", 0.5, "metrics/alarms/cusum", given=CHECKED),
    Case("alarms.disagreement_ratio", 9.0, "metrics/alarms/cusum", given=CHECKED),
    Case("alarms.cusum_limit", 1000, "events", given=CHECKED),
    Case("alarms.reference_steps", 2, "events", given=GAMED),
    Case("alarms.heldout_z", None, "events", given=GAMED),
    Case("alarms.heldout_window", 3, "events", given=GAMED),
    Case("alarms.gap", None, "events", given=GAMED),
    Case("alarms.length_correlation", None, "events", given=GAMED),
    Case("alarms.length_ratio", None, "events", given=GAMED),
    Case("alarms.truncated", None, "events", given=GAMED),
    Case("alarms.distinct_ratio", 1.0, "events", given=GAMED),
    Case("alarms.compression_ratio", 1.01, "events", given=GAMED),
    Case("alarms.template", None, "events", given=ALIKE),
    Case("alarms.concentration", None, "events", given=ALIKE),
    Case("alarms.entropy_ratio", 0.99, "events", given=GAMED),
    Case("alarms.kl_ratio", 1.01, "events", given=HELD),
    Case("alarms.failures", None, "events", given=FAILS_MORE),
    Case("alarms.no_signal", None, "events", given=GAMED),
    Case("output", "elsewhere/mine", "folder"),
    Case("seed", 1, "rollouts/completion"),
    Case("report", True, "files"),
    Case("report_to", ["tensorboard"], "files"),
    Case("reinforce.baseline", "none", "weights"),
    Case("reinforce.baseline_decay", 0.1, "weights", given=MOVING_AVERAGE),
    Case("reinforce.clip_low", 0.1, "weights", given=CLIPPED),
    Case("reinforce.clip_high", 0.1, "weights", given=CLIPPED),
    Case("reinforce.kl_coef", 0.1, "weights"),
    Case("reinforce.gamma", 0.5, "weights"),
    Case("reinforce.entropy_coef", 0.1, "weights"),
    Case("rloo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("rloo.clip_high", 0.1, "weights", given=CLIPPED | {"rewards": [reward("digits")]}),
    Case("rloo.kl_coef", 0.1, "weights"),
    Case("rloo.gamma", 0.5, "weights"),
    Case("rloo.entropy_coef", 0.1, "weights"),
    Case("grpo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("grpo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("grpo.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    *(Case(f"{key}.top_entropy_quantile", 0.5, "weights") for key in ("grpo", "dr_grpo", "dapo")),
    Case("grpo.kl_coef", 0.1, "weights"),
    Case("grpo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("grpo.entropy_coef", 0.1, "weights"),
    Case("dr_grpo.max_completion_length", 100, "metrics/grad_norm"),
    Case("dr_grpo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("dr_grpo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("dr_grpo.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    Case("dr_grpo.kl_coef", 0.1, "weights"),
    Case("dr_grpo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("dr_grpo.entropy_coef", 0.1, "weights"),
    *(Case(f"{key}.entropy_coef", 0.1, "weights") for key in TRUST_REGIONS),
    *(Case(f"{key}.correction", "tis", "metric names") for key in TRUST_REGIONS),
    *(Case(f"{key}.correction", {"high": 1.0}, "weights", given=STALE | beside) for key, beside in CORRECTED.items()),
    Case("algorithm.correction.anchor", "loglinear", "weights", given=STALE | {"algorithm.correction": {"high": 1.0}}),
    Case("algorithm.correction.level", "sequence", "weights", given=STALE | {"algorithm.correction": {"high": 1.0}}),
    Case("algorithm.correction.action", "mask", "weights", given=STALE | {"algorithm.correction": {"high": 1.0}}),
    Case("algorithm.correction.score", "geometric", "weights", given=STALE | {"algorithm.correction": MASKED}),
    Case("algorithm.correction.low", 0.99, "weights", given=STALE | {"algorithm.correction": MASKED}),
    Case("algorithm.correction.high", 1.01, "weights", given=STALE | {"algorithm.correction": MASKED}),
    Case(
        "algorithm.correction.reject",
        [{"score": "token", "low": 0.999}],
        "weights",
        given=STALE | {"algorithm.correction": {"high": 1.0}},
    ),
    Case("algorithm.correction.normalize", True, "metrics/grad_norm", given=STALE | {"algorithm.correction": MASKED}),
    Case(
        "algorithm.correction.rejected_in_denominator",
        False,
        "metrics/grad_norm",
        given=STALE | {"algorithm.correction": MASKED},
    ),
    *(Case(f"policy_gradient.{name}", value, "weights", given=run) for name, (run, value) in COMPOSED.items()),
    Case("lite_ppo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("lite_ppo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("lite_ppo.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    Case("lite_ppo.kl_coef", 0.1, "weights"),
    Case("lite_ppo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("lite_ppo.entropy_coef", 0.1, "weights"),
    Case("luspo.clip_low", 9.0, "weights", given=SEVERAL_UPDATES),
    Case("luspo.clip_high", 9.0, "weights", given=SEVERAL_UPDATES),
    Case("luspo.entropy_coef", 0.1, "weights"),
    Case("maxrl.clip_low", 0.1, "weights", given=CLIPPED),
    Case("maxrl.clip_high", 0.1, "weights", given=CLIPPED),
    Case("grpo_passk.clip_high", 0.001, "weights", given=SEVERAL_UPDATES),
    *(Case(f"{key}.entropy_coef", 0.1, "weights") for key in ("maxrl", "dro", "grpo_passk")),
    Case("dro.tau", 5.0, "weights", given=SEVERAL_UPDATES),
    Case("dro.correction", {"high": 1.0}, "weights", given=STALE),
    Case("opo.entropy_coef", 0.1, "weights"),
    Case("gpg.entropy_coef", 0.1, "weights"),
    Case("dapo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("dapo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("dapo.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    Case("dapo.kl_coef", 0.1, "weights"),
    Case("dapo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("dapo.overlong_buffer", 3, "weights"),
    Case("dapo.max_completion_length", 100, "weights", given={"algorithm.overlong_buffer": 3}),
    Case("dapo.dynamic_sampling", False, "metric names"),
    Case("gspo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("gspo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("gspo.kl_coef", 0.1, "weights"),
    Case("gspo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("gspo_token.clip_low", 0.1, "weights", given=CLIPPED),
    Case("gspo_token.clip_high", 0.1, "weights", given=CLIPPED),
    Case("gspo_token.kl_coef", 0.1, "weights"),
    Case("gspo_token.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("gmpo.clip_low", 0.05, "weights", given=CLIPPED),
    Case("gmpo.clip_high", 0.05, "weights", given=CLIPPED),
    Case("cispo.max_ratio", 1.0, "weights", given=SEVERAL_UPDATES),
    Case("cispo.clip_low", 0.1, "weights", given=SEVERAL_UPDATES | {"algorithm.max_ratio": None}),
    Case("cispo.clip_high", 0.1, "weights", given=SEVERAL_UPDATES | {"algorithm.max_ratio": None}),
    Case("sapo.tau_pos", 2.0, "weights", given=SEVERAL_UPDATES),
    Case("sapo.tau_neg", 2.0, "weights", given=SEVERAL_UPDATES),
    *(Case(f"vespo.{name}", 1.0, "weights", given=SEVERAL_UPDATES) for name in VESPO_WEIGHTS),
    Case("clip_cov.clip_low", 0.1, "weights", given=SEVERAL_UPDATES),
    Case("clip_cov.clip_high", 0.1, "weights", given=SEVERAL_UPDATES),
    Case("clip_cov.cov_low", -9.0, "weights"),
    Case("clip_cov.cov_high", 0.1, "weights", given={"algorithm.cov_low": -9.0, "algorithm.cov_share": 0.9}),
    Case("clip_cov.cov_share", 0.5, "weights", given={"algorithm.cov_low": -9.0}),
    Case("clip_cov.seed", 1, "weights", given={"algorithm.cov_low": -9.0}),
    Case("clip_cov.dynamic_sampling", False, "metric names"),
    Case("kl_cov.cov_share", 0.5, "weights", given=SEVERAL_UPDATES),
    Case("kl_cov.penalty", 9.0, "weights", given=SEVERAL_UPDATES),
    Case("kl_cov.dynamic_sampling", False, "metric names"),
    Case("dppo.divergence", "kl", "weights", given=NARROW),
    Case("dppo.divergence_low", 9.0, "weights", given=NARROW),
    Case("dppo.divergence_high", 9.0, "weights", given=NARROW),
    Case("dppo.max_ratio", 1.001, "weights", given=SEVERAL_UPDATES),
    Case("remax.clip_low", 0.1, "weights", given=CLIPPED),
    Case("remax.clip_high", 0.1, "weights", given=CLIPPED),
    Case("remax.kl_coef", 0.1, "weights"),
    Case("remax.gamma", 0.5, "weights"),
    Case("remax.entropy_coef", 0.1, "weights"),
    Case("reinforce_plus_plus.clip_low", 0.1, "weights", given=CLIPPED),
    Case("reinforce_plus_plus.clip_high", 0.1, "weights", given=CLIPPED),
    Case("reinforce_plus_plus.kl_coef", 0.1, "weights"),
    Case("reinforce_plus_plus.gamma", 0.5, "weights"),
    Case("reinforce_plus_plus.whiten_over", "sequences", "metrics/grad_norm", given=UNEVEN),
    Case("reinforce_plus_plus.entropy_coef", 0.1, "weights"),
    Case("reinforce_plus_plus_baseline.clip_low", 0.1, "weights", given=CLIPPED),
    Case("reinforce_plus_plus_baseline.clip_high", 0.1, "weights", given=CLIPPED),
    Case("reinforce_plus_plus_baseline.kl_coef", 0.1, "weights"),
    Case("reinforce_plus_plus_baseline.gamma", 0.5, "weights"),
    Case("reinforce_plus_plus_baseline.whiten_over", "sequences", "metrics/grad_norm", given=UNEVEN),
    Case("reinforce_plus_plus_baseline.center", False, "weights", given=UNEVEN),
    Case("reinforce_plus_plus_baseline.entropy_coef", 0.1, "weights"),
    Case("gdpo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("gdpo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("gdpo.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    Case("gdpo.kl_coef", 0.1, "weights"),
    Case("gdpo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("gdpo.entropy_coef", 0.1, "weights"),
    Case("topr.baseline", 0.5, "weights"),
    Case("topr.entropy_coef", 0.1, "weights"),
    Case("kimi_k15.tau", 1.0, "weights", given=SEVERAL_UPDATES),
    Case("kimi_k15.length_coef", 0.5, "weights", given=UNEVEN),
    Case("kimi_k15.correct_at", 2.0, "weights", given=UNEVEN | {"algorithm.length_coef": 0.5}),
    Case("kimi_k15.entropy_coef", 0.1, "weights"),
    Case("kimi_k2.tau", 1.0, "metrics/grad_norm"),
    Case("kimi_k2.token_budget", 2, "weights", given=UNEVEN),
    Case("kimi_k2.budget_penalty", 0.25, "weights", given=UNEVEN | {"algorithm.token_budget": 2}),
    Case("kimi_k2.ptx_coef", 0.1, "weights", given=PTX),
    Case("kimi_k2.entropy_coef", 0.1, "weights"),
    Case("pass_at_k.k", 2, "weights", given={"algorithm.k": 1}),
    Case(
        "pass_at_k.k",
        4,
        refused="ConfigError: sampling.group_size = 4, but pass_at_k .* needs at least 5",
        given={"algorithm.k": 2},
    ),
    Case("pass_at_k.correct_at", 2.0, "weights", given={"algorithm.k": 2}),
    Case("pass_at_k.clip_low", 0.1, "weights", given=CLIPPED | {"algorithm.k": 2}),
    Case("pass_at_k.clip_high", 0.1, "weights", given=CLIPPED | {"algorithm.k": 2}),
    Case("pass_at_k.entropy_coef", 0.1, "weights", given={"algorithm.k": 2}),
    Case("deepseek_v32.clip_low", 0.1, "weights", given=CLIPPED),
    Case("deepseek_v32.clip_high", 0.1, "weights", given=CLIPPED),
    Case("deepseek_v32.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    Case("deepseek_v32.max_negative_divergence", 1e-4, "weights", given=SEVERAL_UPDATES),
    Case("deepseek_v32.kl_coef", 0.1, "weights"),
    Case("deepseek_v32.kl_estimator", "k3", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("deepseek_v32.entropy_coef", 0.1, "weights"),
    Case(
        "distillation.divergence",
        "forward_kl",
        refused="ConfigError: algorithm: divergence = 'forward_kl', which sampled tokens cannot minimise",
        given=BY_ANOTHER,
    ),
    Case("ppo.clip_low", 0.1, "weights", given=CLIPPED),
    Case("ppo.clip_high", 0.1, "weights", given=CLIPPED),
    Case("ppo.dual_clip", 1.01, "weights", given=SEVERAL_UPDATES),
    Case("ppo.value_clip", None, "weights", given=DENSE_CRITIC),
    Case("ppo.value_coef", 0.1, "weights", given={"critic.kind": "shared"}),
    Case("ppo.gamma", 0.5, "weights"),
    Case("ppo.gae_lambda", 0.5, "weights"),
    Case("ppo.kl_coef", 0.1, "weights"),
    Case("ppo.kl_target", 0.01, "weights", given={"train.steps": 3, "algorithm.kl_coef": 0.5}),
    Case("ppo.kl_estimator", "k2", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("ppo.whiten_advantages", False, "weights"),
    Case("ppo.whiten_rewards", True, "weights"),
    Case("ppo.score_clip", 0.5, "weights"),
    Case("ppo.missing_eos_penalty", 0.5, "weights"),
    Case("ppo.entropy_coef", 0.1, "weights"),
    Case("ppo.correction", "tis", "metric names"),
    Case("distillation.coef", 0.5, "metrics/grad_norm", given=BY_ANOTHER),
    Case("distillation.floor", -0.01, "weights", given=BY_ANOTHER),
    Case("distillation.clip_low", 0.1, "weights", given=CLIPPED | BY_ANOTHER),
    Case("distillation.clip_high", 0.1, "weights", given=CLIPPED | BY_ANOTHER),
    Case("distillation.entropy_coef", 0.1, "weights", given=BY_ANOTHER),
    Case("sampled_pairs", {"max_per_prompt": 2}, "weights", given=ROUND),
    Case("sampled_pairs.select", "random", "weights", given=ROUND),
    Case("sampled_pairs.min_gap", 0.4, "weights", given=ROUND),
    Case("sampled_pairs.correct_at", 0.7, "weights", given=ROUND),
    Case("sampled_pairs.max_per_prompt", 2, "weights", given=ROUND),
    Case(
        "sampled_pairs.max_without",
        0.0,
        refused="DataError: sampled_pairs: .* prompts without a pair: .* max_without = 0%",
        given=ROUND | {"sampled_pairs": {"correct_at": 0.7}},
    ),
    Case("online_dpo.loss", "ipo", "weights"),
    Case("online_dpo.beta", 0.5, "metrics/grad_norm"),
    Case("online_dpo.ties", "first", "rollouts/role"),
    Case("online_dpo.pairs", "all", "rollouts/role"),
    Case("online_dpo.missing_eos_penalty", 0.5, "metrics/score"),
    Case("online_dpo.label_smoothing", 0.1, "metrics/grad_norm"),
    Case("reference", "other_model", "weights", given={"algorithm.kl_coef": 0.1}),
    Case("reference", "other_model", "weights", given=PAIRS | {"algorithm": "dpo"}),
    Case("reference.path", "other_model", "weights", given=PAIRS | {"algorithm": "dpo", "reference": "model"}),
    Case(
        "reference.revision",
        "v2",
        "weights",
        given=PAIRS | {"algorithm": "dpo", "model": "me/tiny", "reference": "me/tiny"},
    ),
    Case(
        "reference.trust_remote_code",
        False,
        refused="ModelError: .* needs Python code that comes with the model",
        given=PAIRS | {"algorithm": "dpo", "reference": {"path": "custom_model", "trust_remote_code": True}},
    ),
    *(Case(f"{key}.beta", 0.7, "metrics/loss", given=PAIRS) for key in BETA_OF_PAIRS),
    *(Case(f"{key}.label_smoothing", 0.2, "metrics/loss", given=PAIRS) for key in SMOOTHED),
    Case("dpo.divergence", "forward_kl", "metrics/loss", given=PAIRS),
    Case("dpo.alpha", 0.2, "metrics/loss", given=PAIRS | {"algorithm.divergence": "alpha"}),
    Case("dpo.tail_weight", 0.3, "metrics/loss", given=PAIRS),
    Case("discopop.tau", 0.5, "metrics/loss", given=PAIRS),
    Case("ipo.tau", 0.5, "metrics/loss", given=PAIRS),
    Case("ipo.length_average", False, "metrics/grad_norm", given=PAIRS),
    *(Case(f"{key}.alpha", 0.3, "metrics/loss", given=PAIRS) for key in ("rpo", "dpop", "cpo", "simpo", "mpo")),
    *(
        Case(f"{key}.nll_normalization", "sum", "metrics/loss", given=PAIRS | beside)
        for key, beside in {"rpo": {}, "mpo": {}, "cpo": {}, "orpo": {}, "dpop": {"algorithm.alpha": 1.0}}.items()
    ),
    Case("dpop.penalty", 5.0, "metrics/loss", given=PAIRS | {"model.path": "other_model", "reference": "model"}),
    Case("simpo.gamma", 0.1, "metrics/loss", given=PAIRS),
    Case("simpo.label_smoothing", 0.1, "metrics/loss", given=PAIRS),
    *(Case(f"mpo.{name}", 0.5, "metrics/loss", given=PAIRS) for name in ("dpo_weight", "bco_weight")),
    Case("simpo.gamma_beta_ratio", 0.9, "metrics/loss", given=PAIRS),
    *(Case(f"{key}.beta", 0.7, "metrics/grad_norm", given=LABELS) for key in ("kto", "bco")),
    Case("kto.desirable_weight", 3.0, "metrics/loss", given=LABELS),
    Case("kto.undesirable_weight", 3.0, "metrics/loss", given=LABELS),
    Case(
        "bco.reduction", "class_means", "metrics/loss", given=LABELS | MEASURED
    ),  # the two classes of these rows differ in size
    Case("aot.comparison", "unpaired", "metrics/loss", given=PAIRS),
    Case("reward_model.margin", 1.0, "weights", given=PAIRS),
    Case("reward_model.margin", "data", "weights", given=PAIRS),
    Case("reward_model.center_coef", 1.0, "weights", given=PAIRS),
    Case("reward_regression.regress", "squared", "weights", given=RATED),
    Case(
        "reward_regression.regress",
        "logistic",
        refused="DataError: .* of 32 ratings are not between 0 and 1",
        given=RATED,
    ),
    Case("process_reward_model.separator", "7", "weights", given=IN_STEPS),
    Case("process_reward_model.aggregate", "mean", "evaluation/trained/answer_score", given=IN_STEPS),
]


SHOWN_BY_WATCHES = {
    f"alarms.{name}"
    for name in (
        *("length_correlation", "length_ratio", "truncated", "distinct_ratio", "compression_ratio", "template"),
        *("entropy_ratio", "kl_ratio", "no_signal", "concentration", "failures"),
        *("reference_steps", "heldout_z", "heldout_window", "gap"),
    )
}
"""Settings that set off alarms. tests/watch/test_alarms.py moves each of them. Here, alarms.cusum_limit does."""
SHOWN_BY_ENGINES = {"rollout.engines", "train.run_ahead"}
"""tests/faults/test_engines.py uses engines that run ahead."""
GIVEN_TO_SESSIONS = {
    *("environment.settings", "environment.timeout", "environment.attempts", "environment.max_result_length"),
    *("agent.command", "agent.settings", "agent.timeout", "agent.attempts", "agent.history", "agent.sampling"),
    *("environment.history", "sampling.max_turns", "sampling.max_trajectory_length"),
}
"""test_a_setting_of_turns_reaches_their_sessions checks the way to the sessions, and tests/episodes the effect of each
setting there. Runs show environment.function, agent.function and tools."""
OF_CRITIC_UPDATES = ("learning_rate", "max_grad_norm", "warmup_steps")
OF_CORRECTIONS = {field.name for field in fields(Correction)} - {"action"}
SHOWN_BY_PARTS: dict[str, Callable[[RunConfig], object]] = {
    **{f"rewards.N.{name}": parts.scores for name in ("name", "function", "model", "timeout")},
    **{f"rewards.N.{name}": parts.scores for name in ("gate", "gate.label", "gate.at_least")},
    **{f"rewards.N.judge.{name}": parts.scores for name in JudgeConfig.model_fields},
    **{f"check.N.{name}": parts.scores for name in ("name", "function", "model", "timeout", "label", "judge")},
    **{f"lora.{name}": parts.policy for name in ("rank", "alpha", "target_modules")},
    **{f"critic.{name}": parts.policy for name in CriticConfig.model_fields if name not in OF_CRITIC_UPDATES},
    **{f"critic.{name}": parts.updates_of_critic for name in OF_CRITIC_UPDATES},
    **{f"model.{name}": parts.policy for name in ("gguf_file", "revision")},
    **{f"algorithm.correction.{name}": parts.correction for name in OF_CORRECTIONS},
    **dict.fromkeys(("teacher.revision", "reference.path", "reference.revision"), parts.frozen),
    **{
        f"data.{name}": parts.rows
        for name in ("split", "eval_split", "eval_fraction", "hold_out", "columns", "max_rows", "part")
    },
    **{f"train.{name}": parts.updates for name in ("schedule", "warmup_steps", "min_learning_rate_ratio")},
    **{f"train.{name}": parts.updates for name in ("weight_decay", "adam_beta1", "adam_beta2", "adam_eps")},
    "train.max_grad_norm": parts.updates,
    **{f"sampled_pairs.{name}": parts.pairs for name in ("select", "min_gap", "correct_at", "max_per_prompt")},
}
"""Settings that one part of a run is given, and what to look at there. Runs show that they use these parts, by a whole
section or by one of its other settings: rewards.N.judge, rewards.N.weight, check.N.settings, model.path, lora,
lora.dropout, critic, algorithm.correction.action, teacher.path, reference, data.train, data.eval, train.learning_rate
and sampled_pairs. The tests of each part show how much a setting changes."""
REFUSED_BY_PARTS = {"environment.history"}
"""Settings with a refusal for which a whole run must begin. tests/episodes/test_bridge.py asks the part itself."""
PARTS_IN_WHOLE_RUNS = {"rewards.N.judge.rubric"}
"""Settings of such parts that `make test` shows by whole runs, too."""
ASKED_OF_LOSSES = (PolicyGradient, PairLoss, LabelLoss)
"""Kinds of losses whose every setting is tested on the loss itself."""
IN_WHOLE_RUNS = ("reinforce", "grpo", "ppo", "dpo", "kto")
"""Algorithms of each such kind for which `make test` shows a setting by whole runs."""


def thinned(cases: Sequence[Case]) -> Iterator[Any]:
    """Mark cases as slow that other tests cover.

    All losses get their settings from the config in the same way. If a first setting of a loss of IN_WHOLE_RUNS has
    shown that way to work, its other settings are slow, and so are the settings of other losses.
    test_a_setting_of_a_loss_reaches_it_alone checks that each of them reaches its loss. tests/algorithms checks that
    each loss heeds each of its settings, in test_settings.py and test_preference_invariances.py.

    Likewise, settings of a part that is made from the config are slow, except for a few.
    test_a_setting_changes_the_part_that_it_is_given_to makes each part with and without the change.

    Settings in the sets above are slow, too, and so are further values of a setting. Slow cases have a larger model.
    """
    shown = set[str]()
    changed = set[str]()
    elsewhere = SHOWN_BY_WATCHES | SHOWN_BY_ENGINES | GIVEN_TO_SESSIONS | (SHOWN_BY_PARTS.keys() - PARTS_IN_WHOLE_RUNS)
    for case in cases:
        key, name = case.algorithm, case.setting.removeprefix(f"{case.algorithm}.")
        repeated = not case.refused and case.setting in (elsewhere | changed)
        if key and issubclass(ALGORITHMS[key], ASKED_OF_LOSSES) and (key, name) not in SHOWN_ELSEWHERE:
            repeated |= not case.refused and (key not in IN_WHOLE_RUNS or key in shown)
            shown |= set() if case.refused else {key}
        changed |= set() if case.refused else {case.setting}
        repeated |= bool(case.refused) and case.setting in REFUSED_BY_PARTS
        marks = [pytest.mark.slow] if repeated else []
        yield pytest.param(case.on_a_deep_model() if repeated else case, id=case.setting, marks=marks)


ENDS_THE_PROCESS = {"guards.stalled_minutes"}
"""tests/faults/test_stalls.py shows its effect, in separate processes."""
SHOWN_WITH_RANKS = {"train.restarts", "train.rank_deadline"}
"""tests/ranks/test_jobs.py shows their effect."""
SHOWN_WITH_ENGINES = {"rollout.keep_cache", "rollout.deadline"}
"""tests/engines/test_continuous.py and tests/faults/test_engines.py show their effect. They need a change of weights
during sampling, and an engine that hangs."""
SHOWN_ON_A_CLUSTER = {"cluster.rank_cpus", "cluster.engine_cpus", "cluster.reward_workers"}
"""tests/cluster shows which resources they request from a cluster, and that the cluster has them."""


def test_every_setting_has_a_case():
    """A new setting fails here until it has a line above. `check` and `rewards` share the settings of a judge."""
    settings = {doc.path for doc in describe_fields() if not doc.path.startswith("check.N.judge.")}
    settings |= {f"{key}.{name}" for key, algorithm in ALGORITHMS.items() for name in attributes(algorithm)}
    settings |= {f"algorithm.correction.{setting.name}" for setting in fields(Correction)}
    elsewhere = ENDS_THE_PROCESS | SHOWN_WITH_ENGINES | SHOWN_ON_A_CLUSTER | SHOWN_WITH_RANKS
    assert {case.setting for case in CASES} | elsewhere == settings


def test_without_a_change_nothing_differs(place):
    """Otherwise the test below would prove nothing."""
    once, again = place.record({}, with_effort=True), place.run({}, with_effort=True)
    assert once == again
    assert all(share < 1 for share in once["metrics/frac_reward_zero_std"]), (
        "without a signal the step would change no weight"
    )


@pytest.mark.parametrize("case", list(thinned(CASES)))
def test_a_setting_changes_something(place, case):
    if case.needs:
        pytest.importorskip(case.needs, reason="its extra is not installed")
    if case.refused and (said := place.refusal(case.after)):
        assert re.search(case.refused, said)
        assert place.refusal(case.before) is None, "the run is also refused without the setting"
        return
    before = place.record(case.before, with_effort=case.with_effort)
    after = place.record(case.after, with_effort=case.with_effort)
    assert "error" not in before
    if case.refused:
        assert re.search(case.refused, after.get("error", "it ran to its end"))
        return
    assert "error" not in after
    assert part(after, case.changes) != part(before, case.changes), f"{case.changes} is the same with and without"
    if case.keeps:
        assert part(after, case.keeps) == approximately(part(before, case.keeps))


@catalogue("case", [case for case in CASES if case.algorithm and not case.refused], ids=lambda case: case.setting)
def test_a_setting_of_a_loss_reaches_it_alone(place, case):
    before, after = (place.algorithm(changes) for changes in (case.before, case.after))
    changed = {name for name in attributes(type(after)) if getattr(after, name) != getattr(before, name)}
    name = case.setting.removeprefix(f"{case.algorithm}.")
    assert name in changed
    assert changed <= {name, "loss"}, "online_dpo derives its loss from the other settings"


@catalogue(
    "case", [case for case in CASES if case.setting in GIVEN_TO_SESSIONS and not case.refused], lambda c: c.setting
)
def test_a_setting_of_turns_reaches_their_sessions(place, monkeypatch, case):
    """Compare everything that processes with an environment or an agent receive. None has to start."""
    monkeypatch.setattr(Sessions, "start", lambda sessions: None)
    before, again, after = (sessions_of(place, changes) for changes in (case.before, case.before, case.after))
    assert before == again != after


@catalogue("case", [case for case in CASES if case.setting in SHOWN_BY_PARTS and not case.refused], lambda c: c.setting)
def test_a_setting_changes_the_part_that_it_is_given_to(place, parts_before, case):
    def look(changes: Mapping[str, Any]) -> object:
        with contextlib.chdir(place.folder):
            return SHOWN_BY_PARTS[case.setting](load_config(PLAIN, changes).config)

    made = f"{SHOWN_BY_PARTS[case.setting].__name__} {json.dumps(case.before)}"
    if made not in parts_before:
        parts_before[made] = look(case.before)
        assert parts_before[made] == look(case.before), "it differs without a change"
    assert look(case.after) != parts_before[made]


@pytest.fixture(scope="module")
def parts_before() -> dict[str, object]:
    """Keep parts without a change, as several settings of a part begin with the same one."""
    return {}


def sessions_of(place: Place, changes: Mapping[str, Any]) -> tuple[object, ...]:
    with contextlib.chdir(place.folder), contextlib.ExitStack() as resources:
        found = Acting.of(load_config(PLAIN, changes).config, resources)
        assert found is not None
        return found.sessions.setup, found.limits, found.history


def part(record: Record, name: str) -> Record:
    """Return the entries with this name, or with this name before a slash."""
    return {key: value for key, value in record.items() if key == name or key.startswith(f"{name}/")}


def approximately(record: Record) -> Record:
    return {k: pytest.approx(v, rel=1e-3) if isinstance(v[0], float) else v for k, v in record.items()}


def test_code_that_comes_with_a_model_runs_only_when_asked_for(place):
    marker = place.folder / "executed"
    custom_model(place.folder / "marking_model", code=f"open({str(marker)!r}, 'w').close()")
    place.record({"model": "marking_model"})
    assert not marker.exists()
    place.record({"model": "marking_model", "model.trust_remote_code": True})
    assert marker.exists()


# --- the place for the runs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    """Provide models of every form, data and rewards. Caches in this folder stand in for the Hub."""
    folder = tmp_path_factory.mktemp("settings")
    tiny_model(folder / "model", **SMALL)
    tiny_model(folder / "other_model", **SMALL, seed=1)
    tiny_model(folder / "wide_model", **SMALL, hidden_size=64)
    tiny_model(folder / "deep_model", characters=CHARACTERS)
    tiny_model(folder / "judge_model", **SMALL, max_position_embeddings=4096)
    (folder / "judge.txt").write_text("{prompt} <answer>\n{completion}\n</answer> Score: N")
    custom_model(folder / "custom_model")
    for name, seed in (("model.gguf", 0), ("other.gguf", 1)):
        write_gguf(folder / "gguf" / name, seed=seed)
    for revision, seed in (("main", 0), ("v2", 1)):
        cache_on_hub(folder / "hub" / "models--me--tiny", revision, seed=seed)
    write_prompts(folder / "prompts.jsonl", seed=0)
    write_pairs(folder / "pairs.jsonl")
    write_judged(folder)
    write_labels(folder / "labels.jsonl")
    write_talks(folder / "talks.jsonl")
    for seed, name in enumerate(("a_reward_model", "other_reward_model")):
        reward_model = load_reward_model(ModelConfig(path=str(folder / "model"), device="cpu"), seed=seed)
        save_reward_model(reward_model, folder / name, ScoringFacts(chat=False))
    write_prompts(folder / "other_prompts.jsonl", seed=1)
    (folder / "repeated_prompts.jsonl").write_text(2 * (folder / "prompts.jsonl").read_text())
    write_examples(folder / "examples.jsonl", completion="1 2 3")
    write_examples(folder / "other_examples.jsonl", completion="9 8 7")
    cache_dataset(folder, "numbers", splits=("train", "validation", "test"))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "chat.jinja").write_text(TEMPLATE)
    write_turns(folder)
    (folder / "text.txt").write_text("3 1 4 1 5 9 2 6 5 3 5 8 9 7 9")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "datasets"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
        patch.setattr(sys, "path", sys.path.copy())  # transformers appends its folder of modules
        patch.setattr(before_run, "plan_first", lambda *run: None)  # it estimates, and decides nothing in these runs
        patch.setenv(KEY, "a-key")
        with verdicts_by_hash():
            yield Place(folder, PLAIN)


REWARDS = """
import time


def length(completions):
    return [len(completion) / 4 for completion in completions]


def digits(completions):
    return [sum(map(str.isdigit, completion)) / 4 for completion in completions]


def slow(completions):
    time.sleep(0.4)
    return length(completions)


def sevens(completions):
    return [float("7" in completion) for completion in completions]


def no_sevens(completions):
    return [float("7" not in completion) for completion in completions]


def fails_at_several_sevens(completion):
    if completion.count("7") > 1:
        raise ValueError("several")
    return float("7" in completion)


def fails_sometimes(completion):
    if "3" in completion:
        raise ValueError("a three")
    return len(completion) / 4
"""

TEMPLATE = "{% for message in messages %}{{ message.content }}{{ ' ' * 2 }}{% endfor %}{{ '0' if shout is defined }}"


def write_prompts(file: Path, *, seed: int, count: int = 24) -> None:
    dice = random.Random(seed)
    prompts = dice.sample([10**length + number for length in (1, 2, 3, 4) for number in range(9)], k=count)
    rows = [
        {
            "prompt": str(prompt),
            "answer": str(dice.randrange(5000)),
            "other_answer": str(dice.randrange(5000)),
            "hint": f"{number} 0",
            "parity": ("even", "odd")[prompt % 2],
        }
        for number, prompt in enumerate(prompts)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_examples(file: Path, *, completion: str, count: int = 24) -> None:
    rows = [{"prompt": str(number), "completion": completion} for number in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_talks(path: Path, *, count: int = 24) -> None:
    """Write dialogues of two questions, each with its answer."""
    roles = ("user", "assistant") * 2
    rows = [
        {"messages": [{"role": role, "content": str(number * place)} for place, role in enumerate(roles, start=1)]}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_labels(path: Path) -> None:
    """Write repeated digits, which are desirable if the repetition is right."""
    rows = [
        {"prompt": f"{n} {n}", "completion": str(n + wrong) * (2 + wrong), "label": not wrong}
        for n in range(9)
        for wrong in (0, 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_pairs(file: Path) -> None:
    """Write pairs of numbers. The longer one is chosen, and the margin is the difference in digits."""
    dice = random.Random(0)
    rows = [
        {"prompt": f"{number}", "chosen": "7" * (1 + more), "rejected": str(dice.randrange(10)), "margin": more}
        for number, more in enumerate((1, 2, 3, 4) * 8)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_judged(folder: Path) -> None:
    """Write numbers rated by their number of digits, and digits as steps that are right if even."""
    numbers = [f"{number * number}" for number in range(1, 33)]
    rated = [{"prompt": "1", "completion": number, "score": len(number)} for number in numbers]
    steps = [{"prompt": "1", "completions": [*n], "labels": [int(d) % 2 == 0 for d in n]} for n in numbers]
    for name, rows in (("ratings", rated), ("steps", steps)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def custom_model(folder: Path, code: str = "") -> None:
    """Write a model whose architecture transformers does not know, with its Python code."""
    tiny_model(folder, **SMALL)
    (folder / "configuration_custom.py").write_text(
        "from transformers import LlamaConfig\n\n\nclass CustomConfig(LlamaConfig):\n    model_type = 'custom_llama'\n"
    )
    (folder / "modeling_custom.py").write_text(
        "from transformers import LlamaForCausalLM\n\nfrom .configuration_custom import CustomConfig\n\n"
        f"{code}\n\n\nclass CustomForCausalLM(LlamaForCausalLM):\n    config_class = CustomConfig\n"
    )
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "custom_llama",
        "architectures": ["CustomForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_custom.CustomConfig",
            "AutoModelForCausalLM": "modeling_custom.CustomForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


def cache_on_hub(repository: Path, revision: str, *, seed: int) -> None:
    """Write a revision of a model in the form in which huggingface_hub caches a download."""
    commit = f"{seed:040x}"
    tiny_model(repository / "snapshots" / commit, **SMALL, seed=seed)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit)


def cache_dataset(folder: Path, name: str, *, splits: Sequence[str]) -> None:
    """Write a dataset in the form in which the datasets library caches a download."""
    files = {split: folder / f"{name}-{split}.jsonl" for split in splits}
    for seed, file in enumerate(files.values()):
        write_prompts(file, seed=seed)
    data_files = {split: str(file) for split, file in files.items()}
    builder = Json(
        cache_dir=str(folder / "datasets"), dataset_name=name, config_id="default", hash="0", data_files=data_files
    )
    builder.download_and_prepare()


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(file: Path, *, seed: int) -> None:
    """Write a tiny model and its tokenizer to one GGUF file."""
    model = LlamaForCausalLM.from_pretrained(tiny_model(file.parent / "whole", **SMALL, seed=seed))
    config, writer = model.config, gguf.GGUFWriter(file, "llama")
    tokens = ["<unk>", "<s>", "</s>", *CHARACTERS.replace(" ", "▁")]
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * len(CHARACTERS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    for name, tensor in model.state_dict().items():
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
