"""The content of a run's folder that a replay needs: settings, steps, checkpoints and metrics.

This module only reads the folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from posttrain.config import RunConfig, check_recorded, load_config
from posttrain.config.text import REDACTED, dotted, leaves, read_mapping, show
from posttrain.data.given import where_the_run_is
from posttrain.errors import ConfigError
from posttrain.experience.recorded import recorded_steps
from posttrain.files import Damaged, Missing, read_inside, read_sealed_json
from posttrain.shown import shown
from posttrain.store.checkpoint import Checkpoint, Checkpoints
from posttrain.store.folders import is_pipeline
from posttrain.train import same_settings

NOT_READ = (
    "output", "rewards", "check", "reward_model", "evaluation", "checkpoint", "guards", "alarms", "report", "report_to",
    "rollout",
)  # fmt: skip
"""Settings that change nothing when a step is trained again."""
ALREADY_SAMPLED = (
    "data", "sampled_pairs", "sampling", "train.prompts_per_step", "train.publish_every", "train.max_sampling_rounds",
    "train.stop_after_tokens", "train.stop_after_seconds", "train.run_ahead",
)  # fmt: skip
"""Settings that also change nothing if the rollouts are on file."""
STILL_READ = ("data.auxiliary", "data.auxiliary_rows", "sampling.temperature")
"""Exceptions to `ALREADY_SAMPLED`: training reads these settings."""


@dataclass(frozen=True)
class RecordedRun:
    """The folder of a run. `changes` are settings that replace the run's own, dotted or nested as in `train`."""

    folder: Path
    changes: Mapping[str, Any]

    @staticmethod
    def of(folder: Path, changes: Mapping[str, Any]) -> RecordedRun:
        """The run in a folder. Raises ConfigError if there is none, and for changes that would have no effect."""
        if is_pipeline(folder) or not (folder / "config.yaml").is_file():
            inside = ", the folder of a pipeline" if is_pipeline(folder) else " (it has no config.yaml)"
            raise ConfigError(
                given=f"{folder} is not the folder of a single run{inside}",
                allowed="the folder of a run, or of one stage of a pipeline",
                fix="Name the folder that the run printed when it started.",
            )
        run = RecordedRun(folder, changes)
        run._refuse_idle_changes()
        run._require_same_kind()
        return run

    def _refuse_idle_changes(self) -> None:
        idle = (*NOT_READ, *(ALREADY_SAMPLED if self.samples else ()))
        for path, _ in leaves(self.changes):
            name = dotted(path).replace("-", "_")
            if name not in STILL_READ and any(f"{name}.".startswith(f"{one}.") for one in idle):
                raise ConfigError(
                    given=f"{name} has no effect in a replay, which trains on what the run recorded",
                    allowed="settings of algorithm, train, model, lora, critic, reference and teacher",
                    fix="Leave it out. To train on other data or rewards, start a new run with `posttrain train`.",
                )

    def _require_same_kind(self) -> None:
        before, now = (self._load(self.settings, changes).algorithm.build() for changes in ({}, self.changes))
        if now.data_kind != before.data_kind:
            raise ConfigError(
                given=f"algorithm = {now.key}, which learns from {now.data_kind}, but the run recorded "
                f"{before.data_kind}",
                allowed=f"an algorithm that learns from {before.data_kind}, as {before.key} does",
                fix="Choose one of those; `posttrain explain ALGORITHM` says what it learns from.",
            )

    # --- its settings ------------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The present config.yaml without redacted values, which only rewards and judges read."""
        return without_redacted(read_mapping(self.folder / "config.yaml"))

    @cached_property
    def samples(self) -> bool:
        """Did the run sample the answers of each step?"""
        return self._load(self.settings, {}).algorithm.build().data_kind == "prompts"

    @cached_property
    def held(self) -> dict[int, dict[str, Any]]:
        """The settings by the step after which they held, from settings.json; empty if that file is unusable."""
        try:
            found = read_sealed_json(self.folder, same_settings.FILE)
            return {int(step): same_settings.OF_EARLIER_VERSIONS | settings for step, settings in found.items()}
        except (Damaged, AttributeError, ValueError, TypeError):
            return {}

    def config(self, step: int, *, changed: bool = True) -> RunConfig:
        """The settings that trained `step`, with the changes if `changed`."""
        tree, now = self.settings, same_settings.facts_of(self._load(self.settings, {}))
        before = self.held.get(max((first for first in self.held if first < step), default=-1), now)
        if before != now:  # the run was resumed with other settings
            kept = {name: tree[name] for name in same_settings.ELSEWHERE if name in tree}
            tree = nested(before) | kept
        config = self._load(tree, self.changes if changed else {})
        check_recorded(config)
        return config.model_copy(update={"data": where_the_run_is(config.data, self.folder)})

    def _load(self, tree: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
        asked = changes.get("algorithm.name", changes.get("algorithm"))
        name = asked.get("name") if isinstance(asked, Mapping) else asked
        if isinstance(name, str) and name != mapping(tree.get("algorithm")).get("name"):
            tree = {key: value for key, value in tree.items() if key != "algorithm"}  # settings of the old algorithm
        return load_config({**tree, "output": None}, changes, origin=f"file:{self.folder / 'config.yaml'}").config

    def changed(self, step: int) -> list[str]:
        """The changes in words, such as `train.learning_rate = 0.01 (was 1e-06)`."""
        before, now = (same_settings.facts_of(self.config(step, changed=way)) for way in (False, True))
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if "algorithm.name" in names:  # then all of its settings differ
            names = [name for name in names if name == "algorithm.name" or not name.startswith("algorithm.")]
        return [f"{name} = {show(now.get(name))} (was {show(before.get(name))})" for name in names]

    def spans(self, first: int, last: int) -> list[tuple[int, int]]:
        """The steps from `first` to `last` as ranges (first, last), split where the settings changed."""
        cuts = sorted(step for step in self.held if first <= step < last)
        return list(zip([first, *(cut + 1 for cut in cuts)], [*cuts, last], strict=True))

    # --- its steps ---------------------------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """The records of metrics.jsonl by step."""
        found: dict[int, dict[str, Any]] = {}
        for line in self._lines("metrics.jsonl"):
            try:
                row = json.loads(line)
                found[row["step"]] = row
            except (ValueError, LookupError, TypeError):  # a kill has cut the line off
                continue
        return found

    def _lines(self, name: str) -> list[bytes]:
        try:
            return read_inside(self.folder, name, most=sys.maxsize - 1).splitlines()
        except FileNotFoundError:
            return []

    @cached_property
    def steps(self) -> list[int]:
        """The steps that can be trained again if their first checkpoint or model exists."""
        return recorded_steps(self.folder) if self.samples else sorted(self.metrics)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints", keep=1)

    def range(self, first: int | None, last: int | None) -> tuple[int, int]:
        """The steps to train again: by default from the oldest checkpoint to the last step on file."""
        there = self.checkpoints.steps()
        starts = sorted({1, *(step + 1 for step in there)} & {*range(1, max(self.steps, default=0) + 1)})
        if not starts:
            raise ConfigError(
                given=f"{self.folder} has recorded no step",
                allowed="a run with at least one step on file",
                fix=f"`posttrain resume {shown(self.folder)}` continues the run.",
            )
        oldest = [start for start in starts if start - 1 in there]
        begin = first if first is not None else (oldest or starts)[0]
        end = last if last is not None else self.steps[-1]
        if begin not in starts:
            raise ConfigError(
                given=f"--from {begin}, but there is no checkpoint of step {begin - 1} to start from",
                allowed=f"--from {' or '.join(map(str, starts))}",
                fix="1 starts from the run's first model, any other step from an existing checkpoint; "
                "checkpoint.keep decides how many are kept.",
            )
        missing = sorted({*range(begin, end + 1)} - {*self.steps})
        if end < begin or missing:
            what = f"step {missing[0]} is not on file" if missing else f"the last step, {end}, is before the first"
            raise ConfigError(
                given=f"steps {begin} to {end} of {self.folder}: {what}",
                allowed=f"steps on file: {self.steps[0]} to {self.steps[-1]}, without a gap",
                fix="Choose others with --from and --to, or restore the missing file of rollouts/ from a copy.",
            )
        return begin, end

    def start(self, first: int) -> Checkpoint | None:
        """The checkpoint from which the step `first` was trained; None for the model that the run started with."""
        return self.checkpoints.of(first - 1) if first - 1 in self.checkpoints.steps() else None

    def record(self, name: str) -> dict[str, Any] | None:
        """A file of facts about the start; None if it is missing. Raises ConfigError if it is damaged."""
        try:
            return mapping(read_sealed_json(self.folder, name))
        except Missing:
            return None
        except Damaged as damage:
            raise ConfigError(
                given=f"{self.folder}: {damage}",
                allowed="the file as the run wrote it",
                fix="Restore it from a copy. Without it nothing can show whether the run can be repeated.",
            ) from damage


def mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def without_redacted(tree: Any) -> Any:
    if isinstance(tree, list):
        return [without_redacted(one) for one in tree]
    if not isinstance(tree, Mapping):
        return tree
    told = {key: value for key, value in tree.items() if not (isinstance(value, str) and REDACTED in value)}
    return {key: without_redacted(value) for key, value in told.items()}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of settings with the given dotted names.

    >>> nested({"train.steps": 3, "seed": 1, "data.train": ["a", "b"]})
    {'train': {'steps': 3}, 'seed': 1, 'data': {'train': ['a', 'b']}}
    """
    tree: dict[str, Any] = {}
    for name, value in leaves.items():
        *path, last = name.split(".")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[last] = value
    return tree
