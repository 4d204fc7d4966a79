"""A run in a notebook: its verdict and plots, in their own colours, and no text of a run acts as markup."""

import json
import re
import xml.etree.ElementTree as xml

from posttrain.report.notebook import PLOTS, run_html
from posttrain.report.store import read_run


def test_a_cell_shows_the_verdict_and_the_first_plots(run_folder):
    shown = run_html(read_run(run_folder))
    assert "The model improved" in shown
    assert shown.count("<svg") == 1 + PLOTS
    assert shown.index("Held-out") < shown.index("Reward")
    for picture in re.findall(r"<svg.*?</svg>", shown, re.DOTALL):
        xml.fromstring(picture)


def test_its_style_touches_nothing_else_in_the_notebook_and_knows_its_colours(run_folder):
    style = re.search(r"<style>(.*?)</style>", run_html(read_run(run_folder)), re.DOTALL)[1]
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{", style) for part in rule.split(",")]
    assert all(selector.startswith(".posttrain-run") for selector in selectors)
    assert set(re.findall(r"var\((--\w+)\)", style)) <= set(re.findall(r"(--\w+):", style))


def test_a_run_without_an_evaluation_still_shows_its_reward(run_folder):
    (run_folder / "evaluation.json").unlink()
    shown = run_html(read_run(run_folder))
    assert "<figcaption>Reward</figcaption>" in shown
    assert "<figcaption>Held-out</figcaption>" not in shown


def test_text_of_a_run_is_escaped(run_folder):
    place = run_folder.rename(run_folder.with_name("<b>run"))
    evaluation = json.loads((place / "evaluation.json").read_text())
    assert evaluation
    assert "<b>run" not in run_html(read_run(place))
