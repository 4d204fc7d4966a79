"""The trackers, behind one interface. Their packages are imported when a tracker is opened."""

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
    """The run that is sent to a tracker."""

    folder: Path
    config: Mapping[str, Any]
    config_text: str
    id: str
    """Id of the run in the tracker. It stays the same when sending continues."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def group(self) -> str:
        """Group of the run: the name of the parent folder, which the runs of a sweep or comparison share."""
        return self.folder.resolve().parent.name


class Tracker(Protocol):
    where: str
    """The command or address that shows the run."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def tell(self, step: int, title: str, text: str) -> None:
        """Send an alarm, a guard or an error."""
        ...

    def close(self, *, failed: bool) -> None:
        """Finish sending. Returns when everything is sent or on file."""
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
    """Build a protocol buffer of TensorBoard, whose classes exist only at run time."""
    return getattr(importlib.import_module(f"tensorboard.compat.proto.{file}_pb2"), name)(**content)


class Trackio:
    """The local database of Trackio (TRACKIO_DIR). The project is TRACKIO_PROJECT, else posttrain.

    Trackio identifies a resumed run only by its name, so the name contains part of the run's unique id.
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
    """A run of the project WANDB_PROJECT, else posttrain. It never prompts for a login.

    Without an API key, or if the server cannot be reached, the data goes to the folder `tracking/wandb` of the run, for
    `wandb sync`. WANDB_MODE, WANDB_ENTITY and the other variables of wandb work as usual.
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
                settings=wandb.Settings(
                    console="off", x_disable_stats=True
                ),  # they would describe this process, not the run
            )

        asked = os.environ.get("WANDB_MODE")
        if asked == "disabled":
            raise ConfigError(given="WANDB_MODE = disabled", fix="Remove wandb from the trackers, or set another mode.")
        try:
            self._run = start(asked or (None if wandb.login(prompt=False) else "offline"))
        except wandb.Error as error:
            if asked:
                fix = "Log in with `wandb login`, or set WANDB_API_KEY; or unset WANDB_MODE to write files instead."
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
    """Raise ConfigError for a tracker that is not installed here, before training starts."""
    found = {name: importlib.util.find_spec(name) for name in names}
    missing = [
        name for name, spec in found.items() if spec is None or spec.origin is None
    ]  # a plain folder of that name has no origin
    if missing:
        raise ConfigError(
            given=f"report_to = [{', '.join(names)}], and {' and '.join(missing)} cannot be imported here",
            allowed="trackers that are installed",
            fix='pip install "posttrain[track]"; or remove report_to: `posttrain track RUN` can send the run later.',
        )


def _syncs(last: Path, id: str) -> str:
    """Return the commands that upload a run written to files: one for each time that it was sent, in that order."""
    return "; ".join(f"wandb sync {folder}" for folder in sorted(last.parent.glob(f"offline-run-*-{id}")))


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
