"""Sizes that the run chooses are chosen once, kept in its folder, and used again when the run is resumed."""

from __future__ import annotations

import json

import pytest
from tests.tiny import tiny_model

import posttrain
from posttrain.config import load_config
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.before import BEFORE
from posttrain.train.sizes import with_sizes

CHOSEN = {"train.tokens_per_microbatch": 40, "sampling.max_batch_rows": 96}


def run_of(folder, name: str, **changes):
    if not (folder / "model").exists():
        tiny_model(folder / "model")
        (folder / "rows.jsonl").write_text('{"prompt": "abc ", "completion": "cba fed cba"}\n' * 8)
    config = {
        "model": str(folder / "model"),
        "algorithm": "sft",
        "data": {"train": str(folder / "rows.jsonl"), "eval_fraction": 0.0},
        "evaluation": {"writing": 0},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **changes)


def told(run) -> list[str]:
    events = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["kind"] == "compute"]


@pytest.mark.slow
def test_a_resumed_run_keeps_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(BEFORE, "sizes", lambda config: CHOSEN)
    run = run_of(tmp_path, "chosen")
    assert run.trainer.room.tokens == 40
    assert run.config.sampling.rows_together == 96
    assert json.loads((run.folder / "sizes.json").read_text())["train.tokens_per_microbatch"] == 40
    assert "train.tokens_per_microbatch = 40, sampling.max_batch_rows = 96 (auto, by the memory of the GPU)" in told(
        run
    )
    monkeypatch.setattr(BEFORE, "sizes", lambda config: dict.fromkeys(CHOSEN, 7))
    resumed = posttrain.resume(run.folder, steps=3)
    assert resumed.trainer.room.tokens == 40
    assert resumed.config.sampling.max_batch_rows == 96
    events = (run.folder / "events.jsonl").read_text()
    assert "the settings changed after step 2: train.steps = 3 (was 2)" in events, "and none of the sizes"


@pytest.mark.parametrize("changes", [{"train.tokens_per_microbatch": 50, "sampling.max_batch_rows": 5}, {}])
def test_nothing_is_chosen_where_it_is_given_or_on_a_cpu(tmp_path, monkeypatch, changes):
    if changes:
        monkeypatch.setattr(BEFORE, "sizes", lambda config: CHOSEN)
    run = run_of(tmp_path, "given", **changes)
    assert run.trainer.room.tokens == changes.get("train.tokens_per_microbatch", 2048)
    assert not (run.folder / "sizes.json").exists()
    assert not [text for text in told(run) if "auto" in text]


def test_how_many_devices_share_a_copy_is_kept_for_each_number_of_devices(tmp_path, monkeypatch):
    """16, then 8, then 16 devices again; each start would choose differently from the one before."""
    config = load_config(
        {"model": "m", "algorithm": "sft", "data": {"train": "rows.jsonl"}, "train": {"steps": 2, "devices": "auto"}}
    ).config
    store, found = RunStore.create(tmp_path / "run", ""), []
    for ranks, shard in ((16, 8), (8, 4), (16, 2), (8, 1), (1, 1)):
        monkeypatch.setattr(BEFORE, "sizes", lambda config, shard=shard: CHOSEN | {"train.shard": shard})
        sized = with_sizes(config, store, TerminalView(quiet=True), ranks)
        found.append((ranks, sized.train.shard))
        assert sized.train.tokens_per_microbatch == 40
    assert found == [(16, 8), (8, 4), (16, 8), (8, 4), (1, "auto")]
    kept = json.loads((store.folder / "sizes.json").read_text())
    assert {name: kept[name] for name in CHOSEN} == CHOSEN
    assert (kept["train.shard over 16"], kept["train.shard over 8"]) == (8, 4)


def test_a_choice_that_an_earlier_version_did_not_keep_is_made_beside_the_others(tmp_path, monkeypatch):
    config = load_config(
        {"model": "m", "algorithm": "sft", "data": {"train": "rows.jsonl"}, "train": {"steps": 2}}
    ).config
    store = RunStore.create(tmp_path / "run", "")
    store.record("sizes.json", CHOSEN)
    monkeypatch.setattr(BEFORE, "sizes", lambda config: {**dict.fromkeys(CHOSEN, 7), "train.shard": 2})
    sized = with_sizes(config, store, TerminalView(quiet=True), ranks=4)
    assert (sized.train.tokens_per_microbatch, sized.train.shard) == (40, 2)
