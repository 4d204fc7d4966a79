"""The built site in a real browser: accessible at two widths, searchable, and nothing is fetched from elsewhere."""

from __future__ import annotations

import functools
import http.server
import os
import threading
import time
from pathlib import Path

import pytest
from tests.lab.explore.chromium import PROGRAM, Chromium

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
AXE = Path(os.environ.get("POSTTRAIN_AXE", ROOT / "build/axe-core/package/axe.min.js"))
PAGES = (
    "", "start/", "advise/", "rewards/", "algorithms/", "algorithms/grpo/", "reference/functional/", "reference/runs/",
    "config/", "cli/", "speed/", "moving/trl/",
)  # fmt: skip
WIDTHS = {"desk": (1360, 900), "phone": (390, 844)}

pytestmark = pytest.mark.slow


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site():
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: `make docs-test` builds it first")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if PROGRAM is None:
        pytest.skip("no Chromium is installed: `apt-get install chromium` brings it")
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_are_accessible_fit_their_width_and_fetch_nothing(site, browser, width, theme):
    if not AXE.exists():
        pytest.skip(f"axe-core is not at {AXE}: `make docs-test` fetches it, or POSTTRAIN_AXE names it")
    browser.size(*WIDTHS[width], phone=width == "phone")
    browser.media(prefers_color_scheme=theme)
    for page in PAGES:
        browser.open(site + page)
        assert [asked for asked in browser.requests if not asked.startswith((site, "data:", "blob:"))] == [], page
        assert browser.complaints == [], page
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
        browser.evaluate(f"{AXE.read_text(encoding='utf-8')};0")
        told = browser.evaluate(
            "axe.run().then((told) => told.violations.filter((one) => ['serious', 'critical'].includes(one.impact))"
            ".map((one) => [one.id, ...one.nodes.map((node) => node.html)]))"
        )
        assert told == [], page


def test_the_search_finds_a_setting(site, browser):
    browser.size(*WIDTHS["desk"])
    browser.open(site)
    browser.evaluate(
        "(() => { const field = document.querySelector('.md-search__input'); field.focus();"
        " field.value = 'prompts_per_step'; field.dispatchEvent(new Event('keyup', {bubbles: true}));"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    found, until = "", time.monotonic() + 30
    while "onfiguration" not in found and time.monotonic() < until:
        time.sleep(0.2)
        found = browser.evaluate("document.querySelector('.md-search-result__list').innerText")
    assert "onfiguration" in found
