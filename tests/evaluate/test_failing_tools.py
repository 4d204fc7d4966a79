"""Evaluations with tools whose calls all fail."""

from pathlib import Path

from tests.end_to_end.turns import CALLS, write_turns

import posttrain as pt
from posttrain.evaluate.evaluation import Evaluation

BROKEN = '''
def look(place: str) -> str:
    """Look at a place.

    Args:
        place: where
    """
    raise ConnectionError("the server is gone")
'''


def test_an_evaluation_says_which_tool_failed_in_every_call(tmp_path: Path, monkeypatch):
    write_turns(tmp_path)
    (tmp_path / "rewards.py").write_text("def length(completions, **_): return [len(one) for one in completions]\n")
    monkeypatch.chdir(tmp_path)
    run = pt.train(
        {"algorithm": "grpo", "output": "run", "report": False},
        **{**CALLS, "data.eval_fraction": 0.5, "train.steps": 1, "sampling.group_size": 2, "evaluation.writing": 0},
    )
    whole = pt.evaluate(run.folder, k=4)
    (tmp_path / "worlds.py").write_text(BROKEN)
    broken = pt.evaluate(run.folder, k=4)
    assert whole.tools == ()
    assert "calls of look failed: error: ConnectionError: the server is gone" in broken.render()
    assert Evaluation.from_json(broken.to_json()).tools == broken.tools
