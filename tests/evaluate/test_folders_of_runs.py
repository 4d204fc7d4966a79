"""A folder of several runs where one model is needed: `export`, `eval` and `chat` name the runs in it."""

import re
import shutil
from pathlib import Path

import pytest
from tests.tiny import tiny_model

from posttrain.errors import ModelError
from posttrain.evaluate.api import evaluate
from posttrain.evaluate.chat import ChatSession
from posttrain.evaluate.given import learned_from_given
from posttrain.export import export


@pytest.fixture
def comparison(tmp_path) -> Path:
    """The names of a comparison of two arms; of the second one, no run has a checkpoint."""
    model = tiny_model(tmp_path / "model")
    for name in ("a-seed0", "a-seed1", "b-seed0"):
        run = tmp_path / "cmp" / "runs" / name
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("model: tiny:sort\n")
        if name.startswith("a"):
            shutil.copytree(model, run / "checkpoints" / "step-000002" / "model")
    (tmp_path / "cmp" / "compare.yaml").write_text("arms: {}\n")
    return tmp_path / "cmp"


def use(verb: str, folder: Path) -> None:
    if verb == "export":
        export(folder, folder.parent / "out")
    elif verb == "eval":
        learned_from_given(folder)
        evaluate(folder)
    else:
        ChatSession(folder)


@pytest.mark.parametrize("verb", ["export", "eval", "chat"])
def test_the_runs_of_a_comparison_are_named(comparison, verb):
    says = f"is the folder of a comparison.*Name {comparison}/runs/a-seed0 or {comparison}/runs/a-seed1."
    with pytest.raises(ModelError, match=f"(?s){says}"):
        use(verb, comparison)


@pytest.mark.parametrize("verb", ["export", "eval", "chat"])
def test_the_best_config_of_a_sweep_is_named(comparison, verb):
    """Its trials keep no checkpoints."""
    sweep = comparison.rename(comparison.parent / "swp")
    (sweep / "compare.yaml").rename(sweep / "best.yaml")
    (sweep / "runs").rename(sweep / "trials")
    (sweep / "study.db").touch()
    says = f"`posttrain train {sweep / 'best.yaml'}` trains the best one."
    with pytest.raises(ModelError, match=f"(?s)is the folder of a sweep.*{re.escape(says)}"):
        use(verb, sweep)


def test_many_runs_are_named_in_part_and_none_without_a_checkpoint(comparison, tmp_path):
    (comparison / "compare.yaml").unlink()
    for number in range(5):
        shutil.copytree(comparison / "runs" / "a-seed0", comparison / "runs" / f"c{number}")
    with pytest.raises(ModelError, match=r"(?s)is the folder of several runs.*/c2 or another run in it\."):
        evaluate(comparison / "runs")
    (tmp_path / "none").mkdir()
    (comparison / "runs" / "b-seed0").rename(tmp_path / "none" / "b")
    with pytest.raises(ModelError, match="No run in it has saved a checkpoint"):
        evaluate(tmp_path / "none")


def test_a_model_beside_runs_is_taken(comparison):
    shutil.copytree(comparison.parent / "model", comparison, dirs_exist_ok=True)
    assert ChatSession(comparison).model_path == str(comparison)
