"""Reads a file of another library: parses a Python script without running it, and reads YAML and command lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.config.text import read_mapping
from posttrain.errors import ConfigError
from posttrain.lab.convert.commands import of_commands
from posttrain.lab.convert.records import TRL, VERBS, VERL, Given, Source, Unread, form_of, nothing_found
from posttrain.lab.convert.scripts import of_script


def read_source(path: Path, verb: str = "") -> Source:
    """Read the settings in a file. `verb` names the algorithm (grpo, dpo ...), if the file does not.

    Raises ConfigError for a file that cannot be read, or that holds no config.
    """
    if verb and form_of(verb) is None:
        raise ConfigError(given=f"a file that trains {verb!r}", allowed=", ".join(VERBS), fix="Name one with --as.")
    source = _read(path, verb)
    if "dataset_config" in source.settings and "dataset_name" in source.settings:
        part, name = source.settings.pop("dataset_config"), source.settings["dataset_name"]
        source.settings["dataset_name"] = Given(f"{name.value}:{part.value}", name.line)
    return source


def _read(path: Path, verb: str) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(given=f"{path} cannot be read: {reason}", allowed="a script, YAML or commands") from None
    _refuse_others(text, path)
    if path.suffix in (".yaml", ".yml"):
        return _of_mapping(path, verb)
    if path.suffix == ".py":
        return of_script(text, path)
    return of_commands(text, path, verb)


_OTHERS = {
    "OpenRLHF": r"^\s*(from|import)\s+openrlhf\b|(-m|--module)\s+openrlhf\.|\bopenrlhf\.cli\.",
    "AReaL": r"^\s*(from|import)\s+areal\b|-m\s+areal\.|^(allocation_mode|gconfig):",
}
"""Libraries whose files are not read -> a sign of them."""


def _refuse_others(text: str, path: Path) -> None:
    for project, sign in _OTHERS.items():
        if re.search(sign, text, re.MULTILINE):
            raise ConfigError(
                given=f"{path} is a file of {project}",
                allowed="files of TRL and verl",
                fix=f"docs/moving/{project.lower()}.md lists its settings with ours: write a config with them.",
            )


def _of_mapping(path: Path, verb: str) -> Source:
    """Read a YAML file. Settings of TRL's command line have no sections; verl's have the sections of hydra."""
    content, lines = _merged(read_mapping(path)), _lines(path.read_text(encoding="utf-8"))
    if "actor_rollout_ref" in content or ("data" in content and "algorithm" in content and not verb):
        named = {name: value for name, value in _nested(content, "") if not name.startswith(("defaults", "hydra"))}
        return Source(VERL, "main_ppo", {n: Given(_filled(v, named), lines.get(n, 1)) for n, v in named.items()})
    form = form_of(verb) or next((form for key, form in _TELLING.items() if key in content), None)
    if form is None:
        raise nothing_found(path, "verl's sections, or settings of TRL's command line")
    return Source(TRL, form, {name: Given(value, lines.get(name, 1)) for name, value in content.items()})


_TELLING = {
    "num_generations": "GRPOConfig", "epsilon": "GRPOConfig", "desirable_weight": "KTOConfig", "cpo_alpha": "CPOConfig",
    "center_rewards_coefficient": "RewardConfig", "num_ppo_epochs": "PPOConfig", "assistant_only_loss": "SFTConfig",
    "packing": "SFTConfig", "f_divergence_type": "DPOConfig", "precompute_ref_log_probs": "DPOConfig",
}  # fmt: skip
"""Setting that occurs in one form only -> that form."""


def _nested(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in _merged(tree).items():
        if str(key).startswith("_"):  # hydra's own: _target_, _self_
            continue
        if isinstance(value, Mapping) and value:
            yield from _nested(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _merged(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with the sections of its merge key `<<`. Our own reader does not merge them."""
    told = tree.get("<<", [])
    sections = [section for section in (told if isinstance(told, list) else [told]) if isinstance(section, Mapping)]
    merged = {key: value for section in reversed(sections) for key, value in _merged(section).items()}
    return merged | {key: value for key, value in tree.items() if key != "<<"}


def _filled(value: Any, named: Mapping[str, Any]) -> Any:
    """Resolve references to other settings of the same file, such as ${data.train_batch_size}. Others are Unread."""
    if isinstance(value, list):
        parts = [_filled(part, named) for part in value]
        return Unread(str(value)) if any(isinstance(part, Unread) for part in parts) else parts
    if not isinstance(value, str) or "${" not in value:
        return value
    found = re.fullmatch(_REFERENCE, value)
    if found is None:
        whole = re.sub(_REFERENCE, lambda part: str(_filled(part[0], named)), value)
        return Unread(value) if "${" in whole else whole
    if found[1] in named:
        return _filled(named[found[1]], {key: inner for key, inner in named.items() if key != found[1]})
    try:
        return _filled(yaml.safe_load(found[2]), named) if found[2] else Unread(value)
    except yaml.YAMLError:
        return Unread(value)


_REFERENCE = r"\$\{(?:oc\.select:)?([\w.]+)(?:, *((?:[^{}]|\{[^{}]*\})*))?\}"
"""A name, and a default behind a comma, which may itself be in braces: a mapping, or a reference."""


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key in a YAML file, by its dotted name."""
    lines: dict[str, int] = {}

    def read(node: yaml.Node, path: str) -> None:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        for key, value in sorted(pairs, key=lambda pair: pair[0].value == "<<"):  # own keys before merged ones
            if key.value == "<<":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    read(merged, path)
            else:
                lines.setdefault(f"{path}{key.value}", key.start_mark.line + 1)
                read(value, f"{path}{key.value}.")

    read(yaml.compose(text, Loader=yaml.SafeLoader), "")
    return lines
