"""The rules that span several parts of a configuration. All are checked before any model is loaded.

Rules about a single section are in its model, and rules about an algorithm's own settings are in its class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from posttrain.algorithms import ALGORITHMS
from posttrain.config.run import RunConfig, uses_of_reward_model
from posttrain.config.scorers import wrong_gate
from posttrain.config.sections import RolloutConfig, SamplingConfig
from posttrain.config.urls import is_url, wrong_url
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm

    Rule = Callable[[RunConfig, Algorithm], ConfigError | None]


def _needing_no_group() -> str:
    """Return the first algorithm that samples and does not compare completions within a group."""
    return next(key for key, a in ALGORITHMS.items() if a.data_kind == "prompts" and a().group_size_needed == 1)


def _samples(algorithm: Algorithm) -> bool:
    return algorithm.data_kind == "prompts"


def _group_is_large_enough(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """An algorithm that compares completions of the same prompt needs sampling.group_size of at least 2."""
    size, needed = config.sampling.group_size, algorithm.group_size_needed
    if not _samples(algorithm) or size >= needed:
        return None
    return ConfigError(
        given=f"sampling.group_size = {size}, but {config.algorithm.name} compares completions of the same prompt "
        f"and needs at least {needed}",
        allowed=f"an integer of at least {needed}",
        fix=f"Set sampling.group_size = {max(8, needed)}, or use algorithm.name = {_needing_no_group()}, which "
        "needs no group.",
    )


def _there_is_a_reward(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """An algorithm that learns from rewards needs at least one entry in rewards."""
    if not _samples(algorithm) or not algorithm.learns_from_rewards or config.rewards:
        return None
    return ConfigError(
        given=f"rewards is empty, but {config.algorithm.name} learns from rewards",
        allowed="at least one reward",
        fix="Set rewards = [{name: math}], or [{function: my_rewards.py:score}] for your own.",
    )


def _rewards_are_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """An algorithm that learns from given answers takes no rewards: its evaluations measure the loss."""
    if _samples(algorithm) or config.sampled_pairs is not None or not config.rewards:
        return None
    names = ", ".join(reward.metric_name for reward in config.rewards)
    return ConfigError(
        given=f"rewards = {names}, but {config.algorithm.name} learns from {algorithm.data_kind} and would never call "
        "them",
        allowed="no rewards",
        fix="Leave them out."
        if "scores" in algorithm.needs
        else "Leave them out, or name them in check, which scores the model's own answers before and after training.",
    )


def _the_check_has_answers(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """A check of a run on given answers scores the model's own answers to evaluation.writing prompts."""
    if _samples(algorithm) or config.sampled_pairs is not None or not config.check:
        return None
    given = f"check = {', '.join(check.metric_name for check in config.check)}"
    if "scores" in algorithm.needs:
        return ConfigError(
            given=f"{given}, but {config.algorithm.name} trains a model that scores and writes no answers",
            allowed="no check",
            fix="Leave it out. A run that uses the trained scores as its reward can have a check.",
        )
    if config.evaluation.writing:
        return None
    return ConfigError(
        given=f"{given} with evaluation.writing = 0: the model writes no answers to score",
        allowed="evaluation.writing of at least 1",
        fix="Set evaluation.writing = 256, or leave check out.",
    )


