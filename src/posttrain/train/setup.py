"""Building a run: each part is made once, from the config and from what the algorithm declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from posttrain.algorithms import Algorithm
from posttrain.algorithms.base import Need
from posttrain.data.examples import render_examples
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.split import Split, read_auxiliary, read_split
from posttrain.data.stream import streaming_notes
from posttrain.engines.delivery import DeliveryProof, tolerance_for
from posttrain.evaluate.forgetting import read_texts, reference_loss
from posttrain.evaluate.measure import HeldOutAnswers, WithForgetting
from posttrain.experience.feed import SampledFeed
from posttrain.experience.offline import labelled, preferences, supervised
from posttrain.experience.prompted import checked_prompts, prompt_notes
from posttrain.experience.references import reference_forward
from posttrain.experience.sampled_pairs import sampled_preferences
from posttrain.functional.intervals import wilson
from posttrain.models.adapters import apply_lora
from posttrain.models.compute import dtype_name
from posttrain.models.critic import Critic
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.microbatches import split_for
from posttrain.models.modes import recompute_activations
from posttrain.models.named import resolve_model_path
from posttrain.models.policy import Forward
from posttrain.store.checkpoint import Checkpoints
from posttrain.train.advantages import (
    Fill,
    Given,
    Weighing,
    fill_logprobs,
    fill_old_logprobs_and_values,
    fill_values,
    in_turn,
    with_current_entropy,
    with_current_logprobs,
    with_mismatched_log_ratios,
)
from posttrain.train.auxiliary import AddGradient, Auxiliary, nothing_else
from posttrain.train.computing import compute_facts, with_compute
from posttrain.train.critic import build_critic, critic_updates
from posttrain.train.frozen import load_frozen
from posttrain.train.guards import Guards
from posttrain.train.injected import injection_notes
from posttrain.train.judges import Judges, Samplers
from posttrain.train.optimizer import Updater
from posttrain.train.publish import FiniteWeights, HeldWeights, Publisher, TrainerScores
from posttrain.train.run import Refresh, Run, Weigh
from posttrain.train.scoring import set_up_scoring
from posttrain.train.source import Parts, Source, context_length, tell
from posttrain.watch import Watch

if TYPE_CHECKING:
    from posttrain.config import Resolved, RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore
    from posttrain.types import Metrics


FEW_HELDOUT = 30
"""Rows, below which a held-out score says little."""


def set_up(resolved: Resolved, store: RunStore, view: TerminalView, resources: ExitStack) -> Run:
    """Everything that a run needs, in its first state; looks at data, texts and rewards before it loads the model.

    What has to be closed at the end, such as the processes that compute rewards, goes into `resources`.
    """
    config = resolved.config
    algorithm = config.algorithm.build()
    rows = read_split(config.data, config.seed)
    tell(store, view, "warning", few_heldout_notes(config, rows))
    streams = {"training data": rows.train, "held-out data": rows.heldout}
    tell(store, view, "data", streaming_notes(streams))
    if config.evaluation.forgetting is not None:
        read_texts(config.evaluation.forgetting)
    auxiliary_rows = read_auxiliary(config.data, config.seed)
    if "scores" in algorithm.needs:
        return set_up_scoring(resolved, store, view, algorithm, rows)
    judges = Judges.of(config, store.folder, resources)
    loaded = with_compute(load_policy(config), config.model.precision, store.folder)
    tell(store, view, "compute", compute_facts(loaded))
    algorithm = with_correction(config, algorithm, loaded)
    critic = build_critic(config, algorithm, loaded, store.folder)
    forward = policy_forward(config, loaded, algorithm, critic)
    samplers = Samplers.of(config, loaded, published=algorithm.data_kind == "prompts")
    judges.bind(samplers.evaluation, config, store.folder)
    build = BUILDERS[algorithm.data_kind]
    if config.sampled_pairs is not None:
        build = partial(sampled_preferences, say=partial(view.event, "sampled_pairs"))
    made = {"loaded": loaded, "forward": forward, "samplers": samplers, "judges": judges}
    source = build(Parts(config=config, rows=rows, folder=store.folder, **made))
    measure = source.measure
    if config.evaluation.forgetting is not None:
        measure = WithForgetting(measure, lambda: forgetting_loss(config, loaded))
    add_gradient, more_notes = auxiliary(config, auxiliary_rows, algorithm, loaded, forward)
    tell(store, view, "warning", [*loaded.notes, *samplers.notes, *judges.notes, *source.notes])
    tell(store, view, "warning", [*injection_notes(rows, algorithm.data_kind, loaded), *more_notes])
    tell(store, view, "data", (*judges.facts, *source.facts))
    weigh, refresh = learning(config, algorithm, loaded, forward)
    return Run(
        resolved=resolved,
        store=store,
        view=view,
        loaded=loaded,
        algorithm=algorithm,
        forward=forward,
        critic=critic,
        weigh=weigh,
        refresh=refresh,
        add_gradient=add_gradient,
        optimizer=Updater(loaded.model.parameters(), config.train, critic_updates(config, critic)),
        guards=guards_for(config, store, algorithm),
        feed=source.feed,
        publish=publishing(config, loaded, forward, samplers, source.probe),
        held=None if not samplers.training.owns_weights else HeldWeights(samplers.training),
        measure=measure,
        watch=source.watch,
        checkpoints=Checkpoints(store.checkpoints, config.checkpoint.keep),
    )


def few_heldout_notes(config: RunConfig, rows: Split) -> list[str]:
    """A share of little data is too little to be judged by."""
    held, asked = len(rows.heldout), config.evaluation.prompts
    if not 0 < held < min(FEW_HELDOUT, asked):
        return []
    are = "is" if held == 1 else "are"
    return [
        f"only {held} of {held + len(rows.train)} rows {are} held out: a score of so few may be off by "
        f"{100 * half_width(held):.0f} points by chance alone, and says little about what was learned; name held-out "
        "rows in data.eval, or raise data.eval_fraction"
    ]


def half_width(rows: int) -> float:
    """Of the interval of 95% around a share of a half."""
    _, low, high, _ = wilson(rows // 2, rows)
    return (high - low) / 2


def guards_for(config: RunConfig, store: RunStore, algorithm: Algorithm) -> Guards:
    """The guards, told what the algorithm compares and what it learns from."""
    return Guards.of(
        config,
        store.evidence,
        within_groups=algorithm.min_group_size > 1,
        from_rewards=algorithm.data_kind == "prompts" and algorithm.learns_from_rewards,
    )


def load_policy(config: RunConfig) -> LoadedModel:
    """The model to train: master weights in float32, adapters when configured."""
    loaded = load_model(resolve_model_path(config.model, config.seed))
    if config.lora is not None:
        loaded = replace(loaded, model=apply_lora(loaded.model, config.lora, seed=config.seed))
    loaded.model.eval()  # new adapters start in training mode; dropout is for the update alone
    if config.train.gradient_checkpointing:
        recompute_activations(loaded.model)
    return loaded


def forgetting_loss(config: RunConfig, loaded: LoadedModel) -> float:
    """Loss of the present weights on the reference text, in nats per token."""
    assert config.evaluation.forgetting is not None
    with loaded.compute.scope():
        return reference_loss(
            loaded.model,
            loaded.tokenizer,
            config.evaluation.forgetting,
            window=min(512, loaded.context_length or 512),
            compute_dtype=loaded.compute_dtype,
            chunk_tokens=config.train.logprob_chunk_tokens,
        ).loss


def policy_forward(
    config: RunConfig, loaded: LoadedModel, algorithm: Algorithm, critic: Critic | None = None
) -> Forward:
    return Forward(
        loaded.model,
        temperature=config.sampling.temperature if algorithm.data_kind == "prompts" else 1.0,
        chunk_tokens=config.train.logprob_chunk_tokens,
        compute=loaded.compute,
        entropy="gradient" if "entropy" in algorithm.needs else "value",
        critic=critic,
        top1=algorithm.data_kind == "examples",
    )


def with_correction(config: RunConfig, algorithm: Algorithm, loaded: LoadedModel) -> Algorithm:
    """`correction: auto` decided: none if the sampler computes as the trainer does, else the algorithm's own."""
    return algorithm.with_decided_correction(exact=config.train.samples_exactly(dtype_name(loaded.compute_dtype)))


