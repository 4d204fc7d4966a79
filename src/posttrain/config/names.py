"""What other libraries call our settings, and what to say when a key is unknown.

`FOREIGN` knows the names of TRL (and of the TrainingArguments under it), verl, OpenRLHF and those of AReaL's off-policy
loss. Each leads to our key, or to a sentence that says why there is none. A test holds every key that is named here
against the models.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant: the same letters in another order before a letter that is another one.

    >>> nearest("gpro", ["gspo", "grpo"])
    'grpo'
    """
    close = difflib.get_close_matches(name, list(names), n=3)
    return min(close, key=lambda other: sorted(other) != sorted(name), default=None)


@dataclass(frozen=True)
class Ours:
    """The setting of ours that does the same."""

    key: str
    note: str = ""
    """What differs."""
    same_value: bool = True
    """Can the value be taken over as it is?"""


def _near(key: str, note: str) -> Ours:
    """The setting of ours that does it in other units or words."""
    return Ours(key, note, same_value=False)


@dataclass(frozen=True)
class Nothing:
    """There is no such setting here, and why."""

    reason: str


@dataclass(frozen=True)
class ByAlgorithm:
    """One name for settings of several algorithms: that of the chosen algorithm is meant, else the first."""

    choices: tuple[Ours, ...]

    def under(self, own: Collection[str]) -> Ours:
        return next((choice for choice in self.choices if choice.key in own), self.choices[0])


Entry = Ours | Nothing | ByAlgorithm


@dataclass(frozen=True)
class Hint:
    """What to say about an unknown key: a sentence, and the key of ours that it leads to (if one)."""

    text: str
    key: str = ""


_NO_DEVICE_BATCH = Nothing(
    "posttrain has no device batch size: say train.prompts_per_step; "
    "micro-batches are derived from train.tokens_per_microbatch"
)
_NO_ACCUMULATION = Nothing(
    "posttrain has no accumulation steps: train.prompts_per_step is the size of the whole step, "
    "and micro-batches are derived from train.tokens_per_microbatch"
)
_NO_EPOCHS = Nothing(
    "posttrain counts optimizer steps, not passes over the dataset: "
    "train.steps = passes * rows / train.prompts_per_step; train.epochs counts passes over each sampled batch"
)
_NO_ENGINE = Nothing(
    "posttrain samples with its own engine, in the process that trains; there is nothing to place or tune"
)
_NO_SHARDING = Nothing("This version trains on one device; there is nothing to shard")
_OVERLONG = _near("rewards", "{name: soft_overlong, weight: 1, settings: {max_length: ..., buffer: ...}}")
_TRACKERS = _near("report_to", "a list: tensorboard, trackio, wandb; the run folder has every metric in any case")
_NO_QUANTISED = Nothing("Weights are held in float32; model.precision is the precision of the computation")
_A_REWARD_MODEL = (
    "a list: [{model: FOLDER}]; {model: reward_model} is the one that the section reward_model trains first, "
    "and [{function: my_rewards.py:score}] is code of your own"
)
_REWARD_MODELS = Nothing(
    "Reward models are entries of rewards: rewards = [{model: FOLDER}], or [{model: reward_model}] for the one that "
    "the section reward_model: {data: ..., train: ...} trains first"
)
_ALWAYS_LOGGED = Nothing("Every step is written to metrics.jsonl and every rollout to rollouts/")
_ALWAYS_EVALUATED = Nothing("Every run evaluates before and after; evaluation.every adds evaluations in between")
_ALWAYS_PACKED = Nothing("Rows are always packed, without padding tokens")
_DROPPED_PROMPTS = Nothing("Prompts longer than data.max_prompt_length are dropped and counted, never cut")
_BY_ALGORITHM = Nothing("This belongs to the algorithm: choose another one with algorithm.name (see posttrain explain)")
_RESUMED = Nothing("Continue a run with: posttrain resume RUN")
_IN_STEPS = "counted in steps: the ratio times train.steps"
_BOTH_CLIPS = "algorithm.clip_high is the other side"
_BY_NAME = (
    "grpo, dr_grpo, dapo, gspo, cispo, rloo, remax, reinforce, reinforce_plus_plus, ppo for gae, or another one of "
    "posttrain explain; or, number for number, a preset: "
)
_LIKE_TRL = (
    _BY_NAME + "trl-grpo, trl-dapo or trl-rloo; of preferences sigmoid is dpo, sigmoid_norm length_normalized_dpo, "
    "robust robust_dpo, sppo_hard sppo, and the others drop _pair; of sft dft is algorithm.dft"
)
_LIKE_VERL = _BY_NAME + "verl-grpo"
_LIKE_OPENRLHF = _BY_NAME + "openrlhf-group-norm or openrlhf-reinforce"
_CORRECTIONS = (
    "auto, none, tis, seq_tis, mis, seq_mis, icepop, geo_rs, decoupled, bypass or trl, "
    "or settings of your own: {action, level, low, high}"
)
_CORRECTION = _near("algorithm.correction", _CORRECTIONS)
_CAP = Ours("algorithm.correction.high", "beside algorithm.correction.action = truncate or mask")
_MASKED_ABOVE = Ours("algorithm.correction.high", "beside algorithm.correction.action = mask, as decoupled has it")
_CORRECTED_BY = _near("algorithm.correction.action", "truncate, mask or reject; see algorithm.correction.level")
_DECOUPLED = _near("algorithm.correction", "decoupled; the preset areal-decoupled has the whole algorithm")
_REFILL = "a setting of dapo: groups without signal are replaced until the step is full"
_NO_RANGE = Nothing("A group has signal when its rewards differ, whatever their range")
_KL = "0 is off, and loads no reference model"
_NEVER_CUT = "longer rows are dropped and counted, never cut"
_PRECOMPUTED = Nothing(
    "Reference log-probabilities of given answers are always computed before the first step and kept on disk "
    "(POSTTRAIN_CACHE), in micro-batches of train.tokens_per_microbatch"
)
_STEADY_REFERENCE = Nothing(
    "The reference stays the model that the run started from, or that of the section reference; rounds with a new "
    "reference each are stages of a pipeline"
)
_NO_BALANCING = Nothing("No balancing loss is added to that of the algorithm")
_COLUMNS = Nothing("Columns are recognised; posttrain data check shows how they are read, and what to rename")
_NO_PADDING = Nothing("Rows are packed; there is no padding token to choose or to count")
_NO_MIXED_LOSS = Nothing(
    "A run has one loss; rpo, dpop and cpo are those that add a likelihood term, weighed by algorithm.alpha"
)
_PLAIN_LORA = Nothing("Adapters are plain LoRA, of the linear layers in lora.target_modules")
_BETA = ByAlgorithm(
    (
        Ours("algorithm.beta"),
        Ours("algorithm.tau"),
        Ours("algorithm.kl_coef"),
    )
)
_LIKELIHOOD_TERM = Ours("algorithm.alpha", "a setting of rpo, dpop, cpo and simpo")

