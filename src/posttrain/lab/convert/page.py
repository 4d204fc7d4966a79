"""Writes the pages docs/moving from names.yaml and forms.yaml: `python -m posttrain.lab.convert.page docs/moving`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.config.names import COMMON, FAMILIES, ByAlgorithm, Entry, Nothing, all_names, foreign_values, peers
from posttrain.config.text import show
from posttrain.lab.convert.records import FORMS, LORA

HEADS = Path(__file__).with_name("pages")


def moving_pages() -> Mapping[str, str]:
    """Map file names to Markdown: an index page, and a page for each project."""
    pages = {f"{project.lower()}.md": _page(project) for project in peers() if project not in (COMMON, FAMILIES)}
    return {"index.md": "\n\n".join([_head("index"), *_values()]) + "\n", **pages}


def _head(name: str) -> str:
    written = "<!-- written by: python -m posttrain.lab.convert.page docs/moving -->"
    return f"{written}\n\n{HEADS.joinpath(f'{name}.md').read_text(encoding='utf-8').strip()}"


def _page(project: str) -> str:
    parts = [
        _head(project.lower()),
        *(part for name, form in FORMS.get(project, {}).items() for part in _form(name, form)),
    ]
    rows = [(f"`{name}`", _here(entry)) for name, entry in all_names(project).items()]
    parts += ["## Every setting", _table((f"{project}", "here"), rows)]
    return "\n\n".join(parts) + "\n"


def _form(name: str, form: Mapping[str, Any]) -> Iterator[str]:
    """Yield the meaning of one kind of config: its algorithms, its defaults, and what differs."""
    if name == LORA:
        return
    yield f"## `{name}`"
    if sets := form.get("sets"):
        yield "It stands for " + ", ".join(f"`{key}: {show(value)}`" for key, value in sets.items()) + "."
    for setting, values in form.get("choice", {}).items():
        yield _table(
            (f"`{setting}`", "here"), [(f"`{value}`", _choice(told) or "as it is") for value, told in values.items()]
        )
    special = [(f"`{key}`", text) for key, told in form.get("settings", {}).items() if (text := _special(told))]
    if special:
        yield _table(("setting", "here"), special)
    if together := form.get("together"):
        yield "Together:\n\n" + "\n".join(f"- `{one['of']}` with `{one['beside']}`: {one['note']}." for one in together)
    if differs := form.get("differs"):
        yield "Always different:\n\n" + "\n".join(f"- {line}" for line in differs)
    silent = {key: value for key, value in form.get("defaults", {}).items() if value is not None}
    yield "Its defaults: " + ", ".join(f"`{key} = {show(value)}`" for key, value in silent.items()) + "."


def _choice(told: Mapping[str, Any]) -> str:
    aside = ("with", "defaults", "note")
    settings = {key: value for key, value in told.items() if key not in aside}
    text = ", ".join(f"`{key}: {show(value)}`" for key, value in settings.items()) or told.get("note", "")
    return f"{text}; {told['note']}" if settings and "note" in told else text


def _special(told: Any) -> str:
    """Describe the values of a setting that translate to our settings, without those that change nothing."""
    if not isinstance(told, Mapping) or "values" not in told:
        return ""
    stands = [
        f"`{show(value)}` is " + (_choice(ours) if isinstance(ours, Mapping) else f"`{told['is']}: {show(ours)}`")
        for value, ours in told["values"].items()
        if ours or ours == 0
    ]
    return "; ".join([*stands, *(told[key] for key in ("nothing", "open") if key in told)])


def _here(entry: Entry) -> str:
    if isinstance(entry, Nothing):
        return entry.reason
    if isinstance(entry, ByAlgorithm):
        return f"by algorithm: {entry}"
    values = ", ".join(f"`{show(t)}` is `{show(ours)}`" for t, ours in entry.values.items() if ours is not None)
    return f"`{entry.key}`" + (f" ({entry.note})" if entry.note else "") + (f": {values}" if values else "")


def _values() -> Iterator[str]:
    beginnings = {COMMON: "Names that several projects share", FAMILIES: "Names that begin with"}
    for section, title in beginnings.items():
        rows = [(f"`{name}`", _here(entry)) for name, entry in peers()[section].items()]
        yield f"## {title}\n\n{_table(('name', 'here'), rows)}"
    for key, values in foreign_values().items():
        yield f"## Values of `{key}`\n\n{_table(('value', 'here'), [(f'`{v}`', ours) for v, ours in values.items()])}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    for name, text in moving_pages().items():
        Path(sys.argv[1], name).write_text(text, encoding="utf-8")
