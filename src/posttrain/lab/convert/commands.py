"""Reads settings from command lines: hydra overrides, and the options of TRL's commands and example scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import yaml

from posttrain.config.names import entry_of
from posttrain.lab.convert.records import TRL, VERL, Given, Source, Unread, form_of, nothing_found
from posttrain.lab.convert.shell import Word, commands


def of_commands(text: str, path: Path, verb: str) -> Source:
    """Read `python -m verl.trainer.main_ppo a.b=c`, `trl grpo --a b`, or a command that starts TRL's example script.

    The first such command is read; one in a file that the script writes only if the script itself has none. With a
    verb, a command that sets what TRL knows comes before other scripts. Others, and words that are no settings, are
    named in `to_do`.
    """
    tried = ((_of_verl(words) or _of_trl(words, verb), words[0].line) for words in commands(text, written=True))
    found = [(source, line) for source, line in tried if source is not None]
    if not found:
        raise nothing_found(path, "a command that starts verl.trainer.main_ppo, trl grpo or grpo.py", verb)
    if verb:
        found.sort(key=lambda pair: not _sets_any(pair[0]))
    source = found[0][0]
    for other, line in found[1:]:
        told = f"a second command that starts {other.project}: it is not in this config; convert it on its own"
        source.to_do.append((line, told))
    return source


def _sets_any(source: Source) -> bool:
    """May a command set what its project knows? Some of its settings may be unread."""
    return source.project == VERL or bool(source.to_do) or any(_is_known(f"--{name}") for name in source.settings)


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
    place, form = _program([word.text for word in words], form_of(verb))
    if form is None or not any(word.text.startswith("--") for word in words[place:]):
        return None
    source = Source(TRL, form)
    source.settings = {name: Given(value, line) for name, value, line in _options(_own(words[place:], source))}
    if file := source.settings.pop("config", None):
        source.to_do.append((file.line, f"--config {file.value} was not read: add its settings"))
    source.devices = _processes(words[: place + 1], source)
    return source


def _program(texts: list[str], form: str | None) -> tuple[int, str | None]:
    """Return the place of `trl VERB` or of TRL's example script, and its form. With a form, any script is meant."""
    unnamed = _unnamed(texts)
    for place, (text, following) in enumerate(zip(texts, [*texts[1:], ""], strict=True)):
        told = following if Path(text).name == "trl" else Path(text).stem if text.endswith(".py") else ""
        told = text.rpartition(".")[2] if place == unnamed else told
        meant = text.endswith(".py") or (place == unnamed and any(map(_is_known, texts[place + 1 :])))
        if form_of(told) or (form and meant):
            return place, form or form_of(told)
    return 0, None


def _is_known(option: str) -> bool:
    """Is this an option that TRL knows?"""
    name = option.removeprefix("--").partition("=")[0].replace("-", "_")
    return option.startswith("--") and entry_of(TRL, name) is not None


def _unnamed(texts: list[str]) -> int | None:
    """Return the place of a module, `-m NAME`, or an unread `$NAME` that python or a launcher starts. None if that word
    may be something else: options behind it would be read, and launchers have some of the same names."""
    start = next((place for place, text in enumerate(texts) if _starts(text)), len(texts))
    for place in range(start + 1, len(texts)):
        before, text = texts[place - 1], texts[place]
        variable = re.fullmatch(r"\$(\w+|\{\w+\})", text)
        if text.startswith("-") or _starts(text) or (Path(before).name, text) == ("accelerate", "launch"):
            continue
        if before not in _MODULE:
            if re.fullmatch(r"--[^=]+", before):  # its value, or it has none
                if variable and not re.fullmatch(_WITH_VALUE, before):
                    return None
                continue
            if not variable or any(other.endswith(".py") for other in texts):
                return None
        following = texts[place + 1] if place + 1 < len(texts) else "-"
        is_last = re.match(r"-|\$[@*]|\$\{([@*]|\w+\[)", following)  # no argument may be the program
        return place if is_last and text.partition(".")[0] not in ("torch", "accelerate", "deepspeed") else None
    return None


def _starts(text: str) -> bool:
    name = Path(text).name
    return re.fullmatch(r"python[\d.]*", name) is not None or (name in _COUNTS and name != "trl")


_MODULE = ("-m", "--module")
_WITH_VALUE = r"--(.*config.file|n(um|proc|nodes).*|.*[-_](rank|port|ip|addr|endpoint|backend|id|precision))"
"""Options of launchers that have a value."""
_RANKS = {"nproc_per_node": 1, "nnodes": 1}
_COUNTS: Mapping[str, Mapping[str, int | None]] = {
    "trl": {"num_processes": None}, "accelerate": {"num_processes": None},
    "deepspeed": {"num_gpus": None, "num_nodes": 1}, "torchrun": _RANKS, "torch.distributed.run": _RANKS,
    "torch.distributed.launch": _RANKS,
}  # fmt: skip
"""Program that starts processes -> its options whose product is their number, with their defaults; None: unknown."""


def _processes(words: list[Word], source: Source) -> int | Unread:
    """Return the number of processes that the words up to a program start. `trl` takes its options after the verb."""
    words = [word for word in words if word.text not in _MODULE]
    names = [Path(word.text).name for word in words]
    told: dict[str, Any] = {name: value for name, value, _ in _options(words[:-1])}
    if names[-1] == "trl":
        default = Given(None if "accelerate_config" in source.settings else 1)
        told = {"num_processes": source.settings.pop("num_processes", default).value}
    counts = next((_COUNTS[name] for name in names if name in _COUNTS), None)
    if counts is None and all(re.fullmatch(r"python[\d.]*|uv|run|-.*", name) for name in names[:-1]):
        return 1
    numbers = [told.get(name, default) for name, default in (counts or {"": None}).items()]
    if all(type(number) is int for number in numbers):
        return prod(numbers)
    return Unread(f"line {words[0].line}: the command does not tell how many processes {names[0]} starts")


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