TRL: dict[str, Entry] = {
    "model_name_or_path": Ours("model.path"),
    "model_revision": Ours("model.revision"),
    "attn_implementation": _near("model.attention", "sdpa or eager"),
    "dtype": _near("model.precision", "auto, float32 or bfloat16; master weights stay float32"),
    "torch_dtype": _near("model.precision", "auto, float32 or bfloat16; master weights stay float32"),
    "bf16": _near("model.precision", "auto, float32 or bfloat16"),
    "fp16": Nothing("Float16 is not offered; model.precision is auto, float32 or bfloat16"),
    "use_cpu": _near("model.device", "auto, cpu or cuda"),
    "load_in_4bit": _NO_QUANTISED,
    "load_in_8bit": _NO_QUANTISED,
    "use_peft": _near("lora", "lora: {} switches it on"),
    "lora_r": Ours("lora.rank"),
    "lora_alpha": Ours("lora.alpha"),
    "lora_dropout": Ours("lora.dropout"),
    "lora_target_modules": Ours("lora.target_modules"),
    "dataset_name": Ours("data.train"),
    "dataset_config": _near("data.train", "written behind the name: data.train = name:config"),
    "dataset_train_split": Ours("data.split"),
    "dataset_test_split": Ours("data.eval_split"),
    "max_prompt_length": Ours("data.max_prompt_length", "longer prompts are dropped and counted, never cut"),
    "shuffle_dataset": Nothing("Prompts are always shuffled, by seed"),
    "remove_unused_columns": Nothing("Every column reaches the rewards"),
    "reward_funcs": _near("rewards", "a list of {name: ...} or {function: file.py:name}"),
    "reward_model_name_or_path": _near("rewards", _A_REWARD_MODEL),
    "reward_weights": _near("rewards", "give each entry its own weight"),
    "num_generations": Ours("sampling.group_size"),
    "num_generations_eval": Ours("evaluation.samples"),
    "max_completion_length": Ours("sampling.max_completion_length"),
    "max_new_tokens": Ours("sampling.max_completion_length"),
    "stop_strings": Ours("sampling.stop"),
    "do_sample": Nothing("sampling.temperature says it; evaluations have a greedy part of their own"),
    "generation_kwargs": Nothing("Every setting of the sampler has its own key in sampling"),
    "repetition_penalty": Nothing(
        "The trainer scores the model's own distribution, so the sampler must draw from that one, unpenalised"
    ),
    "teacher_model_name_or_path": Ours("teacher.path"),
    "teacher_model_revision": Ours("teacher.revision"),
    "use_vllm": _NO_ENGINE,
    "use_transformers_paged": _NO_ENGINE,
    "cache_implementation": _NO_ENGINE,
    "loss_type": _near("algorithm.name", _LIKE_TRL),
    "epsilon": Ours("algorithm.clip_low", _BOTH_CLIPS),
    "epsilon_high": Ours("algorithm.clip_high"),
    "delta": Ours("algorithm.dual_clip"),
    "cliprange": Ours("algorithm.clip_low", _BOTH_CLIPS),
    "cliprange_value": Ours("algorithm.value_clip"),
    "vf_coef": Ours("algorithm.value_coef"),
    "lam": Ours("algorithm.gae_lambda"),
    "num_ppo_epochs": Ours("train.epochs"),
    "num_mini_batches": Ours("train.minibatches"),
    "missing_eos_penalty": Ours("algorithm.missing_eos_penalty"),
    "value_model": Ours("critic.path"),
    "beta": _BETA,
    "label_smoothing": Ours("algorithm.label_smoothing", "with dpo it is cDPO, where TRL's sigmoid ignores it"),
    "f_divergence_type": _near("algorithm.divergence", "reverse_kl, forward_kl, jensen_shannon or alpha; with dpo"),
    "f_alpha_divergence_coef": Ours("algorithm.alpha", "beside algorithm.divergence = alpha of dpo"),
    "ld_alpha": Ours("algorithm.tail_weight", "a setting of dpo"),
    "discopop_tau": Ours("algorithm.tau", "a setting of discopop"),
    "use_weighting": Nothing("WPO's weights are not offered"),
    "loss_weights": _NO_MIXED_LOSS,
    "rpo_alpha": _LIKELIHOOD_TERM,
    "cpo_alpha": _LIKELIHOOD_TERM,
    "simpo_gamma": Ours("algorithm.gamma", "a setting of simpo, where gamma_beta_ratio is the paper's"),
    "desirable_weight": Ours("algorithm.desirable_weight", "a setting of kto"),
    "undesirable_weight": Ours("algorithm.undesirable_weight", "a setting of kto"),
    "center_rewards_coefficient": Ours("algorithm.center_coef", "a setting of reward_model"),
    "step_separator": Ours("algorithm.separator", "a setting of process_reward_model"),
    "router_aux_loss_coef": _NO_BALANCING,
    "reference_free": Nothing("cpo, simpo and orpo are the losses without a reference"),
    "ref_model": Ours("reference.path"),
    "ref_model_init_kwargs": _near("reference", "a section: path, revision, trust_remote_code"),
    "model_init_kwargs": _near("model", "a section: path, revision, attention, precision, ..."),
    "precompute_ref_log_probs": _PRECOMPUTED,
    "precompute_ref_batch_size": _PRECOMPUTED,
    "ref_model_mixup_alpha": _STEADY_REFERENCE,
    "ref_model_sync_steps": _STEADY_REFERENCE,
    "neftune_noise_alpha": Nothing("No noise is added to embeddings; algorithm.dft is the one variant of sft"),
    "generate_during_eval": Nothing("Given answers are also what is measured on; posttrain eval samples"),
    "scale_rewards": Nothing(
        "The algorithm decides: grpo divides by the standard deviation of the group, dr_grpo and rloo do not"
    ),
    "importance_sampling_level": _near("algorithm.name", "gspo has the ratio of the completion, grpo of the token"),
    "multi_objective_aggregation": _near("algorithm.name", "gdpo normalises each reward before the sum"),
    "vllm_importance_sampling_correction": _near("algorithm.correction", "trl for true, none for false"),
    "vllm_importance_sampling_mode": _CORRECTED_BY,
    "vllm_importance_sampling_cap": _CAP,
    "vllm_importance_sampling_clip_max": _CAP,
    "vllm_importance_sampling_clip_min": Ours("algorithm.correction.low"),
    "off_policy_mask_threshold": Ours("algorithm.max_negative_divergence", "a setting of deepseek_v32"),
    "sync_ref_model": _STEADY_REFERENCE,
    "disable_dropout": Nothing("The model runs without dropout; lora.dropout is the only one"),
    "mask_truncated_completions": Ours("train.mask_truncated"),
    "per_device_train_batch_size": _NO_DEVICE_BATCH,
    "per_device_eval_batch_size": Nothing("sampling.max_batch_rows limits the rows that are decoded together"),
    "gradient_accumulation_steps": _NO_ACCUMULATION,
    "auto_find_batch_size": _NO_DEVICE_BATCH,
    "generation_batch_size": _near("train.prompts_per_step", "counted in prompts: completions / sampling.group_size"),
    "steps_per_generation": Ours("train.minibatches"),
    "num_iterations": Ours("train.epochs"),
    "num_train_epochs": _NO_EPOCHS,
    "max_steps": Ours("train.steps"),
    "lr_scheduler_type": _near("train.schedule", "constant, linear or cosine, with warm-up from train.warmup_steps"),
    "lr_scheduler_kwargs": _near("train.min_learning_rate_ratio", "the only setting of a schedule beside its warm-up"),
    "warmup_ratio": _near("train.warmup_steps", _IN_STEPS),
    "optim": Nothing("The optimizer is AdamW"),
    "adam_epsilon": Ours("train.adam_eps"),
    "gradient_checkpointing_kwargs": _near("train.gradient_checkpointing", "true or false"),
    "packing": _ALWAYS_PACKED,
    "padding_free": _ALWAYS_PACKED,
    "packing_strategy": _ALWAYS_PACKED,
    "eval_packing": _ALWAYS_PACKED,
    "pad_to_multiple_of": _NO_PADDING,
    "pad_token": _NO_PADDING,
    "completion_only_loss": Nothing("Of a prompt with a completion only the completion is trained, of text all of it"),
    "assistant_only_loss": Nothing(
        "Of conversations only the assistant's turns are ever trained; data.train_on = last takes the last of them"
    ),
    "max_length": Ours("data.max_length", f"of given answers; {_NEVER_CUT}"),
    "truncation_mode": Nothing("Rows longer than data.max_length are dropped and counted, never cut"),
    "max_target_length": Ours("data.max_length", f"with the prompt; {_NEVER_CUT}"),
    "chat_template_path": Ours("model.chat_template"),
    "eos_token": _near("model.chat_template", "what ends a turn is the template's, and EOS the tokenizer's"),
    "dataset_text_field": _COLUMNS,
    "dataset_kwargs": _COLUMNS,
    "dataset_num_proc": Nothing("Rows are tokenised in the process that trains, with data.streaming step by step"),
    "dataset_streaming": Ours("data.streaming"),
    "test_split_size": Ours("data.eval_fraction"),
    "train_sampling_strategy": Nothing("Rows are always shuffled, by seed"),
    "activation_offloading": _near("train.gradient_checkpointing", "true or false; activations stay on the device"),
    "use_rslora": _PLAIN_LORA,
    "use_dora": _PLAIN_LORA,
    "lora_modules_to_save": _PLAIN_LORA,
    "lora_target_parameters": _PLAIN_LORA,
    "logging_steps": _ALWAYS_LOGGED,
    "logging_strategy": _ALWAYS_LOGGED,
    "log_completions": _ALWAYS_LOGGED,
    "num_completions_to_print": _ALWAYS_LOGGED,
    "run_name": Ours("output", "the folder of the run"),
    "output_dir": Ours("output"),
    "overwrite_output_dir": Nothing("A run never overwrites another; output names a new folder"),
    "save_steps": Ours("checkpoint.every"),
    "save_strategy": _near("checkpoint.every", "in steps; 0 saves only the last"),
    "save_total_limit": Ours("checkpoint.keep"),
    "eval_steps": Ours("evaluation.every"),
    "eval_strategy": _near("evaluation.every", "in steps; 0 evaluates only before and after"),
    "eval_on_start": _ALWAYS_EVALUATED,
    "do_train": Nothing("The verb says it: posttrain train, posttrain eval"),
    "do_eval": _ALWAYS_EVALUATED,
    "data_seed": Ours("seed"),
    "full_determinism": Nothing("Runs are deterministic by seed"),
    "resume_from_checkpoint": _RESUMED,
    "use_liger_kernel": Nothing("Log-probabilities are always computed in chunks of train.logprob_chunk_tokens"),
    "torch_compile": Nothing("The model runs uncompiled"),
}  # fmt: skip

