"""Sampling with transformers alone: `generate` on a padded batch, or its continuous batching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.gate import Gate
from benchmarks.speed.sides.forced import force_requests, force_rows
from benchmarks.speed.workload import GROUP_SIZE, read
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def sampling_alone(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Sample all completions of a step; `settings` are `dtype` and `continuous`."""
    lengths = [length for group in read(folder)["lengths"] for length in group]
    dtype = getattr(torch, settings["dtype"])
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
    rows = [json.loads(line)["prompt"] for line in (folder / "prompts.jsonl").read_text().splitlines()]
    texts = [text for text in rows for _ in range(GROUP_SIZE)]
    drawn = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=max(lengths), pad_token_id=0, eos_token_id=2, disable_compile=True
    )
    if settings.get("continuous"):
        force_requests(gate, lengths)
    else:
        force_rows(model, gate, lengths)
    with torch.no_grad():
        while True:
            if settings.get("continuous"):
                found = model.generate_batch(tokenizer(texts)["input_ids"], generation_config=drawn)
                tokens = sum(len(output.generated_tokens) for output in found.values())
            else:
                inputs = tokenizer(texts, return_tensors="pt", padding=True)
                model.generate(**inputs, generation_config=drawn)
                tokens = sum(gate.lengths(lengths))
            gate.turn(tokens=tokens)
