"""Train or resume a pipeline, and send SIGKILL to this process at a moment of one of its stages.

    drive("train", "PIPELINE.yaml", STAGE, STEP)
    drive("resume", "FOLDER")

The kill comes when the run in the folder STAGE has recorded step STEP. With `end` instead of a step, it comes when that
run has ended and the pipeline has not yet recorded that. With `export end`, it comes when the exported model is in
place, and the pipeline has not yet recorded that.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import posttrain
from posttrain.pipeline.handover import HandOver
from posttrain.pipeline.store import PipelineStore
from posttrain.train.run import Run


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(stage: str, step: int) -> None:
    record = Run.record_step

    def wrapped(self: Run, *args: Any) -> None:
        record(self, *args)
        if self.folder.name == stage and self.step == step:
            die()

    Run.record_step = wrapped


def kill_after(stage: str) -> None:
    write = HandOver.write

    def wrapped(self: HandOver, path: Path) -> None:
        if path.stem == stage:
            die()
        write(self, path)

    HandOver.write = wrapped


def kill_after_export() -> None:
    PipelineStore.exported = lambda self, output: die()


def drive(verb: str, target: str, *when: str) -> None:
    """Call it in a separate process: the process is killed, and its patches stay in place."""
    if when:
        stage, step = when
        if stage == "export":
            kill_after_export()
        elif step == "end":
            kill_after(stage)
        else:
            kill_at(stage, int(step))
    trained = posttrain.train(target) if verb == "train" else posttrain.resume(target)
    assert trained.model_path.is_dir()
