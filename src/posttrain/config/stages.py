"""A run before the run: the reward model that a configuration trains first, as a configuration of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config import Resolved, RunConfig
    from posttrain.config.scorers import Scorer

REWARD_MODEL = "reward_model"
"""The section, the folder inside of the run's, and what an entry of rewards or check calls the model."""

S = TypeVar("S", bound="Scorer")


def reward_model_config(config: RunConfig, folder: Path) -> Resolved:
    """The configuration of the run that trains the reward model of the run in `folder`.

    Its defaults are the model and the seed of that run and the algorithm reward_model. Raises ConfigError, with the
    name of the section, for what the section gets wrong.
    """
    from posttrain.config import check, load_config  # which imports the rules, and the rules this file

    given = config.reward_model or {}
    if placed := [name for name in ("output", REWARD_MODEL) if name in given]:
        raise ConfigError(
            given=f"{REWARD_MODEL}.{placed[0]} is set",
            allowed=f"a run in the folder {REWARD_MODEL} of this one, without a stage of its own",
            fix="Remove it.",
        )
    outer = config.model_dump(mode="json", exclude_unset=True)
    defaults = {"model": outer["model"], "seed": config.seed, "algorithm": REWARD_MODEL}
    model = given.get("model", {})
    if isinstance(model, Mapping):
        model = {**outer["model"], **model}
    try:
        resolved = load_config({**defaults, **given, "model": model, "output": str(folder / REWARD_MODEL)})
        check(resolved.config)
    except ConfigError as error:
        raise ConfigError(given=f"{REWARD_MODEL}: {error.given}", allowed=error.allowed, fix=error.fix) from error
    algorithm = resolved.config.algorithm
    if "scores" not in algorithm.declared.needs:
        raise ConfigError(
            given=f"{REWARD_MODEL}.algorithm.name = {algorithm.name}, which trains no score",
            allowed=REWARD_MODEL,
            fix=f"Remove {REWARD_MODEL}.algorithm.name.",
        )
    return resolved


def uses_of_reward_model(config: RunConfig) -> list[str]:
    """The entries that score with the model of the section, as `rewards.0`."""
    return [
        f"{section}.{place}"
        for section, entries in (("rewards", config.rewards), ("check", config.check))
        for place, entry in enumerate(entries)
        if entry.model == REWARD_MODEL
    ]


def in_folder(entries: Sequence[S], folder: Path) -> list[S]:
    """The entries, with the model of the section as the folder in which the run trained it."""
    trained: dict[str, Any] = {"model": str(folder / REWARD_MODEL)}
    return [entry.model_copy(update=trained) if entry.model == REWARD_MODEL else entry for entry in entries]
