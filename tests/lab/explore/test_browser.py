"""The explorer in a real headless Chromium: selections, display, screen reader and keyboard."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path

import pytest
from tests.lab.explore.planned import planned, random_selection, written

from posttrain.cli import run
from posttrain.lab.explore.plan_numbers import PHASES

pytestmark = pytest.mark.slow

CHECKS = Path(__file__).with_name("checks.js").read_text(encoding="utf-8")
VIEWS = (
    "",
    "#a=ppo&b=grpo&kl=on&reward=model",
    "#a=dpo&b=kto&model=70b&device=rtx-4090&gpus=1",
    "#a=sft&walk=verifier",
)
"""Addresses of views: one algorithm, two side by side, offline and too large, and with an answer to the advisor."""


WORDS = {"yes": "fits", "probably": "probably fits", "hardly": "hardly fits", "no": "does not fit"}


def select(browser, selection: dict[str, str]) -> None:
    """Set fields and send their input events, like a user."""
    browser.evaluate(
        f"""for (const [name, value] of Object.entries({json.dumps(selection)})) {{
          document.getElementById("choices").elements.namedItem(name).value = value;
          document.getElementById("choices").dispatchEvent(new Event("input", {{ bubbles: true }}));
        }}"""
    )


def table_of(browser, slot: int) -> dict[str, list[str]]:
    """Return row name -> its text for each phase. Rows that only the other algorithm has are left out."""
    cells = "[...row.cells].map((cell) => cell.textContent)"
    rows = browser.evaluate(
        f"""[...document.querySelectorAll(".numbers[data-slot='{slot}'] tr")].slice(1).map((row) => {cells})"""
    )
    return {name: values for name, *values in rows if set(values) != {"–"}}


def widths_of(browser, slot: int) -> list[float]:
    """Return the width in pixels of all segments of each phase."""
    return browser.evaluate(
        f"""[...document.querySelectorAll(".plan[data-slot='{slot}'] .stack")].map((stack) =>
          [...stack.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0))"""
    )


def focused(browser, what: str = "id || document.activeElement.textContent.trim()") -> str:
    return browser.evaluate(f"document.activeElement.{what}")


@pytest.mark.parametrize("seed", range(24))
def test_bars_and_numbers_are_those_of_the_planner(browser, seed):
    selection = random_selection(random.Random(seed))
    select(browser, selection)
    for slot, key in enumerate(filter(None, (selection["a"], selection["b"]))):
        plan = planned(key, selection)
        assert table_of(browser, slot) == plan.table
        widths, track = widths_of(browser, slot), browser.evaluate("document.querySelector('.track').clientWidth")
        full = browser.evaluate("parseFloat(document.querySelector('.limit').style.left) / 100") * track
        assert widths == pytest.approx([bytes / plan.capacity * full for bytes in plan.totals], abs=1.5)
        says = browser.evaluate(f"document.querySelector(\".plan[data-slot='{slot}'] h3 .fits\").textContent")
        assert WORDS[plan.answer] in says
        assert WORDS[plan.answer] in browser.evaluate("document.getElementById('summary').textContent")


@pytest.mark.parametrize("seed", range(100, 106))
def test_the_command_below_says_the_same(browser, capsys, seed):
    selection = random_selection(random.Random(seed))
    select(browser, selection)
    line = browser.evaluate("document.querySelector('#commands pre').textContent")
    assert run([*shlex.split(line)[1:], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert written(told["needed_bytes"]) in browser.evaluate("document.querySelector('#summary span').textContent")
    assert WORDS[told["fits"]] in browser.evaluate("document.querySelector('#summary .fits').textContent")


def test_a_selection_changes_what_is_drawn(browser):
    before = widths_of(browser, 0)
    select(browser, {"model": "14b"})
    after = widths_of(browser, 0)
    assert max(before) > 0
    assert all(now > then or then == 0 for now, then in zip(after, before, strict=True))


def test_an_address_holds_the_whole_view(browser, page):
    select(browser, {"a": "ppo", "b": "simpo", "model": "14b", "weights": "lora", "gpus": "2"})
    address = browser.evaluate("location.href")
    seen = browser.evaluate("document.querySelector('main').innerText")
    assert "a=ppo" in address
    browser.open(address)
    assert browser.evaluate("document.querySelector('main').innerText") == seen
    browser.evaluate("void (location.hash = '#a=kto')")
    assert browser.evaluate("document.querySelector('.compare thead').textContent").startswith("KTO")


def test_an_address_that_says_nonsense_says_nothing(browser, page):
    expected = browser.evaluate("document.querySelector('main').innerText")
    browser.open(f"{page.as_uri()}#a=%3Cimg%20src=x%3E&model=999b&weights=both&walk=up.and.down&x=1&toString=1")
    assert browser.evaluate("document.querySelector('main').innerText") == expected


def test_two_algorithms_stand_side_by_side_with_their_differences_marked(browser):
    select(browser, {"a": "grpo", "b": "rloo"})
    rows = browser.evaluate(
        "[...document.querySelectorAll('[data-fact]')].map((row) => [row.dataset.fact, row.className, row.textContent])"
    )
    marked = {fact for fact, kind, _ in rows if kind == "differs"}
    assert {"baseline", "normalisation", "trust region", "aggregation"} <= marked
    assert not marked & {"data", "learns", "filter", "idea"}
    assert all("(differs)" in text for fact, _, text in rows if fact in marked)


def test_what_would_change_nothing_cannot_be_chosen(browser):
    select(browser, {"a": "dpo"})
    assert browser.evaluate("document.getElementById('group').disabled")
    assert "groups of" not in browser.evaluate("document.getElementById('summary').textContent")
    select(browser, {"b": "grpo"})
    assert not browser.evaluate("document.getElementById('group').disabled")
    kl = "document.querySelector('[name=kl]').disabled"
    assert not browser.evaluate(kl)
    select(browser, {"b": "cispo"})
    assert browser.evaluate(kl)


def test_everything_can_be_done_from_the_keyboard(browser):
    browser.press("Tab")
    assert focused(browser) == "Skip to the memory"
    browser.press("Enter")
    assert focused(browser) == "memory"
    browser.press("Tab", 2, shift=True)
    order = []
    browser.evaluate("document.getElementById('theme').focus()")
    for _ in range(13):
        browser.press("Tab")
        order.append(focused(browser, "name || document.activeElement.textContent.trim()"))
    names = [
        "a",
        "b",
        "model",
        "weights",
        "precision",
        "checkpointing",
        "tokens",
        "group",
        "reward",
        "kl",
        "gpus",
        "device",
    ]
    assert [name for name in order if name in names] == names
    browser.evaluate("document.getElementById('model').focus()")
    before = table_of(browser, 0)
    browser.press("ArrowDown")
    assert table_of(browser, 0) != before
    browser.press("Tab")
    browser.press("ArrowRight")
    assert browser.evaluate("document.querySelector('[name=weights]:checked').value") == "lora"


def test_the_advisor_can_be_walked_from_the_keyboard(browser):
    browser.evaluate("document.querySelector('nav [data-jump=advisor]').focus()")
    browser.press("Enter")
    for _ in range(12):
        browser.press("Tab")
        if browser.evaluate("document.querySelector('.answers') === null"):
            break
        while not browser.evaluate("document.activeElement.matches('.answers button')"):
            browser.press("Tab")
        browser.press("Enter")
        assert browser.evaluate("document.activeElement.tagName") == "H3"
    assert browser.evaluate("document.querySelectorAll('.advice > li').length") > 0
    first = browser.evaluate("document.querySelector('.advice h4').lastChild.textContent")
    while focused(browser, "textContent") != "show it above":
        browser.press("Tab")
    browser.press(" ")
    assert browser.evaluate("document.querySelector('.compare thead').textContent") == first


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_a_view_can_be_read_by_everybody(browser, page, view, theme, width):
    """Check contrast, names, headings and sizes, and that nothing needs horizontal scrolling."""
    browser.size(width, 900)
    browser.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
    browser.open(page.as_uri() + view)
    assert browser.evaluate(CHECKS) == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser, page, axe, view, theme):
    browser.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
    browser.open(page.as_uri() + view)
    browser.evaluate(f"{axe};0")
    found = browser.evaluate(
        "axe.run().then((told) => told.violations.map((one) => [one.id, ...one.nodes.map((node) => node.html)]))"
    )
    assert found == []


def test_a_screen_reader_is_told_names_values_and_changes(browser):
    select(browser, {"a": "ppo", "b": "grpo", "kl": "on"})
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    told = [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "")) for node in nodes]
    images = [name for role, name in told if role in ("image", "img")]
    assert len(images) == 2 * len(PHASES)
    assert all("GiB" in name and "policy weights" in name for name in images)
    assert {name for role, name in told if role == "combobox"} >= {"Show", "Compare with", "Model", "Group size"}
    assert {name for role, name in told if role == "radiogroup"} >= {"Training", "Computed in"}
    assert ("status", "") in told


def test_motion_is_left_out_where_it_is_not_wanted(browser):
    moves = "getComputedStyle(document.querySelector('.part')).transitionDuration"
    assert browser.evaluate(moves) == "0s"
    browser.media(prefers_reduced_motion="no-preference")
    assert browser.evaluate(moves) != "0s"


def test_a_theme_can_be_chosen(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(paper)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(paper) != light


def test_it_prints_without_what_is_only_to_be_pressed(browser):
    browser.media(media="print")
    shown = "[...document.querySelectorAll('{}')].filter((one) => one.checkVisibility()).length"
    assert browser.evaluate(shown.format("button, select, nav")) == 0
    assert browser.evaluate(shown.format(".track, .numbers, .compare")) > 0
    pdf = browser.send("Page.printToPDF", printBackground=True)["data"]
    assert len(pdf) > 10_000
