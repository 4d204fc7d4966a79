"""Sampling with vLLM on the CPU: one engine in this process, requests of forced length, constant weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.speed.gate import Gate
from benchmarks.speed.workload import GROUP_SIZE, read


def sampling_alone(folder: Path, settings: dict[str, Any], gate: Gate) -> None:
    """Sample all completions of a step, including the prefill; `settings` is `dtype`."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB; the step needs less
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    lengths = [length for group in read(folder)["lengths"] for length in group]
    engine = LLM(
        model=str(folder / "model"),
        dtype=settings["dtype"],
        max_model_len=1024,
        max_num_seqs=len(lengths),
        enable_prefix_caching=True,
        disable_log_stats=True,
        **settings.get("engine", {}),
    )
    rows = [json.loads(line)["prompt"] for line in (folder / "prompts.jsonl").read_text().splitlines()]
    texts = [text for text in rows for _ in range(GROUP_SIZE)]
    while True:
        wanted = [
            SamplingParams(temperature=1.0, ignore_eos=True, min_tokens=n, max_tokens=n) for n in gate.lengths(lengths)
        ]
        outputs = engine.generate(texts, wanted, use_tqdm=False)
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        engine.reset_prefix_cache()  # a policy has new weights in every step
        gate.turn(tokens=tokens)
