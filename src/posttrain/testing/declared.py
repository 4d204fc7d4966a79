"""Checks that an algorithm's declarations are true: settings, card, needs, metrics."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any, get_args

import torch

from posttrain.algorithms import Algorithm
from posttrain.algorithms.declared import NEEDS, DataKind
from posttrain.algorithms.metrics import RATIO_METRICS, SHARED_METRICS, clip_formulas
from posttrain.algorithms.settings import attributes
from posttrain.errors import ConfigError
from posttrain.explain import explain_class, values_to_try
from posttrain.testing.invariances import Tried, require
from posttrain.testing.steps import raw_step
from posttrain.types import Experience

MORE = (0.01, 0.25, 6)
"""Values that are tried for each setting, in addition to the values that explanations try to find its needs. For a
whole number, its neighbours are tried, too."""


def settings_are_a_frozen_record(algorithm: Algorithm) -> None:
    """Require settings that are comparable, hashable, and equal after a copy."""
    cls = type(algorithm)
    require(bool(getattr(cls, "key", "")), "the class has no key")
    for again in (copy.deepcopy(algorithm), replace(algorithm)):
        require(again == algorithm and hash(again) == hash(algorithm), "a copy does not equal the original")
    for name, value in vars(algorithm).items():
        try:
            setattr(algorithm, name, value)
        except FrozenInstanceError:
            continue
        raise AssertionError(f"{name} can be changed: decorate the class with posttrain.algorithms.settings.settings")
    try:
        cls(no_such_setting=1)  # type: ignore[call-arg]
    except ConfigError:
        return
    raise AssertionError(
        "an unknown setting is accepted: decorate the class with posttrain.algorithms.settings.settings"
    )


def the_card_is_complete(algorithm: Algorithm) -> None:
    """Require all texts that `posttrain explain` shows."""
    cls = type(algorithm)
    require(cls.data_kind in get_args(DataKind), f"data_kind = {cls.data_kind!r} is not one of {get_args(DataKind)}")
    require(algorithm.needs <= NEEDS.keys(), f"needs has unknown names: {', '.join(algorithm.needs - NEEDS.keys())}")
    require(algorithm.group_size_needed >= cls.min_group_size >= 1, "min_group_size is below 1")
    for name in ("title", "paper", "summary", "use_when", "avoid_when"):
        require(bool(getattr(cls.card, name)), f"card.{name} is empty")
    told = explain_class(cls)
    require(bool(told.formula), "neither the class nor its file has a docstring with the formula")
    silent = [setting.name for setting in told.settings if not setting.doc]
    require(not silent, f"no docstring under the settings {', '.join(silent)}")


def each_metric_has_a_formula(algorithm: Algorithm) -> None:
    """Require that the card or the base class explains each metric that the loss logs."""
    cls = type(algorithm)
    known = {*cls.card.metrics, *cls.shared_metrics, *cls.metrics, *SHARED_METRICS, *RATIO_METRICS, *clip_formulas()}
    unknown = sorted(Tried(algorithm, raw_step(algorithm)).metrics.keys() - known)
    require(not unknown, f"card.metrics has no formula for {', '.join(unknown)}")


def every_setting_changes_something(algorithm: Algorithm) -> None:
    """Require that for each setting some value, alone or with another setting, changes the loss, its gradient, the
    state or the needs. A setting for which no other value can be guessed, such as a text, is not tested."""
    cls = type(algorithm)
    if cls.open_composition:  # whether a setting is read depends on several others together
        return
    start = {name: vars(algorithm)[attribute] for name, attribute in attributes(cls).items()}
    values = {name: _with_more(tried, start[name]) for name, tried in values_to_try(cls).items()}
    before = _learnt(algorithm)
    dead = [name for name in start if _is_dead(cls, start, name, values, before)]
    require(not dead, f"no value changes anything for {', '.join(dead)}")


def _with_more(tried: list[Any], value: Any) -> list[Any]:
    """Return more values to try for a setting that has this value, if any value can be guessed."""
    if not tried:
        return []
    return [*tried, *MORE, *((value - 1, value + 1) if type(value) is int else ())]


def _is_dead(cls: type[Algorithm], start: dict[str, Any], name: str, values: dict[str, list[Any]], before: Any) -> bool:
    """Return true if other values of this setting were tried and made no difference."""
    tried = False
    for value in values[name]:
        if (found := _with(cls, start | {name: value})) is not None:
            if found != before:
                return False
            tried = True
    beside = [(other, value) for other in values if other != name for value in values[other]]
    return tried and not any(
        _differ(_with(cls, start | {other: switched, name: value}) for value in (start[name], *values[name]))
        for other, switched in beside
    )


def _differ(found: Iterable[Any]) -> bool:
    """Return true if two of the results differ, without looking further. None is not a result."""
    results = (one for one in found if one is not None)
    first = next(results, None)
    return any(one != first for one in results)


def _with(cls: type[Algorithm], settings: dict[str, Any]) -> Any:
    try:
        return _learnt(cls(**settings))
    except (ConfigError, ValueError):  # a value of the wrong type, or one that does not fit the other settings
        return None


def _learnt(algorithm: Algorithm) -> tuple[str, ...]:
    """Return what the algorithm computes as texts, so that nan equals nan."""
    return tuple(f"{one:.12g}" if isinstance(one, float) else repr(one) for one in _numbers(algorithm))


def _numbers(algorithm: Algorithm) -> Iterator[Any]:
    yield sorted(algorithm.needs)
    yield algorithm.step_reading
    yield algorithm.auxiliary_coef
    for seed in (1, 2):
        raw = raw_step(algorithm, seed)
        if isinstance(raw, Experience):
            raw = _with_a_tie_and_cuts(raw)
            yield from _states(algorithm, raw)
        tried = Tried(algorithm, raw)
        yield tried.loss.item()
        for gradient in tried.gradients.values():
            yield torch.linalg.vector_norm(gradient).item()
            yield gradient.flatten()[gradient.flatten().abs().argmax()].item()


def _states(algorithm: Algorithm, experience: Experience) -> Iterator[Any]:
    """Yield the values of the state after two steps, the second with doubled rewards."""
    state = algorithm.next_state(algorithm.initial_state(), experience)
    if state is not None:
        yield from vars(algorithm.next_state(state, replace(experience, rewards_PG=2 * experience.rewards_PG))).values()


def _with_a_tie_and_cuts(experience: Experience) -> Experience:
    """Return experience with a tie in the first prompt's group, and truncated completions in the other groups."""
    rewards_PG, truncated_PG = experience.rewards_PG.clone(), torch.zeros_like(experience.scored_PG)
    rewards_PG[0, :2], truncated_PG[1:, 1:] = 1.0, True
    return replace(experience, rewards_PG=rewards_PG, truncated_PG=truncated_PG)
