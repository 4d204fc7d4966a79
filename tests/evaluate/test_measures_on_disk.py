"""What measures leave on file: a full disk ends the run with exit code 3, and a kill leaves nothing that stops it."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import pytest

from posttrain.errors import DoesNotFit
from posttrain.evaluate.evaluation import Answer, Evaluation, Record
from posttrain.evaluate.heldout import summarise
from posttrain.evaluate.heldout_scores import HeldOutScores
from posttrain.evaluate.measure import WithForgetting
from posttrain.rewards.judge import Judgement


class OneScore:
    """One held-out row."""

    def __len__(self) -> int:
        return 1

    def scores(self) -> dict[str, list[Any]]:
        return {"scores_N": [1.0]}

    def measures(self, scores, confidence) -> dict[str, Any]:
        return {}

    changes = measures

    def answers(self, scores) -> list[float]:
        return scores["scores_N"]


def evaluation() -> Evaluation:
    """Of one answer, with one judgement."""
    answer = Answer(text="4", ids=(4,), finish_reason="stop", score=1.0, parts={}, check={}, vote="4")
    return summarise(
        [Record(index=0, prompt="2 + 2", greedy=answer, samples=())],
        samples=0,
        confidence=0.95,
        temperature=1.0,
        top_p=1.0,
        max_completion_length=4,
        seed=0,
        judgements=[Judgement(label="judge", prompt=0, completion=0, score=1.0)],
    )


def test_scores_on_a_full_disk(tmp_path):
    """/dev/full is a disk that is always full."""
    (tmp_path / ".baseline-scores.json.tmp").symlink_to("/dev/full")
    with pytest.raises(DoesNotFit, match=r"baseline-scores\.json cannot be written: No space left") as caught:
        HeldOutScores(OneScore(), 0.95)(tmp_path, "baseline")
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["answers", "judgements"])
def test_answers_and_judgements_on_a_full_disk(tmp_path, what):
    path = tmp_path / f"{what}.jsonl"
    path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp").symlink_to("/dev/full")
    with pytest.raises(DoesNotFit, match="cannot be written: No space left"):
        getattr(evaluation(), f"write_{what}")(path)


def test_the_loss_before_training_is_taken_from_what_is_replaced_as_a_whole(tmp_path):
    """A file that an earlier version left, cut by a kill, is of no concern."""
    folder = tmp_path / "evaluations"
    folder.mkdir()
    (folder / "forgetting.json").write_text('{"baseline_lo')
    losses = iter([2.0, 2.5])
    measure = WithForgetting(lambda folder, name: {name: {}}, lambda: next(losses))
    before = measure(folder, "baseline")
    assert before["forgetting"] == {"baseline_loss": 2.0}
    (tmp_path / "evaluation.json").write_text(json.dumps(before))
    assert measure(folder, "step 1") == {"step 1": {}}
    assert measure(folder, "trained")["forgetting"] == {"baseline_loss": 2.0, "trained_loss": 2.5}
