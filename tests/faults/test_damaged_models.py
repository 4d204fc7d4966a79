"""A model whose files changed after it was saved is never used: every loader names the changed file."""

import json
import shutil
from pathlib import Path

import pytest
from tests.catalogue import few
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.config import ModelConfig
from posttrain.errors import CheckpointError
from posttrain.evaluate.chat import ChatSession
from posttrain.evaluate.given import evaluate_given
from posttrain.export import export
from posttrain.models.reading import find_source
from posttrain.rewards.model import find_model

ROWS = [{"prompt": word, "completion": word[::-1]} for word in ("abc", "bcd", "cde", "def")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and with adapters."""
    folder = tmp_path_factory.mktemp("saved")
    tiny_model(folder / "start")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = {
        "model": str(folder / "start"),
        "algorithm": "sft",
        "data": {"train": str(folder / "rows.jsonl"), "eval_fraction": 0.5},
        "train": {"steps": 2, "prompts_per_step": 2},
        "lora": {"rank": 2},
        "output": str(folder / "run"),
        "report": False,
    }
    return pt.train(config).folder


READERS = {
    "eval RUN": lambda run, model: evaluate_given(run),
    "eval MODEL": lambda run, model: evaluate_given(model, str(run.parent / "rows.jsonl")),
    "chat RUN": lambda run, model: ChatSession(run),
    "chat MODEL": lambda run, model: ChatSession(model),
    "export RUN": lambda run, model: export(run),
    "export RUN --step": lambda run, model: export(run, step=2),
    "export MODEL": lambda run, model: export(model, run.parent / "out"),
    "a reward of that name": lambda run, model: find_source(ModelConfig(path=find_model(str(run)))),
}
QUICK = ("eval RUN", "eval MODEL", "chat RUN", "export RUN", "a reward of that name")
"""Every command once."""


@pytest.mark.parametrize("reader", few(READERS, *QUICK))
def test_whoever_opens_a_model_with_one_flipped_bit_is_told_its_file(run, tmp_path, reader):
    copy = Path(shutil.copytree(run.parent, tmp_path / "copy")) / "run"
    model = copy / "checkpoints" / "step-000002" / "model"
    files = [path for path in sorted(model.iterdir()) if path.is_file()]
    assert len(files) > 3
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
        with pytest.raises(CheckpointError, match=f"model/{file.name} has different content than was written"):
            READERS[reader](copy, model)
        file.unlink()
        with pytest.raises(CheckpointError, match=f"model/{file.name} is missing"):
            READERS[reader](copy, model)
        file.write_bytes(whole)
    assert not (tmp_path / "copy" / "out").exists()


def test_adapters_are_looked_at_as_well(run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    adapter = copy / "checkpoints" / "step-000002" / "adapter"
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"adapter/adapter_model\.safetensors has different content"):
        export(adapter, tmp_path / "out")


def test_an_intact_model_of_an_earlier_step_is_named_and_can_be_used(run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "checkpoints" / "step-000002" / "model" / "config.json").write_text("{}")
    earlier = copy / "checkpoints" / "step-000000" / "model"
    with pytest.raises(CheckpointError, match=f"{earlier} is intact"):
        ChatSession(copy)
    assert ChatSession(earlier).model_path == str(earlier)
