"""Published ranges of settings: which values of a configuration are outside, and what usually follows.

In `ranges.yaml`, each range says which configurations it applies to, and who published its values.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.algorithms import ALGORITHMS
from posttrain.errors import PosttrainError
from posttrain.lab.advise.guides import Condition, met
from posttrain.lab.plan.architecture import read_architecture
from posttrain.tasks.base import FORMS
from posttrain.verify import read_table

if TYPE_CHECKING:
    from posttrain.config import RunConfig

FILE = Path(__file__).with_name("ranges.yaml")
FROM_SCRATCH = 0.01
"""Billions of parameters. A smaller model is taken to start from scratch, without knowledge of a language."""
BUILT_IN = tuple(f"{form}:" for form in FORMS)


@dataclass(frozen=True, kw_only=True)
class Range:
    """The published range of one setting, and the usual consequences outside it."""

    id: str
    setting: str
    """Dotted setting, or `rows` (per step), `updates` (per batch) or `passes` (over the data)."""
    when: Condition
    low: float | None
    high: float | None
    usual: float
    above: str
    below: str
    source: str

    @property
    def words(self) -> str:
        if self.low is None or self.high is None:
            return f"at least {self.low:g}" if self.high is None else f"at most {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A setting outside its published range."""

    setting: str
    value: float
    range: Range
    follows: str
    """What usually follows."""

    def __str__(self) -> str:
        side = "above" if self.range.high is not None and self.value > self.range.high else "below"
        return (
            f"{self.setting} = {self.value:g} is {side} the published range of {self.range.words} "
            f"({self.range.source}). {self.follows}"
        )

    def to_json(self) -> dict[str, Any]:
        told = self.range
        return {
            "setting": self.setting,
            "value": self.value,
            "low": told.low,
            "high": told.high,
            "usual": told.usual,
            "follows": self.follows,
            "source": told.source,
            "range": told.id,
        }


def remarks(config: RunConfig) -> list[Remark]:
    """Return the settings outside their published ranges, in the order of the ranges. Nothing is refused."""
    if config.algorithm.name not in ALGORITHMS:  # the user's own algorithm: nothing is published about it
        return []
    known, tree = facts_of(config), config.model_dump()
    found = []
    for told in ranges_for(known):
        value = known.get(told.setting, _at(tree, told.setting))
        follows = _follows(told, value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
        if follows:
            found.append(Remark(setting=told.setting, value=value, range=told, follows=follows))
    return found


def usual_values(known: Mapping[str, Any]) -> dict[str, Range]:
    """Map each setting to the range that applies here. Its `usual` value goes into a first config."""
    return {told.setting: told for told in reversed(ranges_for(known))}


def ranges_for(known: Mapping[str, Any]) -> list[Range]:
    """Return the ranges that apply to this configuration. None apply if `applies` is not met."""
    applies, told = ranges()
    return [one for one in told if met(applies, known) and met(one.when, known)]


@functools.cache
def ranges() -> tuple[Condition, tuple[Range, ...]]:
    """Return (the condition common to all ranges, the ranges)."""
    told = read_table(FILE)
    return told["applies"], tuple(Range(**entry) for entry in told["ranges"])


def facts_of(config: RunConfig) -> dict[str, Any]:
    """Return the facts about a configuration that conditions can refer to."""
    algorithm, train = config.algorithm.build(), config.train
    online = algorithm.data_kind == "prompts"
    parameters = parameters_of(config.model.path)
    built_in = config.model.path.startswith(BUILT_IN)
    return {
        "algorithm": algorithm.key,
        "data_kind": algorithm.data_kind,
        "online": online,
        "needs": algorithm.needs,
        "lora": config.lora is not None,
        "parameters": parameters,
        "scratch": built_in or (parameters is not None and parameters < FROM_SCRATCH),
        "rows": train.prompts_per_step * (config.sampling.group_size if online else 1),
        "updates": train.updates_per_batch,
        "steps": train.steps,
        "passes": passes_of(config),
        "learned_reward": any(reward.model is not None for reward in config.rewards),
    }


def passes_of(config: RunConfig) -> float | None:
    """Return the passes over the data, rounded to a tenth. None if the rows are not lines of local files."""
    data, train = config.data, config.train
    files = [Path(name).expanduser() for name in ([data.train] if isinstance(data.train, str) else data.train)]
    if not all(file.suffix == ".jsonl" and file.is_file() for file in files):
        return None
    rows = sum(min(lines := _lines(file), data.max_rows or lines) for file in files)
    held_out = 0 if data.eval is not None else data.eval_fraction
    parts = 1 if data.part is None else int(data.part.partition("/")[2])
    learned = rows * (1 - held_out) / parts
    return round(train.steps * train.prompts_per_step * train.epochs / learned, 1) if rows else None


def _lines(file: Path) -> int:
    """Count the lines that are not blank."""
    with file.open("rb") as lines:
        return sum(not line.isspace() for line in lines)


def parameters_of(model: str) -> float | None:
    """Return billions of parameters, from config.json or the name. None if neither gives them."""
    try:
        return read_architecture(model).parameters / 1e9
    except PosttrainError:
        return None


def _follows(told: Range, value: float) -> str:
    if told.high is not None and value > told.high * (1 + 1e-9):
        return told.above
    if told.low is not None and value < told.low * (1 - 1e-9):
        return told.below
    return ""


def _at(tree: Any, path: str) -> Any:
    return functools.reduce(
        lambda part, name: part.get(name) if isinstance(part, Mapping) else None, path.split("."), tree
    )
