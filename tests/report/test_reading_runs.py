"""A run folder is read as far as possible: unreadable parts are named, and nothing is raised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.catalogue import catalogue
from tests.report.synthetic_run import evaluation, write_run

from posttrain.report.charts import heldout_points
from posttrain.report.page import write_report
from posttrain.report.store import config_lines, number, read_rollouts, read_run


@pytest.fixture
def short_run(tmp_path: Path) -> Path:
    """A run whose report is made in less time."""
    return write_run(tmp_path / "demo", steps=6, prompts=1)


FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "evaluation.json")


def test_a_whole_run_is_read_without_a_note(run_folder):
    run = read_run(run_folder)
    assert run.notes == []
    assert run.status == "finished"
    assert (run.name, run.setting("algorithm.name"), run.setting("train.steps")) == ("demo", "grpo", 60)
    assert [step for step, _ in run.series("reward")] == list(range(1, 61))
    assert run.series("kl") == [], "null is not a number"
    assert run.rollout_steps == [1, 30, 60]
    assert len(read_rollouts(run_folder, 30)) == 64
    assert run.last_model == run_folder / "checkpoints" / "step-000060" / "model"


def test_a_sentence_about_an_evaluation_replaces_no_scores(short_run):
    told = [
        {"kind": "evaluation", "message": "reward_model: held-out accuracy 80%"},
        {"kind": "evaluation", "step": 6, "message": "trained", "evaluation": evaluation(0.95, check=0.94)},
        {"kind": "evaluation", "step": 6, "message": "How it writes: repeated sequences 3.1% → 3.1%"},
    ]
    with (short_run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in told)
    run = read_run(short_run)
    assert list(run.evaluations) == [0, 3, 6]
    assert [round(found.mean, 2) for _, found in heldout_points(run)[1]] == [0.22, 0.66, 0.95]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_no_error(run_folder, name):
    (run_folder / name).unlink()
    write_report(run_folder)


@pytest.mark.parametrize("name", FILES)
@catalogue(
    "content",
    [
        b"",
        b"\x00\xff\xfe binary \x80",
        b'{"a": ',
        b"[1, 2, 3]",
        b'"text"',
        b"null",
        b"NaN",
        b"{" * 1_500,
        b"[" * 1_500,
        b'{"step": 1e999, "reward": NaN, "kind": 5, "message": {"a": 1}, "baseline": [1], "trained": {"greedy": 7}}\n',
        b'{"step": 3, "reward": 1' + b"0" * 400 + b', "time/step": "fast", "baseline": {"greedy": {"accuracy": 1}}}\n',
        b"a: [unclosed",
        b"a: !!python/object/apply:os.system ['exit 1']",
        b"train: 5\nsampling: [1]\nmodel: null\n",
        b'{"check": {"x": 3}, "forgetting": {"baseline_loss": 0, "trained_loss": 1}, "difference": []}',
    ],
    ids=range(15),
)
def test_strange_content_is_no_error(short_run, name, content):
    """Each content replaces the one before."""
    (short_run / name).write_bytes(content)
    assert "<!doctype html>" in write_report(short_run).read_text()


def test_an_empty_folder_and_a_file_in_its_place_are_no_error(tmp_path):
    assert read_run(tmp_path / "nothing").notes[0].endswith("is not a folder")
    assert "No held-out evaluation" not in write_report(tmp_path).read_text()
    assert "The run has not finished." in write_report(tmp_path).read_text()


def test_a_cut_last_line_is_left_out_and_told(run_folder):
    path = run_folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    run = read_run(run_folder)
    assert len(run.metrics) == 59
    assert run.notes == ["the last line of metrics.jsonl is cut off; the run was writing it when it stopped"]
    assert "the last line of metrics.jsonl is cut off" in write_report(run_folder).read_text()


def test_a_broken_line_in_the_middle_is_named(run_folder):
    path = run_folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:20]
    path.write_text("\n".join(lines) + "\n")
    assert read_run(run_folder).notes == ["metrics.jsonl, line 5, is not a JSON object and was left out"]


def test_a_line_separator_inside_a_text_does_not_end_a_line(run_folder):
    """U+2028 and U+0085 are line breaks for `str.splitlines`, but not for JSON lines or YAML comments."""
    event = {"kind": "warning", "message": "one\u2028two\u0085three"}
    (run_folder / "events.jsonl").write_text(json.dumps(event, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_run(run_folder).events == [event]
    assert len(list(config_lines("a: 'x\u2028y'  # default\nb: 1\n"))) == 2


def test_of_a_step_that_was_repeated_after_a_resume_the_last_record_counts(run_folder):
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 60, "reward": 0.125}) + "\n")
    assert read_run(run_folder).series("reward")[-1] == (60, 0.125)


def test_a_damaged_rollouts_file_leaves_the_others(run_folder):
    (run_folder / "rollouts" / "step-000030.parquet").write_bytes(b"PAR1 not really")
    page = write_report(run_folder).read_text()
    assert "rollouts/step-000030.parquet could not be read" in page
    assert "<h3>Step 60</h3>" in page


def test_a_damaged_tokenizer_shows_ids(run_folder):
    (run_folder / "checkpoints" / "step-000060" / "model" / "tokenizer.json").write_text("{}")
    assert "tokens are shown as ids" in write_report(run_folder).read_text()


@pytest.mark.parametrize(
    ("last_event", "error", "status"),
    [
        ({"kind": "end"}, None, "finished"),
        ({"kind": "end"}, {"type": "GuardStop"}, "finished"),
        ({"kind": "error"}, {"type": "GuardStop"}, "failed"),
        ({"kind": "checkpoint"}, {"type": "GuardStop"}, "failed"),
        ({"kind": "resume"}, {"type": "GuardStop"}, "unfinished"),
        ({"kind": "checkpoint"}, None, "unfinished"),
    ],
)
def test_the_last_word_decides_how_a_run_ended(run_folder, last_event, error, status):
    """A run that failed, was resumed and then ended well has finished, although error.json may still exist."""
    (run_folder / "events.jsonl").write_text(json.dumps({"kind": "start"}) + "\n" + json.dumps(last_event) + "\n")
    if error:
        (run_folder / "error.json").write_text(json.dumps(error))
    assert read_run(run_folder).status == status


def test_a_config_line_is_split_from_its_origin_but_not_inside_a_text():
    text = "a: 1  # default\nb: 'x # y'  # file: run.yaml\nc: 'x # y'\nd:"
    expected = [("a: 1", "default"), ("b: 'x # y'", "file: run.yaml"), ("c: 'x # y'", ""), ("d:", "")]
    assert list(config_lines(text)) == expected


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), [], 10**400])
def test_what_is_not_a_finite_number_is_none(value):
    assert number(value) is None


def test_the_report_imports_neither_torch_nor_the_trainer(run_folder):
    code = """
import sys
from posttrain.report import page, terminal
page.write_report(sys.argv[1])
heavy = [name for name in sys.modules if name.startswith(("torch", "transformers", "posttrain.train.loop"))]
sys.exit(str(heavy) if heavy else 0)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(run_folder)], check=True, env=environment)
