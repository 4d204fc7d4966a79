"""Reading a run folder: whatever is there, in whatever state the run left it.

Nothing here raises because of a strange run. A file that is missing, cut or damaged becomes a note in
`RunRecord.notes`, so that the report can say what it could not read. Imports neither torch nor the trainer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

import yaml

Status = Literal["finished", "failed", "unfinished"]

_STEP = re.compile(r"step-(\d+)")
_ORIGIN = re.compile(r"^(?P<line>.*?\S)\s+# (?P<origin>[^'\"]*)$")
_ROLLOUT_COLUMNS = (
    "prompt_index", "group", "row", "prompt", "completion", "completion_ids", "reward", "scored", "discarded",
    "advantage",
    "advantages", "logprobs", "finish_reason", "version",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run folder says about its run."""

    folder: Path
    status: Status
    config_text: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """One dict per step, ascending; of a step that was repeated after a resume the last one."""
    events: list[dict[str, Any]] = field(default_factory=list)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    rollout_steps: list[int] = field(default_factory=list)
    checkpoint_steps: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be read, and why."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def last_model(self) -> Path | None:
        """The model folder of the newest checkpoint."""
        return self.checkpoint(self.checkpoint_steps[-1]) / "model" if self.checkpoint_steps else None

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:06d}"

    def setting(self, path: str, default: Any = None) -> Any:
        """The value of a config key such as `train.steps`."""
        value: Any = self.config
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def compares_groups(self) -> bool:
        """Does the algorithm compare answers to one prompt with each other? True where the run does not say."""
        return next((bool(e["compares_groups"]) for e in self.events if "compares_groups" in e), True)

    @property
    def answers_are_given(self) -> bool:
        """Does it learn from answers of its data and samples none?"""
        return bool(self.series("sft/nll") or self.series("logps/chosen")) and not self.series("reward")

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, finite numbers only."""
        found = ((row["step"], number(row.get(name))) for row in self.metrics)
        return [(step, value) for step, value in found if value is not None]

    def names(self, prefix: str = "") -> list[str]:
        """Names of the recorded metrics that start with `prefix`, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.metrics for name in row if name.startswith(prefix)))


def read_run(folder: str | PathLike[str]) -> RunRecord:
    """Read a run folder as far as it can be read."""
    folder = Path(folder)
    notes: list[str] = []
    if not folder.is_dir():
        notes.append(f"{folder} is not a folder")
    config_text = _read_text(folder / "config.yaml", notes)
    events = list(_read_lines(folder / "events.jsonl", notes))
    error = _read_object(folder / "error.json", notes) if (folder / "error.json").exists() else None
    evaluated = (folder / "evaluation.json").exists()
    return RunRecord(
        folder=folder,
        status=_status(events, error),
        config_text=config_text,
        config=_parse_config(config_text, notes),
        metrics=_by_step(_read_lines(folder / "metrics.jsonl", notes)),
        events=events,
        evaluation=_read_object(folder / "evaluation.json", notes) if evaluated else {},
        error=error,
        rollout_steps=_steps_in(folder / "rollouts", ".parquet"),
        checkpoint_steps=_steps_in(folder / "checkpoints", ""),
        notes=notes,
    )


def read_rollouts(folder: str | PathLike[str], step: int, notes: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of `rollouts/step-NNNNNN.parquet`; empty, with a note, when it cannot be read."""
    path = Path(folder) / "rollouts" / f"step-{step:06d}.parquet"
    try:
        import pyarrow.parquet as parquet

        with parquet.ParquetFile(path) as file:
            names = [n for n in file.schema_arrow.names if n in _ROLLOUT_COLUMNS or n.startswith(("reward/", "check/"))]
            return file.read(columns=names).to_pylist()
    except Exception as reason:  # pyarrow raises a dozen unrelated classes for a damaged file
        if notes is not None:
            notes.append(f"{_short(path)} could not be read ({type(reason).__name__})")
        return []


def config_lines(text: str) -> Iterator[tuple[str, str]]:
    """(line, origin) for each line of the saved config; the origin is the comment behind the value."""
    for line in text.rstrip("\n").split("\n") if text else []:
        match = _ORIGIN.match(line)
        yield (match["line"], match["origin"]) if match else (line, "")


def is_number(value: Any) -> bool:
    """A finite int or float; True and False are not numbers."""
    return number(value) is not None


@overload
def number(value: Any) -> float | None: ...
@overload
def number(value: Any, default: float) -> float: ...
def number(value: Any, default: float | None = None) -> float | None:
    """The value as a finite float, else `default`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        return float(value) if math.isfinite(value) else default
    except OverflowError:  # an integer of hundreds of digits
        return default


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null, as in the files of a run."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: for walking through files of unknown state."""
    return value if isinstance(value, Mapping) else {}


def _status(events: list[dict[str, Any]], error: Mapping[str, Any] | None) -> Status:
    """A resumed run may have ended well although an earlier attempt left an `error.json`."""
    last = next(
        (event.get("kind") for event in reversed(events) if event.get("kind") in ("end", "error", "resume")), None
    )
    if last == "end":
        return "finished"
    if last == "error" or (error is not None and last != "resume"):
        return "failed"
    return "unfinished"


def _read_text(path: Path, notes: list[str]) -> str:
    if path.exists() and not path.is_file():  # to read a pipe might never end
        notes.append(f"{path.name} is no file")
        return ""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except OSError as reason:
        notes.append(f"{path.name} could not be read ({reason.strerror})")
    return ""


def _read_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """JSON objects, one per line. A last line that was cut by a kill is normal; any other bad line is a note."""
    lines = _read_text(path, notes).rstrip("\n").split("\n")
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield row
        elif place < len(lines):
            notes.append(f"{path.name}, line {place}, is not a JSON object and was left out")
        else:
            notes.append(f"the last line of {path.name} is cut off; the run was writing it when it stopped")


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    text = _read_text(path, notes)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    notes.append(f"{path.name} is not a JSON object")
    return {}


def _parse_config(text: str, notes: list[str]) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text) if text else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    notes.append("config.yaml is not a YAML mapping")
    return {}


def _by_step(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    steps = {row["step"]: row for row in rows if _is_step(row.get("step"))}
    return [steps[step] for step in sorted(steps)]


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _steps_in(folder: Path, suffix: str) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    matches = (_STEP.fullmatch(name.removesuffix(suffix)) for name in names if name.endswith(suffix))
    return sorted(int(match[1]) for match in matches if match)


def _short(path: Path) -> str:
    return "/".join(path.parts[-2:])
