"""Any name in a run folder may be a link, a pipe or a socket: nothing outside is changed, deleted or shown."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from tests.catalogue import few
from tests.report.synthetic_run import write_run

from posttrain.errors import ConfigError
from posttrain.evaluate.chat import ChatSession
from posttrain.evaluate.given import evaluate_given
from posttrain.export import export
from posttrain.report.page import render, write_report
from posttrain.report.store import read_run
from posttrain.report.tracking.follow import follow
from posttrain.store.run_store import RunStore

SECRET = "only for its owner"
NAMES = (
    *("config.yaml", "metrics.jsonl", "events.jsonl", "evaluation.json", "error.json", "plan.json", "compute.json"),
    *("data.json", "start.json", "rewards.json", "samples.txt", "report.html", ".lock", ".metrics.jsonl.tmp"),
    *(".evaluation.json.tmp", ".evaluation.json.sha256", "rollouts", "rollouts/step-000060.parquet", "judgements"),
    *("judgements/step-000060.jsonl", "checkpoints", "checkpoints/step-000060", "checkpoints/step-000060/model"),
    *("checkpoints/step-000060/model/tokenizer.json", "checkpoints/step-000061.tmp-1", "references", "evidence"),
    *("alarms", "alarms/step-000060-x.jsonl", "evaluations", "evaluations/baseline.jsonl", "export", "export/hf"),
    *("tracking", "tracking/tensorboard.json", "tracking/tensorboard.lock", "tracking/wandb", "tensorboard"),
    *("reward_model", "sampled"),
)
FOLDERS = {
    *("rollouts", "judgements", "checkpoints", "step-000060", "model", "step-000061.tmp-1", "references", "evidence"),
    *("alarms", "evaluations", "export", "hf", "tracking", "wandb", "tensorboard", "reward_model", "sampled"),
}
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "file": lambda path, outside: path.symlink_to(outside / "secret.json"),
    "folder": lambda path, outside: path.symlink_to(outside),
    "dangling": lambda path, outside: path.symlink_to(outside / "missing"),
    "loop": lambda path, outside: path.symlink_to(path.name),
    "pipe": lambda path, outside: os.mkfifo(path),
    "alike": lambda path, outside: KINDS["folder" if path.name in FOLDERS else "file"](path, outside),
}
WRITERS: dict[str, Callable[[Path], object]] = {
    "create": lambda run: RunStore.create(run, "seed: 0\n"),
    "open": RunStore.open,
    "eval": evaluate_given,
    "chat": ChatSession,
    "export": export,
    "track": lambda run: follow(run, "tensorboard"),
}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", few(KINDS, "alike"))
def test_no_name_of_a_run_folder_leads_out_of_it(tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("secret.json", "step-000060.parquet", "step-000099.jsonl", "baseline.jsonl"):
        (outside / name).write_text(f'{{"step": 99, "text": "{SECRET}"}}\n')
    before = tree(outside)
    sound = write_run(tmp_path / "sound")
    for file in (sound / "rollouts").iterdir():  # one group of each: the page of a run is written for every name
        parquet.write_table(parquet.read_table(file).slice(0, 8), file)
    for number, name in enumerate(NAMES):
        run = Path(shutil.copytree(sound, tmp_path / str(number)))
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        KINDS[kind](path, outside)
        for writer, act in WRITERS.items():
            with pytest.raises(ConfigError) as refused:
                act(run)
            assert name in str(refused.value), (name, writer)
        if name == "report.html":
            assert SECRET not in render(read_run(run))
        if kind != "pipe" or name != "report.html":
            assert SECRET not in write_report(run).read_text(), name
        assert tree(outside) == before, name
        shutil.rmtree(run)
