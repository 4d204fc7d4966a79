"""The tasks of reasoning-gym (extra `tasks`), under the names `task:reasoning_gym/NAME`, or
`task:reasoning_gym/NAME:setting=value,setting=value` with settings of the generator, such as the difficulty.

The package's own code generates and checks the questions. A row contains the origin of an item instead of the item,
because many items do not survive JSON. The reward generates the item again. Train with

    data: {train: task:reasoning_gym/countdown}
    rewards: [{function: posttrain.tasks.reasoning_gym.score}]
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import yaml

from posttrain.errors import DataError
from posttrain.rewards.fuzzy import after_reasoning
from posttrain.tasks.base import PATIENCE, split_of
from posttrain.verify.verdict import Verdict

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BETWEEN_SETTINGS = re.compile(r",(?![^\[\]]*\])")
"""A comma that is not within a list."""
SIZE = 16_384
"""Number of items of a generator. Some generators draw all items in advance, so that this number changes the items."""


@dataclass(frozen=True, kw_only=True)
class ReasoningGymTask:
    """One generator of reasoning-gym, with the given settings and defaults for all others."""

    name: str
    settings: str = ""
    """`setting=value,setting=value`, values as in YAML: `task_type_weights=[1,0,0],max_entities=5`."""

    @staticmethod
    def named(name: str) -> ReasoningGymTask:
        """Find a generator. Raises `DataError` if reasoning-gym is not installed or has no such generator, or if the
        generator does not accept the settings."""
        names = _names()
        name, _, settings = name.partition(":")
        if name not in names:
            raise DataError(
                given=f"reasoning-gym has no generator {name!r}", allowed=", ".join(names), fix="Correct the name."
            )
        try:
            _generator(name, 0, settings)
        except (TypeError, ValueError, AssertionError) as error:
            raise DataError(
                given=f"reasoning-gym's {name} with {settings!r}: {error}",
                allowed=f"setting=value,setting=value with {', '.join(_settings_of(name))}",
                fix=f"Correct the settings, or leave them out: {name} alone has the defaults.",
            ) from error
        return ReasoningGymTask(name=name, settings=settings)

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` different questions. The text of a question decides to which split it belongs, as for built-in tasks."""
        found: dict[str, dict[str, Any]] = {}
        misses = 0
        for index in range(SIZE):
            if len(found) == n or misses == PATIENCE:
                break
            item = _item(self.name, seed, index, self.settings)
            question = item["question"]
            if split_of(question) == split and question not in found:
                origin = {"name": self.name, "seed": seed, "index": index, "settings": self.settings}
                found[question] = {"prompt": question, "answer": item["answer"], "reasoning_gym": origin}
                misses = 0
            else:
                misses += 1
        if len(found) < n:
            raise DataError(
                given=f"{n} {split} rows of reasoning_gym/{self.name}, which has no more than {len(found)} different",
                allowed=f"up to {len(found)} rows",
                fix=f"Set data.max_rows = {len(found)}.",
            )
        return list(found.values())


def score(
    completion: str,
    reasoning_gym: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    question: str | None = None,
    answer: Any = None,
) -> Verdict:
    """A reward: reasoning-gym's own score, 0 to 1, for the text in <answer> tags, or for the whole text without tags.

    Only the text after the last </think> counts. Tags with different contents are ambiguous and score 0. The row comes
    from `task:reasoning_gym/NAME` or from reasoning-gym itself. The latter has the columns question, answer and
    metadata, and `source_dataset` in the metadata names its generator.
    """
    text = after_reasoning(completion)
    tagged = list(dict.fromkeys(found.strip() for found in ANSWER.findall(text)))
    if len(tagged) > 1:
        return Verdict(0.0, "ambiguous", extracted=" | ".join(tagged))
    given = tagged[0] if tagged else text
    if not given:
        return Verdict(0.0, "no_answer")
    value = float(_score(given, reasoning_gym, {"question": question, "answer": answer, "metadata": metadata}))
    return Verdict(value, "correct" if value == 1 else "partial" if value > 0 else "wrong", extracted=given)


def _score(given: str, origin: dict[str, Any] | None, entry: dict[str, Any]) -> float:
    if origin is not None:
        name, seed, settings = origin["name"], origin["seed"], origin.get("settings", "")
        return _generator(name, seed, settings).score_answer(given, _item(name, seed, origin["index"], settings))
    name = (entry["metadata"] or {}).get("source_dataset")
    if name not in _names():
        raise DataError(
            given=f"a row whose metadata names the generator {name!r}",
            allowed="a column reasoning_gym, or question, answer and metadata as reasoning-gym writes them",
            fix="Use the rows of task:reasoning_gym/NAME, or keep these columns.",
        )
    return _scorer(name)(given, entry)


@functools.lru_cache(maxsize=64)
def _scorer(name: str) -> Callable[[str, dict[str, Any]], float]:
    import reasoning_gym  # pyright: ignore[reportMissingImports]

    return reasoning_gym.get_score_answer_fn(name)


@functools.lru_cache(maxsize=8192)
def _item(name: str, seed: int, index: int, settings: str) -> dict[str, Any]:
    return _generator(name, seed, settings)[index]


@functools.lru_cache(maxsize=64)
def _generator(name: str, seed: int, settings: str) -> Any:
    """Make a generator. Raises reasoning-gym's errors for settings that it rejects; ValueError for malformed ones."""
    _names()
    import reasoning_gym  # pyright: ignore[reportMissingImports]

    return reasoning_gym.create_dataset(name, seed=seed, size=SIZE, **_read_settings(settings))


def _settings_of(name: str) -> list[str]:
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]

    return [field.name for field in fields(DATASETS[name][1]) if field.name not in ("seed", "size")]


def _read_settings(text: str) -> dict[str, Any]:
    """The settings by name, with their values.

    >>> _read_settings("min_num_statements=2,shuffle=true"), _read_settings("")
    ({'min_num_statements': 2, 'shuffle': True}, {})
    >>> _read_settings("weights=[1, 0.5],size=3")
    {'weights': [1, 0.5], 'size': 3}
    """
    found: dict[str, Any] = {}
    for part in filter(None, BETWEEN_SETTINGS.split(text)):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ValueError(f"{part!r} is not setting=value")
        found[name.strip()] = yaml.safe_load(value)
    return found


def _names() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(
            given=f"task:reasoning_gym/... needs the package reasoning-gym ({error})",
            allowed="the built-in tasks without it",
            fix='pip install "posttrain[tasks]"',
        ) from None
    return sorted(DATASETS)
