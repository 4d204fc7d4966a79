"""A tiny run and everything that it leaves behind, as one flat mapping, so that a test can compare two runs.

    place.record({"train.learning_rate": 0.02})   ->   {"metrics/loss": [...], "rollouts/reward": [...], "weights": ...}

The record leaves out what always differs (times, memory) and what only repeats a setting (config.yaml, and the
arguments that evaluation.json lists next to its results).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as parquet
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.algorithms.algorithm import Algorithm
from posttrain.config import check, load_config
from posttrain.engines import decoding_path
from posttrain.engines.engine import Draw, Row
from posttrain.errors import PosttrainError
from posttrain.models import forward_path
from posttrain.train.api import run_folder, train_resolved

Record = Mapping[str, Any]

REPEATED = {"prompts", "samples", "confidence", "temperature", "top_p", "max_completion_length", "seed"}
"""Settings that an evaluation lists next to its results."""


class Place:
    """A folder with models, data and rewards for the runs. Each different run is made only once."""

    def __init__(self, folder: Path, plain: Mapping[str, Any]) -> None:
        self.folder, self.plain = folder, plain
        self.known: dict[str, Record] = {}
        self.algorithms: dict[str, Algorithm] = {}

    def record(self, changes: Mapping[str, Any], *, with_effort: bool = False) -> Record:
        """Return the record of a run with the plain settings and these changes. A record with the effort has all that
        one without it has."""
        key, with_it = (json.dumps([changes, effort], sort_keys=True) for effort in (with_effort, True))
        if key not in self.known and with_it not in self.known:
            self.known[key] = self.run(changes, with_effort=with_effort)
        return self.known[key if key in self.known else with_it]

    def run(self, changes: Mapping[str, Any], *, with_effort: bool = False) -> Record:
        """Make the run again and return its record. Paths in the settings are relative to the folder."""
        with contextlib.chdir(self.folder):
            return run_and_record(self.plain, changes, with_effort)

    def algorithm(self, changes: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm of a run with these changes."""
        key = json.dumps(changes, sort_keys=True)
        if key not in self.algorithms:
            with contextlib.chdir(self.folder):
                self.algorithms[key] = load_config(self.plain, changes).config.algorithm.build()
        return self.algorithms[key]

    def refusal(self, changes: Mapping[str, Any]) -> str | None:
        """Return the error that a run with these changes gives before it begins, or None."""
        with contextlib.chdir(self.folder):
            try:
                check(load_config(self.plain, changes).config)
            except PosttrainError as error:
                return f"{type(error).__name__}: {error}"
        return None


def run_and_record(plain: Mapping[str, Any], changes: Mapping[str, Any], with_effort: bool) -> Record:
    effort = Effort()
    found: dict[str, Any] = {}
    folder = None
    try:
        resolved = load_config(plain, changes)
        folder = run_folder(resolved.config)
        with effort.measured() if with_effort else contextlib.nullcontext():
            train_resolved(resolved)
    except PosttrainError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    if with_effort:
        found |= effort.found()
    return found | read_run(folder) if folder is not None and folder.exists() else found


def read_run(folder: Path) -> Record:
    """Return the run folder as one flat mapping."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        "folder": str(folder.parent),
        "files": [str(file) for file in files],
        "events": list(read_events(folder)),
        "weights": [digest(file) for file in sorted(folder.glob("checkpoints/*/model/*.safetensors"))[-1:]],
        **read_metrics(folder),
        **read_rollouts(folder),
        **read_evaluations(folder),
    }


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read_events(folder: Path) -> Iterator[str]:
    for event in read_lines(folder / "events.jsonl"):
        if event["kind"] != "error":  # the error itself is part of the record
            yield f"{event['kind']}: {event['message']}"


def read_metrics(folder: Path) -> Record:
    """Return each metric over the steps, and the names of all metrics."""
    rows = read_lines(folder / "metrics.jsonl")
    names = list(dict.fromkeys(name for row in rows for name in row))
    measured = [name for name in names if not name.startswith(("time/", "memory/"))]
    return {"metric names": names} | {f"metrics/{name}": [row.get(name) for row in rows] for name in measured}


def read_rollouts(folder: Path) -> Record:
    """Return each column over all completions of the run."""
    columns: dict[str, list[Any]] = {}
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        for name, values in parquet.read_table(file).to_pydict().items():
            if not name.endswith("/seconds"):
                columns.setdefault(f"rollouts/{name}", []).extend(values)
    return columns


def read_evaluations(folder: Path) -> Record:
    """Return the results in evaluation.json, and the answers behind them."""
    file = folder / "evaluation.json"
    found = dict(flatten(json.loads(file.read_text()), "evaluation")) if file.exists() else {}
    for answers in sorted((folder / "evaluations").glob("*.jsonl")):
        for record in read_lines(answers):
            texts = [answer["text"] for answer in (record["greedy"], *record["samples"])]
            found.setdefault(f"answers/{answers.stem}", []).append([record["prompt"], *texts])
    return found


def flatten(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, below in value.items():
        if key not in REPEATED:
            yield from flatten(below, f"{name}/{key}")


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Effort(TorchDispatchMode):
    """Counts what settings of memory and speed change. None of it is a result. Trials of a model do not count, because
    only the first run with it makes them (tests/trials.py)."""

    def __init__(self) -> None:
        super().__init__()
        self.training_passes = 0
        """Number of forward passes with a gradient."""
        self.decoded_rows = 0
        """Largest number of rows that were decoded together."""
        self.largest_logits = 0
        """Largest number of positions whose logits were held at the same time, in `vocabulary` columns."""
        self.kept_numbers = 0
        """Numbers that were kept for backward passes."""
        self.vocabulary = 0
        self.counts = True

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        def keep(tensor: Tensor) -> Tensor:
            self.kept_numbers += tensor.numel() * self.counts
            return tensor

        def draw(drawing: Draw, logits_BV: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
            self.decoded_rows = max(self.decoded_rows, len(rows) * self.counts)
            return original(drawing, logits_BV, rows)

        original = Draw.__call__
        with contextlib.ExitStack() as patches:
            patches.enter_context(self)
            patches.enter_context(saved_tensors_hooks(keep, lambda tensor: tensor))
            patches.enter_context(mock.patch.object(Draw, "__call__", draw))
            for module in (decoding_path, forward_path):
                patches.enter_context(mock.patch.object(module, "_find_path", self.uncounted(module._find_path)))
            yield

    def uncounted(self, trial: Callable[..., Any]) -> Callable[..., Any]:
        def found(*model: Any) -> Any:
            self.counts = False
            try:
                return trial(*model)
            finally:
                self.counts = True

        return found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.counts:
            return out
        if func is torch.ops.aten.embedding.default:
            self.vocabulary = args[0].shape[0]
            self.training_passes += torch.is_grad_enabled()
        if func in PRODUCTS and out.shape[-1] == self.vocabulary:
            self.largest_logits = max(self.largest_logits, out.shape[0])
        return out

    def found(self) -> Record:
        counted = ("training_passes", "decoded_rows", "largest_logits", "kept_numbers")
        return {f"effort/{name}": getattr(self, name) for name in counted}
