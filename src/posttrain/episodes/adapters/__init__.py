"""Environments of other libraries, unchanged: each is made one of ours by an adapter.

    environment: trl:my_env.py:Game             trl.py        classes of TRL's environment_factory
    environment: gymnasium:FrozenLake-v1        gym.py        environments of Gymnasium, read and acted on as text
    environment: verifiers:wordle               verifiers.py  environments of verifiers that take several turns

What stands before the first colon is the form, as in `data: {train: task:sort}`. The module of a form has

    opened(target, settings, apart) -> class    in the process that is forked for each trajectory: imports what is
                                                needed, once, and returns a class of ours, which is made with the same
                                                settings. `apart` calls a function in a process of its own, for what
                                                leaves traces
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posttrain.rewards.load import Target, load, resolve

MODULES: Mapping[str, str] = {"trl": "trl", "gymnasium": "gym", "verifiers": "verifiers"}


def find_environment(function: str, folder: Path | None = None) -> tuple[str, Target]:
    """The form, empty for a class of ours, and what it names; nothing is imported. ConfigError where a file is missing.

    >>> find_environment("gymnasium:FrozenLake-v1")[1].name
    'FrozenLake-v1'
    """
    from posttrain.config.values import split_form  # not in the process of trajectories, which needs no settings

    form, name = split_form(function)
    return form, resolve(name, folder) if form in ("", "trl") else Target(name=name)


def opened(setup: Mapping[str, Any], apart: Callable[[Callable[[], Any]], Any]) -> Callable[..., Any]:
    """The class of which one is made for each trajectory, with the settings. ConfigError says what is missing."""
    target = Target(**setup["environment"])
    if not setup["form"]:
        return load(target)
    adapter = importlib.import_module(f"{__name__}.{MODULES[setup['form']]}")
    return adapter.opened(target, setup["settings"], apart)
