"""What the site needs beyond the Markdown files: the list of algorithms, and pages for links that leave docs/."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parent.parent
PAGES = {".py": "python", ".yaml": "yaml"}
"""Files that are shown as a page; others are copied as they are."""
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_WRITTEN_BY = re.compile(r"\A<!--.*?-->\s*")
_LONELY_COMMENT = re.compile(r"^(<!--.*-->)\n(?=\S)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put the pages of the algorithms where the navigation says ALGORITHMS."""
    for entry in config.nav:
        if "ALGORITHMS" in entry.values():
            entry |= {name: _algorithms() for name, pages in entry.items() if pages == "ALGORITHMS"}
    return config


def _algorithms() -> list[Any]:
    """The pages in docs/algorithms by kind, in the order of the tables on its first page."""
    index = (ROOT / "docs/algorithms/README.md").read_text(encoding="utf-8")
    everything, *tables = (
        re.findall(r"^\| \[`\w+`\]\((\w+)\.md\)", part, re.MULTILINE) for part in index.split("\n## ")
    )
    kinds = dict(zip(("Learn from sampled answers", "Preference losses"), tables, strict=True))
    listed = {key for keys in tables for key in keys}
    kinds["Examples, rewards and more"] = [key for key in everything if key not in listed]
    kinds["Off-policy data"] = ["correction", "decoupled_ppo"]
    return ["algorithms/README.md", *({kind: [f"algorithms/{key}.md" for key in keys]} for kind, keys in kinds.items())]


def on_files(files: Files, config: Any) -> Files:
    """Add a page or a copy of each file of the repository that a page links to."""
    wanted = {path for page in files.documentation_pages() for path in _outside(page.src_uri, page.content_string)}
    inner = {path for folder in wanted for path in _inside(folder)}
    for path in sorted(wanted | inner):
        files.append(_source(path, config))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links out of docs/ lead to those pages, and a table may follow a comment, as it does elsewhere."""

    def inside(link: re.Match[str]) -> str:
        path = _path(page.file.src_uri, link[2])
        return (
            link[1] + posixpath.relpath(_uri(path), posixpath.dirname(page.file.src_uri)) + link[3] if path else link[0]
        )

    without = _WRITTEN_BY.sub("", markdown)  # before the title, it would hide the title from the navigation
    return _LINK.sub(inside, _LONELY_COMMENT.sub(r"\1\n\n", without))


def _outside(page: str, markdown: str) -> Iterator[str]:
    return (path for link in _LINK.finditer(markdown) if (path := _path(page, link[2])))


def _path(page: str, link: str) -> str:
    """From the root of the repository, of a link to something beside docs/ that exists; "" for any other."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return path if not path.startswith(("docs/", "..")) and (ROOT / path).exists() else ""


def _inside(path: str) -> Iterator[str]:
    """The files of a folder that can be shown."""
    inner = sorted((ROOT / path).iterdir()) if (ROOT / path).is_dir() else []
    return (f"{path}/{file.name}" for file in inner if file.suffix in PAGES)


def _uri(path: str) -> str:
    shown = (ROOT / path).is_dir() or (ROOT / path).suffix in PAGES
    return f"source/{path}.md" if shown else f"source/{path}"


def _source(path: str, config: Any) -> File:
    file, uri, inclusion = ROOT / path, _uri(path), InclusionLevel.NOT_IN_NAV
    if not uri.endswith(".md"):
        return File.generated(config, uri, abs_src_path=str(file), inclusion=inclusion)
    if file.is_dir():
        text = "\n".join(f"- [{name}]({file.name}/{name}.md)" for name in (Path(p).name for p in _inside(path)))
    else:
        text = f"````{PAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````"
    head = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"
    return File.generated(config, uri, content=f"{head}# {path}\n\n{text}\n", inclusion=inclusion)