VERL: dict[str, Entry] = {
    "data.train_files": Ours("data.train"),
    "data.val_files": Ours("data.eval"),
    "data.prompt_key": Ours("data.prompt"),
    "data.train_batch_size": Ours("train.prompts_per_step"),
    "data.gen_batch_size": Ours("train.prompts_per_step"),
    "data.val_batch_size": Ours("evaluation.prompts", "held-out prompts per evaluation"),
    "data.max_response_length": Ours("sampling.max_completion_length"),
    "data.train_max_samples": Ours("data.max_rows"),
    "data.filter_overlong_prompts": _DROPPED_PROMPTS,
    "data.truncation": _DROPPED_PROMPTS,
    "data.shuffle": Nothing("Prompts are always shuffled, by seed"),
    "data.reward_fn_key": Nothing("Rewards are named in rewards, not in the rows"),
    "actor_rollout_ref.model.path": Ours("model.path"),
    "model.enable_gradient_checkpointing": Ours("train.gradient_checkpointing"),
    "model.use_remove_padding": _ALWAYS_PACKED,
    "model.lora_rank": Ours("lora.rank"),
    "model.lora_alpha": Ours("lora.alpha"),
    "model.target_modules": Ours("lora.target_modules"),
    "actor.ppo_mini_batch_size": _near("train.minibatches", "their number: train_batch_size / ppo_mini_batch_size"),
    "actor.ppo_micro_batch_size": _NO_DEVICE_BATCH,
    "actor.ppo_micro_batch_size_per_gpu": _NO_DEVICE_BATCH,
    "actor.use_dynamic_bsz": Nothing("Micro-batches are always filled up to train.tokens_per_microbatch"),
    "actor.ppo_max_token_len_per_gpu": Ours("train.tokens_per_microbatch"),
    "actor.ppo_epochs": Ours("train.epochs"),
    "actor.grad_clip": Ours("train.max_grad_norm"),
    "actor.clip_ratio": Ours("algorithm.clip_low", _BOTH_CLIPS),
    "actor.clip_ratio_low": Ours("algorithm.clip_low"),
    "actor.clip_ratio_high": Ours("algorithm.clip_high"),
    "actor.clip_ratio_c": Ours("algorithm.dual_clip"),
    "actor.loss_agg_mode": _BY_ALGORITHM,
    "actor.policy_loss.loss_mode": _near("algorithm.name", _LIKE_VERL),
    "actor.entropy_coeff": Ours("algorithm.entropy_coef"),
    "actor.use_kl_loss": _near("algorithm.kl_coef", _KL),
    "actor.kl_loss_coef": Ours("algorithm.kl_coef"),
    "actor.kl_loss_type": _near("algorithm.kl_estimator", "low_var_kl is k3"),
    "optim.lr": Ours("train.learning_rate"),
    "optim.lr_warmup_steps": Ours("train.warmup_steps"),
    "optim.lr_warmup_steps_ratio": _near("train.warmup_steps", _IN_STEPS),
    "optim.lr_scheduler_type": _near("train.schedule", "constant, linear or cosine"),
    "optim.warmup_style": _near("train.schedule", "constant, linear or cosine"),
    "optim.min_lr_ratio": Ours("train.min_learning_rate_ratio"),
    "optim.betas": _near("train.adam_beta1", "and train.adam_beta2"),
    "optim.clip_grad": Ours("train.max_grad_norm"),
    "optim.total_training_steps": Ours("train.steps"),
    "rollout.n": Ours("sampling.group_size"),
    "rollout.temperature": Ours("sampling.temperature"),
    "rollout.top_p": Ours("sampling.top_p"),
    "rollout.top_k": _near("sampling.top_k", "0 is off, not -1"),
    "rollout.response_length": Ours("sampling.max_completion_length"),
    "rollout.prompt_length": Ours("data.max_prompt_length"),
    "rollout.name": _NO_ENGINE,
    "rollout.mode": _NO_ENGINE,
    "rollout.gpu_memory_utilization": _NO_ENGINE,
    "rollout.tensor_model_parallel_size": _NO_ENGINE,
    "rollout.max_num_seqs": Ours("sampling.max_batch_rows"),
    "rollout.log_prob_micro_batch_size": _NO_DEVICE_BATCH,
    "rollout.log_prob_micro_batch_size_per_gpu": _NO_DEVICE_BATCH,
    "val_kwargs.n": Ours("evaluation.samples"),
    "val_kwargs.temperature": Ours("evaluation.temperature"),
    "algorithm.adv_estimator": _near("algorithm.name", _LIKE_VERL),
    "rollout_correction.rollout_is": _CORRECTION,
    "rollout_correction.rollout_is_threshold": _CAP,
    "rollout_correction.rollout_rs": _near("algorithm.correction", "geo_rs, or {action: reject, level, low, high}"),
    "rollout_correction.rollout_rs_threshold": _near("algorithm.correction.high", "beside action = mask or reject"),
    "rollout_correction.rollout_rs_threshold_lower": Ours("algorithm.correction.low"),
    "rollout_correction.rollout_is_batch_normalize": Ours("algorithm.correction.normalize"),
    "rollout_correction.bypass_mode": _near("algorithm.correction", "bypass for true"),
    "algorithm.rollout_is": _CORRECTION,
    "algorithm.rollout_is_threshold": _CAP,
    "actor.tis_imp_ratio_cap": _CAP,
    "algorithm.norm_adv_by_std_in_grpo": Nothing("algorithm.name = dr_grpo is the one that does not divide by the std"),
    "algorithm.use_kl_in_reward": Nothing("rloo and reinforce put the KL into the reward, grpo into the loss"),
    "algorithm.kl_penalty": _near("algorithm.kl_estimator", "k1, k2, k3 and their corrected forms"),
    "algorithm.kl_ctrl.kl_coef": Ours("algorithm.kl_coef"),
    "algorithm.lam": Ours("algorithm.gae_lambda"),
    "algorithm.kl_ctrl.target_kl": _near("algorithm.kl_target", "the sum over a completion, not the mean per token"),
    "algorithm.kl_ctrl.type": _near("algorithm.kl_target", "a number makes kl_coef adaptive"),
    "critic.optim.lr": Ours("critic.learning_rate"),
    "critic.model.path": Ours("critic.path"),
    "critic.model.lora_rank": Ours("critic.rank"),
    "critic.model.lora_alpha": Ours("critic.alpha"),
    "critic.cliprange_value": Ours("algorithm.value_clip"),
    "critic.grad_clip": Ours("critic.max_grad_norm"),
    "critic.ppo_epochs": _near("train.epochs", "policy and critic learn in the same updates"),
    "trainer.critic_warmup": Ours("critic.warmup_steps"),
    "custom_reward_function.path": _near("rewards", "a list: [{function: file.py:name}]"),
    "custom_reward_function.name": _near("rewards", "a list: [{function: file.py:name}]"),
    "reward_manager": _near("rewards", "a list: [{name: math}] or [{function: file.py:name}]"),
    "overlong_buffer.enable": _OVERLONG,
    "overlong_buffer.len": _OVERLONG,
    "overlong_buffer.penalty_factor": _OVERLONG,
    "overlong_buffer_cfg.enable": _OVERLONG,
    "overlong_buffer_cfg.len": _OVERLONG,
    "overlong_buffer_cfg.penalty_factor": _OVERLONG,
    "sandbox_fusion.url": _near("rewards", "{name: code}, whose settings.sandbox chooses a sandbox of our own"),
    "algorithm.filter_groups.enable": _near("algorithm.dynamic_sampling", _REFILL),
    "algorithm.filter_groups.max_num_gen_batches": Ours("train.max_sampling_rounds"),
    "algorithm.filter_groups.metric": Nothing(
        "What counts is the weighted sum of the rewards, before any penalty that the algorithm adds"
    ),
    "trainer.total_epochs": _NO_EPOCHS,
    "trainer.total_training_steps": Ours("train.steps"),
    "trainer.save_freq": Ours("checkpoint.every"),
    "trainer.test_freq": Ours("evaluation.every"),
    "trainer.val_before_train": _ALWAYS_EVALUATED,
    "trainer.max_actor_ckpt_to_keep": Ours("checkpoint.keep"),
    "trainer.default_local_dir": Ours("output"),
    "trainer.experiment_name": Ours("output", "the folder of the run"),
    "trainer.project_name": Ours("output", "the folder of the run"),
    "trainer.logger": _TRACKERS,
    "trainer.n_gpus_per_node": _NO_SHARDING,
    "trainer.nnodes": _NO_SHARDING,
    "trainer.resume_mode": _RESUMED,
}  # fmt: skip

