"""Reports and the dashboard in a real headless Chromium: drawing, interaction, downloads and updates."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lab.explore.chromium import PROGRAM, Chromium
from tests.report.synthetic_run import metrics_row, write_lines, write_run
from tests.report.test_dashboard import start
from tests.report.test_page import add_alarm

from posttrain.report.page import write_report
from posttrain.report.svg import compact, percent, seconds

AXE = Path(os.environ.get("POSTTRAIN_AXE", Path(__file__).parents[2] / "build/axe-core/package/axe.min.js"))
WIDTHS = {"desk": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("no Chromium is installed: `apt-get install chromium` brings it")
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        chromium.size(*WIDTHS["desk"])
        yield chromium


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "demo")
    add_alarm(folder)
    return write_report(folder)


@pytest.fixture
def report(browser, written) -> Iterator[Chromium]:
    """A report from the disk. Nothing on it complains, and it requests nothing but itself."""
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    browser.open(written.as_uri())
    until(browser, "Plots.plots.get('reward').plot")
    yield browser
    assert browser.complaints == []
    assert {asked.partition("#")[0] for asked in browser.requests if not asked.startswith("blob:")} == {
        written.as_uri()
    }


def until(browser: Chromium, expression: str) -> Any:
    """Wait until the expression is true in the page."""
    end = time.monotonic() + 60
    while not (found := browser.evaluate(f"Boolean({expression})")):
        assert time.monotonic() < end, expression
        time.sleep(0.05)
    return found


def plot(browser: Chromium, expression: str, key: str = "reward") -> Any:
    """Return the value of an expression about one plot, which is called `p`."""
    return browser.evaluate(f"(() => {{ const p = Plots.plots.get({json.dumps(key)}); return {expression}; }})()")


def set_field(browser: Chromium, selector: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(value)};"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def metrics(page: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (page.parent / "metrics.jsonl").read_text().splitlines()]


# --- the plots of a report --------------------------------------------------------------------------------------------


def test_lines_are_drawn_from_the_numbers_of_the_run(report, written):
    rewards = [row["reward"] for row in metrics(written)]
    assert plot(report, "p.plot.data[0]") == list(range(1, 61))
    assert plot(report, "p.plot.data[1]") == pytest.approx(rewards, rel=1e-5)
    assert plot(report, "p.place.querySelectorAll('svg').length") == 0, "the plot replaces the static picture"


def test_x_can_be_tokens_and_time(report, written):
    rows = metrics(written)
    report.evaluate("document.querySelector('[value=tokens]').click()")
    assert plot(report, "p.plot.data[0]") == [row["num_tokens"] for row in rows]
    report.evaluate("document.querySelector('[value=seconds]').click()")
    assert plot(report, "p.plot.data[0].at(-1)") == pytest.approx(sum(row["time/step"] for row in rows))
    assert plot(report, "p.plot.data[0].length") == 60


def test_smoothing_is_a_moving_average_over_the_faint_line(report, written):
    set_field(report, "#plot-smoothing", "0.9")
    rewards = [row["reward"] for row in metrics(written)]
    weights = [0.9 ** (len(rewards) - 1 - place) for place in range(len(rewards))]
    expected = sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)
    raw, soft, mean = (plot(report, f"p.plot.data[{place}].at(-1)") for place in (1, 2, 3))
    assert (raw, soft) == (pytest.approx(rewards[-1], rel=1e-5), pytest.approx(expected, rel=1e-5))
    assert mean == pytest.approx(sum(rewards[-4:]) / 4, rel=1e-5), "a series that is already a mean is not smoothed"
    assert report.evaluate("document.querySelector('.plots-bar output').textContent") == "0.90"
    set_field(report, "#plot-smoothing", "0")
    assert plot(report, "p.plot.data.length") == 3


def test_an_axis_can_be_logarithmic(report):
    key = "gradient-norm"
    plot(report, "p.figure.scrollIntoView()", key)
    until(report, f"Plots.plots.get('{key}').plot")
    press = "[...p.figure.querySelectorAll('.plot-tools button')].find((one) => one.textContent === 'log y')"
    plot(report, f"{press}.click()", key)
    assert plot(report, "p.plot.scales.y.distr", key) == 3
    assert plot(report, f"{press}.getAttribute('aria-pressed')", key) == "true"


def test_a_drag_zooms_and_a_double_click_shows_the_whole_again(report):
    plot(report, "p.figure.scrollIntoView({block: 'center'})")
    left, top, width = plot(report, "(({left, top, width}) => [left, top, width])(p.plot.over.getBoundingClientRect())")
    mouse = {"button": "left", "clickCount": 1, "y": top + 40}
    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        held = {"buttons": 1} if kind != "mouseReleased" else {}
        report.send("Input.dispatchMouseEvent", type=kind, x=left + share * width, **mouse, **held)
    low, high = plot(report, "[p.plot.scales.x.min, p.plot.scales.x.max]")
    assert (low, high) == (pytest.approx(1 + 0.25 * 59, abs=1), pytest.approx(1 + 0.5 * 59, abs=1))
    assert not plot(report, "p.whole.hidden")
    set_field(report, "#plot-smoothing", "0.5")
    assert plot(report, "p.plot.scales.x.min") == pytest.approx(low), "a zoom survives other changes"
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": left + 0.5 * width, "y": top + 40, "button": "left", "clickCount": count}
            report.send("Input.dispatchMouseEvent", type=kind, **at)
    assert plot(report, "[p.plot.scales.x.min, p.plot.scales.x.max]") == [1, 60]
    assert plot(report, "p.whole.hidden")


def test_everything_can_be_done_from_the_keyboard(report, written):
    rewards = [row["reward"] for row in metrics(written)]
    report.evaluate("document.querySelector('#plot-smoothing').focus()")
    report.press("Tab")  # the first line of the legend
    report.press(" ")
    assert plot(report, "p.plot.data.length") == 2, "one line is left besides x"
    report.press(" ")
    report.press("Tab", 2)
    assert report.evaluate("document.activeElement === Plots.plots.get('reward').place")
    report.press("Home")
    report.press("ArrowRight", 2)
    said = plot(report, "p.readout.textContent")
    assert said.startswith(f"step 3: each step {compact(rewards[2])} · mean of 4 steps ")
    assert plot(report, "p.readout.getAttribute('aria-live')") == "polite"
    plot(report, "p.place.dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))")
    assert plot(report, "p.plot.scales.x.max") < 60
    plot(report, "p.place.dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))")
    assert plot(report, "p.plot.scales.x.max") == 60


def test_a_step_is_marked_in_every_plot(report):
    plot(report, "p.place.focus()")
    report.press("Home")
    report.press("ArrowRight", 29)
    assert plot(report, "p.readout.textContent", "held-out-score") == "step 30: greedy accuracy 66% (57% to 73%)"


def test_a_plot_can_be_taken_along_as_numbers_and_as_a_picture(report, written):
    text = plot(report, "PlotData.csv(p.chart, p.hidden)", "held-out-score")
    head, first, *_ = text.splitlines()
    assert head == '"step","tokens","seconds","greedy accuracy","greedy accuracy, low","greedy accuracy, high"'
    assert first.startswith("0,0,0,0.21875,0.155")
    assert len(plot(report, "PlotData.csv(p.chart, p.hidden)").splitlines()) == 61
    hostile = "{x: 'step', series: [{name: '=cmd|\"calc\"', x: [1], y: [2]}]}"
    assert report.evaluate(f"PlotData.csv({hostile}, new Set()).split('\\n')[0]").endswith('"\'=cmd|""calc"""')
    report.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(written.parent))
    plot(report, "p.png()")
    end = time.monotonic() + 30
    while not (saved := written.parent / "reward.png").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert saved.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "form"), [("compact", compact), ("percent", percent), ("seconds", seconds)])
