"""One rank of a run that launch.py has started: `python -m posttrain.train.rank JOB.json`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from posttrain.ranks.environment import leave
from posttrain.stopping import SIGNALS, terminated_as_interrupted
from posttrain.train.hosts import STARTED


def main(file: str) -> int:
    """Run the rank and return its exit code: 0, or the code of the error, whose text is on stderr."""
    end_with_the_parent()
    told: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    leads = os.environ["RANK"] == "0"
    if not leads:  # ignored from the start, because the first rank decides when a run stops
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    with interruptible() if leads else nullcontext():
        return _run(file, told)


def _run(file: str, told: dict[str, Any]) -> int:
    from posttrain.errors import PosttrainError
    from posttrain.report.terminal import TerminalView
    from posttrain.train import api

    view = TerminalView(**{name: told[name] for name in ("quiet", "show_samples", "part")})
    try:
        if os.environ["RANK"] == "0":
            Path(file).with_name(STARTED).touch()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked until here, so that a signal disturbs no import
        if told["resumed"] is not None:
            api.resume(told["folder"], **told["resumed"], view=view, restarted=told["restarted"])
        else:
            resolved = api.load_config(told["config"], told["overrides"])
            api.train_resolved(resolved, view=view, files=given_files(Path(told["given"])))
    except KeyboardInterrupt as stop:
        return getattr(stop, "exit_code", 130)
    except PosttrainError as error:
        Path(file).with_name(f"error-{os.environ['RANK']}.json").write_text(json.dumps({"message": str(error)}))
        return error.exit_code
    return 0


@contextmanager
def interruptible() -> Iterator[None]:
    """Let both signals raise KeyboardInterrupt, also in a background job, in which Python ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with terminated_as_interrupted():
        yield


def given_files(folder: Path) -> dict[str, Any]:
    """The files of objects that were passed to `train`, by their names in the folder of the run."""

    def copied(source: Path) -> Any:
        return source.read_bytes() if source.is_file() else lambda place: shutil.copytree(source, place)

    return {source.name: copied(source) for source in folder.iterdir()}


def end_with_the_parent() -> None:
    """End this process soon after its launcher is gone, so that a killed launcher leaves no rank behind."""
    parent = int(os.environ["POSTTRAIN_PARENT"])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


if __name__ == "__main__":
    leave(main(sys.argv[1]))