OPENRLHF: dict[str, Entry] = {
    "pretrain": Ours("model.path"),
    "zero_stage": _NO_SHARDING,
    "adam_offload": _NO_SHARDING,
    "colocate_all_models": _NO_ENGINE,
    "lora_rank": Ours("lora.rank"),
    "prompt_data": Ours("data.train"),
    "prompt_split": Ours("data.split"),
    "eval_dataset": Ours("data.eval"),
    "input_key": Ours("data.prompt"),
    "label_key": Ours("data.answer"),
    "input_template": _near("data.prompt", 'a template over columns: "{question}\\nAnswer:"'),
    "apply_chat_template": _near("data.chat", "auto, true or false"),
    "max_samples": Ours("data.max_rows"),
    "prompt_max_len": Ours("data.max_prompt_length", "longer prompts are dropped and counted, never cut"),
    "generate_max_len": Ours("sampling.max_completion_length"),
    "n_samples_per_prompt": Ours("sampling.group_size"),
    "rollout_batch_size": Ours("train.prompts_per_step"),
    "micro_rollout_batch_size": Ours("sampling.max_batch_rows"),
    "train_batch_size": _near(
        "train.minibatches",
        "their number: rollout_batch_size * n_samples_per_prompt / train_batch_size; "
        "of given answers it is train.prompts_per_step",
    ),
    "micro_train_batch_size": _NO_DEVICE_BATCH,
    "train_max_tokens_per_gpu": Ours("train.tokens_per_microbatch"),
    "use_dynamic_batch": Nothing("Micro-batches are always filled up to train.tokens_per_microbatch"),
    "packing_samples": _ALWAYS_PACKED,
    "max_epochs": _near("train.epochs", "over each sampled batch; of given answers train.steps counts"),
    "dataset": Ours("data.train"),
    "dataset_split": Ours("data.split"),
    "train_split": Ours("data.split"),
    "dataset_probs": Nothing("The sources in the list data.train are shuffled together, each row once per pass"),
    "chosen_key": _COLUMNS,
    "rejected_key": _COLUMNS,
    "output_key": _COLUMNS,
    "prompt_key": Ours("data.prompt"),
    "tokenizer_chat_template": Ours("model.chat_template"),
    "max_len": Ours("data.max_length", f"of given answers; {_NEVER_CUT}"),
    "beta": _BETA,
    "ipo": _near("algorithm.name", "ipo; the preset openrlhf-ipo has log-ratios summed, as OpenRLHF"),
    "label_smoothing": Ours("algorithm.label_smoothing"),
    "nll_loss_coef": Ours("algorithm.alpha", "a setting of rpo"),
    "ref_pretrain": Ours("reference.path"),
    "ref_offload": Nothing("No reference model is in memory while given answers are trained on"),
    "aux_loss_coef": _NO_BALANCING,
    "margin_loss": _near("algorithm.margin", "data for true; a setting of reward_model"),
    "compute_fp32_loss": Nothing("Losses are always computed in float32"),
    "value_head_prefix": Nothing("A reward model is a sequence classifier of transformers, its head is called score"),
    "multiturn": Nothing("Of conversations every answer is trained, or with data.train_on = last the last one"),
    "min_lr_ratio": Ours("train.min_learning_rate_ratio"),
    "num_episodes": _NO_EPOCHS,
    "actor_learning_rate": Ours("train.learning_rate"),
    "critic_learning_rate": Ours("critic.learning_rate"),
    "critic_pretrain": Ours("critic.path"),
    "freezing_actor_steps": Ours("critic.warmup_steps"),
    "lambd": Ours("algorithm.gae_lambda"),
    "reward_clip_range": _near("algorithm.score_clip", "one number, to both sides of 0"),
    "kl_target": Ours("algorithm.kl_target"),
    "lr_warmup_ratio": _near("train.warmup_steps", _IN_STEPS),
    "lr_scheduler": _near("train.schedule", "constant, linear or cosine"),
    "l2": Ours("train.weight_decay"),
    "max_norm": Ours("train.max_grad_norm"),
    "adam_betas": _near("train.adam_beta1", "and train.adam_beta2"),
    "advantage_estimator": _near("algorithm.name", _LIKE_OPENRLHF),
    "policy_loss_type": _near("algorithm.name", _LIKE_OPENRLHF),
    "eps_clip": Ours("algorithm.clip_low", _BOTH_CLIPS),
    "eps_clip_low_high": _near("algorithm.clip_low", "and algorithm.clip_high"),
    "init_kl_coef": Ours("algorithm.kl_coef"),
    "use_kl_loss": _near("algorithm.kl_coef", _KL),
    "entropy_loss_coef": Ours("algorithm.entropy_coef"),
    "no_advantage_std_norm": Nothing("algorithm.name = dr_grpo is the one that does not divide by the std"),
    "normalize_reward": _BY_ALGORITHM,
    "dynamic_filtering": _near("algorithm.dynamic_sampling", _REFILL),
    "dynamic_filtering_reward_range": _NO_RANGE,
    "stop_properly_penalty_coef": _near("rewards", "{name: finished}, the gate of the others for 0"),
    "overlong_buffer_len": _OVERLONG,
    "overlong_penalty_factor": _OVERLONG,
    "remote_rm_url": _near("rewards", _A_REWARD_MODEL),
    "reward_pretrain": _near("rewards", _A_REWARD_MODEL),
    "enable_vllm_is_correction": _CORRECTION,
    "vllm_is_correction_type": _near("algorithm.correction", "tis, icepop or seq_mask_tis"),
    "vllm_is_truncated_threshold": _near("algorithm.correction.high", "and algorithm.correction.low"),
    "eval_n_samples_per_prompt": Ours("evaluation.samples"),
    "eval_temperature": Ours("evaluation.temperature"),
    "save_path": Ours("output"),
    "ckpt_path": Ours("output"),
    "max_ckpt_num": Ours("checkpoint.keep"),
    "load_checkpoint": _RESUMED,
    "use_wandb": _TRACKERS,
    "use_tensorboard": _TRACKERS,
    "async_train": Nothing("Asynchronous training is not available in this version"),
}  # fmt: skip

