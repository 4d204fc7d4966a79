"""The trackers, all told in the same words. Their packages are imported when one is opened."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from posttrain.errors import ConfigError

DEFAULT_PROJECT = "posttrain"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run that a tracker is told about."""

    folder: Path
    config: Mapping[str, Any]
    config_text: str
    id: str
    """The same whenever this run is sent to this tracker."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def group(self) -> str:
        """Facts that the runs of one sweep or comparison share."""
        return self.folder.resolve().parent.name


class Tracker(Protocol):
    where: str
    """Where a reader finds the run, in words."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def tell(self, step: int, title: str, text: str) -> None:
        """An alarm, a guard or an error."""
        ...

    def close(self, *, failed: bool) -> None:
        """Nothing else comes for now. Returns when what was told is on file or sent."""
        ...


class TensorBoard:
    """Event files in the folder `tensorboard` of the run: `tensorboard --logdir runs` shows all runs."""

    def __init__(self, run: Subject) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / "tensorboard"
        self.where = f"tensorboard --logdir {run.folder.parent}"
        is_new = not folder.exists()
        self._writer = EventFileWriter(str(folder))
        if is_new:
            self.tell(0, "config", f"```yaml\n{run.config_text}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._write(step, [{"tag": name, "simple_value": value} for name, value in values.items()])

    def tell(self, step: int, title: str, text: str) -> None:
        from tensorboard.plugins.text.metadata import create_summary_metadata

        content = _message("tensor", "TensorProto", dtype="DT_STRING", string_val=[text.encode()])
        about = create_summary_metadata(display_name=title, description="")
        self._write(step, [{"tag": title, "metadata": about, "tensor": content}])

    def close(self, *, failed: bool) -> None:
        self._writer.close()

    def _write(self, step: int, values: Sequence[Mapping[str, Any]]) -> None:
        summary = _message("summary", "Summary", value=values)
        self._writer.add_event(_message("event", "Event", wall_time=time.time(), step=step, summary=summary))


def _message(file: str, name: str, **content: Any) -> Any:
    """A protocol buffer of TensorBoard: classes that exist at run time only."""
    return getattr(importlib.import_module(f"tensorboard.compat.proto.{file}_pb2"), name)(**content)


class Trackio:
    """In the local database of Trackio (TRACKIO_DIR); the project is that of TRACKIO_PROJECT, else posttrain.

    It knows a run that goes on by its name alone, so the name carries a few letters that no other run has.
    """

    def __init__(self, run: Subject) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", DEFAULT_PROJECT)
        self.where = f"trackio show --project {project}"
        self._run = trackio.init(
            project=project,
            name=f"{run.name}-{run.id[:6]}",
            group=run.group,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def tell(self, step: int, title: str, text: str) -> None:
        self._run.alert(title=f"{title}, step {step}", text=text)

    def close(self, *, failed: bool) -> None:
        self._run.finish()


class WeightsAndBiases:
    """A run of the project WANDB_PROJECT, else posttrain. Nobody is asked to log in.

    Without a key, or where the server cannot be reached, it is written to the folder `tracking/wandb` of the run, for
    `wandb sync`. WANDB_MODE, WANDB_ENTITY and the like are obeyed.
    """

    def __init__(self, run: Subject) -> None:
        import wandb

        def start(mode: Any) -> Any:
            return wandb.init(
                project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
                name=run.name,
                group=run.group,
                id=run.id,
                resume="allow",
                config=dict(run.config),
                dir=os.environ.get("WANDB_DIR") or str(_made(run.folder / "tracking")),
                mode=mode,
                settings=wandb.Settings(console="off", x_disable_stats=True),  # they would be of this process
            )

        asked = os.environ.get("WANDB_MODE")
        if asked == "disabled":
            raise ConfigError(given="WANDB_MODE = disabled", fix="Leave wandb away, or set another mode.")
        try:
            self._run = start(asked or (None if wandb.login(prompt=False) else "offline"))
        except wandb.Error as error:
            if asked:
                fix = "Log in with `wandb login`, or set WANDB_API_KEY; or unset WANDB_MODE: files are then written."
                raise ConfigError(given=f"WANDB_MODE = {asked}, and {error}", fix=fix) from error
            print(f"wandb: {error}; written to files instead")
            self._run = start("offline")
        self.where = _syncs(Path(self._run.dir).parent, run.id) if self._run.offline else str(self._run.url)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def tell(self, step: int, title: str, text: str) -> None:
        self._run.alert(title=f"{title}, step {step}", text=text)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)


TRACKERS: Mapping[str, Callable[[Subject], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def require(names: Sequence[str]) -> None:
    """Raises ConfigError for a tracker that is not installed here, before anything is trained."""
    found = {name: importlib.util.find_spec(name) for name in names}
    missing = [name for name, spec in found.items() if spec is None or spec.origin is None]  # a mere folder has none
    if missing:
        raise ConfigError(
            given=f"report_to = [{', '.join(names)}], and {' and '.join(missing)} cannot be imported here",
            allowed="trackers that are installed",
            fix='pip install "posttrain[track]"; or leave report_to out: `posttrain track RUN` sends the run later.',
        )


def _syncs(last: Path, id: str) -> str:
    """What uploads a run that was written to files: a folder for each time that somebody has sent, in that order."""
    return "; ".join(f"wandb sync {folder}" for folder in sorted(last.parent.glob(f"offline-run-*-{id}")))


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
