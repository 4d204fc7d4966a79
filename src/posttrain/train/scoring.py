"""A run whose model scores answers instead of writing them: the parts that differ from those of a language model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from posttrain.algorithms import Algorithm
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.split import Split
from posttrain.errors import DataError
from posttrain.models.adapters import apply_lora
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts, load_reward_model, row_scores, save_reward_model, score_head
from posttrain.tasks.tiny import resolve_model_path
from posttrain.train.checkpoint import Checkpoints
from posttrain.train.guards import Guards
from posttrain.train.optimizer import Updater
from posttrain.train.policy import nobody_samples
from posttrain.train.preferences import HeldOutPairs, PairFeed
from posttrain.train.run import Run
from posttrain.train.weigh import Given, in_turn
from posttrain.types import Batch, Outputs, Pair

if TYPE_CHECKING:
    from posttrain.config import Resolved, RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.train.store import RunStore


def set_up_scoring(resolved: Resolved, store: RunStore, view: TerminalView, algorithm: Algorithm, rows: Split) -> Run:
    """Everything that a run on preference pairs needs to train a reward model, in its first state."""
    config = resolved.config
    loaded = load_scoring_model(config)
    renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    sets = [
        render_pairs(
            part,
            renderer,
            eos_ids=loaded.eos_ids,
            max_length=loaded.context_length or sys.maxsize,
            max_dropped=config.data.max_dropped,
            what=what,
        )
        for part, what in ((rows.train, "training data"), (rows.heldout, "held-out data"))
        if part
    ]
    heldout = sets[1].pairs if len(sets) > 1 else ()
    notes = [s.dropped_summary for s in sets if s.dropped] + margin_notes(sets[0].pairs, algorithm)
    for note in (*loaded.notes, *notes):
        store.event("warning", note)
        view.event("warning", note)
    forward = ScoringForward(loaded)
    measure = HeldOutPairs(config, forward.scores, heldout, loaded.pad_id)
    facts = ScoringFacts(
        chat=renderer.chat,
        system_prompt=renderer.system_prompt,
        template_kwargs=dict(config.model.chat_template_kwargs),
        eos_ids=tuple(sorted(loaded.eos_ids)),
    )
    return Run(
        resolved=resolved,
        store=store,
        view=view,
        loaded=loaded,
        algorithm=algorithm,
        forward=forward,
        weigh=Given(algorithm),
        refresh=in_turn([]),
        optimizer=Updater(loaded.model.parameters(), config.train),
        guards=Guards.of(config, store.evidence),
        feed=PairFeed(config, sets[0].pairs, pad_id=loaded.pad_id),
        publish=nobody_samples,
        measure=measure,
        checkpoints=Checkpoints(store.checkpoints, config.checkpoint.keep),
        write_model=WithScale(facts, measure),
    )


def margin_notes(pairs: Sequence[Pair], algorithm: Algorithm) -> list[str]:
    """A column of margins that nothing reads is worth a line; one that is missing, an error."""
    known, asked = sum(pair.margin is not None for pair in pairs), "margins" in algorithm.needs
    if asked and known < len(pairs):
        raise DataError(
            given=f"{len(pairs) - known} of {len(pairs)} pairs have no margin, which {algorithm.key} is set to read",
            allowed="a number in the column margin of each row",
            fix="Set algorithm.margin = 0, or complete the column.",
        )
    return ["the column margin is not used; algorithm.margin = data would use it"] if known and not asked else []


def load_scoring_model(config: RunConfig) -> LoadedModel:
    """The model to train: its head is new unless the folder holds a reward model already."""
    loaded = load_reward_model(resolve_model_path(config.model, config.seed), seed=config.seed)
    if config.lora is not None:
        adapted = apply_lora(loaded.model, config.lora, seed=config.seed, head=score_head(loaded.model))
        loaded = replace(loaded, model=adapted)
    loaded.model.eval()
    if config.train.gradient_checkpointing:
        loaded.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return loaded


class ScoringForward:
    """Batch -> Outputs with a score per row; there are no log-probabilities, and theirs are 0."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    def __call__(self, batch: Batch) -> Outputs:
        logprobs_BT = torch.zeros(batch.completion_mask_BT.shape)
        return Outputs(logprobs_BT=logprobs_BT, scores_B=self.scores(batch))

    def scores(self, batch: Batch) -> torch.Tensor:
        assert batch.tokens is not None, "a batch without token ids cannot go through the model"
        with self.loaded.autocast():
            return row_scores(self.loaded.model, batch.tokens).to(batch.completion_mask_BT.device)


class WithScale:
    """Writes the model with what is known of its scores: their mean and spread on the held-out answers."""

    def __init__(self, facts: ScoringFacts, heldout: HeldOutPairs) -> None:
        self.facts, self.heldout = facts, heldout

    def __call__(self, loaded: LoadedModel, folder: Path) -> None:
        facts = self.facts
        if self.heldout.pairs:
            mean, std = self.heldout.scores().spread
            facts = replace(facts, mean=mean, std=std, answers=2 * len(self.heldout.pairs))
        save_reward_model(loaded, folder, facts)
