"""The documentation: no dead links, every page is listed, each page begins with a command, and the examples run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import yaml
from tests.catalogue import catalogue

from posttrain.config import check, load_config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
WITHIN = 16
"""Number of lines at the top of a page that must contain something to run, to write or to look at."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def dead(page: Path, text: str) -> list[str]:
    """Return the links of a page to files that do not exist."""
    links = [link.partition("#")[0] for link in LINK.findall(CODE.sub("", text)) if "://" not in link]
    return [link for link in links if link and not (page.parent / link).exists()]


@catalogue("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_no_link_is_dead(page):
    assert dead(page, page.read_text(encoding="utf-8")) == []


def test_a_dead_link_is_seen():
    assert dead(DOCS / "index.md", "[a](start.md) [b](strat.md#x) `[c](no.md)` [d](https://d.org)") == ["strat.md"]


def listed(nav: object) -> list[str]:
    """Return the pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in listed(entry)]


def test_the_navigation_has_every_page_once():
    pages = listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages.remove("ALGORITHMS")
    assert sorted(pages) == sorted(str(p.relative_to(DOCS)) for p in PAGES if p.parent.name != "algorithms")


def test_the_first_config_of_the_start_page_passes_all_rules(tmp_path):
    path = tmp_path / "my_run.yaml"
    path.write_text(blocks(DOCS / "start.md", "yaml")[0], encoding="utf-8")
    check(load_config(path))


def test_the_loss_of_the_reference_page_has_a_gradient():
    scope = {}
    exec(blocks(DOCS / "reference/algorithms.md", "python")[0], scope)
    scope["loss"].backward()
    assert scope["loss"].isfinite()


EXAMPLES = [(page, text) for page in [*PAGES, ROOT / "README.md"] for text in blocks(page, "python")]
IMPORT = re.compile(r"^(?:from posttrain[\w.]* import (?:\([^)]*\)|.*)|import posttrain.*)$", re.MULTILINE)


@catalogue("page, text", EXAMPLES, ids=lambda case: case[0].name)
def test_an_example_is_python_and_imports_what_there_is(page, text):
    source = doctest.script_from_examples(text) if ">>> " in text else text
    compile(source, page.name, "exec")
    exec("\n".join(IMPORT.findall(source)), {})


@catalogue("name", ["algorithms", "functional", "rewards", "types"])
def test_the_examples_of_a_reference_page_run(name):
    for text in blocks(DOCS / f"reference/{name}.md", "python"):
        exec(text, {})


def beginning(page: Path) -> str:
    return "\n".join(page.read_text(encoding="utf-8").splitlines()[:WITHIN])


@catalogue("page", [p for p in PAGES if p.parent.name != "audit"], ids=lambda page: page.name)
def test_a_page_begins_with_something_to_run(page):
    assert re.search(r"^(```|    \S)|`(posttrain|make|python|algorithm:|pip) ?[^`]*`", beginning(page), re.MULTILINE)


@catalogue("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_target_of_make_that_is_named_is_there(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) <= targets
