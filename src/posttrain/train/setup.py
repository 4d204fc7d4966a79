"""Building a run: each part is made once, from the config and from the needs that the algorithm declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.algorithms import Algorithm
from posttrain.algorithms.credit import credit_of
from posttrain.data.examples import render_examples
from posttrain.data.hints import unseen_media
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.data.special import injected
from posttrain.data.split import Split as Rows
from posttrain.data.split import read_auxiliary, read_split
from posttrain.data.stream import StreamedRows, streaming_notes
from posttrain.engines.delivery import DeliveryProof, tolerance_for
from posttrain.engines.held import hold_frozen
from posttrain.episodes.acting import Acting
from posttrain.evaluate.forgetting import reference_loss
from posttrain.evaluate.heldout_scores import HeldOutScores
from posttrain.evaluate.measure import Measure, WithForgetting
from posttrain.evaluate.others import WithOtherPrompts, answer_logprobs, other_prompts, read_other_texts
from posttrain.evaluate.writing import WithWriting, draw_answers, score_plain_english
from posttrain.experience.deliveries import PROBE_PROMPTS, TrainerScores
from posttrain.experience.feed import Feed
from posttrain.experience.references import reference_forward
from posttrain.experience.rendering import context_length, unknown_notes
from posttrain.functional.intervals import wilson
from posttrain.models.compiled import compile_layers
from posttrain.models.compute import dtype_name
from posttrain.models.critic import Critic
from posttrain.models.layout import Layout
from posttrain.models.load import LoadedModel
from posttrain.models.microbatches import Split
from posttrain.models.policy import Forward, load_frozen, load_policy, policy_forward
from posttrain.models.reward_head import ScoringFacts, score_head
from posttrain.models.scoring import HEADS, ScoringForward, load_scoring_model
from posttrain.models.sharding import shard, shard_policy
from posttrain.ranks.agreement import ONE, Company, Ranks
from posttrain.store.checkpoint import Checkpoints
from posttrain.train.advantages import Advantages, OfExperience, OfGivenData
from posttrain.train.auxiliary import AddGradient, Auxiliary, nothing_else
from posttrain.train.computing import compute_facts, with_compute
from posttrain.train.critic import build_critic, critic_updates, rescale_to_reward
from posttrain.train.fleet import Fleet
from posttrain.train.guards import Guards
from posttrain.train.hosts import hosts_of
from posttrain.train.judges import Judges, Samplers
from posttrain.train.mismatch import Examiner
from posttrain.train.optimizer import Updater
from posttrain.train.passes import (
    CurrentEntropy,
    CurrentLogprobs,
    Fill,
    Logprobs,
    MismatchedLogRatios,
    OldLogprobsAndValues,
    Refresh,
    SquaredProbs,
    Values,
)
from posttrain.train.publish import FiniteWeights, HeldWeights, Publisher
from posttrain.train.run import Run
from posttrain.train.scoring import OncePerVersion, WithScale
from posttrain.train.sources import SCORED_SOURCES, SOURCES, Inputs, ScoringInputs, Source, sampled_preferences
from posttrain.train.trainer import Trainer
from posttrain.watch import Watch, nothing_to_watch

if TYPE_CHECKING:
    from posttrain.config import DataConfig, Resolved, RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import EventKind, RunStore
    from posttrain.types import Metrics
    from posttrain.watch.check import IndependentCheck

POLICY, TRAINER, SCORER = "policy", "trainer", "scorer"
"""The first rank's announcements that it makes these parts. The other ranks then make their own."""
FEW_HELDOUT = 30
"""Number of held-out rows below which a score says little."""