AREAL: dict[str, Entry] = {
    "use_decoupled_loss": _DECOUPLED,
    "behav_imp_weight_cap": _MASKED_ABOVE,
    "behave_imp_weight_cap": _MASKED_ABOVE,
    "behave_imp_weight_mode": _CORRECTED_BY,
}  # fmt: skip

COMMON: dict[str, Entry] = {
    "lr": Ours("train.learning_rate"),
    "critic.lr": Ours("critic.learning_rate"),
    "critic_lr": Ours("critic.learning_rate"),
    "reward_model_path": _near("rewards", _A_REWARD_MODEL),
    "use_tis": _near("algorithm.correction", "tis for true"),
    "lora.r": Ours("lora.rank"),
    "batch_size": _near("train.prompts_per_step", "a whole optimizer step"),
    "epochs": _NO_EPOCHS,
    "max_tokens": Ours("sampling.max_completion_length"),
    "num_samples": Ours("sampling.group_size"),
    "tokenizer": Nothing("The tokenizer is the one in the model's folder"),
    "checkpoint_every": Ours("checkpoint.every"),
    "eval_every": Ours("evaluation.every"),
    "chosen": _COLUMNS,
    "rejected": _COLUMNS,
}

FOREIGN: Mapping[str, Mapping[str, Entry]] = {
    "TRL": TRL,
    "verl": VERL,
    "OpenRLHF": OPENRLHF,
    "AReaL": AREAL,
    "": COMMON,
}
"""Project -> its names. Names of nested settings carry as many of their sections as it takes to tell them apart."""

