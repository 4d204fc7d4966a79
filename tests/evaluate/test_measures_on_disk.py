"""Files of measures: a full disk ends the run with exit code 3, and a kill leaves no file that prevents a resume."""

from __future__ import annotations

import json
from typing import Any

from tests.disks import FILL, on_a_small_disk

from posttrain.evaluate.evaluation import Answer, Evaluation, Record
from posttrain.evaluate.heldout import summarise
from posttrain.evaluate.measure import WithForgetting
from posttrain.rewards.judge import Judgement


class OneScore:
    """A measure with one held-out row."""

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
    """An evaluation of one answer, with one judgement."""
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


FULL = (
    FILL
    + """
import sys
from pathlib import Path
from posttrain.errors import DoesNotFit
from posttrain.evaluate.row_scores import RowScores
from posttrain.files import write_sealed
from tests.evaluate.test_measures_on_disk import OneScore, evaluation
from posttrain.evaluate.heldout_scores import HeldOutScores
folder = Path(sys.argv[1])
fill(folder)
for write in (
    lambda: HeldOutScores(OneScore(), 0.95)(folder, "baseline"),
    lambda: RowScores([1.0], [1]).write(folder, "baseline"),
    lambda: evaluation().write_answers(folder / "a.jsonl"),
    lambda: evaluation().write_answers(folder / "a.jsonl", write_sealed),
    lambda: evaluation().write_judgements(folder / "a.jsonl"),
):
    try:
        write()
    except DoesNotFit as error:
        assert error.exit_code == 3 and "cannot be written: No space left" in str(error), error
    else:
        sys.exit("written to a full disk")
    assert [path.name for path in folder.iterdir()] == ["filler"]
"""
)


def test_scores_answers_and_judgements_on_a_full_disk(tmp_path):
    found = on_a_small_disk(FULL, tmp_path)
    assert found.exit_code == 0, found.errors


def test_the_loss_before_training_is_taken_from_what_is_replaced_as_a_whole(tmp_path):
    """A truncated file that an earlier version left has no effect."""
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
