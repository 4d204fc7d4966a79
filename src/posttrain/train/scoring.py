"""The special parts of a run whose model scores answers instead of writing them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from posttrain.evaluate.heldout_scores import HeldOutScores, Record, Scores, Subject
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts, save_reward_model
from posttrain.types import Metrics


class OncePerVersion:
    """Held-out scores, computed once per version of the weights. Both the measure and the scale that is saved with the
    model use them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._known: Scores | None = None

    def forget(self, step: int) -> Metrics:
        """Drop the scores, because step `step` changed the weights. It replaces a publisher: there is no sampler."""
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
    """Writes the model with the mean and the standard deviation of its scores on the held-out answers."""

    def __init__(self, facts: ScoringFacts, heldout: HeldOutScores) -> None:
        self.facts, self.heldout = facts, heldout

    def __call__(self, loaded: LoadedModel, folder: Path) -> None:
        facts, spread = self.facts, self.heldout.spread()
        if spread is not None:
            mean, std, answers = spread
            facts = replace(facts, mean=mean, std=std, answers=answers, accuracy=self.heldout.accuracy())
        save_reward_model(loaded, folder, facts)
