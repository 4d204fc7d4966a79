"""Make a component from a reward of the config: find its function, read the signature, try the settings."""

from __future__ import annotations

import importlib.util
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.config.text import redact
from posttrain.errors import ConfigError
from posttrain.rewards.calls import Signature
from posttrain.rewards.components import GIVEN_NAMES, Component, RewardLike
from posttrain.rewards.gates import GATE_STATE, Gate
from posttrain.rewards.load import Target, find_named, published_rewards, resolve, suggestion
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.threads import ThreadRunner
from posttrain.rewards.verifiers import BUILTINS, BY_TURN

MODEL_LABEL, JUDGE_LABEL = "reward_model", "judge"
"""Names of a reward model and of a judge in metrics and messages, if they have no label."""


def make_component(
    reward: RewardLike, pool: WorkerPool, folder: Path | None, device: str = "auto", *, by_turn: bool = False
) -> Component:
    """Find the function, read its signature and check the settings against it. ConfigError if anything does not fit.

    A reward model computes on `device`. With `by_turn`, built-ins judge each turn if they can.
    """
    given = {name: getattr(reward, name) for name in ("name", "function", "model", "judge")}
    if list(given.values()).count(None) != 3:
        raise ConfigError(
            given="a reward with " + ", ".join(f"{name} = {value!r}" for name, value in given.items()),
            allowed="exactly one of the four",
            fix="Write `name: math` for a built-in, `function: path/to/file.py:name` for your own, `model: FOLDER`, or "
            "`judge: {...}`.",
        )
    if not reward.timeout > 0:
        raise ConfigError(given=f"a reward with timeout = {reward.timeout}", allowed="seconds, more than 0")
    gate = Gate.of(reward.gate)
    if reward.judge is not None:
        return replace(_make_judge(reward, folder, device), gate=gate)
    component = _load_model(reward, folder, device) if reward.model else _find(reward, pool, folder, by_turn)
    component = replace(component, gate=gate)
    _check_settings(component)
    if component.builtin is not None and component.settings:
        _try_settings(component, pool)
    return component


def check_names(rewards: Sequence[RewardLike]) -> None:
    """Raise ConfigError for unknown reward names, and for unknown or missing settings of built-ins.

    The check starts no process and imports no user code.
    """
    for reward in rewards:
        if reward.name in BUILTINS:
            published_rewards()
            builtin = BUILTINS[reward.name]
            component = Component(
                label=reward.label or reward.name,
                weight=float(reward.weight),
                timeout=float(reward.timeout),
                settings=dict(reward.settings),
                signature=Signature.of(builtin.function, reward.name),
                builtin=builtin,
                gate=Gate.of(reward.gate),
            )
            _check_settings(component)
        elif reward.name is not None:
            find_named(reward.name)


def _find(reward: RewardLike, pool: WorkerPool, folder: Path | None, by_turn: bool) -> Component:
    common = {"weight": float(reward.weight), "timeout": float(reward.timeout), "settings": dict(reward.settings)}
    if reward.name in BUILTINS:
        published_rewards()
        builtin = {**BUILTINS, **(BY_TURN if by_turn else {})}[reward.name]
        return Component(
            label=reward.label or reward.name,
            signature=Signature.of(builtin.function, reward.name),
            target=None if builtin.runner else Target.of(builtin.target),
            runner=builtin.runner(reward.settings) if builtin.runner else None,
            builtin=builtin,
            **common,
        )
    function = reward.function
    if callable(function) and (target := _importable(function)) is None:
        name = getattr(function, "__name__", type(function).__name__).strip("<>")
        signature = Signature.of(function, name)
        runner = ThreadRunner(function, label=reward.label or name, is_async=signature.is_async)
        return Component(label=reward.label or name, signature=signature, runner=runner, **common)
    if not callable(function):
        target = resolve(function, folder) if function is not None else find_named(reward.name or "")
    name = reward.label or reward.name or target.name.rpartition(".")[2]
    return Component(label=name, signature=pool.describe(target), target=target, **common)


def _load_model(reward: RewardLike, folder: Path | None, device: str) -> Component:
    from posttrain.rewards.model import (
        FORM,  # imports torch and transformers
        load_model_reward,
    )

    assert reward.model is not None
    common = {"weight": float(reward.weight), "timeout": float(reward.timeout), "settings": dict(reward.settings)}
    component = Component(label=reward.label or MODEL_LABEL, signature=FORM, **common)
    _check_settings(component)
    return replace(component, model=load_model_reward(reward.model, reward.settings, folder=folder, device=device))


def _make_judge(reward: RewardLike, folder: Path | None, device: str) -> Component:
    from posttrain.config import JudgeConfig
    from posttrain.rewards.judge import Judge
    from posttrain.rewards.judge.judge import FORM

    settings = reward.judge if isinstance(reward.judge, JudgeConfig) else JudgeConfig(**dict(reward.judge or {}))
    label = reward.label or JUDGE_LABEL
    return Component(
        label=label,
        weight=float(reward.weight),
        timeout=settings.deadline,
        settings={},
        signature=FORM,
        judge=Judge(settings, label=label, folder=folder, device=device),
    )


def _importable(function: Callable[..., Any]) -> Target | None:
    """Where a worker can import this same object. None for lambdas, closures, instances and names of `__main__`."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or module not in sys.modules or not all(map(str.isidentifier, name.split("."))):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
        importable = importlib.util.find_spec(module) is not None
    except (AttributeError, ValueError):
        return None
    return Target(module=module, name=name) if found is function and importable else None


def _check_settings(component: Component) -> None:
    signature, label = component.signature, component.label
    allowed = [name for name in signature.named if name not in GIVEN_NAMES]
    for name in component.settings:
        if name in GIVEN_NAMES or not (signature.takes_any or name in allowed):
            raise ConfigError(
                given=f'reward "{label}" has no setting {name!r}{suggestion(name, allowed)}',
                allowed=", ".join(allowed) or "no settings",
            )
    if component.builtin is not None:
        missing = [name for name in component.builtin.needed_settings if name not in component.settings]
        if missing:
            raise ConfigError(
                given=f'reward "{label}" needs settings.{missing[0]}', fix=f"Add it: settings: {{{missing[0]}: ...}}."
            )
        if GATE_STATE in signature.required and not component.receives_gate:
            raise ConfigError(
                given=f'reward "{label}" needs to know which completions are correct',
                allowed="an entry of rewards with a gate; checks have none",
                fix="Name the reward that decides this: gate: math.",
            )


def _try_settings(component: Component, pool: WorkerPool) -> None:
    """Make one trial call, to find settings that a built-in cannot use, such as a broken regular expression."""
    if set(component.gold_columns) - {"answer"}:
        return  # the data is not known yet: `RewardSet.check_rows` makes the call with its columns
    call = component.trial() | dict.fromkeys(component.gold_columns, "1")
    outcome = component.decide(call)
    if outcome is None:
        outcome = pool.run([component.job([call])])[0][0]
    if outcome.kind != "value":
        settings = redact(component.settings)
        raise ConfigError(given=f'reward "{component.label}" cannot work with settings {settings}: {outcome.message}')
