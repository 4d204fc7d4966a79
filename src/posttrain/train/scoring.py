"""A run whose model scores answers instead of writing them: the parts that differ from those of a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.algorithms import Algorithm
from posttrain.data.prompts import Renderer
from posttrain.data.split import Split
from posttrain.evaluate.heldout_scores import Forward, HeldOutScores, Record, Scores, Subject
from posttrain.experience.scored_data import ScoredData, ScoringInput, from_pairs, from_ratings, from_steps
from posttrain.models.adapters import apply_lora
from posttrain.models.forward_path import shares_prefixes
from posttrain.models.load import LoadedModel
from posttrain.models.modes import recompute_activations
from posttrain.models.named import resolve_model_path
from posttrain.models.reward_head import ScoringFacts, load_reward_model, row_scores, save_reward_model, score_head
from posttrain.models.step_head import load_step_model, step_scores
from posttrain.store.checkpoint import Checkpoints
from posttrain.train.advantages import Given, in_turn
from posttrain.train.computing import compute_facts, with_compute
from posttrain.train.guards import Guards
from posttrain.train.optimizer import Updater
from posttrain.train.run import Run
from posttrain.train.source import tell
from posttrain.types import Batch, Metrics, Outputs

if TYPE_CHECKING:
    from posttrain.config import Resolved, RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore

Score = Callable[[LoadedModel, Batch], dict[str, Tensor]]
"""Fields of `Outputs`."""


def set_up_scoring(resolved: Resolved, store: RunStore, view: TerminalView, algorithm: Algorithm, rows: Split) -> Run:
    """Everything that a run needs to train a model that scores, in its first state."""
    config, kind = resolved.config, KINDS[algorithm.data_kind]
    loaded = with_compute(load_scoring_model(config, kind.load), config.model.precision, store.folder, decodes=False)
    tell(store, view, "compute", compute_facts(loaded))
    renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    facts = ScoringFacts(
        chat=renderer.chat,
        system_prompt=renderer.system_prompt,
        template_kwargs=dict(config.model.chat_template_kwargs),
        eos_ids=tuple(sorted(loaded.eos_ids)),
    )
    forward = ScoringForward(loaded, kind.score)
    source = ScoringInput(config=config, algorithm=algorithm, rows=rows, loaded=loaded, renderer=renderer, facts=facts)
    data = kind.read(source, forward)
    tell(store, view, "warning", (*loaded.notes, *data.notes))
    heldout = OncePerVersion(data.heldout)
    measure = HeldOutScores(heldout, config.evaluation.confidence)
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
        feed=data.feed,
        publish=heldout.forget,
        measure=measure,
        checkpoints=Checkpoints(store.checkpoints, config.checkpoint.keep),
        write_model=WithScale(data.facts, measure),
    )


def load_scoring_model(config: RunConfig, load: Callable[..., LoadedModel]) -> LoadedModel:
    """The model to train: its head is new unless the folder holds a trained one of its kind already."""
    loaded = load(resolve_model_path(config.model, config.seed), seed=config.seed)
    if config.lora is not None:
        adapted = apply_lora(loaded.model, config.lora, seed=config.seed, head=score_head(loaded.model))
        loaded = replace(loaded, model=adapted)
    loaded.model.eval()
    if config.train.gradient_checkpointing:
        recompute_activations(loaded.model)
    return loaded


def scores_of_rows(loaded: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    assert batch.tokens is not None, "a batch without token ids cannot go through the model"
    return {"scores_B": row_scores(loaded.model, batch.tokens)}


def scores_of_steps(loaded: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    assert batch.tokens is not None, "a batch without token ids cannot go through the model"
    return {"scores_BT": step_scores(loaded.model, batch.tokens, batch.completion_mask_BT)}


class ScoringForward:
    """Batch -> Outputs with a score per row or per step; there are no log-probabilities, and theirs are 0."""

    def __init__(self, loaded: LoadedModel, score: Score) -> None:
        self.loaded, self.score = loaded, score

    @property
    def shares_prefixes(self) -> bool:
        """What rows have in common is computed once."""
        return shares_prefixes(self.loaded.model)

    def __call__(self, batch: Batch) -> Outputs:
        mask_BT = batch.completion_mask_BT
        with self.loaded.compute.scope(), self.loaded.autocast():
            scores = self.score(self.loaded, batch)
        here = {name: found.to(mask_BT.device) for name, found in scores.items()}
        return Outputs(logprobs_BT=torch.zeros(mask_BT.shape), **here)


class OncePerVersion:
    """Held-out rows that are scored once for each version of the weights, whoever asks: the measure, or the scale that
    is written beside the model of the same step."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._known: Scores | None = None

    def forget(self, step: int) -> Metrics:
        """There are new weights, those of `step`. Nobody samples that would have to get them."""
        self._known = None
        return {}

    def __len__(self) -> int:
        return len(self.subject)

    def scores(self) -> Scores:
        if self._known is None:
            self._known = self.subject.scores()
        return self._known

    def measures(self, scores: Scores, confidence: float) -> Record:
        return self.subject.measures(scores, confidence)

    def changes(self, before: Scores, after: Scores, confidence: float) -> Record:
        return self.subject.changes(before, after, confidence)

    def answers(self, scores: Scores) -> list[float]:
        return self.subject.answers(scores)


class WithScale:
    """Writes the model with what is known of its scores: their mean and spread on the held-out answers."""

    def __init__(self, facts: ScoringFacts, heldout: HeldOutScores) -> None:
        self.facts, self.heldout = facts, heldout

    def __call__(self, loaded: LoadedModel, folder: Path) -> None:
        facts, spread = self.facts, self.heldout.spread()
        if spread is not None:
            mean, std, answers = spread
            facts = replace(facts, mean=mean, std=std, answers=answers, accuracy=self.heldout.accuracy())
        save_reward_model(loaded, folder, facts)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a model is loaded, scores, and learns, for one kind of data."""

    load: Callable[..., LoadedModel]
    score: Score
    read: Callable[[ScoringInput, Forward], ScoredData]


KINDS = {
    "pairs": Kind(load=load_reward_model, score=scores_of_rows, read=from_pairs),
    "ratings": Kind(load=load_reward_model, score=scores_of_rows, read=from_ratings),
    "steps": Kind(load=load_step_model, score=scores_of_steps, read=from_steps),
}