def set_up(resolved: Resolved, store: RunStore, view: TerminalView, resources: ExitStack, ranks: Ranks = ONE) -> Run:
    """The run in its initial state. It checks data, texts and rewards before it loads the model.

    `resources` closes what has to be closed at the end, such as the processes that compute rewards.
    """
    config = resolved.config
    algorithm = config.algorithm.build()
    view.begins("reading the data")
    rows = read_split(config.data, config.seed)
    tell(store, view, "warning", [*few_heldout_notes(config, rows), *many_heldout_notes(config.data, rows)])
    tell(store, view, "warning", [f"{found.message}. {found.fix}" for found in unseen_media(rows.train)])
    streams = {"training data": rows.train, "held-out data": rows.heldout}
    tell(store, view, "data", streaming_notes(streams))
    read_other_texts(config.evaluation)
    guards = Guards.of(
        config,
        store.evidence,
        within_groups=algorithm.min_group_size > 1,
        from_rewards=algorithm.data_kind == "prompts" and algorithm.learns_from_rewards,
    )
    tell_here = partial(tell, store, view)
    build = scoring_trainer if "scores" in algorithm.needs else policy_trainer
    view.begins(f"loading {config.model.path}, choosing how to compute with it, and preparing the rows")
    trainer, feed, measure, watch = build(config, algorithm, rows, guards, store, tell_here, resources, ranks)
    return Run(
        resolved=resolved,
        store=store,
        view=view,
        trainer=trainer,
        feed=feed,
        guards=guards,
        measure=measure,
        watch=watch,
        checkpoints=Checkpoints(store.checkpoints, config.checkpoint.keep),
    )


def many_heldout_notes(data: DataConfig, rows: Rows) -> list[str]:
    """A warning if whole prompts are held out, and they have many more rows than asked for."""
    held, whole, share = len(rows.heldout), len(rows.heldout) + len(rows.train), data.eval_fraction
    if own_rows(data) or data.part is not None or share == 0 or held <= 1 + 2 * share * whole:
        return []
    return [
        f"{held} of {whole} rows are held out, although data.eval_fraction = {share}: rows with the same prompt are "
        "held out together; name held-out rows in data.eval, or set data.hold_out = rows"
    ]


def few_heldout_notes(config: RunConfig, rows: Rows) -> list[str]:
    """A warning if too few rows are held out for a reliable score."""
    held, asked = len(rows.heldout), config.evaluation.prompts
    if not 0 < held < min(FEW_HELDOUT, asked):
        return []
    data, are = config.data, "is" if held == 1 else "are"
    if source := own_rows(data):
        counted = f"{source} has only {held} held-out {'row' if held == 1 else 'rows'}"
        fix = "name more of them in data.eval"
        if data.max_rows is not None and held >= data.max_rows:
            counted, fix = f"{counted} with data.max_rows = {data.max_rows}", "raise data.max_rows"
    else:
        whole = "" if data.part is not None else f" of {held + len(rows.train)}"
        counted = f"only {held}{whole} rows {are} held out"
        fix = "name held-out rows in data.eval, or raise data.eval_fraction"
    off = f"{100 * half_width(held):.0f} points by chance alone"
    return [f"{counted}: their score may be off by {off}, and says little about what the model learned; {fix}"]


def own_rows(data: DataConfig) -> str:
    """What brings the held-out rows, `data.eval` or a task; empty if they are split off the training rows."""
    if data.eval is not None:
        return "data.eval"
    return data.train if isinstance(data.train, str) and data.train.startswith("task:") else ""