FAMILIES: dict[str, Nothing] = {
    "vllm_": _NO_ENGINE,
    "fsdp": _NO_SHARDING,
    "deepspeed": _NO_SHARDING,
    "ds3_": _NO_SHARDING,
    "ddp_": _NO_SHARDING,
    "megatron": _NO_SHARDING,
    "hub_": Nothing("Nothing is uploaded; the folder checkpoints/<last>/model can be uploaded as it is"),
    "push_to_hub": Nothing("Nothing is uploaded; the folder checkpoints/<last>/model can be uploaded as it is"),
    "dataloader_": Nothing("Data is read once, at the start"),
    "wandb": Nothing("Say report_to: [wandb]; WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE are obeyed"),
    "reward_model": _REWARD_MODELS,
    "ray_": _NO_SHARDING,
    "profiler": Nothing("The time of each phase is in metrics.jsonl (time/...)"),
}
"""Beginning of a key, or of a section that it stands in -> why no such key exists."""


def suggest(path: str, value: str, known: Iterable[str], own: Collection[str] = ()) -> Hint:
    """What to say about the unknown key `path`, given as `value`; `known` are the dotted paths that exist, and `own`
    those of them that exist under the chosen algorithm.

    >>> suggest("train.num_generations", "8", ["sampling.group_size"]).text
    "TRL's num_generations is sampling.group_size here. Set sampling.group_size = 8."
    >>> suggest("group_size", "8", ["sampling.group_size"]).text
    'It belongs to sampling. Set sampling.group_size = 8.'
    >>> suggest("beta", "0.2", [], own=["algorithm.kl_coef"]).key
    'algorithm.kl_coef'
    """
    known = list(known)
    *sections, name = path.split(".")
    return (
        _bracketed(path, value)
        or _family(sections)
        or _of_a_reward(path, value, known)
        or foreign(path, value, own)
        or _misplaced(path, value, known)
        or (None if sections else _without_section(name, value, own))
        or _misspelt(path, value, known, own)
        or _family([name])
        or Hint(_whole_section(path, known))
    )


