"""Which models a run reads, by the setting that names each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from posttrain.config.stages import REWARD_MODEL

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.config.scorers import RewardConfig


def models_named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(dotted setting, folder or name): not what stands behind an endpoint, what the section `reward_model` trains, and
    the policy that judges itself."""
    yield "model.path", config.model.path
    for name in ("reference", "teacher", "critic"):
        section = getattr(config, name)
        if section is not None and section.path is not None and not _is_trained_first(section.path, config):
            yield f"{name}.path", section.path
    for name in ("rewards", "check"):
        for place, entry in enumerate(getattr(config, name)):
            setting, path = _of_entry(entry)
            if path is not None and not _is_trained_first(path, config):
                yield f"{name}.{place}.{setting}", path


def _of_entry(entry: RewardConfig) -> tuple[str, str | None]:
    judge = entry.judge
    if judge is None:
        return "model", entry.model
    return "judge.model", None if judge.url is not None or judge.model == "policy" else judge.model


def _is_trained_first(path: str, config: RunConfig) -> bool:
    return path == REWARD_MODEL and config.reward_model is not None