def half_width(rows: int) -> float:
    """Half the width of the 95% interval around a share of one half."""
    _, low, high, _ = wilson(rows // 2, rows)
    return (high - low) / 2


Tell = Callable[["EventKind", Iterable[str]], None]
Built = tuple[Trainer, Feed, Measure, Watch]


def tell(store: RunStore, view: TerminalView, kind: EventKind, sentences: Iterable[str]) -> None:
    """Record sentences as events and show them on the terminal."""
    for sentence in sentences:
        store.event(kind, sentence)
        view.event(kind, sentence)


# --- a model that writes ---------------------------------------------------------------------------------------------


def _unread(judges: Judges, config: RunConfig) -> str:
    """Name the reward that would read those of the environment or agent, if none of the run does."""
    if judges.rewards is None or judges.rewards.reads_environment:
        return ""
    return "agent" if config.agent.is_given else "environment"


def policy_trainer(
    config: RunConfig,
    algorithm: Algorithm,
    rows: Rows,
    guards: Guards,
    store: RunStore,
    tell: Tell,
    resources: ExitStack,
    ranks: Ranks = ONE,
) -> Built:
    """The trainer of a policy, its feed, its measure, and the watch on its rewards."""

    def warn(sentence: str) -> None:
        tell("warning", [sentence])

    auxiliary_rows = read_auxiliary(config.data, config.seed)
    hosts = hosts_of(config, resources, lambda text: tell("compute", [text]), warn)
    judges, acting = Judges.of(config, store.folder, resources, hosts), Acting.of(config, resources)
    guards.ignored.missing = _unread(judges, config)
    judges.refuse_token_rewards(algorithm, config.train.lead, by_turn=config.environment.credit == "turn")
    with ranks.together(POLICY, str(store.folder), config):
        policy = Policy.of(config, algorithm, store.folder, ranks)
    loaded, forward = policy.loaded, policy.forward
    tell("compute", compute_facts(loaded))
    fleet = Fleet.of(
        config, loaded, forward, store, resources, say=warn, to_come=policy.optimizer.bytes_to_come, hosts=hosts
    )
    samplers = Samplers.of(config, loaded, acting, published=algorithm.data_kind == "prompts" and fleet is None)
    judges.bind(samplers.evaluation, config, store.folder, fleet)
    read = SOURCES[algorithm.data_kind] if config.sampled_pairs is None else sampled_preferences
    given = Inputs(
        config=config,
        algorithm=algorithm,
        rows=rows,
        loaded=loaded,
        forward=forward,
        samplers=samplers,
        judges=judges,
        folder=store.folder,
        say=lambda sentence: tell("data", [sentence]),
        fleet=fleet,
    )
    source = read(given)
    watch, watch_notes = watch_of(config, judges, source, policy, fleet)
    measure = measure_of(config, loaded, samplers, source, judges.check)
    tell("warning", [*loaded.notes, *samplers.notes, *judges.notes, *source.notes, *watch_notes])
    tell("warning", injection_notes(rows, algorithm, loaded))
    tell("data", (*judges.facts, *source.facts))
    probe = [prompt.ids for prompt in source.prompts[:PROBE_PROMPTS]]
    with ranks.together(TRAINER):
        trainer, more_notes = policy.trainer(
            config,
            auxiliary_rows,
            numbers=guards.non_finite,
            publish=publishing(config, loaded, forward, fleet or samplers, probe, ranks),
            held=HeldWeights(samplers.training) if probe and fleet is None and samplers.training.owns_weights else None,
            say=warn,
        )
    tell("warning", more_notes)
    return trainer, source.feed, measure, watch


def watch_of(
    config: RunConfig, judges: Judges, source: Source, policy: Policy, fleet: Fleet | None
) -> tuple[Watch, Sequence[str]]:
    """The watch on sampled answers, and notes about it for the user; nothing if no answers are sampled."""
    if not source.prompts:
        return nothing_to_watch(), []
    watch, notes = Watch.of(config, judges.check, source.prompts, policy.loaded.compute_dtype)
    watch.examine = examiner(config, policy.loaded, policy.forward, fleet)
    return watch, notes


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The model that is trained to write, and the parts that train it, without data, samplers and judges."""

    algorithm: Algorithm
    """The algorithm, with a concrete correction in place of `auto`."""
    loaded: LoadedModel
    critic: Critic | None
    forward: Forward
    optimizer: Updater
    ranks: Ranks = ONE

    @staticmethod
    def of(config: RunConfig, algorithm: Algorithm, folder: Path, ranks: Ranks = ONE) -> Policy:
        """The policy at the start of a run, made on all ranks together. `folder` keeps how the run computes."""
        in_parts = ranks.size > 1
        loaded = with_compute(load_policy(config, in_parts=in_parts), config, folder)
        algorithm = with_correction(config, algorithm, loaded)
        critic = build_critic(config, algorithm, loaded, folder, in_parts=in_parts)
        if config.lora is not None:
            hold_frozen(loaded, decodes=not in_parts)  # after the critic has put its adapter on the same layers
        if in_parts:
            critic = shard_policy(loaded.model, critic, Layout.of(config.train, ranks), loaded.compute_dtype)
        if critic is not None:
            rescale_to_reward(critic, config, folder)
        forward = policy_forward(config, loaded, algorithm, critic)
        optimizer = Updater(loaded.model.parameters(), config.train, critic_updates(config, critic))
        if config.train.compile:
            compile_layers(loaded.model)
        return Policy(
            algorithm=algorithm, loaded=loaded, critic=critic, forward=forward, optimizer=optimizer, ranks=ranks
        )

    def trainer(self, config: RunConfig, auxiliary_rows: Sequence[Row], **how: Any) -> tuple[Trainer, list[str]]:
        """The trainer, and notes for the user. All ranks call it at the same time. `how` goes to `Trainer`."""
        rows = self.ranks.across(config.train.tensor)
        add_gradient, notes = auxiliary(config, auxiliary_rows, self, rows)
        trainer = Trainer(
            config=config,
            algorithm=self.algorithm,
            loaded=self.loaded,
            forward=self.forward,
            advantages=advantages_of(config, self.algorithm, self.loaded, self.forward, rows),
            optimizer=self.optimizer,
            critic=self.critic,
            add_gradient=add_gradient,
            ranks=self.ranks,
            **how,
        )
        return trainer, notes


def measure_of(
    config: RunConfig,
    loaded: LoadedModel,
    samplers: Samplers,
    source: Source,
    check: IndependentCheck | None = None,
) -> Measure:
    """The measures of a model that writes: its score, its forgetting, its style, and its answers to other prompts."""
    measure = source.measure
    if config.evaluation.forgetting is not None:
        measure = WithForgetting(measure, partial(forgetting_loss, config, loaded))
    answer, settings = partial(draw_answers, samplers.evaluation, config), config.evaluation
    if settings.writing:
        score = partial(score_plain_english, config, loaded)
        judges = None if check is None or source.prompts or config.sampled_pairs else check.in_evaluations
        if judges is not None:  # in all other runs the prompts have been checked already
            judges.check(source.asked.prompts, source.asked.of)
        checked = partial(answer, check=judges)
        measure = WithWriting(measure, source.asked, checked, score, settings.confidence)
    if settings.other_prompts is not None:
        measure = WithOtherPrompts(
            measure,
            other_prompts(config, loaded),
            answer,
            partial(answer_logprobs, config, loaded),
            max_drift=settings.max_drift,
            confidence=settings.confidence,
        )
    return measure


def advantages_of(
    config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, forward: Forward, rows: Company = ONE
) -> Advantages:
    """The passes between experience and loss, both those once per step and those before each update.

    `rows` are the ranks that have other rows than this one."""
    split, present = Split(forward, config.train.microbatch_tokens, rows), forward.under(loaded.model)
    refreshes: list[Refresh] = [
        *([CurrentLogprobs(present, split)] if "current" in algorithm.needs else []),
        *([CurrentEntropy(forward, split)] if "current_entropy" in algorithm.needs else []),
        *([MismatchedLogRatios(present, split)] if "mismatched" in algorithm.needs else []),
    ]
    if algorithm.data_kind != "prompts":
        return OfGivenData(algorithm, refreshes)
    fills = fills_of(config, algorithm, loaded, forward, rows)
    credit = credit_of(config.environment.credit, config.environment.turn_discount)
    return OfExperience(algorithm, fills, refreshes, mask_truncated=config.train.mask_truncated, credit=credit)


def fills_of(
    config: RunConfig, algorithm: Algorithm, loaded: LoadedModel, forward: Forward, rows: Company = ONE
) -> list[Fill]:
    """One pass for each tensor that the algorithm needs about its samples."""
    split = partial(Split, tokens_per_microbatch=config.train.microbatch_tokens, ranks=rows)
    fills: list[Fill] = []
    old = algorithm.needs_old_pass(updates=config.train.updates_per_batch, dropout=config.has_dropout)
    critic = forward.critic
    if old and critic is not None and critic.in_policy_pass:
        fills.append(OldLogprobsAndValues(forward.under(loaded.model, critic=critic), split(forward)))
    else:
        fills += [Logprobs("old_logprobs_BT", forward.under(loaded.model), split(forward))] if old else []
        fills += [Values(forward, split(forward))] if critic is not None else []
    if "squared_probs" in algorithm.needs:
        halved = forward.under(loaded.model, temperature=forward.temperature / 2)
        fills.append(SquaredProbs(halved, split(halved)))
    if "reference" in algorithm.needs:
        reference = reference_forward(config, loaded, forward)
        fills.append(Logprobs("ref_logprobs_BT", reference, split(reference)))
    if "teacher" in algorithm.needs:
        assert config.teacher is not None, "config rules: an algorithm that needs a teacher has one"
        teacher = load_frozen("teacher", config.teacher, config, loaded, forward)
        fills.append(Logprobs("teacher_logprobs_BT", teacher, split(teacher)))
    return fills


def with_correction(config: RunConfig, algorithm: Algorithm, loaded: LoadedModel) -> Algorithm:
    """Resolve `correction: auto`: none if the sampler computes exactly as the trainer, else the algorithm's own."""
    return algorithm.with_decided_correction(exact=config.samples_exactly(dtype_name(loaded.compute_dtype)))


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


def auxiliary(config: RunConfig, rows: Sequence[Row], policy: Policy, ranks: Company) -> tuple[AddGradient, list[str]]:
    """The term added to the gradient of each update, and a note about it for the user."""
    algorithm, loaded, forward = policy.algorithm, policy.loaded, policy.forward
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
        examples=found.rows,
        rows=config.data.auxiliary_rows,
        updates_per_step=config.train.updates_per_batch,
        seed=config.seed,
        pad_id=loaded.pad_id,
        forward=forward.under(loaded.model, temperature=1.0),
        split=Split(forward, config.train.microbatch_tokens, ranks),
    )
    notes = [f"data.auxiliary: {found.dropped_summary}"] if found.dropped else []
    return add_gradient, [*notes, *unknown_notes("data.auxiliary", found, config, loaded)]


