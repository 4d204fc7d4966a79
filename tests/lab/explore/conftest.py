"""The page, written once, and a real browser that shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.explore.chromium import PROGRAM, Chromium

from posttrain.lab.explore import write_page


@pytest.fixture(scope="session")
def page(tmp_path_factory) -> Path:
    return write_page(tmp_path_factory.mktemp("explore") / "explore.html")


@pytest.fixture(scope="session")
def only_browser(tmp_path_factory) -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("no Chromium is installed: `apt-get install chromium` brings it")
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def browser(only_browser, page) -> Iterator[Chromium]:
    """A desktop window. Whatever a test does in it, the page must not complain and must request nothing but itself."""
    only_browser.size(1280, 900)
    only_browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    only_browser.open(page.as_uri())
    yield only_browser
    assert only_browser.complaints == []
    assert {address.partition("#")[0] for address in only_browser.requests} == {page.as_uri()}


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of axe-core, an accessibility checker. `make explore-test` fetches it."""
    path = Path(os.environ.get("POSTTRAIN_AXE", "build/axe-core/package/axe.min.js"))
    if not path.is_file():
        pytest.skip(f"axe-core is not at {path}: `make explore-test` fetches it, or POSTTRAIN_AXE names it")
    return path.read_text(encoding="utf-8")
