"""Reads a run folder in any state in which a run may have left it.

No run folder makes these functions raise. If a file is missing, truncated, damaged, too large or a link out of the
folder, a note in `RunRecord.notes` says so, and the report can name it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

import psutil
import yaml

from posttrain.files import MOST_BYTES, Damaged, Missing, names_inside, open_inside, read_inside, read_sealed_json
from posttrain.owner import pid_here

Status = Literal["finished", "failed", "unfinished"]

LARGEST = 1e100
"""Largest number that is shown: the squares and sums of larger numbers overflow."""
MOST_CONFIG, MOST_ROWS, MOST_ROLLOUTS = 300_000, 20_000, 128_000_000
"""Maximum bytes of config.yaml, and maximum rows and bytes of one rollouts file, that are read."""
MOST_NESTED = 50
"""Maximum nesting depth of config.yaml."""
_BATCH = 16
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_STEP = re.compile(r"step-(\d+)")
_ORIGIN = re.compile(r"^(?P<line>.*?\S)\s+# (?P<origin>[^'\"]*)$")
_ROLLOUT_COLUMNS = (
    "prompt_index", "group", "row", "prompt", "completion", "completion_ids", "reward", "scored", "discarded",
    "advantage",
    "advantages", "logprobs", "finish_reason", "version", "answer", "given", "episode",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of a run folder."""

    folder: Path
    status: Status
    config_text: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """One dict per step, ascending. If a step was repeated after a resume, the last dict counts."""
    events: list[dict[str, Any]] = field(default_factory=list)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    rollout_steps: list[int] = field(default_factory=list)
    checkpoint_steps: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Parts that could not be read, with the reason."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def last_model(self) -> Path | None:
        """The model folder in the newest checkpoint; None if there is no checkpoint."""
        return self.checkpoint(self.checkpoint_steps[-1]) / "model" if self.checkpoint_steps else None

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:06d}"

    def setting(self, path: str, default: Any = None) -> Any:
        """Return the value of a config key such as `train.steps`."""
        value: Any = self.config
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def compares_groups(self) -> bool:
        """Does the algorithm compare answers to one prompt with each other? True if the run does not say."""
        return next((bool(e["compares_groups"]) for e in self.events if "compares_groups" in e), True)

    @property
    def answers_are_given(self) -> bool:
        """Does the run learn from answers in its data, without sampling?"""
        return bool(self.series("sft/nll") or self.series("logps/chosen")) and not self.series("reward")

    @property
    def evaluations(self) -> dict[int, Mapping[str, Any]]:
        """The evaluation at each evaluated step, ascending. If a step was repeated after a resume, the last one counts.
        Events that only tell of an evaluation in words do not count."""
        events = (event for event in self.events if event.get("kind") == "evaluation")
        found = ((number(event.get("step")), mapping(event.get("evaluation"))) for event in events)
        last = {int(step): evaluation for step, evaluation in found if step is not None and evaluation}
        return dict(sorted(last.items()))

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of one metric, only finite numbers."""
        found = ((row["step"], number(row.get(name))) for row in self.metrics)
        return [(step, value) for step, value in found if value is not None]

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of recorded metrics that start with `prefix`, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.metrics for name in row if name.startswith(prefix)))


def read_run(folder: str | PathLike[str]) -> RunRecord:
    """Read everything in a run folder that can be read."""
    folder = Path(folder)
    notes: list[str] = []
    if not folder.is_dir():
        notes.append(f"{folder} is not a folder")
    config_text = _read_text(folder, "config.yaml", notes, most=MOST_CONFIG)
    config = _parse_config(config_text, notes)
    events = list(_read_lines(folder, "events.jsonl", notes))
    metrics = _by_step(_read_lines(folder, "metrics.jsonl", notes))
    if large := {name for row in metrics for name, value in row.items() if _is_too_large(value)}:
        notes.append(
            f"metrics.jsonl has numbers beyond {LARGEST:g}, which are not shown ({', '.join(sorted(large)[:5])})"
        )
    error = _read_object(folder, "error.json", notes) if os.path.lexists(folder / "error.json") else None
    return RunRecord(
        folder=folder,
        status=_status(events, error),
        config_text=config_text,
        config=config,
        metrics=metrics,
        events=events,
        evaluation=_read_evaluation(folder, notes),
        error=error,
        rollout_steps=_steps_in(folder, "rollouts", ".parquet"),
        checkpoint_steps=_steps_in(folder, "checkpoints", ""),
        notes=notes,
    )


def read_rollouts(folder: str | PathLike[str], step: int, notes: list[str] | None = None) -> list[dict[str, Any]]:
    """Read the rows of `rollouts/step-NNNNNN.parquet`; empty, with a note, if it cannot be read or is too large."""
    name = f"rollouts/step-{step:06d}.parquet"
    try:
        import pyarrow.parquet as parquet

        with os.fdopen(open_inside(Path(folder), name), "rb") as source, parquet.ParquetFile(source) as file:
            _require_modest(file.metadata)
            names = [n for n in file.schema_arrow.names if n in _ROLLOUT_COLUMNS or n.startswith(("reward/", "check/"))]
            rows, size = list[dict[str, Any]](), 0
            for batch in file.iter_batches(batch_size=_BATCH, columns=names):
                size += batch.nbytes
                if size > MOST_ROLLOUTS:
                    raise ValueError(f"more than {MOST_ROLLOUTS:,} bytes")
                rows += batch.to_pylist()
            return rows
    except Exception as reason:  # pyarrow raises a dozen unrelated classes for a damaged file
        if notes is not None:
            words = str(reason)[:100] if isinstance(reason, OSError | ValueError) else ""
            notes.append(f"{name} could not be read ({type(reason).__name__}{f': {words}' if words else ''})")
        return []


def _require_modest(metadata: Any) -> None:
    """Raise ValueError for too many rows or bytes. A small file can be huge in memory, if its rows repeat one value."""
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    size = sum(group.column(place).total_uncompressed_size for group in groups for place in range(group.num_columns))
    if metadata.num_rows > MOST_ROWS or size > MOST_ROLLOUTS:
        raise ValueError(f"{metadata.num_rows:,} rows of {size:,} bytes")


def config_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield (line, origin) for each line of the saved config. The origin is the comment after the value."""
    for line in text.rstrip("\n").split("\n") if text else []:
        match = _ORIGIN.match(line)
        yield (match["line"], match["origin"]) if match else (line, "")


