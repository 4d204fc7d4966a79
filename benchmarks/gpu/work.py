"""The work for both libraries: models with the shapes of Qwen2.5 and random weights, and the lengths of a step's rows.

Nothing is downloaded, because speed depends on the shapes alone. They are taken from config.json of Qwen/Qwen2.5-0.5B,
-1.5B and -3B, with tied embeddings and the same vocabulary. The models are Llamas, which have no biases, because
transformers would treat any tokenizer of a `qwen2` as Qwen's own.

    FLOPs of a training step    6 N c + 6 n h s + 6 D V t

N weights of the layers' matrices, c tokens that must be computed, n layers, h width of all heads together, s sum of L^2
over sequences of L tokens, D V weights of the output head, t trained tokens. The formula has 6 for each weight and
token and 12 n h L for the attention of each token (PaLM, arXiv:2204.02311, appendix B), halved because attention is
causal. The head counts only for trained tokens, and a prompt counts once for its group. A library that computes or
recomputes more gets no credit for it.

    python -m benchmarks.gpu.work FOLDER MODEL DEVICE    write one workload
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.speed import workload
from benchmarks.speed.workload import Shape, heavy_tailed

_QWEN = {"architecture": "llama", "tie_word_embeddings": True, "vocab_size": 151_936, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "0.5b": _QWEN | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5b": _QWEN
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "3b": _QWEN
    | {"hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "tiny": _QWEN
    | {"vocab_size": 512, "num_key_value_heads": 1}
    | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2},
}
SHAPES: dict[str, Shape] = {
    "step": heavy_tailed([64 + 12 * place for place in range(16)], mean=180, longest=512),
    "tiny": heavy_tailed([12, 17], mean=6, longest=24),
}
"""The shape `step` has 128 rows and 26 thousand sampled tokens."""


def write(folder: Path, model: str, device: str) -> Path:
    """Write the workload of a model below `folder`, unless it exists, and return its folder."""
    shape = "tiny" if model == "tiny" else "step"
    return workload.write_work(folder, model, MODELS[model], shape, SHAPES[shape], device=device)


def rows_of(task: str, work: dict[str, Any]) -> list[tuple[int, int]]:
    """Numbers of (prompt, completion) tokens of the rows that a step trains on. A pair is two rows; SFT has four rows
    for each prompt."""
    groups = zip(work["prompt_lengths"], work["lengths"], strict=True)
    of_each = {"grpo": None, "dpo": 4, "sft": 4}[task]
    return [(prompt, n) for prompt, group in groups for n in group[:of_each]]


def prompts_of(task: str, work: dict[str, Any]) -> list[int]:
    """Numbers of tokens of the prompts that the model must compute: once for each group, pair or example. Two pairs
    share a prompt."""
    times = {"grpo": 1, "dpo": 2, "sft": 4}[task]
    return [prompt for prompt in work["prompt_lengths"] for _ in range(times)]


def step_flops(task: str, work: dict[str, Any]) -> float:
    """FLOPs of the training of one step. DPO adds a forward pass of the reference model, which is a third of that.

    >>> model = {"hidden_size": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 3}
    >>> model |= {"num_hidden_layers": 1, "vocab_size": 5}
    >>> step_flops("grpo", {"model": model, "prompt_lengths": [2], "lengths": [[1, 1]]})
    1104.0

    That is 6 (34 weights x 4 tokens + 2 x (2^2 + 5 + 5) + 10 x 2 tokens).
    """
    model, rows, prompts = work["model"], rows_of(task, work), prompts_of(task, work)
    width = model.get("head_dim", model["hidden_size"] // model["num_attention_heads"])
    heads, keys = width * model["num_attention_heads"], width * model["num_key_value_heads"]
    hidden, layers, trained = model["hidden_size"], model["num_hidden_layers"], sum(n for _, n in rows)
    weights = layers * (2 * hidden * heads + 2 * hidden * keys + 3 * hidden * model["intermediate_size"])
    seen = sum(prompt**2 for prompt in prompts) + sum(n * (n + 2 * prompt) for prompt, n in rows)
    head = hidden * model["vocab_size"] * trained
    flops = 6.0 * (weights * (sum(prompts) + trained) + layers * heads * seen + head)
    return flops * (4 / 3 if task == "dpo" else 1)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:])
