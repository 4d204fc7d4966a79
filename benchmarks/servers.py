"""Sampling through a vLLM server as a run does it, beside vLLM called directly; and what a publication costs.

    python -m benchmarks.servers

Both decode the same prompts to the same lengths, 64 rows at once, in float32, and take turns. The server gets its rows
through the engine port; directly is `vllm.LLM.generate` in a process of vLLM's own environment. A publication is timed
from the order to load until hashes and probe are there; beside it a copy of as many bytes.
"""

from __future__ import annotations

import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed import workload
from benchmarks.speed.machine import origin

from posttrain.config import load_config
from posttrain.engine_environment import interpreter
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.port import Piece, Ready, Task, WeightsLoaded
from posttrain.engines.published import Published, new_files
from posttrain.engines.vllm.port import VllmEngine
from posttrain.engines.vllm.served import server_setup
from posttrain.engines.weights import merged_tensors
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path

RESULT = Path(__file__).parent / "results" / "servers.json"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "models"
ROWS, PROMPT, TOKENS, ROUNDS, LOADS = 64, 32, 128, 3, 5
DIRECT = """
import json, sys, time
from vllm import LLM, SamplingParams


def main():
    asked = json.load(open(sys.argv[1]))
    llm = LLM(model=asked["model"], dtype="float32", load_format="dummy", enforce_eager=True, skip_tokenizer_init=True,
              max_model_len=asked["length"], max_num_seqs=64, logprobs_mode="processed_logprobs",
              generation_config="vllm")
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    same = dict(max_tokens=asked["tokens"], ignore_eos=True, logprobs=0, detokenize=False)
    seconds = []
    for number in range(asked["rounds"] + 1):
        how = [SamplingParams(seed=number * 1000 + g, **same) for g in range(len(prompts))]
        began = time.perf_counter()
        answers = llm.generate(prompts, how, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        assert all(len(one.outputs[0].token_ids) == asked["tokens"] for one in answers)
    json.dump(seconds[1:], open(sys.argv[2], "w"))


if __name__ == "__main__":
    main()
"""


def through_the_port(name: str, model: Path, folder: Path) -> dict[str, Any]:
    """Tokens per second, and seconds of a publication."""
    given = {
        "model": {"path": str(model), "device": "cpu", "precision": "float32"},
        "algorithm": {"name": "grpo"},
        "data": {"train": "task:sort", "max_prompt_length": PROMPT},
        "rewards": [{"name": "exact_match"}],
        "sampling": {"max_completion_length": TOKENS, "max_batch_rows": ROWS},
        "rollout": {"engine": "vllm", "deadline": 120},
        "train": {"steps": 1, "prompts_per_step": 8},
    }
    config = load_config(given).config
    loaded = load_model(resolve_model_path(config.model, 0))
    setup = server_setup(
        config.rollout, config.sampling, loaded, folder, 0, longest=PROMPT + TOKENS, threads=os.cpu_count() or 1
    )
    dice = random.Random(0)
    prompts = [[dice.randrange(10, setup.vocabulary) for _ in range(PROMPT)] for _ in range(ROWS)]
    proof = DeliveryProof.from_prompts(prompts[:4], tolerance=1e-3)
    files, numbers = new_files(), dict[int, int]()
    setup = type(setup)(**{**vars(setup), "eos_ids": ()})
    engine = VllmEngine(name, setup, files, numbers, proof, folder / "server.log")
    try:
        [ready] = heard(engine)
        assert isinstance(ready, Ready)
        published, loads, copies = Published(files, ready.tensors, write=True), list[float](), list[float]()
        for version in range(LOADS):
            numbers[version] = version
            began = time.perf_counter()
            published.write(version, merged_tensors(loaded.model))
            copies.append(copied(loaded.model))
            began = time.perf_counter()
            engine.load(version)
            [told] = heard(engine)
            assert isinstance(told, WeightsLoaded)
            loads.append(time.perf_counter() - began)
        rates = list[float]()
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            tasks = [
                Task(
                    row=(number, g), attempt=1, prompt_ids=tuple(ids), seed=number, stream=(g, 0), max_new_tokens=TOKENS
                )
                for g, ids in enumerate(prompts)
            ]
            engine.submit(tasks)
            drawn = ended = 0
            while ended < ROWS:
                for piece in heard(engine):
                    assert isinstance(piece, Piece)
                    drawn, ended = drawn + len(piece.ids), ended + (piece.reason is not None)
            rates.append(drawn / (time.perf_counter() - began))
    finally:
        engine.kill()
    size = sum(tensor.numel() * 4 for tensor in loaded.model.parameters())
    return {
        "megabytes": size / 1e6,
        "port": statistics.median(rates[1:]),
        "ports": rates[1:],
        "publication": statistics.median(loads[1:]),
        "copy": statistics.median(copies),
        "prompts": prompts,
        "served": str(setup.launch.model) if setup.launch else "",
        "length": setup.launch.max_model_len if setup.launch else 0,
    }


def copied(model: torch.nn.Module) -> float:
    """Seconds that a copy of all parameters takes."""
    began = time.perf_counter()
    for parameter in model.parameters():
        parameter.detach().clone()
    return time.perf_counter() - began


def heard(engine: VllmEngine) -> list[Any]:
    while True:
        select.select([engine], [], [], 300)
        if found := engine.answers():
            return found


def directly(found: dict[str, Any], folder: Path) -> float:
    """Tokens per second of vLLM itself."""
    asked, answer, script = folder / "asked.json", folder / "answer.json", folder / "direct.py"
    script.write_text(DIRECT)
    asked.write_text(
        json.dumps(
            {
                "model": found["served"],
                "length": found["length"],
                "prompts": found["prompts"],
                "tokens": TOKENS,
                "rounds": ROUNDS,
            }
        )
    )
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    cpu |= {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
    command = [str(interpreter()), str(script), str(asked), str(answer)]
    with (folder / "direct.log").open("w") as log:
        ended = subprocess.run(command, env=os.environ | cpu, check=False, stdout=log, stderr=log)
    if ended.returncode:
        raise SystemExit((folder / "direct.log").read_text()[-3000:])
    return ROWS * TOKENS / statistics.median(json.loads(answer.read_text()))


def main() -> None:
    result: dict[str, Any] = {"rows": ROWS, "tokens": TOKENS, "models": {}}
    for name in sys.argv[1:] or ("stories15M", "110M"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            path = SHARED / name
            if name == "110M":
                path = workload.write(folder, "large", next(iter(workload.SHAPES))) / "model"
            found = through_the_port(name, path, folder)
            found["direct"] = directly(found, folder)
        line = {key: found[key] for key in ("megabytes", "port", "ports", "direct", "publication", "copy")}
        line["share"] = line["port"] / line["direct"]
        result["models"][name] = line
        print(json.dumps({name: line}), flush=True)
    RESULT.write_text(json.dumps(result | {"origin": origin()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
