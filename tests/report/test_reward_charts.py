"""The plots of rewards and their reasons, drawn from the metrics of a run folder."""

import json
from pathlib import Path

from posttrain.report.charts import learning_charts
from posttrain.report.page import render
from posttrain.report.store import read_run


def folder_of(tmp_path: Path, steps: list[dict[str, float]]) -> Path:
    rows = [{"step": number, "reward": 0.5, **step} for number, step in enumerate(steps, start=1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def why(tmp_path: Path, steps: list[dict[str, float]]):
    charts = learning_charts(read_run(folder_of(tmp_path, steps)))
    return [chart for chart in charts if chart.title.startswith("Why: ")]


def test_each_reward_shows_why_its_answers_got_what_they_got(tmp_path):
    one, two = "rewards/math/reason/", "rewards/code/reason/"
    charts = why(tmp_path, [{f"{one}correct": 0.25, f"{one}no_answer": 0.75, f"{two}timeout": 1.0}] * 2)
    assert [chart.title for chart in charts] == ["Why: math", "Why: code"]
    assert [(name, last) for _, name, last in charts[0].legend] == [("no answer", "75%"), ("correct", "25%")]


def test_a_reason_that_a_step_does_not_name_was_that_of_no_answer(tmp_path):
    name = "rewards/math/reason/"
    (chart,) = why(tmp_path, [{f"{name}wrong": 1.0}, {f"{name}correct": 1.0}])
    series = {line["name"]: line["y"] for line in chart.data()["series"]}
    assert series == {"wrong": [1, 0], "correct": [0, 1]}


def test_rare_reasons_are_among_the_other_metrics(tmp_path):
    name = "rewards/math/reason/"
    steps = [{f"{name}reason {place}": (place + 1) / 100 for place in range(8)}]
    (chart,) = why(tmp_path, steps)
    assert len(chart.legend) == 6
    page = render(read_run(tmp_path))
    assert f"{name}reason 0" in page, "a metric without a curated plot has its own plot"
    assert f"{name}reason 7" not in page


def test_a_run_without_reasons_has_no_such_plot(tmp_path):
    assert why(tmp_path, [{"rewards/mine/mean": 0.5}]) == []