def test_numbers_are_written_as_in_the_text(report, name, form):
    dice = random.Random(0)
    values = [
        0,
        1,
        0.25,
        59.6,
        3599.7,
        86_400,
        *(dice.uniform(0, 1) * 10.0 ** dice.randint(-9, 13) for _ in range(300)),
    ]
    values = [value for value in values if name != "seconds" or value < 1e9]
    assert report.evaluate(f"{json.dumps(values)}.map(Numbers.FORMS.{name})") == [form(value) for value in values]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_is_accessible_and_fits_its_width(report, written, width, theme):
    try:
        report.size(*WIDTHS[width], phone=width == "phone")
        report.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
        report.open(written.as_uri())
        report.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert_fits(report)
        assert serious(report) == []
    finally:
        report.size(*WIDTHS["desk"])


def assert_fits(browser: Chromium) -> None:
    """Check that neither the page nor any table is wider than the window."""
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('.scroll')].filter((one) => one.checkVisibility()"
    wide += " && one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML.slice(0, 300))"
    assert browser.evaluate(wide) == []


def serious(browser: Chromium) -> list[Any]:
    if not AXE.exists():
        pytest.skip(f"axe-core is not at {AXE}: `make explore-test` fetches it, or POSTTRAIN_AXE names it")
    browser.evaluate(f"{AXE.read_text(encoding='utf-8')};0")
    return browser.evaluate(
        "axe.run().then((told) => told.violations.filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".map((one) => [one.id, ...one.nodes.slice(0, 3).map((node) => node.html)]))"
    )


# --- the dashboard ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Write one run that still trains, with ten steps so far, and three that ended."""
    folder = tmp_path_factory.mktemp("dash") / "runs"
    for name, algorithm in (("alpha", "grpo"), ("beta", "dapo"), ("gamma", "grpo"), ("now", "rloo")):
        config = write_run(folder / name) / "config.yaml"
        config.write_text(config.read_text().replace("name: grpo", f"name: {algorithm}"))
    write_lines(folder / "gamma" / "metrics.jsonl", [metrics_row(step, 60, random.Random(1)) for step in range(1, 31)])
    now = folder / "now"
    write_lines(now / "metrics.jsonl", [metrics_row(step, 60, random.Random(2)) for step in range(1, 11)])
    write_lines(now / "events.jsonl", [{"time": "2026-11-20T10:00:00+00:00", "step": 0, "kind": "start"}])
    (now / "evaluation.json").unlink()
    (now / ".lock").write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
    return folder


