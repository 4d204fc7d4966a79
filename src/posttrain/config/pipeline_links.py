"""`stage:NAME`: where a stage may ask for the model of an earlier one, and which kind of model must stand there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from posttrain.config import RunConfig
from posttrain.config.models import models_named
from posttrain.config.text import dotted, leaves, show
from posttrain.errors import ConfigError

MARK = "stage:"
"""What stands before the name of a stage where a path may stand."""

_REFERENCE = re.compile(rf"{MARK}(\S*)")
_TAKES_POLICY = re.compile(r"(reference|teacher)\.path|(rewards|check)\.\d+\.judge\.model|reward_model\.model(\.path)?")
_TAKES_SCORES = re.compile(r"(rewards|check)\.\d+\.model")
_TAKES_EITHER = re.compile(r"critic\.path")


def links_of(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(dotted setting, what stands behind `stage:`); ConfigError for one where no model is named."""
    for path, value in leaves(config.model_dump(mode="json")):
        setting = dotted(path)
        for text in value if isinstance(value, list) else [value]:
            match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                continue
            if not _takes_model(setting):
                raise ConfigError(
                    given=f"{setting} = {show(value)}",
                    allowed=f"{MARK}NAME in model, reference, teacher, critic.path, rewards.N.model and check.N.model",
                    fix="Write a path here: what a stage hands over is its model.",
                )
            yield setting, match[1]


def refuse_unmarked(config: RunConfig, names: Collection[str]) -> None:
    """Raise ConfigError for the bare name of an earlier stage where a model may stand, and no such folder is there."""
    for setting, path in models_named(config):
        if path in names and not Path(path).exists():
            raise ConfigError(
                given=f"{setting} = {path}, which is the name of an earlier stage, and no folder",
                allowed=f"{MARK}{path} for the model of that stage, or a model",
                fix=f"Set {setting} = {MARK}{path}; a model of that name on the Hub needs another name of the stage.",
            )


def wants_policy(setting: str, *, trains_policy: bool) -> bool | None:
    """Must the model there be a policy (True), one that scores (False), or either (None)?

    `trains_policy`: does the stage that asks train one?
    """
    if _TAKES_SCORES.fullmatch(setting):
        return False
    if setting == "model.path":
        return True if trains_policy else None
    return True if _TAKES_POLICY.fullmatch(setting) else None


def _takes_model(setting: str) -> bool:
    known = (_TAKES_POLICY, _TAKES_SCORES, _TAKES_EITHER)
    return setting == "model.path" or any(pattern.fullmatch(setting) for pattern in known)
