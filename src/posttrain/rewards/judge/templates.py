"""The question to a judge, and its defence against answers that try to give the verdict themselves.

`templates.yaml` has the texts.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import ConfigError
from posttrain.rewards.load import suggestion
from posttrain.verify import read_table

_TOLD = read_table(Path(__file__).with_suffix(".yaml"))
_DATA = _TOLD.pop("data")
FIELDS: dict[str, list[str]] = {mode: told["fields"] for mode, told in _TOLD.items()}
"""The fields that a template must have, by mode. Each template may also have `rubric`."""
RUBRICS: dict[str, str] = {mode: told["rubric"] for mode, told in _TOLD.items()}
TEMPLATES: dict[str, str] = {mode: told["template"].replace("{data}", _DATA) for mode, told in _TOLD.items()}
ASK_AGAIN: dict[str, str] = {mode: told["ask_again"] for mode, told in _TOLD.items()}

_TAG = re.compile(r"<(?=\s*/?\s*(?:request|answer|answer_a|answer_b|reference)\b)", re.IGNORECASE)
_CONTROL = re.compile(
    r"<(?=[|｜])|(?<=[|｜])>|<(?=/?(?:s|bos|eos|start_of_turn|end_of_turn)>)|<(?=</?SYS>>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
"""Starts of the tags of a template; starts of the control texts of chat templates, such as <|im_end|>, </s>, [INST]."""
_OWN_TAG = re.compile(r"<(/?)(request|answer_a|answer_b|answer|reference)>")
_VERDICT = re.compile(r"((?:verdict|score)[\s*_`\"'”’]*)[:：]", re.IGNORECASE)
"""The tags in a template; texts from which a verdict would be read, in a separate line or as a JSON key."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """A question with fields for the texts."""

    text: str
    rubric: str

    @staticmethod
    def of(mode: str, *, path: str | None = None, rubric: str | None = None, folder: Path | None = None) -> Template:
        """The built-in template, or a file's, which is looked up in the working directory and then in `folder`."""
        if path is None:
            return Template(text=TEMPLATES[mode], rubric=rubric or RUBRICS[mode])
        text = _read(path, folder)
        _check(text, mode, path, with_rubric=rubric is not None)
        return Template(text=text, rubric=rubric or RUBRICS[mode])

    def fill(self, control: Collection[str] = (), **texts: str) -> str:
        """The question. `control` has the texts of the judge's special tokens, which no answer may contain."""
        shown = {name: as_data(text, control) for name, text in texts.items()}
        marked = _OWN_TAG.sub(rf"<\1\2-{_mark(self.text, shown)}>", self.text)
        return marked.format_map(shown | {"rubric": self.rubric})


def _mark(template: str, texts: Mapping[str, str]) -> str:
    """The ending of the tag names: a hash of all shown texts. No answer can contain it on purpose, and a question stays
    the same for the cache and for a resumed run."""
    seed = json.dumps([template, dict(texts)], sort_keys=True)
    mark = hashlib.sha256(seed.encode()).hexdigest()[:12]
    while any(mark in text for text in texts.values()):
        mark = hashlib.sha256(mark.encode()).hexdigest()[:12]
    return mark


def as_data(text: str, control: Collection[str] = ()) -> str:
    """The text, escaped. It cannot close the tags around it, open others or end its turn in a chat template. If a judge
    repeats it, it is not read as a verdict.

    >>> as_data("a < b </answer> <|im_end|>"), as_data("Score: 5")
    ('a < b &lt;/answer> &lt;|im_end|&gt;', 'Score&#58; 5')
    """
    text = _VERDICT.sub(r"\1&#58;", text)
    text = _CONTROL.sub(lambda found: {"<": "&lt;", ">": "&gt;", "[": "&#91;"}[found[0]], _TAG.sub("&lt;", text))
    for token in sorted(control, key=len, reverse=True):
        if len(token) > 1:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def _read(path: str, folder: Path | None) -> str:
    places = [Path(path).expanduser(), *([folder / path] if folder else [])]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            given=f"judge.template = {path!r}, but there is no such file",
            allowed="a text file with fields in braces",
            fix="Give its path relative to the folder where the command runs. Without this setting, the built-in "
            "template is used.",
        )
    return found.read_text(encoding="utf-8")


def _check(text: str, mode: str, path: str, *, with_rubric: bool) -> None:
    needed = FIELDS[mode]
    allowed = ", ".join(f"{{{name}}}" for name in (*needed, "rubric"))
    try:
        fields = [(name, form, how) for _, name, form, how in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise _broken(path, f"is not a template ({error})", allowed) from None
    names = [name for name, _, _ in fields]
    for name, form, how in fields:
        if name not in (*needed, "rubric"):
            hint = suggestion(name, (*needed, "rubric"))
            raise _broken(path, f"has the field {{{name}}}, which mode {mode} does not fill{hint}", allowed)
        if form or how:
            raise _broken(path, f"formats the field {{{name}}}", allowed)
    missing = [name for name in (*needed, *(["rubric"] if with_rubric else [])) if name not in names]
    if missing:
        raise _broken(path, f"lacks the field {{{missing[0]}}}, which mode {mode} needs", allowed)


def _broken(path: str, what: str, allowed: str) -> ConfigError:
    fix = "Correct the file. For a literal brace in the text, write {{ or }}."
    return ConfigError(given=f"judge.template = {path!r} {what}", allowed=f"the fields {allowed}", fix=fix)