# --- what the algorithm asks for -------------------------------------------------------------------------------------


def weighing(config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, forward: Forward) -> Weighing:
    """The way from experience to a batch, with one collaborator per need."""
    split = partial(split_for, tokens_per_microbatch=config.train.tokens_per_microbatch)
    fills: list[Fill] = []
    old = algorithm.needs_old_pass(updates=config.train.updates_per_batch, dropout=config.has_dropout)
    critic = forward.critic
    if old and critic is not None and critic.in_policy_pass:
        fills.append(fill_old_logprobs_and_values(forward.under(loaded.model, critic=critic), split(forward)))
    else:
        fills += [fill_logprobs("old_logprobs_BT", forward.under(loaded.model), split(forward))] if old else []
        fills += [fill_values(forward.values, split(forward))] if critic is not None else []
    if "reference" in algorithm.needs:
        reference = reference_forward(config, loaded, forward)
        fills.append(fill_logprobs("ref_logprobs_BT", reference, split(reference)))
    if "teacher" in algorithm.needs:
        assert config.teacher is not None, "config_rules: an algorithm that needs a teacher has one"
        teacher = load_frozen("teacher", config.teacher, config, loaded, forward)
        fills.append(fill_logprobs("teacher_logprobs_BT", teacher, split(teacher)))
    return Weighing(algorithm, fills, mask_truncated=config.train.mask_truncated)


def refreshing(config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, forward: Forward) -> Refresh:
    """What is computed anew before each update of a batch, with one collaborator per need."""
    split = split_for(forward, config.train.tokens_per_microbatch)
    makers: dict[Need, Callable[..., Refresh]] = {
        "current": with_current_logprobs,
        "current_entropy": with_current_entropy,
        "mismatched": with_mismatched_log_ratios,
    }
    entropy = "value" if "current_entropy" in algorithm.needs else "none"
    asked = [make for need, make in makers.items() if need in algorithm.needs]
    return in_turn([make(forward.under(loaded.model, entropy=entropy), split) for make in asked])


