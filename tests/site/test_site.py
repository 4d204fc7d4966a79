"""The built site: no broken link or picture. In a real browser: accessible at two widths, and searchable."""

from __future__ import annotations

import functools
import http.server
import os
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

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


class Links(HTMLParser):
    """Every address and every id of a page, including those of raw HTML, which the strict build does not check."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links += [found[name] for name in ("href", "src") if found.get(name)]


@pytest.fixture(scope="module")
def built():
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: `make docs-test` builds it first")
    return SITE


@pytest.fixture(scope="module")
def site(built):
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


def test_every_link_and_picture_of_every_page_is_there(built):
    pages = {path.resolve(): Links(path) for path in built.rglob("*.html") if path.name != "404.html"}
    checked, broken = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            there = target.exists()
            if there and parts.fragment and target in pages and not parts.fragment.startswith("__"):
                there = unquote(parts.fragment) in pages[target].ids
            checked += 1
            broken += [] if there else [f"{path.relative_to(built.resolve())}: {link}"]
    assert broken == []
    assert len(pages) > 100
    assert checked > 10_000


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
