"""Environments of other libraries, used unchanged: an adapter gives each of them our interface.

    environment: trl:my_env.py:Game             trl.py        classes of TRL's environment_factory
    environment: gymnasium:FrozenLake-v1        gym.py        environments of Gymnasium, read and acted on as text
    environment: verifiers:wordle               verifiers.py  environments of verifiers that take several turns

The text before the first colon is the form, as in `data: {train: task:sort}`. The module of a form defines

    opened(target, settings, apart) -> class    called once, in the process that is forked for each trajectory. It
                                                imports what is needed and returns a class with our interface, which
                                                takes the same settings. `apart` calls a function in a separate process,
                                                for work that must leave no traces
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posttrain.rewards.load import Target, load, resolve

MODULES: Mapping[str, str] = {"trl": "trl", "gymnasium": "gym", "verifiers": "verifiers"}


def find_environment(function: str, folder: Path | None = None) -> tuple[str, Target]:
    """Return the form, empty for a class with our interface, and the target. Nothing is imported. ConfigError if a file
    is missing.

    >>> find_environment("gymnasium:FrozenLake-v1")[1].name
    'FrozenLake-v1'
    """
    from posttrain.config.values import split_form  # not at the top: the trajectories' processes need no settings

    form, name = split_form(function)
    return form, resolve(name, folder) if form in ("", "trl") else Target(name=name)


def opened(setup: Mapping[str, Any], apart: Callable[[Callable[[], Any]], Any]) -> Callable[..., Any]:
    """Return the class that makes one environment for each trajectory. ConfigError says what is missing."""
    target = Target(**setup["environment"])
    if not setup["form"]:
        return load(target)
    adapter = importlib.import_module(f"{__name__}.{MODULES[setup['form']]}")
    return adapter.opened(target, setup["settings"], apart)