def is_number(value: Any) -> bool:
    """Is the value a finite int or float? True and False are not numbers."""
    return number(value) is not None


@overload
def number(value: Any) -> float | None: ...
@overload
def number(value: Any, default: float) -> float: ...
def number(value: Any, default: float | None = None) -> float | None:
    """Return the value as a finite float, else `default`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        return float(value) if abs(value) <= LARGEST else default
    except OverflowError:  # an integer of hundreds of digits
        return default


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None (null), as in the files of a run."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping: for reading files that may be damaged."""
    return value if isinstance(value, Mapping) else {}


def _status(events: list[dict[str, Any]], error: Mapping[str, Any] | None) -> Status:
    """Return the status of a run. A resumed run may have ended well although an earlier attempt left `error.json`."""
    last = next(
        (event.get("kind") for event in reversed(events) if event.get("kind") in ("end", "error", "resume")), None
    )
    if last == "end":
        return "finished"
    if last == "error" or (error is not None and last != "resume"):
        return "failed"
    return "unfinished"


def _read_text(folder: Path, name: str, notes: list[str], most: int = MOST_BYTES) -> str:
    try:
        return read_inside(folder, name, most).decode("utf-8", errors="replace")
    except FileNotFoundError:
        notes.append(f"{name} is missing")
    except OSError as reason:
        notes.append(f"{name} could not be read ({reason.strerror})")
    return ""


