"""The state of several ranks on file: any number of ranks reads what any number wrote, and damage is reported."""

from __future__ import annotations

import json

import pytest
import torch

from posttrain.errors import CheckpointError
from posttrain.store.shards import INDEX, Part, file_of, read_state, save_parts, write_index

WHOLE = {
    "policy/a": torch.arange(35, dtype=torch.float32).view(7, 5),
    "policy/b": torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "optimizer/0/exp_avg": torch.arange(6.0, dtype=torch.float64),
    "optimizer/0/step": torch.tensor(4.0),
}


def written(folder, size: int) -> None:
    """Write shards as FSDP does: along the first dimension, with the rows of `torch.chunk`, fewer for the last
    ranks."""
    found = []
    for rank in range(size):
        parts = {}
        for name, whole in WHOLE.items():
            if not whole.dim():
                if rank == 0:
                    parts[name] = Part(whole, (), [])
                continue
            each = -(-len(whole) // size)
            corner = (min(rank * each, len(whole)), *[0] * (whole.dim() - 1))
            parts[name] = Part(whole[rank * each : (rank + 1) * each], corner, list(whole.shape))
        found.append(save_parts(folder, rank, parts))
    write_index(folder, found, ["policy", "optimizer", "held"], {"num_tokens": 3})


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_whatever_the_number_of_writers_every_bit_comes_back(tmp_path, size):
    written(tmp_path, size)
    tree, plain = read_state(tmp_path)
    assert plain == {"num_tokens": 3}
    assert set(tree) == {"policy", "optimizer", "held"}
    assert dict(tree["held"]) == {}
    for name, whole in WHOLE.items():
        value = tree
        for part in name.split("/"):
            value = value[part]
        assert value.dtype == whole.dtype
        assert torch.equal(value, whole), name


def test_parts_may_be_blocks_of_rows_and_columns(tmp_path):
    whole = torch.arange(48.0).view(6, 8)
    corners = {0: (0, 0), 1: (0, 3), 2: (4, 0), 3: (4, 3)}
    boxes = {0: whole[:4, :3], 1: whole[:4, 3:], 2: whole[4:, :3], 3: whole[4:, 3:]}
    found = [save_parts(tmp_path, rank, {"a": Part(boxes[rank], corners[rank], [6, 8])}) for rank in boxes]
    write_index(tmp_path, found, ["a"], {})
    assert torch.equal(read_state(tmp_path)[0]["a"], whole)
    index = json.loads((tmp_path / INDEX).read_text())
    index["tensors"]["a"]["parts"][3][1] = [4, 2]
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"some of its .* numbers are in no file or in two"):
        read_state(tmp_path)[0]["a"]


def test_a_state_that_tells_first_rows_alone_is_read_as_well(tmp_path):
    """Versions without divided columns wrote such a state."""
    written(tmp_path, 2)
    index = json.loads((tmp_path / INDEX).read_text())
    for facts in index["tensors"].values():
        facts["parts"] = [[file, corner[0] if corner else 0] for file, corner in facts["parts"]]
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert torch.equal(read_state(tmp_path)[0]["policy"]["a"], WHOLE["policy/a"])
    assert torch.equal(read_state(tmp_path)[0]["optimizer"]["0"]["step"], WHOLE["optimizer/0/step"])


@pytest.mark.parametrize("damage", ["a missing file", "a missing row", "no JSON", "a row twice"])
def test_a_damaged_state_is_an_error_that_names_it(tmp_path, damage):
    written(tmp_path, 2)
    index = json.loads((tmp_path / INDEX).read_text())
    if damage == "a missing file":
        (tmp_path / file_of(1)).unlink()
    elif damage == "a missing row":
        index["tensors"]["policy/a"]["parts"].pop()
    elif damage == "a row twice":
        index["tensors"]["policy/a"]["parts"][1][1] = [3, 0]
    (tmp_path / INDEX).write_text("{" if damage == "no JSON" else json.dumps(index))
    with pytest.raises(CheckpointError, match="holds no training state that can be read"):
        read_state(tmp_path)[0]["policy"]["a"]


def test_ranks_of_two_models_are_told(tmp_path):
    two = [{"a": {"shape": [4, 2], "parts": [["x", 0]]}}, {"a": {"shape": [4, 3], "parts": [["y", 2]]}}]
    with pytest.raises(CheckpointError, match=r"a has the shape \[4, 3\] on one rank and \[4, 2\] on another"):
        write_index(tmp_path, two, [], {})
