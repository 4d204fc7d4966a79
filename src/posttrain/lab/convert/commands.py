"""Reads settings from command lines: hydra overrides, and the options of TRL's commands and example scripts."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.lab.convert.records import TRL, VERL, Given, Source, Unread, form_of, nothing_found


def of_commands(text: str, path: Path, verb: str) -> Source:
    """Read `python -m verl.trainer.main_ppo a.b=c`, `trl grpo --a b`, or a command that starts TRL's example script."""
    variables: dict[str, str] = {}
    for line, words in _commands(text):
        words = [_substituted(word, variables) for word in words]
        while words and (found := re.fullmatch(r"(?:export )?(\w+)=(.*)", words[0], re.DOTALL)):
            variables[found[1]] = found[2]
            words = words[1:]
        if any(re.search(r"main_(ppo|dapo)", word) for word in words):
            pairs = (re.fullmatch(r"\+{0,2}([\w.]+)=(.*)", word, re.DOTALL) for word in words)
            given = {pair[1]: _value(pair[2]) for pair in pairs if pair}
            return Source(VERL, "main_ppo", {name: Given(value, line(name)) for name, value in given.items()})
        place = next((n for n, word in enumerate(words) if form_of(Path(word).stem)), 0)
        form = form_of(verb) or form_of(Path(words[place]).stem) if words else None
        if form and any(word.startswith("--") for word in words[place:]):
            given = {name: Given(value, line(f"--{name}")) for name, value in _options(words[place:])}
            launched = dict(_options(words[:place])) if place else {}
            count = next((launched[name] for name in _PROCESSES if isinstance(launched.get(name), int)), 1)
            return Source(TRL, form, given, devices=count)
    raise nothing_found(path, "a command that starts verl.trainer.main_ppo, or a command such as trl grpo")


_PROCESSES = ("num_processes", "nproc_per_node")
"""The options of accelerate and torchrun for the number of processes."""


def _commands(text: str) -> Iterator[tuple[Any, list[str]]]:
    """Yield (a function from a word to its line number, the words) for each command. A backslash continues a line."""
    first = 1
    for command in re.split(r"(?<!\\)\n", text):
        lines = command.split("\n")

        def line(word: str, lines: list[str] = lines, first: int = first) -> int:
            return first + next((number for number, text in enumerate(lines) if word in text), 0)

        with contextlib.suppress(ValueError):  # an unclosed quote: not a command to read
            yield line, shlex.split(command.replace("\\\n", " "), comments=True)
        first += len(lines)


def _substituted(word: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[2], found[3]
        return variables.get(name, default if default is not None else "~" if name == "HOME" else found[0])

    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", value, word)


def _options(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Parse `--name value`, `--name a b`, `--name=value`, and `--name` alone, which means true."""
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        following = list(_until_option(words[place + 1 :]))
        given = [_value(value)] if equals else [_value(one) for one in following]
        yield name.replace("-", "_"), True if not given else given[0] if len(given) == 1 else given


def _until_option(words: list[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("--"):
            return
        yield word


def _value(text: str) -> Any:
    if "$" in text:
        return Unread(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value, re.IGNORECASE):
        return float(value)  # 1e-6 is text in YAML 1.1
    return value