def publishing(
    config: RunConfig,
    loaded: LoadedModel,
    forward: Forward,
    samplers: Samplers | Fleet,
    probe: Sequence[Sequence[int]],
    ranks: Ranks = ONE,
) -> Callable[[int], Metrics]:
    """The function that gives new weights to the sampler and proves their arrival; without a probe nothing samples."""
    if isinstance(samplers, Fleet):
        return samplers.deliveries
    if not probe:
        return FiniteWeights(loaded.model, ranks)
    proof = DeliveryProof.from_prompts(
        probe,
        tolerance=config.guards.publish_tolerance or tolerance_for(loaded.compute_dtype),
        temperature=forward.temperature,
    )
    scores = TrainerScores(forward.under(loaded.model), loaded.pad_id)
    return Publisher(loaded.model, samplers.training, proof, scores, every=config.train.publish_every)


def examiner(config: RunConfig, loaded: LoadedModel, forward: Forward, fleet: Fleet | None) -> Examiner:
    """The examiner that finds out why engines and trainer disagree about log-probabilities."""
    scores = TrainerScores(forward.under(loaded.model), loaded.pad_id)
    tokens = config.train.microbatch_tokens
    if fleet is None:
        return Examiner(loaded, forward, scores, tokens)
    published = lambda version: fleet.deliveries.other_versions(version)  # noqa: E731  deliveries are made later
    return Examiner(loaded, forward, scores, tokens, engines=fleet.examine, published=published)


