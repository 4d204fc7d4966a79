"""A run folder that is written without a model, and the content of its URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.store import claim
from posttrain.store.checkpoint import Checkpoints
from posttrain.store.claim import Claim
from posttrain.store.remote import RemoteFolder
from posttrain.store.run_store import RunStore


def write_checkpoint(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"hidden_size": 4}')
    (folder / "state").mkdir()
    (folder / "state" / "weights").write_bytes(bytes(range(64)))


def take_step(store: RunStore, step: int, *, keep: int = 2) -> None:
    """Write the files of one step of a run."""
    store.metrics(step, {"loss": 1 / step})
    Checkpoints(store.checkpoints, keep).save(step, write_checkpoint)
    store.event("checkpoint", f"saved step {step}", step=step)


def one_of_two_takes_over(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process claim the run first: both have seen that the writer is silent."""
    dead, slower, faster = (Claim(remote, name) for name in ("dead", "slower", "faster"))
    dead.take()
    overtake = iter([faster.take])
    monkeypatch.setattr(claim, "_await_end", lambda remote, before: next(overtake, lambda: None)())
    with pytest.raises(ConfigError, match="is being written by another process"):
        slower.take()
    faster.require()
    for one in (dead, slower, faster):
        one.end()
    assert claim.newest(remote).writer == "faster"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run that does not belong to one machine."""
    own = {".lock", ".carried.json", ".writers"}
    files = (path for path in folder.rglob("*") if path.is_file() and own.isdisjoint(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def rows(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(("time/", "memory/"))} for row in lines]
