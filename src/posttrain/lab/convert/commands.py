"""Reads settings from command lines: hydra overrides, and the options of TRL's commands and example scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from posttrain.lab.convert.records import TRL, VERL, Given, Source, Unread, form_of, nothing_found
from posttrain.lab.convert.shell import Word, commands


def of_commands(text: str, path: Path, verb: str) -> Source:
    """Read `python -m verl.trainer.main_ppo a.b=c`, `trl grpo --a b`, or a command that starts TRL's example script.

    The first such command is read. Others, and words that are no settings, are named in `to_do`.
    """
    every = list(commands(text))
    tried = [(_of_verl(words) or _of_trl(words, verb), words[0].line) for words in every]
    found = [(source, line) for source, line in tried if source is not None]
    if not found and form_of(verb):  # a script of one's own
        others = (source for words in every if (source := _options_of(words, 0, form_of(verb) or "")))
        found = [(source, 0) for source in others][:1]
    if not found:
        raise nothing_found(path, "a command that starts verl.trainer.main_ppo, or a command such as trl grpo")
    source = found[0][0]
    for other, line in found[1:]:
        told = f"a second command that starts {other.project}: it is not in this config; convert it on its own"
        source.to_do.append((line, told))
    return source


def _of_verl(words: list[Word]) -> Source | None:
    start = next((n for n, word in enumerate(words) if re.search(r"main_(ppo|dapo)", word.text)), None)
    if start is None or not any("=" in word.text for word in words[start + 1 :]):
        return None
    source = Source(VERL, "main_ppo")
    for word in _own(words[start + 1 :], source):
        pair = re.fullmatch(r"\+{0,2}([\w.]+)=(.*)", word.text, re.DOTALL)
        if pair:
            source.settings[pair[1]] = Given(_value(pair[2]), word.line)
        elif word.text != f"--config-name={_CONFIG}":
            source.to_do.append((word.line, f"{word.text} was not read: add its settings"))
    return source


_CONFIG = "ppo_trainer"
"""The config of verl whose defaults forms.yaml has."""


def _of_trl(words: list[Word], verb: str) -> Source | None:
    place = next((n for n, word in enumerate(words) if form_of(Path(word.text).stem)), None)
    return None if place is None else _options_of(words, place, form_of(verb) or form_of(Path(words[place].text).stem))


def _options_of(words: list[Word], place: int, form: str | None) -> Source | None:
    """Return the settings in the options from a place on. Those before it belong to the program that starts it."""
    if not form or not any(word.text.startswith("--") for word in words[place:]):
        return None
    source = Source(TRL, form)
    source.settings = {name: Given(value, line) for name, value, line in _options(_own(words[place:], source))}
    if file := source.settings.pop("config", None):
        source.to_do.append((file.line, f"--config {file.value} was not read: add its settings"))
    launched = {name: value for name, value, _ in _options(words[:place])} if place else {}
    source.devices = next((launched[name] for name in _PROCESSES if isinstance(launched.get(name), int)), 1)
    return source


_PROCESSES = ("num_processes", "nproc_per_node")
"""The options of accelerate and torchrun for the number of processes."""


def _own(words: list[Word], source: Source) -> list[Word]:
    """Return the words of a command before its first redirection. Arguments that are not in the file are told."""
    own: list[Word] = []
    for word in words:
        if re.match(r"\d*>|<|&", word.text):
            break
        if re.fullmatch(r"\$(\*|@|\{[@*]\})", word.text):
            source.remarks.append((word.line, f"{word.text}: the arguments of this script are not in the file"))
        elif re.fullmatch(r"\$\{\w+\[[@*]\]\}", word.text):
            source.to_do.append((word.line, f"{word.text} was not read: add its settings"))
        else:
            own.append(word)
    return own


def _options(words: list[Word]) -> Iterator[tuple[str, Any, int]]:
    """Parse `--name value`, `--name a b`, `--name=value`, and `--name` alone, which means true. Yield lines, too."""
    for place, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text.removeprefix("--").partition("=")
        following = list(_until_option(words[place + 1 :]))
        given = [_value(value)] if equals else [_value(one) for one in following]
        yield name.replace("-", "_"), True if not given else given[0] if len(given) == 1 else given, word.line


def _until_option(words: list[Word]) -> Iterator[str]:
    for word in words:
        if word.text.startswith("--"):
            return
        yield word.text


def _value(text: str) -> Any:
    if "$" in text or "`" in text:
        return Unread(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value, re.IGNORECASE):
        return float(value)  # 1e-6 is text in YAML 1.1
    return value
