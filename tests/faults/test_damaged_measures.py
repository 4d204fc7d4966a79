"""Lost or damaged files of a run's measurements: a value is marked as lost or recovered, and never replaced by
another."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
from tests.catalogue import few
from tests.tiny import tiny_model

import posttrain as pt
from posttrain import files
from posttrain.evaluate.evaluation import Evaluation
from posttrain.evaluate.given import evaluate_given
from posttrain.files import Damaged, read_sealed_json, write_sealed
from posttrain.report.page import render
from posttrain.report.store import read_run
from posttrain.report.verdict import verdict

ROWS = [{"prompt": word, "completion": word[::-1]} for word in ("abc", "bcd", "cde", "def", "abd", "bde")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    tiny_model(folder / "start")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = {
        "model": str(folder / "start"),
        "algorithm": "sft",
        "data": {"train": str(folder / "rows.jsonl"), "eval_fraction": 0.5},
        "train": {"steps": 1, "prompts_per_step": 2},
        "output": str(folder / "run"),
        "report": False,
    }
    return pt.train(config).folder


def damages(whole: bytes) -> dict[str, bytes | None]:
    middle = len(whole) // 2
    digit = next(place for place in range(middle, len(whole)) if chr(whole[place]).isdigit())
    return {
        "lost": None,
        "empty": b"",
        "cut": whole[:middle],
        "a digit": whole[:digit] + bytes([whole[digit] ^ 1]) + whole[digit + 1 :],
        "NaN": b"NaN",
        "null": b"null",
        "a list": b"[]",
        "texts": b'{"baseline": "x", "logprobs": "1", "tokens": {}}',
        "no text": b"\xff\xfe\x00",
        "deep": b"[" * 100_000,
    }


@pytest.mark.parametrize(
    ("file", "what"),
    few(
        itertools.product(["evaluation.json", "evaluations/baseline-scores.json"], damages(b'{"a": 1}')),
        *(("evaluation.json", what) for what in ("lost", "a digit", "deep")),
        ("evaluations/baseline-scores.json", "a digit"),
    ),
)
def test_a_resumed_run_never_takes_its_trained_weights_for_its_baseline(run, tmp_path, file, what):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    before = json.loads((run / "evaluation.json").read_text())
    content = damages((copy / file).read_bytes())[what]
    (copy / file).unlink() if content is None else (copy / file).write_bytes(content)
    after = pt.resume(copy).evaluation
    assert after["baseline"] == before["baseline"], "recovered, or unchanged"
    assert after["trained"] == before["trained"]
    if file == "evaluation.json":
        assert after["difference"] == before["difference"]
        assert "the measurement before training is taken from events.jsonl" in render(read_run(copy))
    else:
        assert "difference" not in after or after["difference"] == before["difference"]
        assert "baseline-scores.json" in after["lost"]


def test_without_any_record_the_baseline_is_said_to_be_lost(run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "evaluation.json").unlink()
    lines = [line for line in (copy / "events.jsonl").read_text().splitlines() if '"evaluation"' not in line]
    (copy / "events.jsonl").write_text("\n".join(lines) + "\n")
    after = pt.resume(copy).evaluation
    assert "baseline" not in after
    assert after["lost"] == "the measurement before training is missing"
    assert verdict(read_run(copy)).change == 0


@pytest.mark.parametrize("what", damages(b'{"a": 1}'))
def test_a_report_shows_a_damaged_measurement_nowhere(run, tmp_path, what):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    content = damages((copy / "evaluation.json").read_bytes())[what]
    (copy / "evaluation.json").unlink() if content is None else (copy / "evaluation.json").write_bytes(content)
    found = read_run(copy)
    assert found.evaluation == {}
    assert content is None or any("evaluation.json" in note for note in found.notes)
    render(found)


def test_a_kill_between_seal_and_file_leaves_the_old_content_valid(tmp_path):
    write_sealed(tmp_path / "a.json", "1")
    write_sealed(tmp_path / "a.json", "2")
    (tmp_path / "a.json").write_text("1")
    assert read_sealed_json(tmp_path, "a.json") == 1
    (tmp_path / "a.json").write_text("3")
    with pytest.raises(Damaged, match="has changed since it was written"):
        read_sealed_json(tmp_path, "a.json")


def test_what_is_measured_later_stands_beside_the_baseline_of_the_run(run):
    found = evaluate_given(run).to_json()
    stored = json.loads((run / "evaluation.json").read_text())
    assert found["baseline"] == stored["baseline"]
    assert found["loss"] == stored["trained"]["loss"]
    assert found["difference"] == stored["difference"]
    shown = evaluate_given(run).render()
    assert "before training: loss" in shown
    assert "difference: " in shown


LONG = 100_000


@pytest.fixture
def sampled(tmp_path, monkeypatch):
    """The config of a run whose baseline answers take more bytes than a foreign file may have."""
    monkeypatch.setattr(files, "MOST_BYTES", LONG)
    monkeypatch.setattr(files.read_inside, "__defaults__", (LONG,))
    return {
        "model": "tiny:sort",
        "algorithm": "grpo",
        "data": {"train": "task:sort"},
        "rewards": ["exact_match"],
        "check": ["exact_match"],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "evaluation": {"prompts": 200, "samples": 2},
        "train": {"steps": 1, "prompts_per_step": 4, "learning_rate": 1e-5},
        "output": str(tmp_path / "run"),
        "report": False,
    }


@pytest.mark.slow
def test_a_run_reads_its_own_long_answers(sampled):
    run = pt.train(sampled)
    for name in ("baseline", "trained"):
        assert (run.folder / "evaluations" / f"{name}.jsonl").stat().st_size > LONG
    assert "lost" not in run.evaluation
    assert {"baseline", "trained", "difference", "writing"} <= run.evaluation.keys()
    found = pt.evaluate(run.folder)
    assert (found.lost, found.before is None) == ("", False)


@pytest.mark.parametrize("name", few(["baseline", "trained"], "baseline"))
def test_answers_that_are_damaged_after_they_were_drawn_end_no_run(sampled, monkeypatch, name):
    """The measurement stays, and what needed the answers is lost with its reason."""
    write_answers = Evaluation.write_answers

    def and_damage(self, path, *write):
        written = write_answers(self, path, *write)
        if written.name == f"{name}.jsonl":
            written.write_bytes(written.read_bytes().replace(b"1", b"2", 1))
        return written

    monkeypatch.setattr(Evaluation, "write_answers", and_damage)
    run = pt.train(sampled)
    assert f"{name}.jsonl has changed since it was written" in run.evaluation["lost"]
    assert {"baseline", "trained"} <= run.evaluation.keys()
    warnings = [event["message"] for event in run.store.read_events("warning")]
    assert any(f"{name}.jsonl has changed" in warning for warning in warnings)
    alarms = [
        warning
        for warning in warnings
        if "take a reward of 1 for accepted, and 1.0% of rejections for normal" in warning
    ]
    assert len(alarms) == (name == "baseline")
