"""The work for every side: models with random weights, prompts, forced completion lengths, pairs and examples.

A workload is written to a folder once, as files that each library reads in its own way: `model/` in the format of
transformers with a tokenizer, `prompts.jsonl`, `pairs.jsonl`, `examples.jsonl`, `reward.py`, and `work.json`. The
latter has the lengths, and the given completions for the check that both sides compute the same.

Every word is one token, so that a text of n words has n tokens on every side.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUP_SIZE = 8
"""Number of completions for each prompt."""
FIRST_WORD = 3
"""Id of the first word. Lower ids are padding, BOS and EOS."""
REWARD = '''"""A trivial reward that differs within a group: the letters of the answer, modulo a prime."""


def reward(prompts, completions, **columns):
    return [float(len(completion) % 11) for completion in completions]
'''


@dataclass(frozen=True)
class Shape:
    """Prompt lengths and, for each prompt, the forced lengths of its completions, in tokens."""

    prompts: list[int]
    completions: list[list[int]]

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Numbers of (prompt, completion) tokens of every row."""
        return [(prompt, n) for prompt, group in zip(self.prompts, self.completions, strict=True) for n in group]

    def tokens(self) -> dict[str, int]:
        """Numbers of tokens of the step: sampled, padded to a rectangle, real, and with each prompt counted once."""
        sampled = sum(map(sum, self.completions))
        longest = max(self.prompts) + max(map(max, self.completions))
        return {
            "sampled": sampled,
            "padded": longest * len(self.rows),
            "real": sampled + sum(prompt for prompt, _ in self.rows),
            "shared": sampled + sum(self.prompts),
        }


def heavy_tailed(prompts: Sequence[int], *, mean: float, longest: int, seed: int = 0) -> Shape:
    """A shape in which most answers are short and a few reach the limit: exponential lengths from 8 tokens on."""
    dice = random.Random(seed)
    draw = lambda: min(longest, 8 + int(dice.expovariate(1 / mean)))  # noqa: E731
    return Shape(list(prompts), [[draw() for _ in range(GROUP_SIZE)] for _ in prompts])


SHAPES = {
    "short": heavy_tailed((32, 41, 55, 68, 80, 91, 106, 128), mean=45, longest=128),
    "long": heavy_tailed((256, 296, 328, 360, 400, 432, 472, 512), mean=45, longest=128),
    "uniform": Shape([64] * 8, [[64] * GROUP_SIZE] * 8),
}

_LLAMA = {"architecture": "llama", "tie_word_embeddings": True}
MODELS: dict[str, dict[str, Any]] = {
    "small": _LLAMA
    | {"vocab_size": 1536, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6}
    | {"num_attention_heads": 6, "num_key_value_heads": 3},
    "large": _LLAMA
    | {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "num_key_value_heads": 12},
    "qwen3": {"architecture": "qwen3", "tie_word_embeddings": False, "head_dim": 64}
    | {"vocab_size": 16000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
    | {"num_attention_heads": 8, "num_key_value_heads": 2},
    "moe": {"architecture": "qwen3_moe", "tie_word_embeddings": False, "head_dim": 32}
    | {"vocab_size": 4096, "hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 6}
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2},
}


def write(folder: Path, model: str, shape: str) -> Path:
    """Write the workload of one model and one shape below `folder`, unless it exists, and return its folder."""
    return write_work(folder, model, MODELS[model], shape, SHAPES[shape])


def write_work(
    folder: Path, model: str, settings: dict[str, Any], shape: str, work: Shape, *, device: str = "cpu"
) -> Path:
    """Write the workload of any model and shape. On a GPU, the weights are made there and stored in bfloat16."""
    target = folder / f"{model}-{shape}"
    if (target / "work.json").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    vocabulary = settings["vocab_size"]
    facts = _write_model(target / "model", settings, device)
    dice = random.Random(1)

    def words(length: int) -> str:
        return " ".join(f"w{dice.randrange(FIRST_WORD, vocabulary)}" for _ in range(length))

    prompts = [words(length) for length in work.prompts]
    _write_rows(target / "prompts.jsonl", [{"prompt": prompt} for prompt in prompts])
    _write_rows(target / "pairs.jsonl", _pairs(prompts, work, words))
    _write_rows(target / "examples.jsonl", _examples(prompts, work, words))
    (target / "reward.py").write_text(REWARD)
    given = [[[dice.randrange(FIRST_WORD, vocabulary) for _ in range(n)] for n in group] for group in work.completions]
    record = {"model": {"name": model, **facts}, "shape": shape, "tokens": work.tokens()}
    record |= {"lengths": work.completions, "prompt_lengths": work.prompts, "given": given}
    (target / "work.json").write_text(json.dumps(record))
    return target


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "work.json").read_text())


def _pairs(prompts: Sequence[str], work: Shape, words: Any) -> list[dict[str, str]]:
    """Two pairs for each prompt, sixteen in a step."""
    rows = zip(prompts, work.completions, strict=True)
    return [
        {"prompt": prompt, "chosen": " " + words(group[2 * i]), "rejected": " " + words(group[2 * i + 1])}
        for prompt, group in rows
        for i in range(2)
    ]


def _examples(prompts: Sequence[str], work: Shape, words: Any) -> list[dict[str, str]]:
    """Four examples for each prompt length, thirty-two in a step. No two of them share a prompt."""
    rows = zip(work.prompts, work.completions, strict=True)
    return [{"prompt": words(prompt), "completion": " " + words(n)} for prompt, group in rows for n in group[:4]]


def _write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_model(folder: Path, settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Write a model with random weights and a tokenizer with one token for each word; return facts about the model."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    settings = dict(settings)
    config = AutoConfig.for_model(settings.pop("architecture"), max_position_embeddings=1024, **settings)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 1, 2
    torch.manual_seed(0)
    with torch.device(device):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config.update(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model.save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"w{number}": number for number in range(FIRST_WORD, config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "architecture": config.model_type, **settings}