@pytest.fixture(scope="module")
def address(runs) -> Iterator[str]:
    process, server = start(str(runs), cwd=runs)
    yield server.address
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.fixture
def dash(browser, address) -> Iterator[Chromium]:
    browser.size(*WIDTHS["desk"])
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    browser.open(address)
    until(browser, "document.getElementById('live').textContent === 'live'")
    yield browser
    assert browser.complaints == []
    assert {asked.split("/")[2] for asked in browser.requests} == {address.split("/")[2]}


def shown(browser: Chromium) -> list[str]:
    return browser.evaluate(
        "[...document.querySelectorAll('tr[data-run]')].filter((row) => !row.hidden).map((row) => row.dataset.run)"
    )


def add_step(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as out:
        step = sum(1 for _ in (run / "metrics.jsonl").open()) + 1
        out.write(json.dumps(metrics_row(step, 60, random.Random(step))) + "\n")


def test_runs_are_found_filtered_and_sorted_by_any_column(dash):
    press = "document.querySelector('th[data-name=\"{}\"] button').click()"
    dash.evaluate(press.format("run"))
    assert shown(dash) == ["alpha", "beta", "gamma", "now"]
    dash.evaluate(press.format("run"))
    assert shown(dash) == ["now", "gamma", "beta", "alpha"]
    assert dash.evaluate("document.querySelector('th[data-name=run]').getAttribute('aria-sort')") == "descending"
    dash.evaluate(press.format("step"))
    assert shown(dash)[:2] == ["now", "gamma"]
    dash.evaluate(press.format("held-out"))
    assert shown(dash)[-1] == "now", "runs without a measurement come last"
    set_field(dash, "[name=algorithm]", "grpo")
    assert sorted(shown(dash)) == ["alpha", "gamma"]
    set_field(dash, "[name=find]", "GAM")
    assert shown(dash) == ["gamma"]
    assert dash.evaluate("document.querySelector('[data-finder] output').textContent") == "1 of 4 shown"
    where = dash.evaluate("location.href")
    assert "algorithm=grpo&find=GAM" in where
    dash.open(where)
    assert shown(dash) == ["gamma"], "the address holds the chosen filters"
    set_field(dash, "[name=find]", "")
    set_field(dash, "[name=algorithm]", "")
    set_field(dash, "[name=state]", "running")
    assert shown(dash) == ["now"]


def test_the_list_is_brought_up_to_date_and_keeps_what_was_chosen(dash, runs):
    dash.evaluate("document.querySelector('[value=beta]').click(); document.querySelector('[value=alpha]').focus()")
    step = "document.querySelector('tr[data-run=now] td[data-title=step]').textContent"
    before = dash.evaluate(step)
    add_step(runs / "now")
    until(dash, f"{step} !== {json.dumps(before)}")
    assert dash.evaluate(step) == f"{int(before.split()[0]) + 1} of 60"
    assert dash.evaluate("document.querySelector('[value=beta]').checked")
    assert dash.evaluate("document.activeElement.value") == "alpha"
    write_run(runs / "delta")
    until(dash, "document.querySelector('tr[data-run=delta]')")


def test_a_run_is_drawn_while_it_trains_and_a_zoom_stays(dash, runs, address):
    dash.open(address.split("?")[0] + "runs/now/report.html")
    until(dash, "Plots.plots.get('reward').plot && document.getElementById('live').textContent === 'live'")
    steps = plot(dash, "p.plot.data[0].length")
    plot(dash, "p.plot.setScale('x', {min: 2, max: 5})")
    dash.evaluate("document.querySelector('.values').open = true")
    add_step(runs / "now")
    until(dash, f"Plots.plots.get('reward').plot.data[0].length === {steps + 1}")
    assert plot(dash, "[p.plot.scales.x.min, p.plot.scales.x.max]") == [2, 5]
    assert dash.evaluate("document.querySelector('.values').open")
    assert f"at step {steps + 1}" in plot(dash, "p.place.getAttribute('aria-label')")
    assert f"{steps + 1} of 60" in dash.evaluate("document.querySelector('.tiles').textContent")


def test_several_runs_are_drawn_over_their_own_tokens(dash, address):
    dash.open(address.split("?")[0] + "overlay?run=alpha&run=gamma")
    until(dash, "Plots.plots.get('reward').plot")
    dash.evaluate("document.querySelector('[value=tokens]').click()")
    assert plot(dash, "p.plot.data[0].at(-1)") == 60 * 420
    assert plot(dash, "p.plot.data[2].filter((value) => value != null).length") == 30
    assert "No setting differs." in dash.evaluate("document.querySelector('#settings').textContent")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["", "overlay?run=alpha&run=beta", "runs/alpha/rollouts"])
def test_pages_of_the_dashboard_are_accessible_and_fit_their_width(dash, address, page, width):
    for theme in ("light", "dark"):
        dash.size(*WIDTHS[width], phone=width == "phone")
        dash.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
        dash.open(address.split("?")[0] + page)
        assert_fits(dash)
        assert serious(dash) == []