def _bracketed(path: str, value: str) -> Hint | None:
    """An element of a list, numbered as code numbers it.

    >>> _bracketed("rewards[0].weight", "2").text
    'The elements of a list are numbered after a dot. Set rewards.0.weight = 2.'
    """
    dotted = re.sub(r"\[(\d+)\]", r".\1", path)
    if dotted == path:
        return None
    return Hint(f"The elements of a list are numbered after a dot. Set {dotted} = {value}.")


def foreign(path: str, value: str, own: Collection[str]) -> Hint | None:
    """The foreign name that is the longest end of the path; all projects that have it are named."""
    parts = path.split(".")
    for start in range(len(parts)):
        name = ".".join(parts[start:])
        found = [(project, names[name]) for project, names in FOREIGN.items() if name in names]
        if found:
            return _say(name, found, value, own)
    return None


def _without_section(name: str, value: str, own: Collection[str]) -> Hint | None:
    """A nested foreign name that was written without its sections."""
    found = [(p, names[key]) for p, names in FOREIGN.items() for key in names if key.endswith(f".{name}")]
    return _say(name, found[:1], value, own) if found else None


def _say(name: str, found: list[tuple[str, Entry]], value: str, own: Collection[str]) -> Hint:
    first = found[0][1]
    projects = " and ".join(f"{project}'s" for project, same in found if project and same == first)
    entry = first.under(own) if isinstance(first, ByAlgorithm) else first
    if isinstance(entry, Nothing):
        return Hint(f"{entry.reason}.")
    subject = f"{projects} {name}" if projects else name
    note = f" ({entry.note})" if entry.note else ""
    action = f" Set {entry.key} = {value}." if entry.same_value else ""
    return Hint(f"{subject} is {entry.key} here{note}.{action}", entry.key)


