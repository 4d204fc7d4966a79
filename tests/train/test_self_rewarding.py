"""The recipe in which a model judges its own answers: every round is on file, with the model's judgements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.cli import run as command

RECIPES = Path(__file__).parents[2] / "recipes"

SHORTER = [
    "stages.seed.train.steps=150",
    "stages.round.data.max_rows=128",
    "stages.round.train.steps=5",
    "stages.round.sampled_pairs.max_without=1.0",
    "stages.round.sampled_pairs.correct_at=null",
    "stages.round.guards.max_unscored=0.5",
    "evaluation.prompts=32",
    "report=false",
]


@pytest.mark.slow
def test_the_recipe_keeps_a_model_of_each_round_and_what_the_model_said_of_its_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(RECIPES.parent)
    folder = tmp_path / "run"
    assert command(["train", "recipes/self_rewarding.yaml", *SHORTER, f"output={folder}"]) == 0
    for stage in ("01-seed", "02-round-1", "03-round-2"):
        assert list((folder / stage / "checkpoints").glob("step-*/model/model.safetensors")), stage
    for stage in ("02-round-1", "03-round-2"):
        check_round(folder / stage)


def check_round(folder: Path) -> None:
    """Each pair is ordered by the points in the replies on file, and right answers are counted, too."""
    replies = {
        (line["prompt"], line["completion"]): [reply["verdict"] for reply in line["replies"]]
        for file in sorted((folder / "sampled").glob("judgements-*.jsonl"))
        for line in map(json.loads, file.read_text().splitlines())
    }
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    assert pairs
    for pair in pairs:
        chosen, rejected = (share(replies[pair["prompt_index"], place]) for place in pair["answers"])
        assert chosen == pytest.approx(pair["chosen_score"])
        assert rejected == pytest.approx(pair["rejected_score"])
        assert chosen - rejected >= 0.2 - 1e-9
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert {"baseline", "trained"} <= evaluation.keys()
    assert "exact_match" in json.dumps(evaluation["trained"])


def share(verdicts: list[float | None]) -> float:
    """The mean share of all points; an answer that holds nothing to judge gets no judgement and counts as 0."""
    found = [verdict / 5 for verdict in verdicts if verdict is not None]
    return sum(found) / len(found) if verdicts else 0.0