def learning(config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, forward: Forward) -> tuple[Weigh, Refresh]:
    """What happens to experience before the loss sees it: once per step, and before each update."""
    refresh = refreshing(config, algorithm, loaded, forward)
    if algorithm.data_kind == "prompts":
        return weighing(config, algorithm, loaded, forward), refresh
    given = Given(algorithm)
    return given, given.remembering(refresh)


def auxiliary(
    config: RunConfig, rows: Sequence[Row], algorithm: Algorithm, loaded: LoadedModel, forward: Forward
) -> tuple[AddGradient, list[str]]:
    """What is added to the gradient of each update, and what the user should know about it."""
    if "auxiliary" not in algorithm.needs:
        return nothing_else, []
    found = render_examples(
        rows,
        Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs),
        eos_ids=loaded.eos_ids,
        max_length=context_length(loaded),
        max_dropped=config.data.max_dropped,
        what=loaded.named("data.auxiliary"),
    )
    add_gradient = Auxiliary(
        coef=algorithm.auxiliary_coef,
        examples=found.examples,
        rows=config.data.auxiliary_rows,
        updates_per_step=config.train.updates_per_batch,
        seed=config.seed,
        pad_id=loaded.pad_id,
        forward=forward.under(loaded.model, temperature=1.0),
        split=split_for(forward, config.train.tokens_per_microbatch),
    )
    return add_gradient, [f"data.auxiliary: {found.dropped_summary}"] if found.dropped else []


def publishing(
    config: RunConfig, loaded: LoadedModel, forward: Forward, samplers: Samplers, probe: Sequence[Sequence[int]]
) -> Callable[[int], Metrics]:
    """How new weights reach whoever samples, with the proof that they arrived; without a probe nobody does."""
    if not probe:
        return FiniteWeights(loaded.model)
    proof = DeliveryProof.from_prompts(
        probe,
        tolerance=config.guards.publish_tolerance or tolerance_for(loaded.compute_dtype),
        temperature=forward.temperature,
    )
    scores = TrainerScores(forward.under(loaded.model), loaded.pad_id)
    return Publisher(loaded.model, samplers.training, proof, scores, every=config.train.publish_every)


# --- where the data comes from ---------------------------------------------------------------------------------------


def online(parts: Parts) -> Source:
    """Prompts are answered and the answers are scored."""
    config, loaded, samplers = parts.config, parts.loaded, parts.samplers
    train, heldout = checked_prompts(config, parts.rows, loaded, parts.judges)
    rewards, check = parts.judges
    algorithm = config.algorithm.build()
    feed = SampledFeed(
        config,
        train.prompts,
        samplers.training,
        rewards,
        pad_id=loaded.pad_id,
        needs=algorithm.needs,
        learns_from_rewards=algorithm.learns_from_rewards,
    )
    measure = HeldOutAnswers(config, samplers.evaluation, heldout.prompts, rewards, check)
    watch, watch_notes = Watch.of(config, check, train.prompts)
    return Source(
        feed=feed,
        measure=measure,
        watch=watch,
        probe=[prompt.ids for prompt in train.prompts[:4]],
        notes=[
            *samplers.decoding_notes,
            *prompt_notes(train, heldout, config.data.system_prompt),
            *update_notes(config),
            *mark_notes(config),
            *watch_notes,
        ],
    )


def mark_notes(config: RunConfig) -> list[str]:
    """Where an algorithm asks whether an answer is correct, it looks at the weighted sum of all rewards."""
    algorithm = config.algorithm.build()
    asks = ["correct_at"] if algorithm.correct_from is not None else []
    asks += ["signal"] if "signal" in algorithm.needs else []
    if not asks or len(config.rewards) < 2:
        return []
    return [
        f"{algorithm.key} decides by the weighted sum of {len(config.rewards)} rewards which answers are right "
        f"({', '.join(asks)}): a reward for length or format makes groups of wrong answers look informative; prefer "
        "one reward for correctness, and shape lengths by the algorithm's own settings"
    ]


def update_notes(config: RunConfig) -> list[str]:
    """Updates of a batch after the first are off-policy: an algorithm without a ratio does not correct that."""
    algorithm, updates = config.algorithm.build(), config.train.updates_per_batch
    if updates == 1 or "old" in algorithm.needs or algorithm.learns_off_policy:
        return []
    clip = " and ".join(f"algorithm.{name}" for name in algorithm.clip_settings)
    way_out = f"{clip}, or " if clip else ""
    return [
        f"{algorithm.key} has no importance ratio as configured, but each batch is used for {updates} updates: "
        f"from the second on the gradient is biased; set {way_out}train.minibatches = 1 and train.epochs = 1"
    ]


BUILDERS = {"prompts": online, "examples": supervised, "pairs": preferences, "labels": labelled}
