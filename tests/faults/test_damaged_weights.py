"""Every kind of run names a weight that is not finite, with or without held-out rows."""

from __future__ import annotations

import json
import math
import re

import pytest
from safetensors.torch import load_file, save_file
from tests.tiny import tiny_model

import posttrain
from posttrain.errors import NonFiniteError

DAMAGED = "model.layers.1.mlp.up_proj.weight"
PAIRS = [{"prompt": f"say {n} ", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(12)]
DATA = {
    "pairs": PAIRS,
    "examples": [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS],
    "prompts": [{"prompt": row["prompt"], "answer": row["chosen"]} for row in PAIRS],
}
LEARNS_FROM = {
    "dpo": "pairs",
    "simpo": "pairs",
    "kto": "pairs",
    "sft": "examples",
    "reward_model": "pairs",
    "grpo": "prompts",
}


NUMBERS = (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(
    ("number", "algorithms"),
    [(NUMBERS[0], [*LEARNS_FROM]), (math.inf, ["sft"]), (-math.inf, ["sft"])]
    + [pytest.param(number, [*LEARNS_FROM], marks=pytest.mark.slow) for number in NUMBERS[1:]],
)
def test_it_is_named_before_anything_is_trained(tmp_path, number, algorithms):
    tiny_model(tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights[DAMAGED][3, 4] = number
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    for name, rows in DATA.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for algorithm in algorithms:
        data = LEARNS_FROM[algorithm]
        for held_out in (0.25, 0.0):
            config = {
                "model": str(tmp_path / "model"),
                "algorithm": algorithm,
                "data": {"train": str(tmp_path / f"{data}.jsonl"), "eval_fraction": held_out},
                "rewards": [{"name": "exact_match"}] if data == "prompts" else [],
                "sampling": {"group_size": 2, "max_completion_length": 8},
                "train": {"steps": 1},
                "output": str(tmp_path / f"{algorithm}-{held_out}"),
            }
            with pytest.raises(NonFiniteError, match=rf"1 of the 2048 numbers of {re.escape(DAMAGED)} are not finite"):
                posttrain.train(config)
