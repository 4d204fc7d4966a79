"""The experience of a step, read from its rollout file: recorded samples and scores, and nothing computed again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet

from posttrain.errors import DataError
from posttrain.experience.feed import StepData, sampled_step
from posttrain.experience.group import Group
from posttrain.experience.rollouts import FACTS, FORMAT, content_hash
from posttrain.files import names_inside, read_inside
from posttrain.rewards import Scores
from posttrain.types import Batch, Completion, Episode, Example, Prompt

FOLDER, MOST_BYTES = "rollouts", 1 << 34
_FILE = re.compile(r"step-(\d{6,})\.parquet")


class Recorded(NamedTuple):
    """The content of a rollout file."""

    trained: list[Group]
    discarded: list[Group]
    greedy: list[Group]
    version: int
    """The version of the policy that learned from it."""
    weights: list[float] | None
    """The weights of the rewards; None if nothing was learned from them."""
    rows: list[dict[str, Any]]
    """The trained rows with all columns."""


def recorded_steps(folder: Path) -> list[int]:
    """Return the steps of a run that have a rollout file."""
    return sorted(int(match[1]) for name in names_inside(folder, FOLDER) if (match := _FILE.fullmatch(name)))


def read_rollouts(folder: Path, step: int) -> Recorded:
    """Return the rollouts of a step. Raises DataError if the file is missing or differs from what the run wrote."""
    name = f"{FOLDER}/step-{step:06d}.parquet"
    try:
        table = parquet.read_table(pa.BufferReader(read_inside(folder, name, MOST_BYTES)))
    except (OSError, pa.ArrowException) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise _not_as_written(folder / name, what) from error
    facts = _facts(table, folder / name)
    if facts["sha256"] != content_hash(table, facts):
        raise _not_as_written(folder / name, "was changed: its rows do not match the hash in it")
    rows = table.to_pylist()
    if others := {row["step"] for row in rows} - {step}:
        raise _not_as_written(folder / name, f"holds the rows of step {min(others)}")
    trained = [row for row in rows if not row["discarded"]]
    return Recorded(
        trained=list(_groups(trained, facts["labels"])),
        discarded=list(_groups([row for row in rows if row["discarded"]], facts["labels"])),
        greedy=list(_greedy(trained)),
        version=facts["version"],
        weights=facts["weights"],
        rows=trained,
    )


def _facts(table: pa.Table, path: Path) -> dict[str, Any]:
    found = (table.schema.metadata or {}).get(FACTS)
    facts = json.loads(found) if found else {}
    if facts.get("format") != FORMAT or facts.get("version") is None:
        raise DataError(
            given=f"{path} lacks data that is needed to train from it again: another program or another version "
            "of posttrain wrote it",
            allowed=f"a rollout file of format {FORMAT}, exactly as the run wrote it",
            fix="Replay a run of this version.",
        )
    return facts


def _not_as_written(path: Path, what: str) -> DataError:
    return DataError(
        given=f"{path} {what}",
        allowed="the rollout file of each step, exactly as the run wrote it",
        fix="Restore it from a copy, or replay other steps with --from and --to.",
    )


def _groups(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Iterator[Group]:
    for _, own in groupby(rows, key=lambda row: row["group"]):
        group = list(own)
        yield Group(prompt=_prompt(group[0]), completions=tuple(map(_completion, group)), scores=_scores(group, labels))


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(index=row["prompt_index"], ids=tuple(row["prompt_ids"]), text=row["prompt"])


def _completion(row: Mapping[str, Any]) -> Completion:
    return Completion(
        ids=tuple(row["completion_ids"]),
        logprobs=tuple(row["logprobs"]),
        versions=tuple(row["versions"]),
        finish_reason=row["finish_reason"],
        text=row["completion"],
        given=tuple(map(tuple, row.get("given") or ())),
        starts=tuple(row.get("starts") or ()),
        episode=Episode.from_json(json.loads(row["episode"])) if row.get("episode") else None,
    )


def _scores(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Scores | None:
    """Return the scores of the rows; None if they were not scored."""
    if rows[0]["scored"] is None:
        return None

    def columns(prefix: str, suffix: str = "") -> dict[str, list[list[Any]]]:
        found = ((label, f"{prefix}/{label}{suffix}") for label in labels)
        return {label: [[row[name] for row in rows]] for label, name in found if name in rows[0]}

    return Scores(
        rewards_PG=[[math.nan if row["reward"] is None else row["reward"] for row in rows]],
        scored_PG=[[row["scored"] for row in rows]],
        parts=columns("reward"),
        tokens=columns("token_rewards"),
        is_open=columns("reward", "/open"),
        failures=(),
        seconds={},
    )


def _greedy(rows: Sequence[Mapping[str, Any]]) -> Iterator[Group]:
    """Yield the greedy completion of each group. Only its text and its reward are on file."""
    if not rows or "greedy_reward" not in rows[0]:
        return
    for _, own in groupby(rows, key=lambda row: row["group"]):
        row = next(own)
        reward, text = row["greedy_reward"], row["greedy_completion"]
        answer = Completion(ids=(), logprobs=(), versions=(), finish_reason="eos", text=text)
        scores = Scores(
            rewards_PG=[[math.nan if reward is None else reward]],
            scored_PG=[[reward is not None]],
            parts={},
            failures=(),
            seconds={},
        )
        yield Group(prompt=_prompt(row), completions=(answer,), scores=scores)


class ReplayFeed:
    """A feed that reads the groups of each step from its rollout file instead of sampling them."""

    samples = True
    rows: Sequence[Any] = ()

    def __init__(self, folder: Path, *, pad_id: int, max_lag: int) -> None:
        """`folder` is the folder of the run; `max_lag` is the run's `train.max_lag`."""
        self.folder, self.pad_id, self.max_lag = folder, pad_id, max_lag
        self.recorded: Recorded | None = None
        """The recorded rollouts of the last step."""

    def take(self, step: int, version: int) -> StepData:
        found = self.recorded = read_rollouts(self.folder, step)
        return sampled_step(
            found.trained,
            version=found.version,
            pad_id=self.pad_id,
            weights=found.weights,
            max_lag=self.max_lag,
            discarded=found.discarded,
            greedy=found.greedy,
        )

    def describe(self) -> str:
        return f"the rollouts of {self.folder}"

    def named_rows(self) -> Iterable[tuple[str, Example]]:
        return ()

    def longest(self) -> Batch:
        raise NotImplementedError("memory sufficed for these rows before")

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: the files determine the next rows."""