def injection_notes(rows: Rows, algorithm: Algorithm, loaded: LoadedModel) -> list[str]:
    """Warnings about special tokens in the text of rows in memory. `data check` searches streamed rows."""
    notes, chat = [], bool(loaded.tokenizer.chat_template)
    for part, what in ((rows.train, "training data"), (rows.heldout, "held-out data")):
        if not part or isinstance(part, StreamedRows):
            continue
        found = injected(part, algorithm.data_kind, loaded.tokenizer, loaded.eos_ids, chat=chat)
        notes += [f"{what}: {found.message}. {found.fix}"] if found else []
    return notes


# --- a model that scores ---------------------------------------------------------------------------------------------


def scoring_trainer(
    config: RunConfig,
    algorithm: Algorithm,
    rows: Rows,
    guards: Guards,
    store: RunStore,
    tell: Tell,
    resources: ExitStack,
    ranks: Ranks = ONE,
) -> Built:
    """The trainer of a reward model, its feed and its measure. There is nothing to watch."""
    with ranks.together(SCORER, str(store.folder), config):
        scorer = Scorer.of(config, algorithm, store.folder, ranks)
    loaded, forward = scorer.loaded, scorer.forward
    tell("compute", compute_facts(loaded))
    renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    facts = ScoringFacts(
        chat=renderer.chat,
        system_prompt=renderer.system_prompt,
        template_kwargs=dict(config.model.chat_template_kwargs),
        eos_ids=tuple(sorted(loaded.eos_ids)),
    )
    source = SCORED_SOURCES[algorithm.data_kind](
        ScoringInputs(
            config=config,
            algorithm=algorithm,
            rows=rows,
            loaded=loaded,
            renderer=renderer,
            forward=forward,
            facts=facts,
        )
    )
    tell("warning", (*loaded.notes, *source.notes))
    heldout = OncePerVersion(source.heldout)
    measure = HeldOutScores(heldout, config.evaluation.confidence)
    trainer = scorer.trainer(
        config,
        numbers=guards.non_finite,
        publish=heldout.forget,
        write=WithScale(source.facts, measure),
        say=lambda sentence: tell("warning", [sentence]),
    )
    return trainer, source.feed, measure, nothing_to_watch()


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """The model that is trained to score, and the parts that train it."""

    algorithm: Algorithm
    loaded: LoadedModel
    forward: ScoringForward
    optimizer: Updater
    ranks: Ranks

    @staticmethod
    def of(config: RunConfig, algorithm: Algorithm, folder: Path, ranks: Ranks = ONE) -> Scorer:
        """The scorer at the start of a run. All ranks call it at the same time."""
        head = HEADS[algorithm.data_kind]
        loaded = load_scoring_model(config, head, in_parts=ranks.size > 1)
        loaded = with_compute(loaded, config, folder, decodes=False)
        if config.lora is not None:
            hold_frozen(loaded, decodes=False, keep=score_head(loaded.model))
        if ranks.size > 1:
            shard("policy", loaded.model, Layout.of(config.train, ranks), loaded.compute_dtype)
        if config.train.compile:
            compile_layers(loaded.model)
        forward, optimizer = ScoringForward(loaded, head.score), Updater(loaded.model.parameters(), config.train)
        return Scorer(algorithm=algorithm, loaded=loaded, forward=forward, optimizer=optimizer, ranks=ranks)

    def trainer(self, config: RunConfig, **how: Any) -> Trainer:
        """The trainer. `how` are the other arguments of `Trainer`."""
        return Trainer(
            config=config,
            algorithm=self.algorithm,
            loaded=self.loaded,
            forward=self.forward,
            advantages=OfGivenData(self.algorithm, []),
            optimizer=self.optimizer,
            ranks=self.ranks,
            **how,
        )
