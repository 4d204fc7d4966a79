"""Compare sampling through a vLLM server, as in a run, with direct calls of vLLM, and time publications of weights.

    python -m benchmarks.servers

Both decode the same prompts to the same lengths, 64 rows at a time, in float32. They take turns round by round, so that
other load of the machine affects both. The share is the median of the rounds' ratios. The server gets its rows through
the engine port; the direct call is `vllm.LLM.generate` in a process with vLLM's own environment. A publication is timed
from the order to load until hashes and probe have arrived, and until rows may continue; for comparison, a copy of the
same number of bytes is timed.
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
from dataclasses import dataclass, replace
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
from posttrain.engines.vllm.port import ServerSetup, VllmEngine
from posttrain.engines.vllm.served import server_setup
from posttrain.engines.weights import merged_tensors
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path

RESULT = Path(__file__).parent / "results" / "servers.json"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "models"
ROWS, PROMPT, TOKENS, LOADS = 64, 32, 64, 4
ROUNDS = {"stories15M": 15, "110M": 5}
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
    print("READY", flush=True)
    for number, _ in enumerate(sys.stdin):
        how = [SamplingParams(seed=number * 1000 + g, **same) for g in range(len(prompts))]
        began = time.perf_counter()
        answers = llm.generate(prompts, how, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert all(len(one.outputs[0].token_ids) == asked["tokens"] for one in answers)
        print("SECONDS", seconds, flush=True)


if __name__ == "__main__":
    main()
"""


@dataclass
class Directly:
    """vLLM itself, in a separate process that decodes on request."""

    process: subprocess.Popen[str]
    log: Path

    @classmethod
    def start(cls, setup: ServerSetup, prompts: list[list[int]], folder: Path) -> Directly:
        assert setup.launch
        asked, script, log = folder / "asked.json", folder / "direct.py", folder / "direct.log"
        script.write_text(DIRECT)
        told = {"model": str(setup.launch.model), "length": setup.launch.max_model_len}
        asked.write_text(json.dumps(told | {"prompts": prompts, "tokens": TOKENS}))
        cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
        cpu |= {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
        with log.open("w") as errors:
            process = subprocess.Popen(
                [str(interpreter()), str(script), str(asked)],
                env=os.environ | cpu,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        direct = cls(process, log)
        direct.said("READY")
        return direct

    def rate(self) -> float:
        """Do one round, and return its tokens per second."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return ROWS * TOKENS / float(self.said("SECONDS"))

    def said(self, word: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise SystemExit(self.log.read_text()[-3000:])

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measured(name: str, model: Path, folder: Path) -> dict[str, Any]:
    """Measure one model: tokens per second of both ways, and the seconds of a publication."""
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
    setup = replace(setup, eos_ids=())
    engine = VllmEngine(name, setup, files, numbers, proof, folder / "server.log")
    direct: Directly | None = None
    try:
        [ready] = heard(engine)
        assert isinstance(ready, Ready)
        published = Published(files, ready.tensors, write=True)
        loads, waits, copies = list[float](), list[float](), list[float]()
        for version in range(LOADS):
            numbers[version] = version
            published.write(version, merged_tensors(loaded.model))
            copies.append(copied(loaded.model))
            began = time.perf_counter()
            engine.load(version)
            waits.append(rows_waited(engine, began))
            [told] = heard(engine)
            assert isinstance(told, WeightsLoaded)
            loads.append(time.perf_counter() - began)
        direct = Directly.start(setup, prompts, folder)
        rates = [(through_the_port(engine, prompts, number), direct.rate()) for number in range(ROUNDS[name] + 1)][1:]
    finally:
        engine.kill()
        if direct:
            direct.end()
    return {
        "megabytes": sum(tensor.numel() * 4 for tensor in loaded.model.parameters()) / 1e6,
        "port": [port for port, _ in rates],
        "direct": [alone for _, alone in rates],
        "share": statistics.median(port / alone for port, alone in rates),
        "publication": statistics.median(loads[1:]),
        "rows_wait": statistics.median(waits[1:]),
        "copy": statistics.median(copies),
    }


def rows_waited(engine: VllmEngine, began: float) -> float:
    """Seconds until rows may continue after an order to load."""
    for closed in (False, True):
        while engine._open.is_set() is not closed:
            time.sleep(0.001)
    return time.perf_counter() - began


def through_the_port(engine: VllmEngine, prompts: list[list[int]], number: int) -> float:
    """Do one round through the engine port, and return its tokens per second."""
    began = time.perf_counter()
    tasks = [
        Task(row=(number, g), attempt=1, prompt_ids=tuple(ids), seed=number, stream=(g, 0), max_new_tokens=TOKENS)
        for g, ids in enumerate(prompts)
    ]
    engine.submit(tasks)
    drawn = ended = 0
    while ended < ROWS:
        for piece in heard(engine):
            assert isinstance(piece, Piece)
            drawn, ended = drawn + len(piece.ids), ended + (piece.reason is not None)
    return drawn / (time.perf_counter() - began)


def copied(model: torch.nn.Module) -> float:
    """Time to copy all parameters, in seconds."""
    began = time.perf_counter()
    for parameter in model.parameters():
        parameter.detach().clone()
    return time.perf_counter() - began


def heard(engine: VllmEngine) -> list[Any]:
    while True:
        select.select([engine], [], [], 300)
        if found := engine.answers():
            return found


def main() -> None:
    result: dict[str, Any] = {"rows": ROWS, "tokens": TOKENS, "models": {}}
    for name in sys.argv[1:] or ROUNDS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            path = SHARED / name
            if name == "110M":
                path = workload.write(folder, "large", next(iter(workload.SHAPES))) / "model"
            line = measured(name, path, folder)
        result["models"][name] = line
        print(json.dumps({name: line}), flush=True)
    RESULT.write_text(json.dumps(result | {"origin": origin()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
