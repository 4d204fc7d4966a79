"""Evaluations with tools whose calls all fail."""

from pathlib import Path

import pytest
from tests.end_to_end.turns import CALLS, write_turns

import posttrain as pt
from posttrain.evaluate.evaluation import Evaluation
from posttrain.evaluate.heldout import _failing_tools
from posttrain.types import Completion, Episode


def called(tool: str, made: int, failed: int, failure: str = "") -> Completion:
    texts = ["error: the server is gone\nand more"] * failed + ["4"] * (made - failed)
    episode = Episode(
        messages=tuple({"role": "tool", "name": tool, "content": text} for text in texts),
        turns=1,
        ended="failed" if failure else "done",
        calls=(tool,) * made,
        errors=(tool,) * failed,
        failure=failure,
    )
    return Completion(ids=(1,), logprobs=(-1.0,), versions=(0,), finish_reason="eos", text="", episode=episode)


@pytest.mark.parametrize(
    ("completions", "said"),
    [
        ([called("look", 5, 5), called("look", 4, 4)], ["all 9 calls of look failed: error: the server is gone"]),
        ([called("look", 5, 5), called("look", 4, 3)], []),
        ([called("look", 7, 7)], []),
        ([called("unknown", 9, 9)], []),
        ([called("look", 9, 9, failure="crash")], []),
    ],
)
def test_a_tool_is_blamed_if_enough_calls_and_all_of_them_failed(completions, said):
    assert list(_failing_tools(completions)) == said


BROKEN = '''
def look(place: str) -> str:
    """Look at a place.

    Args:
        place: where
    """
    raise ConnectionError("the server is gone")
'''


@pytest.mark.slow
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
