"""A run that cannot have a URL as its output is refused, with the reason, before anything is computed."""

from __future__ import annotations

import pytest
from tests.tiny import write_prompts

import posttrain
from posttrain.errors import ConfigError
from posttrain.ranks.environment import Place
from posttrain.train.carrying import refuse_several_machines, refuse_url_of_ranks

URL = "s3://bucket/run"


def test_ranks_of_several_machines_are_refused():
    for beside, said in (
        (2, "2 of them on this machine"),
        (None, "an unknown number of them on this machine"),
    ):
        with pytest.raises(ConfigError, match=said):
            refuse_several_machines(URL, Place(rank=0, size=4, local=0, beside=beside))


def test_ranks_of_one_machine_and_ranks_with_a_common_folder_are_not():
    refuse_several_machines(URL, Place(rank=0, size=4, local=0, beside=4))
    refuse_several_machines("/shared/run", Place(rank=0, size=4, local=0, beside=2))
    refuse_several_machines(None, Place(rank=0, size=4, local=0, beside=2))


def test_a_job_of_torchrun_does_not_fetch_a_run_in_each_process():
    place = Place(rank=1, size=2, local=1, beside=2)
    with pytest.raises(ConfigError, match="each of which would fetch it"):
        refuse_url_of_ranks(URL, place)
    refuse_url_of_ranks(URL, None)
    refuse_url_of_ranks("runs/first", place)


def config(tmp_path, **changes: object) -> dict[str, object]:
    rows = write_prompts(tmp_path / "rows.jsonl", count=8)
    tree = {"model": "tiny:sort", "algorithm": "grpo", "data": {"train": str(rows)}, "train": {"steps": 1}}
    return {**tree, "rewards": [{"name": "exact_match"}], "output": URL, **changes}


def test_ranks_on_a_cluster_need_a_common_folder(tmp_path):
    with pytest.raises(ConfigError, match="ranks on several machines write one checkpoint together"):
        posttrain.train(config(tmp_path, cluster="ray", train={"steps": 1, "devices": 2}))


def test_a_pipeline_needs_a_folder(tmp_path):
    stage = config(tmp_path)
    model, output = stage.pop("model"), stage.pop("output")
    with pytest.raises(ConfigError, match="for a pipeline, whose stages read each other's folders"):
        posttrain.train({"model": model, "output": output, "stages": [{"name": "one", **stage}]})


def test_a_url_that_holds_no_run_cannot_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_RUNS", str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match=r"holds no run \(it has no config.yaml\)"):
        posttrain.resume(f"file://{tmp_path}/nothing")
    assert not (tmp_path / "runs").exists()
