"""Run or resume a training, and send SIGKILL to this process at a moment within a phase.

    drive("train", "CONFIG.yaml", PHASE, COUNT, DELAY)
    drive("resume", "RUN")

PHASE is sample, update or save; the kill comes DELAY seconds after the phase has begun for the COUNT-th time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import posttrain.train.api
from posttrain.engines.local import LocalSampler
from posttrain.train.run import Run
from posttrain.train.trainer import Trainer


def killed_in(function: Callable[..., Any], count: int, delay: float) -> Callable[..., Any]:
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            threading.Thread(target=kill_after, args=(delay,), daemon=True).start()
        return function(*args, **kwargs)

    return wrapped


def kill_after(delay: float) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def drive(verb: str, target: str, *when: str) -> None:
    """Call it in a separate process: the process is killed, and its patches stay in place."""
    if when:
        phase, count, delay = when[0], int(when[1]), float(when[2])
        owner, name = {
            "sample": (LocalSampler, "each"),
            "update": (Trainer, "update"),
            "save": (Run, "save"),
        }[phase]
        setattr(owner, name, killed_in(getattr(owner, name), count, delay))
    run = posttrain.train(target) if verb == "train" else posttrain.resume(target)
    assert run.step == run.config.train.steps