_BESIDE = ("critic.", "reference.", "teacher.", "rewards.judge.", "check.judge.")
"""Sections of other models; a name that stands elsewhere, too, means the policy's."""


def _misplaced(path: str, value: str, known: list[str]) -> Hint | None:
    """Our own key in the wrong section, or written with its section in one piece."""
    section, _, name = path.rpartition(".")
    found = [key for key in known if key.rpartition(".")[2] == name and key != path]
    found = [key for key in found if not key.startswith(_BESIDE)] or found
    if path in known:
        return Hint(f"Write it as two levels: {section}: {{{name}: {value}}}.", path)
    if len(found) == 1:
        home = found[0].rpartition(".")[0] or "the top level"
        return Hint(f"It belongs to {home}. Set {found[0]} = {value}.", found[0])
    return Hint(f"Did you mean {' or '.join(found)}?") if found else None


def _misspelt(path: str, value: str, known: list[str], own: Collection[str]) -> Hint | None:
    """The nearest name: first among the neighbours, then among all our names, then among the foreign ones."""
    section, _, name = path.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    sections = {key.partition(".")[0]: key.partition(".")[0] for key in known} if not section else {}
    anywhere = {key.rpartition(".")[2]: key for key in known}
    for names, cutoff in ((siblings | sections, 0.6), (anywhere, 0.75)):
        close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
        if close:
            return Hint(f"Did you mean {names[close[0]]}?", names[close[0]])
    names = {key.rpartition(".")[2]: key for names in FOREIGN.values() for key in names}
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return foreign(names[close[0]], value, own) if close else None


def _of_a_reward(path: str, value: str, known: list[str]) -> Hint | None:
    """A setting of the reward itself, written beside its name: no misspelling of what may stand there."""
    section, _, name = path.rpartition(".")
    siblings = {key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == section}
    if section not in ("rewards", "check") or difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
        return None
    return Hint(f"What belongs to the reward itself stands in its settings: settings: {{{name}: {value}}}.")


def _family(parts: Iterable[str]) -> Hint | None:
    reasons = [entry.reason for part in parts for beginning, entry in FAMILIES.items() if part.startswith(beginning)]
    return Hint(f"{reasons[0]}.") if reasons else None


def _whole_section(path: str, known: list[str]) -> str:
    section = path.rpartition(".")[0]
    prefix = f"{section}." if section else ""
    names = dict.fromkeys(key[len(prefix) :].partition(".")[0] for key in known if key.startswith(prefix))
    if not names:
        return "Remove it."
    return f"Remove it; {section or 'the top level'} has {', '.join(names)}."
