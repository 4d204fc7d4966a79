"""The alarm panel: read only from the files of a run, with answers that cannot act on the page."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from tests.catalogue import catalogue

from posttrain.report.alarms import UNCHECKED, alarms_html, alarms_of, read_answers, watch_charts
from posttrain.report.charts import learning_charts
from posttrain.report.page import render
from posttrain.report.samples import _row_html
from posttrain.report.store import read_run
from posttrain.report.terminal import TerminalView
from posttrain.report.verdict import in_brief, measured_verdict, verdict

ALARM = {
    "time": "2026-01-01T00:00:00",
    "step": 12,
    "kind": "alarm",
    "alarm": "disagreement",
    "change_point": 9,
    "message": "the independent check rejects 8 of the 20 accepted answers that it saw since step 9",
    "checkpoint": 5,
    "answers": "alarms/step-000012-disagreement.jsonl",
}
ANSWER = {
    "step": 12,
    "prompt": "2+2=",
    "completion": "<script>alert(1)</script> \u202e4 or 5",
    "reward": 1.0,
    "check/sound": 0.0,
}


@pytest.fixture
def watched(run_folder: Path) -> Path:
    """A run with alarms enabled, in which no alarm fired."""
    config = run_folder / "config.yaml"
    config.write_text(config.read_text() + "alarms:\n  enabled: true  # default\n  cusum_limit: 9.0  # default\n")
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    more = {"check/disagreement": 0.125, "check/checked": 8.0, "text/distinct_4grams": 0.9, "text/same_start": 0.1}
    rows = [row | more | {"alarms/cusum": 0.1 * row["step"], "text/length_correlation": 0.2} for row in lines]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_folder


@pytest.fixture
def gamed(watched: Path) -> Path:
    with (watched / "events.jsonl").open("a") as file:
        file.write(json.dumps(ALARM) + "\n")
    (watched / "alarms").mkdir()
    (watched / ALARM["answers"]).write_text((json.dumps(ANSWER) + "\n") * 8)
    return watched


def test_the_verdict_begins_with_the_alarm(gamed):
    run = read_run(gamed)
    found = verdict(run)
    assert found.headline == (
        "An alarm fired at step 12: the check rejects what the reward accepts. By its reward the model improved."
    )
    assert measured_verdict(run).headline == "The model improved."
    assert found.tone == "bad"
    assert found.change == measured_verdict(run).change, "the alarm must not change the measured difference"
    assert in_brief(run)["alarms"] == ["disagreement"]


def test_a_run_that_an_alarm_ended_has_not_failed_by_an_error(gamed):
    (gamed / "evaluation.json").unlink()
    (gamed / "error.json").write_text(json.dumps({"type": "AlarmStop", "message": "stopped", "exit_code": 4}))
    with (gamed / "events.jsonl").open("a") as file:
        file.write(json.dumps({"step": 12, "kind": "error", "message": "AlarmStop: stopped"}) + "\n")
    assert verdict(read_run(gamed)).headline.endswith("the check rejects what the reward accepts. The run ended there.")


def test_the_panel_has_the_message_the_answers_and_the_numbers(gamed):
    page = render(read_run(gamed))
    assert ALARM["message"] in page
    assert "8 suspicious answers, the first 6 shown" in page
    assert "check “sound” 0" in page
    for title in (
        "Reward against the check",
        "Disagreement with the check",
        "Reward and length",
        "Repetition",
        "Templates",
    ):
        assert title in page
    assert page.count("text/distinct_4grams") == 0, "the metric is drawn once, and not again under more metrics"


def test_an_answer_cannot_act_on_the_page(gamed):
    told = alarms_html(read_run(gamed))
    assert "<script>" not in told
    assert "&lt;script&gt;" in told
    assert "\u202e" not in told


def test_a_watched_run_without_an_alarm_says_so(watched):
    told = alarms_html(read_run(watched))
    assert "No alarm fired." in told
    assert UNCHECKED not in told
    assert "An alarm fired" not in verdict(read_run(watched)).headline


def test_a_run_without_a_check_says_that_nobody_looks(watched):
    config = watched / "config.yaml"
    config.write_text(
        config.read_text().replace("check:\n- name: exact_match  # file: demo.yaml\n", "check: []  # default\n")
    )
    told = alarms_html(read_run(watched))
    assert UNCHECKED in told
    assert "An independent check" not in told


def test_a_check_that_saw_held_out_answers_only_is_not_said_to_have_seen_more(watched):
    assert "examines held-out answers." in alarms_html(read_run(watched))
    add(watched, {"check/accepted": 12.0})
    assert "examines a sample of the answers that the reward accepts." in alarms_html(read_run(watched))


def test_a_reward_that_is_no_share_is_not_drawn_as_one(watched):
    def legend() -> list[str]:
        (chart,) = [one for one in watch_charts(read_run(watched)) if one.title == "Reward against the check"]
        return [name for _, name, _ in chart.legend]

    assert "training reward" in legend()
    add(watched, {"reward": 7.5})
    assert legend() == ["accepted answers that the check accepts", "held-out answers by the check"]


def test_a_sentence_about_an_evaluation_hides_no_score_of_the_check(watched):
    def heldout() -> list[tuple[float, float]]:
        (chart,) = [one for one in watch_charts(read_run(watched)) if one.title == "Reward against the check"]
        return [point for line in chart.lines if line.name == "held-out answers by the check" for point in line.points]

    before = heldout()
    with (watched / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "step": before[-1][0], "message": "How it writes: ..."}) + "\n")
    assert heldout() == before


def test_the_time_of_the_check_is_a_phase(watched):
    assert "checking" not in phases_drawn(watched)
    add(watched, {"time/check": 0.01})
    assert "checking" in phases_drawn(watched)


def phases_drawn(folder: Path) -> list[str]:
    (chart,) = [one for one in learning_charts(read_run(folder)) if one.title == "Time per step"]
    return [name for _, name, _ in chart.legend]


def add(folder: Path, values: dict[str, float]) -> None:
    """Add values to every step."""
    rows = [json.loads(line) | values for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_from_before_there_were_alarms_has_no_panel(run_folder):
    run = read_run(run_folder)
    assert alarms_html(run) == ""
    assert watch_charts(run) == []


@catalogue("content", [None, "", "{", "[1]\n", "\x00"])
def test_answers_that_cannot_be_read_are_left_out(gamed, content):
    path = gamed / ALARM["answers"]
    path.unlink() if content is None else path.write_text(content)
    run = read_run(gamed)
    assert read_answers(run, alarms_of(run)[0]) == []
    assert ALARM["message"] in render(run)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "alarms/../../x"])
def test_an_event_cannot_name_a_file_outside_of_the_run(gamed, name):
    run = read_run(gamed)
    run.events[-1]["answers"] = name
    assert read_answers(run, alarms_of(run)[0]) == []


def test_strange_events_are_no_alarms(gamed):
    with (gamed / "events.jsonl").open("a") as file:
        for event in ({"kind": "alarm"}, {"kind": "alarm", "step": "x"}, {"kind": "alarm", "step": 3, "alarm": None}):
            file.write(json.dumps(event) + "\n")
    assert [alarm.step for alarm in alarms_of(read_run(gamed))] == [12, 3]
    assert "An alarm fired at step 12" in render(read_run(gamed))


def test_a_quiet_terminal_is_told_of_an_alarm_too():
    stream = StringIO()
    view = TerminalView(stream, quiet=True)
    view.event("alarm", "the check rejects")
    view.finished({"verdict": {"sentence": "An alarm fired at step 12.", "change": 1, "alarms": ["disagreement"]}})
    assert stream.getvalue() == "alarm: the check rejects\nalarm: An alarm fired at step 12.\n"


def test_samples_show_what_the_check_said_of_those_that_it_saw():
    rows = [
        {"prompt": "2+2=", "completion": text, "reward": 1.0, "check/sound": said}
        for text, said in (("4", None), ("5", 0.0))
    ]
    shown = "".join(_row_html(row, 1, 1.0, None) for row in rows)
    assert shown.count("check/sound") == 1
    assert "check/sound 0" in shown
