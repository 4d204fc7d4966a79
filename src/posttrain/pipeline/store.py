"""Writes the folder of a pipeline: its settings, its progress, and the descriptions of handed-over models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.config.pipeline import Stage
from posttrain.errors import ConfigError
from posttrain.files import read_inside, require_plain, write_durably
from posttrain.report.store import read_run
from posttrain.shown import shown
from posttrain.store.folders import PROGRESS, SETTINGS
from posttrain.store.run_store import RunLock


class PipelineStore:
    """The writer of one pipeline folder. It holds the folder's lock until it is closed."""

    def __init__(self, folder: Path, lock: RunLock, content: dict[str, Any]) -> None:
        self.folder, self._lock, self.content = folder, lock, content

    @classmethod
    def create(cls, folder: Path, settings: str, stages: Sequence[Stage]) -> PipelineStore:
        """Begin in an empty folder, or in one whose pipeline has not begun any stage."""
        begun = (folder / SETTINGS).exists() and _any_begun(folder)
        if begun or (folder / "config.yaml").exists():
            what = "pipeline" if begun else "run"
            raise ConfigError(
                given=f"output = {folder}, which already holds a {what}",
                allowed="a folder that does not exist yet, or an empty one",
                fix=f"`posttrain resume {shown(folder)}` continues it; set output to another folder for a new one.",
            )
        store = cls(folder, _lock(folder), {"status": "running", "stages": [_waiting(stage) for stage in stages]})
        write_durably(folder / SETTINGS, settings.encode())
        store._write()
        return store

    @classmethod
    def open(cls, folder: Path, stages: Sequence[Stage]) -> PipelineStore:
        """Continue writing a folder, even if its progress file is missing or damaged."""
        lock = _lock(folder)
        try:
            saved = dict(json.loads(read_inside(folder, PROGRESS)))
            known = {str(entry["name"]): entry for entry in saved.get("stages", []) if "status" in entry}
        except (OSError, ValueError, LookupError, TypeError, RecursionError):  # the folders of the stages also show it
            saved, known = {}, {}
        entries = [_known(known.get(stage.name), stage) for stage in stages]
        kept = {name: saved[name] for name in ("exporting", "export") if name in saved}
        store = cls(folder, lock, {"status": "running", "stages": entries, **kept})
        store._write()
        return store

    def close(self) -> None:
        self._lock.release()

    @property
    def has_begun(self) -> bool:
        """Was anything measured, trained or saved in any stage?"""
        return _any_begun(self.folder)

    def handover(self, stage: str) -> Path:
        """The file that describes the model handed over by the stage in this folder."""
        return self.folder / "handover" / f"{stage}.json"

    def place(self, path: Path) -> str:
        """A path as it is saved: relative to the pipeline's folder if it is inside, because that may be moved."""
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)

    def entry(self, stage: Stage) -> dict[str, Any]:
        """The saved facts about a stage."""
        return self.content["stages"][stage.number - 1]

    def update(self, stage: Stage, **values: Any) -> dict[str, Any]:
        """Save facts about a stage, and return all of its facts."""
        entry = self.entry(stage)
        entry |= values
        self._write()
        return entry

    def has_announced(self, output: Path) -> bool:
        """Does an export at this path, if there is one, belong to this pipeline?"""
        return self.content.get("exporting") == self.place(output)

    def has_exported(self, output: Path) -> bool:
        return self.content.get("export") == self.place(output)

    def announce(self, output: Path) -> None:
        """Record that the export is about to be written here, so that a pipeline killed later may replace it."""
        self.content["exporting"] = self.place(output)
        self._write()

    def exported(self, output: Path) -> None:
        self.content["export"] = self.place(output)
        self._write()

    def finish(self) -> None:
        self.content["status"] = "finished"
        self._write()

    def failed(self, error: BaseException) -> None:
        kind = "failed" if isinstance(error, Exception) else "interrupted"
        self.content |= {"status": kind, "error": {"type": type(error).__name__, "message": str(error)}}
        for entry in self.content["stages"]:
            if entry["status"] == "training":
                entry["status"] = kind
        self._write()

    def _write(self) -> None:
        write_durably(self.folder / PROGRESS, json.dumps(self.content, indent=1).encode())


def _lock(folder: Path) -> RunLock:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_plain(folder)
        return RunLock(folder)
    except OSError as error:
        raise ConfigError(
            given=f"output = {folder} cannot be written ({error.strerror})",
            allowed="a folder that can be written",
            fix="Check its permissions, or set output to another folder.",
        ) from error


def _any_begun(folder: Path) -> bool:
    stages = [*folder.glob("[0-9][0-9]*-*"), *folder.glob("[0-9][0-9]*-*/reward_model")]
    return any(run.metrics or run.evaluation or run.checkpoint_steps for run in map(read_run, stages))


def _known(entry: dict[str, Any] | None, stage: Stage) -> dict[str, Any]:
    """The saved facts of a stage; for a stage that has not begun, facts from the pipeline's present settings."""
    return _waiting(stage) if entry is None or entry["status"] == "waiting" else entry


def _waiting(stage: Stage) -> dict[str, Any]:
    name = stage.config.algorithm.name
    return {"name": stage.name, "folder": stage.folder, "algorithm": name, "status": "waiting"}