def _pairs_can_be_sampled(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """The section sampled_pairs: an algorithm that trains a policy on pairs, rewards, and answers that can differ."""
    sampling, name = config.sampling, config.algorithm.name
    if config.sampled_pairs is None:
        return None
    if algorithm.data_kind != "pairs" or "scores" in algorithm.needs:
        return ConfigError(
            given=f"the section sampled_pairs, but {name} does not train a policy on pairs",
            allowed="an algorithm that learns from pairs: dpo, ipo, simpo ...",
            fix="Set algorithm = dpo, or leave sampled_pairs out.",
        )
    if not config.rewards:
        return ConfigError(
            given="the section sampled_pairs without rewards: nothing says which answer is better",
            allowed="at least one reward",
            fix="Set rewards = [{name: math}], [{model: FOLDER}] or [{judge: {...}}].",
        )
    if sampling.group_size >= 2 and sampling.temperature > 0:
        return None
    alike = "group_size = 1" if sampling.group_size < 2 else "temperature = 0"
    return ConfigError(
        given=f"sampling.{alike} with sampled_pairs: the answers to a prompt could not differ",
        allowed="at least two answers, drawn at a temperature above 0",
        fix="Set sampling.group_size = 8 and sampling.temperature = 1.0.",
    )


def _whole_distribution(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Training samples from the whole distribution: top_p, top_k and min_p are off."""
    return cut_distribution(config.sampling) if _samples(algorithm) else None


def cut_distribution(sampling: SamplingConfig) -> ConfigError | None:
    """Return the error for samples that cannot be trained on, because some tokens could not be sampled."""
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    given = {name: getattr(sampling, name) for name, value in off.items() if getattr(sampling, name) != value}
    if not given:
        return None
    return ConfigError(
        given=f"{', '.join(f'sampling.{n} = {v}' for n, v in given.items())} in training: the trainer scores tokens "
        "under the full distribution, so the ratios to a truncated one would be wrong",
        allowed="top_p = 1, top_k = 0, min_p = 0",
        fix=f"Set {', '.join(f'sampling.{n} = {off[n]}' for n in given)}; a lower temperature is scored exactly.",
    )


def _training_explores(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Training samples with a temperature above 0."""
    if not _samples(algorithm) or config.sampling.temperature > 0:
        return None
    return ConfigError(
        given="sampling.temperature = 0 in training: all completions of a prompt would be the same, without any signal",
        allowed="a number above 0",
        fix="Set sampling.temperature = 1.0. Evaluations include greedy answers in any case.",
    )


def _evaluation_samples_differ(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Sampled evaluations need a temperature above 0; evaluation.samples = 0 is greedy only."""
    evaluation = config.evaluation
    if evaluation.samples == 0 or evaluation.temperature > 0:
        return None
    return ConfigError(
        given=f"evaluation.temperature = 0 with evaluation.samples = {evaluation.samples}: all would be greedy answers",
        allowed="evaluation.samples = 0, or a temperature above 0",
        fix="Set evaluation.samples = 0 for greedy answers only, or evaluation.temperature = 1.0 for pass@k.",
    )


def _asynchrony_has_engines(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.run_ahead and train.max_staleness above 0 need rollout.engines."""
    train = config.train
    if config.rollout.num_engines or train.lead == train.max_staleness == 0:
        return None
    setting = "run_ahead" if train.lead else "max_staleness"
    return ConfigError(
        given=f"train.{setting} = {getattr(train, setting)}, but the trainer's own process samples, and it cannot "
        "sample while it trains",
        allowed="0, or engines in their own processes",
        fix=f"Set rollout.engines = 1, or train.{setting} = 0.",
    )


def _servers_are_vllm(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """rollout.url names vLLM servers, and then the run starts none; rollout.keep_cache is for the local sampler."""
    return misnamed_servers(config.rollout)


def misnamed_servers(rollout: RolloutConfig) -> ConfigError | None:
    """Errors within the section `rollout` itself."""
    if rollout.engine == "local" and rollout.url:
        return ConfigError(
            given=f"rollout.url = {rollout.url[0]} with rollout.engine = local, which uses no server",
            allowed="rollout.engine = vllm",
            fix="Set rollout.engine = vllm, or leave rollout.url out.",
        )
    if rollout.url and rollout.engines not in (0, len(rollout.url)):
        return ConfigError(
            given=f"rollout.engines = {rollout.engines} together with {len(rollout.url)} servers in rollout.url",
            allowed="either servers that the run starts (rollout.engines) or servers that run already (rollout.url)",
            fix="Leave one of the two out.",
        )
    if rollout.engine == "vllm" and rollout.keep_cache:
        return ConfigError(
            given="rollout.keep_cache = true with rollout.engine = vllm, whose requests end before new weights come",
            allowed="false, or rollout.engine = local",
            fix="Leave rollout.keep_cache out.",
        )
    return None


def _the_cluster_has_something_to_hold(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """cluster holds local engines, ranks of the trainer, or both."""
    if config.cluster is None:
        return None
    if config.rollout.engine != "local":
        return ConfigError(
            given=f"cluster with rollout.engine = {config.rollout.engine}, which is started on the trainer's machine",
            allowed="rollout.engine = local",
            fix="Set rollout.engine = local, or leave cluster out.",
        )
    if config.train.devices == "auto":
        return ConfigError(
            given="cluster with train.devices = auto: a cluster says how many GPUs it has, but not how many you "
            "may use",
            allowed="a number",
            fix="Set train.devices = 8.",
        )
    if config.rollout.engines == 0 and config.train.devices == 1:
        return ConfigError(
            given="cluster with rollout.engines = 0 and train.devices = 1: nothing would run on the cluster",
            allowed="at least one engine, of an algorithm that samples, or at least two devices",
            fix="Set rollout.engines = 2 or train.devices = 2, or leave cluster out; `posttrain submit` trains on a "
            "cluster without it.",
        )
    return None


def _the_run_has_a_folder(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """output is a folder, or a URL of storage that holds a run; ranks of a cluster need a folder that all nodes see."""
    if config.output is None or not is_url(config.output):
        return None
    if config.cluster is not None and config.train.devices != 1:
        return ConfigError(
            given=f"output = {config.output} with cluster and train.devices = {config.train.devices}: ranks on several "
            "machines write one checkpoint together",
            allowed="a folder on storage that this machine and all nodes see",
            fix="Set output to such a folder, or train.devices = 1: engines and reward workers need no common storage.",
        )
    return wrong_url("output", config.output)


def _shared_gpus_are_used_in_turns(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """rollout.placement is for vLLM servers; `shared` is for one server and train.run_ahead = 0."""
    rollout, train = config.rollout, config.train
    if rollout.placement != "auto" and rollout.engine != "vllm":
        return ConfigError(
            given=f"rollout.placement = {rollout.placement} with rollout.engine = {rollout.engine}, which has "
            "no server to place",
            allowed="auto, or rollout.engine = vllm",
            fix="Leave rollout.placement out.",
        )
    if rollout.placement != "shared" or (train.lead == 0 and rollout.num_engines == 1):
        return None
    given = f"{rollout.num_engines} servers" if train.lead == 0 else f"train.run_ahead = {train.run_ahead}"
    return ConfigError(
        given=f"rollout.placement = shared with {given}: only one server can share the GPU, and it sleeps while a "
        "step is trained",
        allowed="one server and train.run_ahead = 0, or rollout.placement = beside",
        fix="Set rollout.engines = 1 and train.run_ahead = 0, or rollout.placement = beside with more GPUs.",
    )


def _staleness_covers_the_lead(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.max_staleness is at least train.run_ahead."""
    train = config.train
    if train.max_staleness >= train.lead:
        return None
    return ConfigError(
        given=f"train.run_ahead = {train.run_ahead} with train.max_staleness = {train.max_staleness}: most tokens that "
        "are sampled ahead would be too old to be trained",
        allowed=f"train.max_staleness of at least {train.lead}",
        fix=f"Set train.max_staleness = {max(8, train.lead)}, or lower train.run_ahead.",
    )


def _engines_have_prompts(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """rollout.engines needs an algorithm that samples."""
    if not config.rollout.num_engines or _samples(algorithm):
        return None
    return ConfigError(
        given=f"{config.algorithm.name} learns from examples and samples nothing, but rollout asks for "
        f"{config.rollout.num_engines} engine(s)",
        allowed="rollout.engine = local with rollout.engines = 0, or an algorithm that samples",
        fix="Leave the section rollout out.",
    )


def _stale_data_is_corrected(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.run_ahead above 0 needs a correction for the samples of older policies."""
    if config.train.lead == 0 or not _samples(algorithm) or algorithm.correction_name != "none":
        return None
    return ConfigError(
        given=f"train.run_ahead = {config.train.run_ahead} without a correction: tokens of older policies "
        "would be trained as if the current policy had sampled them",
        allowed="algorithm.correction = auto, or one of the corrections that `posttrain explain correction` lists",
        fix="Set algorithm.correction = auto, or train.run_ahead = 0 for an algorithm without that setting.",
    )


def _engines_that_are_not_ahead_are_fresh(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.publish_every above 1 with rollout.engines needs train.run_ahead above 0."""
    every = config.train.publish_every
    if not config.rollout.num_engines or every == 1 or config.train.lead:
        return None
    return ConfigError(
        given=f"train.publish_every = {every} with rollout.engines = {config.rollout.engines} and train.run_ahead "
        "= 0: a resumed run would sample with newer weights than an uninterrupted run",
        allowed="train.publish_every = 1, or rollout.engines = 0 (its checkpoints hold the older weights)",
        fix="Set rollout.engines = 0.",
    )


def _the_policy_judges_in_turns(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """A policy that judges its own answers needs train.run_ahead = 0: it cannot judge while it is trained."""
    own = [n for n, e in enumerate(config.rewards) if e.judge and e.judge.url is None and e.judge.model == "policy"]
    if not own or config.train.lead == 0:
        return None
    return ConfigError(
        given=f"train.run_ahead = {config.train.run_ahead}, but rewards.{own[0]}.judge is the policy itself, whose "
        "weights would change while it judges",
        allowed="train.run_ahead = 0, or another judge",
        fix=f"Set train.run_ahead = 0, or rewards.{own[0]}.judge.model to a folder.",
    )


def _ranks_do_what_was_tried_over_ranks(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.devices above 1 excludes train.compile, train.optimizer = adamw_8bit and rollout.engine = vllm."""
    train = config.train
    if train.devices in (1, "auto"):  # the run checks auto again when it knows the number
        return None
    alone = {
        "train.compile = true": (train.compile, "train.compile = false"),
        f"train.optimizer = {train.optimizer}": (train.optimizer != "adamw", "train.optimizer = adamw"),
        "rollout.engine = vllm": (config.rollout.engine == "vllm", "rollout.engine = local"),
    }
    wrong = next(((given, right) for given, (asked, right) in alone.items() if asked), None)
    return wrong and ConfigError(
        given=f"{wrong[0]} with train.devices = {train.devices}",
        allowed=f"{wrong[1]} on several devices",
        fix="Set train.devices = 1, or leave that setting out.",
    )


def _matrices_are_divided_where_that_was_shown(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.tensor divides train.devices, and is for runs without adapters. The model is checked when it is loaded."""
    train = config.train
    if train.tensor == 1:
        return None
    if train.devices != "auto" and train.devices % train.tensor:
        whole = math.gcd(train.devices, train.tensor)
        return ConfigError(
            given=f"train.tensor = {train.tensor} with train.devices = {train.devices}",
            allowed=f"a divisor of {train.devices}: this many devices divide each matrix",
            fix=f"Set train.tensor = {whole}, or take a multiple of {train.tensor} devices.",
        )
    if config.lora is None:
        return None
    return ConfigError(
        given=f"lora with train.tensor = {train.tensor}",
        allowed="train.tensor = 1 with adapters, which lie beside whole matrices",
        fix="Set train.tensor = 1: train.devices still divides the weights by rows.",
    )


def _parts_are_of_several_ranks(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.shard divides train.devices, and train.cpu_offload needs more than one device."""
    train = config.train
    shard = 1 if train.shard == "auto" else train.shard
    groups = 1 if train.devices == "auto" else train.devices // train.tensor
    if train.devices != "auto" and groups % shard:
        whole = max(number for number in range(1, min(shard, groups) + 1) if groups % number == 0)
        of = f" and train.tensor = {train.tensor}" if train.tensor > 1 else ""
        what = "groups of devices" if train.tensor > 1 else "devices"
        return ConfigError(
            given=f"train.shard = {shard} with train.devices = {train.devices}{of}",
            allowed=f"auto, or a divisor of {groups}: each copy of the weights lies on as many {what}",
            fix=f"Set train.shard = {whole}, or take a multiple of {shard * train.tensor} devices.",
        )
    if train.devices != 1 or not train.cpu_offload:
        return None
    return ConfigError(
        given="train.cpu_offload = true with train.devices = 1",
        allowed="train.cpu_offload = false on one device",
        fix="Set train.devices = 2 or more; on one device, train adapters (lora = {}), or set train.optimizer = "
        "adamw_8bit or train.gradient_checkpointing = true to need less memory.",
    )


def _what_is_compiled_runs_once(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.compile excludes train.gradient_checkpointing: transformers does not compile recomputed layers."""
    if not (config.train.compile and config.train.gradient_checkpointing):
        return None
    return ConfigError(
        given="train.compile = true with train.gradient_checkpointing = true, whose layers are not compiled",
        allowed="one of the two",
        fix="Set train.compile = false if memory is short, otherwise train.gradient_checkpointing = false.",
    )


def _minibatches_have_rows(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.minibatches is at most the rows of a step."""
    train, group = config.train, config.sampling.group_size if _samples(algorithm) else 1
    rows = train.prompts_per_step * group
    if train.minibatches <= rows:
        return None
    origin = (
        f"{train.prompts_per_step} prompts x {group} completions" if _samples(algorithm) else "train.prompts_per_step"
    )
    return ConfigError(
        given=f"train.minibatches = {train.minibatches}, but a step has {rows} rows ({origin})",
        allowed=f"an integer from 1 to {rows}",
        fix=f"Set train.minibatches = 1, or train.prompts_per_step = {-(-train.minibatches // group)}.",
    )


def _updates_have_a_reference_point(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """An algorithm that compares each row with answers to other prompts has at least two rows in each update."""
    train, name = config.train, config.algorithm.name
    if "mismatched" not in algorithm.needs or train.prompts_per_step // train.minibatches != 1:
        return None
    return ConfigError(
        given=f"train.prompts_per_step = {train.prompts_per_step} in train.minibatches = {train.minibatches}: "
        f"{name} compares each row of an update with answers to other prompts, but some updates would have "
        "only one row",
        allowed="at least 2 rows per update; a usable reference point needs several dozen",
        fix=f"Set train.prompts_per_step = {32 * train.minibatches}, or fewer train.minibatches.",
    )


def _warm_up_ends(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.warmup_steps is at most train.steps."""
    train = config.train
    if train.warmup_steps <= train.steps:
        return None
    return ConfigError(
        given=f"train.warmup_steps = {train.warmup_steps}, but the run has only train.steps = {train.steps}",
        allowed=f"an integer from 0 to {train.steps}",
        fix=f"Set train.warmup_steps = {train.steps // 10}.",
    )


def _schedule_has_an_end(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.min_learning_rate_ratio needs a decaying schedule."""
    train = config.train
    if train.min_learning_rate_ratio == 0 or train.schedule != "constant":
        return None
    return ConfigError(
        given=f"train.min_learning_rate_ratio = {train.min_learning_rate_ratio} does nothing under a constant schedule",
        allowed="0, or another schedule",
        fix="Set train.schedule = cosine, or leave train.min_learning_rate_ratio out.",
    )


def _labels_differ(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """No two entries of rewards, and no two of check, have the same name in the metrics."""
    for section, entries in (("rewards", config.rewards), ("check", config.check)):
        names = [entry.metric_name for entry in entries]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            return ConfigError(
                given=f"two entries of {section} are called {twice}: one would hide the other in the metrics",
                allowed="a name for each",
                fix=f"Set {section}.{len(names) - 1 - names[::-1].index(twice)}.label = {twice}_2, for example.",
            )
    return None


def _gates_lead_to_rewards(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Each gate names another entry of rewards, and gates form no cycle."""
    return wrong_gate({entry.metric_name: entry.gate.label if entry.gate else None for entry in config.rewards})


def _stale_data_is_sampled(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.publish_every above 1 needs an algorithm that samples."""
    every = config.train.publish_every
    if every == 1 or _samples(algorithm):
        return None
    return ConfigError(
        given=f"train.publish_every = {every}, but {config.algorithm.name} learns from examples and samples nothing",
        allowed="1, or an algorithm that samples",
        fix="Leave train.publish_every out.",
    )


def _steps_that_are_balanced_are_sampled(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """data.stratify is for algorithms that sample."""
    if config.data.stratify is None or _samples(algorithm):
        return None
    return ConfigError(
        given=f"data.stratify = {config.data.stratify}, but {config.algorithm.name} learns from examples and samples "
        "nothing",
        allowed="an algorithm that samples",
        fix="Leave data.stratify out.",
    )


def _rounds_are_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """train.max_sampling_rounds is for algorithms that replace groups without signal."""
    rounds, default = config.train.max_sampling_rounds, type(config.train).model_fields["max_sampling_rounds"].default
    if rounds == default or "signal" in algorithm.needs:
        return None
    return ConfigError(
        given=f"train.max_sampling_rounds = {rounds}, but {config.algorithm.name} as configured trains on the groups "
        "of the first round, with signal or without",
        allowed="an algorithm with dynamic sampling",
        fix="Set algorithm = {name: dapo, dynamic_sampling: true}, or leave train.max_sampling_rounds out.",
    )


def _teacher_is_there(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """An algorithm that learns from a teacher needs the section teacher, and no other algorithm may have it."""
    needed, given = "teacher" in algorithm.needs, config.teacher
    if needed == (given is not None):
        return None
    if given is None:
        return ConfigError(
            given=f"no teacher, but {config.algorithm.name} with these settings learns from one",
            allowed="a model with the same tokenizer as the trained model",
            fix="Set teacher = PATH, for example a larger model of the same family.",
        )
    return ConfigError(
        given=f"teacher = {given.path}, but {config.algorithm.name} with these settings never uses it",
        allowed="no teacher, or an algorithm that learns from one",
        fix="Leave teacher out, or set algorithm = distillation.",
    )


def _reference_is_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """The section reference is for algorithms that keep the policy close to a reference."""
    if config.reference is None or "reference" in algorithm.needs:
        return None
    return ConfigError(
        given=f"reference = {config.reference.path}, but {config.algorithm.name} with these settings never uses it",
        allowed="an algorithm that keeps the policy close to a reference",
        fix="Leave reference out, or use an algorithm that has one: dpo, or grpo with algorithm.kl_coef above 0.",
    )


def _auxiliary_data_is_there(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """An algorithm that adds a next-token loss on other data needs data.auxiliary, and no other one may have it."""
    data, name = config.data, config.algorithm.name
    needed, default = "auxiliary" in algorithm.needs, type(data).model_fields["auxiliary_rows"].default
    if needed and data.auxiliary is None:
        return ConfigError(
            given=f"no data.auxiliary, but {name} as configured adds a next-token loss on other data to each update",
            allowed="examples: prompt and completion, messages or text",
            fix="Set data.auxiliary = FILE, or algorithm.ptx_coef = 0.",
        )
    given = {"auxiliary": data.auxiliary, "auxiliary_rows": None if data.auxiliary_rows == default else "..."}
    unused = [f"data.{key}" for key, value in given.items() if value is not None]
    if needed or not unused:
        return None
    return ConfigError(
        given=f"{' and '.join(unused)}, but {name} as configured learns from its own rows alone",
        allowed="an algorithm that adds a next-token loss on other data",
        fix="Set algorithm = {name: kimi_k2, ptx_coef: 0.1}, or leave it out.",
    )


def _reward_model_is_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """The section reward_model and entries `{model: reward_model}` go together."""
    uses, given = uses_of_reward_model(config), config.reward_model is not None
    if given == bool(uses):
        return None
    if given:
        return ConfigError(
            given="the section reward_model trains a model that nothing scores with",
            allowed="an entry {model: reward_model} in rewards or check",
            fix="Add it to rewards, or remove the section.",
        )
    return ConfigError(
        given=f"{uses[0]}.model = reward_model, but there is no section reward_model to train it",
        allowed="the section, or the folder of a reward model",
        fix="Add reward_model: {data: ..., train: ...}; a folder of that name is ./reward_model.",
    )


def _critic_is_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """The section critic is for algorithms that have one."""
    if config.critic is None or "values" in algorithm.needs:
        return None
    return ConfigError(
        given=f"the section critic, but {config.algorithm.name} as configured has none",
        allowed="an algorithm with a critic",
        fix="Set algorithm = ppo, or leave critic out.",
    )


def _critic_has_its_settings(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """critic.path is for kind separate; critic.rank, critic.alpha are for kind lora, which needs a policy with lora."""
    if config.critic is None:
        return None
    critic, kind = config.critic, config.critic.kind_beside(config.lora)
    if kind == "lora" and config.lora is None:
        return ConfigError(
            given="critic.kind = lora, but the policy has no adapters and no frozen base",
            allowed="separate or shared, or a policy with lora",
            fix="Set lora = {}, or critic.kind = separate.",
        )
    owners = {"path": "separate", "rank": "lora", "alpha": "lora"}
    defaults = {name: type(critic).model_fields[name].default for name in owners}
    for name, owner in owners.items():
        if kind != owner and getattr(critic, name) != defaults[name]:
            return ConfigError(
                given=f"critic.{name} = {getattr(critic, name)}, but the critic is of kind {kind}",
                allowed=f"critic.kind = {owner}",
                fix=f"Set critic.kind = {owner}, or leave critic.{name} out.",
            )
    return None


def _critic_warms_up_in_time(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """critic.warmup_steps is below train.steps, so that the policy learns, too."""
    if config.critic is None or config.critic.warmup_steps < config.train.steps:
        return None
    return ConfigError(
        given=f"critic.warmup_steps = {config.critic.warmup_steps} of train.steps = {config.train.steps}: the policy "
        "would never learn",
        allowed=f"an integer from 0 to {config.train.steps - 1}",
        fix=f"Set critic.warmup_steps = {config.train.steps // 10}.",
    )


def _forgetting_needs_language(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """evaluation.forgetting and other_prompts are for models that write text, not for models that only score."""
    given = next((name for name in ("forgetting", "other_prompts") if getattr(config.evaluation, name)), None)
    if given is None or "scores" not in algorithm.needs:
        return None
    return ConfigError(
        given=f"evaluation.{given} = {getattr(config.evaluation, given)!r}, but {config.algorithm.name} trains a model "
        "that scores and predicts no text",
        allowed="null",
        fix=f"Remove evaluation.{given}.",
    )


def _judges_have_something_to_compare(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """A judge that compares the answers of a group needs groups: in training and in evaluations, never in check."""
    in_rewards = [n for n, entry in enumerate(config.rewards) if entry.judge and entry.judge.compares_groups]
    in_check = [n for n, entry in enumerate(config.check) if entry.judge and entry.judge.compares_groups]
    remedy = "judge.mode = score, or judge.against = COLUMN"
    if in_check:
        return ConfigError(
            given=f"check.{in_check[0]}.judge compares the answers of a group, and a check sees one answer per prompt",
            allowed="mode score or reference, or pairwise against a column of the rows",
            fix=f"Set {remedy} there.",
        )
    alone = {
        "sampling.group_size = 1": config.sampling.group_size == 1,
        "evaluation.samples = 0": config.evaluation.samples == 0,
    }
    if not in_rewards or not any(alone.values()):
        return None
    return ConfigError(
        given=f"{next(name for name, is_so in alone.items() if is_so)}, but rewards.{in_rewards[0]}.judge compares the "
        "answers of a group",
        allowed="sampling.group_size of at least 2 and evaluation.samples of at least 1",
        fix=f"Raise it, or set {remedy}.",
    )


def _turns_are_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Settings of turns need an environment, tools or an agent, and these need an algorithm that samples."""
    if config.has_turns:
        if _samples(algorithm) and config.sampled_pairs is None:
            return None
        return ConfigError(
            given=f"an environment, tools or an agent, but {config.algorithm.name} as configured trains on answers of "
            "one turn",
            allowed="an algorithm that samples in each step, without sampled_pairs",
            fix="Set algorithm = grpo, or leave environment, tools and agent out.",
        )
    for name in ("environment", "sampling"):
        section = getattr(config, name)
        names = ("max_turns", "max_trajectory_length") if name == "sampling" else type(section).model_fields
        unused = [one for one in names if getattr(section, one) != type(section).model_fields[one].default]
        if unused:
            return ConfigError(
                given=f"{name}.{unused[0]} = {getattr(section, unused[0])}, but each answer has one turn: there is "
                "no environment, no tool and no agent",
                allowed="environment.function, tools or agent.function",
                fix=f"Set tools = [calculator], for example, or leave {name}.{unused[0]} out.",
            )
    return None


def _stale_turns_have_no_credit_of_their_own(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """environment.credit other than trajectory needs train.run_ahead = 0, because old tokens are missing."""
    credit = config.environment.credit
    if not config.has_turns or credit == "trajectory" or config.train.lead == 0:
        return None
    return ConfigError(
        given=f"environment.credit = {credit} with train.run_ahead = {config.train.run_ahead}: turns that are too old "
        "to be trained would be missing where turns are counted and compared",
        allowed="environment.credit = trajectory, or train.run_ahead = 0",
        fix="Set environment.credit = trajectory, or train.run_ahead = 0.",
    )


def _tasks_are_those_that_are_played(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Rows of task:verifiers/NAME are made with default settings, so environment.settings cannot choose other tasks."""
    name = (config.environment.function or "").partition("verifiers:")[2]
    sources = (config.data.train, config.data.eval)
    given = [one for source in sources for one in ([source] if isinstance(source, str) else source or ())]
    if name and f"task:verifiers/{name}" in given and "taskset" in config.environment.settings:
        return ConfigError(
            given=f"environment.settings.taskset with the rows of task:verifiers/{name}, which are the default ones",
            allowed="rows that were made with these settings",
            fix="Write the rows of the Taskset to a file and name it in data, or leave taskset out.",
        )
    return None


def _environments_give_rewards(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """The reward `environment` needs environment.function, and the reward `agent` needs an agent."""
    names = {entry.name for entry in (*config.rewards, *config.check)}
    if "environment" in names and config.environment.function is None:
        return ConfigError(
            given="a reward named environment, but there is no environment to give it",
            allowed="environment.function",
            fix="Set environment = path/to/file.py:Class, or name another reward.",
        )
    if "agent" in names and not config.agent.is_given:
        return ConfigError(
            given="a reward named agent, but there is no agent to give it",
            allowed="agent.function or agent.command",
            fix="Set agent = path/to/file.py:function, or name another reward.",
        )
    return None


def _agents_stand_alone(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """Settings of an agent need an agent, and an agent excludes an environment and tools."""
    beside = [*_changed(config, "environment"), *(["tools"] if config.tools else [])]
    if config.agent.is_given and beside:
        return ConfigError(
            given=f"{beside[0]} with an agent, which answers turns and calls tools itself",
            allowed="an agent, or an environment and tools",
            fix=f"Leave {beside[0]} out.",
        )
    unused = _changed(config, "agent")
    if config.agent.is_given or not unused:
        return None
    return ConfigError(
        given=f"{unused[0]} is set, but there is no agent",
        allowed="settings of an agent with agent.function or agent.command",
        fix=f"Set agent.function = path/to/file.py:function, or leave {unused[0]} out.",
    )


def _turns_have_credit(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """environment.credit needs an algorithm that supports it: turns with their own advantages, or token rewards."""
    environment, credit = config.environment, config.environment.credit
    if not config.has_turns or credit == "trajectory":
        if environment.turn_discount == 1:
            return None
        return ConfigError(
            given=f"environment.turn_discount = {environment.turn_discount:g} with environment.credit = {credit}",
            allowed="environment.credit = turn, which gives turns returns",
            fix="Set environment.credit = turn, or leave environment.turn_discount out.",
        )
    if credit == "turn":
        from posttrain.algorithms.credit import no_turns_for  # imported only if needed

        return no_turns_for(algorithm)
    return _tokens_have_credit(config, algorithm)


def _tokens_have_credit(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    if config.environment.turn_discount != 1:
        return ConfigError(
            given=f"environment.turn_discount = {config.environment.turn_discount:g} with environment.credit = token",
            allowed="environment.credit = turn, or the discount per token, algorithm.gamma",
            fix="Set environment.credit = turn, or leave environment.turn_discount out.",
        )
    if not any(entry.name == "environment" for entry in config.rewards):
        return ConfigError(
            given="environment.credit = token, but no environment rewards its turns",
            allowed="environment.function, with the reward environment among rewards",
            fix="Set rewards = [environment], or leave environment.credit out.",
        )
    if algorithm.reads_token_rewards:
        return None
    return ConfigError(
        given=f"environment.credit = token, but {config.algorithm.name} as configured has one advantage per completion",
        allowed=", ".join(key for key, cls in ALGORITHMS.that_load() if cls.reads_token_rewards is True),
        fix="Set environment.credit = turn, or algorithm = reinforce_plus_plus.",
    )


def _changed(config: RunConfig, section: str) -> list[str]:
    """Return the settings of a section that differ from their defaults."""
    part = getattr(config, section)
    fields = type(part).model_fields
    return [f"{section}.{name}" for name, field in fields.items() if getattr(part, name) != field.default]


def _alarms_are_used(config: RunConfig, algorithm: Algorithm) -> ConfigError | None:
    """A setting of alarms needs something to watch: rewards, a check, evaluations, enough steps."""
    alarms = config.alarms
    given = {name for name, f in type(alarms).model_fields.items() if getattr(alarms, name) != f.default}
    given = given - {"enabled"} if alarms.enabled else set()
    by_check = {"check_sample", "check_accepts_at", "baseline_disagreement", "disagreement_ratio", "cusum_limit"}
    needs: list[tuple[bool, set[str], str, str]] = [
        (
            _samples(algorithm) and algorithm.learns_from_rewards,
            given,
            f"{config.algorithm.name} learns from no reward that could be gamed",
            "Choose an algorithm that learns from rewards",
        ),
        (bool(config.check), by_check, "there is no check", "Set check = [{function: my_check.py:score}]"),
        (
            config.evaluation.every > 0,
            {"heldout_z", "heldout_window"},
            "evaluation.every = 0 measures before and after only",
            "Set evaluation.every = 20",
        ),
        (
            config.train.steps >= 2 * alarms.reference_steps,
            {"reference_steps"},
            f"train.steps = {config.train.steps} leave no later steps to compare with",
            f"Set alarms.reference_steps = {max(1, config.train.steps // 4)}",
        ),
    ]
    for met, names, why, fix in needs:
        unused = sorted(given & names)
        if not met and unused:
            return ConfigError(
                given=f"{', '.join(f'alarms.{n} = {getattr(alarms, n)}' for n in unused)}, but {why}: it does nothing",
                allowed="settings of alarms that have something to watch",
                fix=f"{fix}, or leave {'it' if len(unused) == 1 else 'them'} out.",
            )
    return None


RULES: tuple[Rule, ...] = (
    _group_is_large_enough,
    _there_is_a_reward,
    _rewards_are_used,
    _the_check_has_answers,
    _pairs_can_be_sampled,
    _whole_distribution,
    _training_explores,
    _evaluation_samples_differ,
    _asynchrony_has_engines,
    _staleness_covers_the_lead,
    _engines_have_prompts,
    _stale_data_is_corrected,
    _engines_that_are_not_ahead_are_fresh,
    _servers_are_vllm,
    _the_cluster_has_something_to_hold,
    _the_run_has_a_folder,
    _shared_gpus_are_used_in_turns,
    _the_policy_judges_in_turns,
    _ranks_do_what_was_tried_over_ranks,
    _matrices_are_divided_where_that_was_shown,
    _parts_are_of_several_ranks,
    _what_is_compiled_runs_once,
    _minibatches_have_rows,
    _updates_have_a_reference_point,
    _warm_up_ends,
    _schedule_has_an_end,
    _labels_differ,
    _gates_lead_to_rewards,
    _stale_data_is_sampled,
    _steps_that_are_balanced_are_sampled,
    _rounds_are_used,
    _reference_is_used,
    _teacher_is_there,
    _critic_is_used,
    _critic_has_its_settings,
    _critic_warms_up_in_time,
    _auxiliary_data_is_there,
    _reward_model_is_used,
    _judges_have_something_to_compare,
    _forgetting_needs_language,
    _turns_are_used,
    _stale_turns_have_no_credit_of_their_own,
    _environments_give_rewards,
    _tasks_are_those_that_are_played,
    _turns_have_credit,
    _agents_stand_alone,
    _alarms_are_used,
)

OF_SAMPLING_AHEAD: tuple[Rule, ...] = (_staleness_covers_the_lead, _stale_data_is_corrected)
"""Rules for runs that sample ahead. A replay samples nothing."""