def _read_lines(folder: Path, name: str, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects, one per line. Every bad line becomes a note; the last one may be cut off by a kill."""
    lines = _read_text(folder, name, notes).rstrip("\n").split("\n")
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parsed(line)
        if isinstance(row, dict):
            yield row
        elif place < len(lines):
            notes.append(f"{name}, line {place}, is not a JSON object and was left out")
        else:
            notes.append(f"the last line of {name} is cut off; the run was writing it when it stopped")


def _read_object(folder: Path, name: str, notes: list[str]) -> dict[str, Any]:
    text = _read_text(folder, name, notes)
    found = _parsed(text) if text else {}
    if isinstance(found, dict):
        return found
    notes.append(f"{name} is not a JSON object")
    return {}


def _parsed(text: str) -> Any:
    """Return the value of a JSON text; None if it is invalid, or if Python refuses its integers or its nesting."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_evaluation(folder: Path, notes: list[str]) -> Mapping[str, Any]:
    """Read evaluation.json only if its checksum is right: a digit that changed on disk would give a wrong result."""
    try:
        found = read_sealed_json(folder, "evaluation.json", MOST_BYTES)
    except Missing:
        return {}
    except Damaged as damage:
        notes.append(f"{damage}: it is left out")
        return {}
    if isinstance(found, dict):
        return found
    notes.append("evaluation.json is not a JSON object")
    return {}


def _plain(text: str) -> Any:
    """Load a YAML text, but refuse aliases and deep nesting. With aliases, a few lines can expand beyond any memory;
    deep nesting can overflow the stack. Runs write neither."""
    depth = 0
    for event in yaml.parse(text, _YAML):
        opens, closes = isinstance(event, yaml.CollectionStartEvent), isinstance(event, yaml.CollectionEndEvent)
        depth += opens - closes
        if isinstance(event, yaml.AliasEvent) or depth > MOST_NESTED:
            raise yaml.YAMLError("an alias, or values within values within values")
    return yaml.load(text, _YAML)


def _parse_config(text: str, notes: list[str]) -> dict[str, Any]:
    try:
        found = _plain(text) if text else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    notes.append("config.yaml is not a YAML mapping of plain values")
    return {}


def _by_step(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    steps = {row["step"]: row for row in rows if _is_step(row.get("step"))}
    return [steps[step] for step in sorted(steps)]


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _steps_in(folder: Path, name: str, suffix: str) -> list[int]:
    names = names_inside(folder, name)
    matches = (_STEP.fullmatch(found.removesuffix(suffix)) for found in names if found.endswith(suffix))
    return sorted(int(match[1]) for match in matches if match and len(match[1]) < 16)


def _is_too_large(value: Any) -> bool:
    return type(value) in (int, float) and LARGEST < abs(value) < math.inf


# --- is the run alive? -----------------------------------------------------------------------------------------------


State = Literal["running", "finished", "failed", "stopped", "silent"]
"""`stopped`: a person stopped it, or its process is gone. `silent`: unfinished, and its process is not on this machine
or unknown."""

CLOCK_SECONDS = 60.0
"""Tolerance in seconds when comparing the start of a process with the time of a file: the two clocks may differ."""


def state_of(folder: Path, status: Status) -> State:
    """Return the state of a run whose files say `status`."""
    if status != "unfinished":
        return status
    alive = _owner_lives(folder)
    return "silent" if alive is None else "running" if alive else "stopped"


def _owner_lives(folder: Path) -> bool | None:
    """Is the process that writes the run alive? None if it is on another machine, in another container, or not
    recorded.

    The lock file is read but never locked: a run that is about to start must not find it held.
    """
    try:
        pid = pid_here(read_inside(folder, ".lock", most=1000).decode(errors="replace"))
        locked = (folder / ".lock").lstat().st_mtime
    except OSError:
        return None
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # it has ended, but its parent has not collected its exit status
            return False
        return process.create_time() <= locked + CLOCK_SECONDS  # otherwise another process has this pid now
    except (psutil.NoSuchProcess, OverflowError, ValueError):
        return False
    except psutil.AccessDenied:
        return True
