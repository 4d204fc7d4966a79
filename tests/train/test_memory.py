"""Out of memory: half as many tokens per pass if that is enough, with the same numbers; else an error that says so."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from tests.catalogue import few
from tests.processes import run_alone
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.errors import DoesNotFit
from posttrain.models.policy import Forward
from posttrain.train.memory import tokens_of, within_memory
from posttrain.train.run import Run

FIX = r"(?s)train.tokens_per_microbatch.*train.gradient_checkpointing = true.*lora.*sampling.max_batch_rows"


def test_a_tensor_that_no_machine_can_hold_does_not_fit():
    with pytest.raises(DoesNotFit, match=FIX) as caught, within_memory():
        torch.empty(2**60)
    assert caught.value.exit_code == 3
    assert "can't allocate memory" in caught.value.given


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to ...\nmore"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("HIP error: out of memory"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_python_and_cuda_say_it_in_their_own_ways(error):
    with pytest.raises(DoesNotFit, match=FIX), within_memory():
        raise error


def test_another_error_is_left_as_it_is():
    with pytest.raises(RuntimeError, match="shapes differ"), within_memory():
        raise RuntimeError("shapes differ")


# --- half as many tokens per pass -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    tiny_model(folder / "model")
    prompts = [json.loads(line) for line in write_prompts(folder / "prompts.jsonl", count=24).read_text().splitlines()]
    pairs = [{"prompt": p["prompt"], "chosen": p["answer"], "rejected": p["prompt"] * 2} for p in prompts]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return folder


def train(folder: Path, name: str, algorithm: str, **more):
    sampled = {"rewards": [{"name": "repetition", "settings": {"n": 1}}]} if algorithm == "grpo" else {}
    config = {
        "model": str(folder / "model"),
        "algorithm": algorithm,
        "data": {"train": str(folder / ("prompts.jsonl" if sampled else "pairs.jsonl"))},
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"writing": 0, "samples": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
        **sampled,
    }
    return posttrain.train(config, **more)


def holding(monkeypatch: pytest.MonkeyPatch, tokens: int, error=torch.OutOfMemoryError, after: int = 0) -> None:
    """Let a backward pass of more than `tokens` tokens run out of memory, after the first `after` passes."""
    forward, passes = Forward.__call__, []

    def limited(self, batch):
        if torch.is_grad_enabled():
            passes.append(batch)
            if tokens_of(batch) > tokens and len(passes) > after:
                raise error("CUDA out of memory. Tried to allocate 9 GiB")
        return forward(self, batch)

    monkeypatch.setattr(Forward, "__call__", limited)


def warnings_of(run) -> list[str]:
    events = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["kind"] == "warning" and "memory" in event["message"]]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", few(["grpo", "dpo"], "grpo"))
def test_a_step_is_computed_again_in_halves_with_the_same_numbers(folder, monkeypatch, algorithm):
    plain = train(folder, f"{algorithm}-plain", algorithm)
    for error, after in ((torch.OutOfMemoryError, 0), (MemoryError, 2)):
        with monkeypatch.context() as patch:
            holding(patch, 60, error, after)
            halved = train(folder, f"{algorithm}-{error.__name__}", algorithm)
        for name in ("loss", "grad_norm"):
            values = [[row[name] for row in run.metrics] for run in (plain, halved)]
            assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-7), name
        said = warnings_of(halved)
        assert said, "the halving is announced and on file"
        assert "computed again with train.tokens_per_microbatch = " in said[0]
        assert halved.trainer.room.tokens < 100
    assert warnings_of(plain) == []


@pytest.mark.slow
def test_a_resumed_run_splits_as_the_other_would_have(folder, monkeypatch):
    with monkeypatch.context() as patch:
        holding(patch, 60)
        halved = train(folder, "to-resume", "dpo", **{"train.steps": 2})
    resumed = posttrain.resume(halved.folder, steps=3)
    assert resumed.trainer.room.tokens == halved.trainer.room.tokens < 100


def test_a_row_that_does_not_fit_by_itself_is_told_before_the_first_step(folder, monkeypatch):
    holding(monkeypatch, 3)
    with pytest.raises(DoesNotFit, match=r"one row of \d+ tokens: CUDA out of memory") as caught:
        train(folder, "too-long", "grpo")
    assert caught.value.exit_code == 3
    assert list((folder / "too-long" / "rollouts").iterdir()) == []


def test_the_longest_rows_are_tried_before_the_first_step_and_change_nothing(folder, monkeypatch):
    """The long pair comes in the very last step, and would end the run there."""
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()][:12]
    long = {"prompt": "a long one ", "chosen": "abc " * 10, "rejected": "abd " * 10}
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, long]))
    settings = {"data": {"train": str(folder / "long.jsonl"), "eval_fraction": 0.0}, "train.prompts_per_step": 2}
    settings["train.steps"] = 7
    holding(monkeypatch, 70)
    with pytest.raises(DoesNotFit, match=r"2 rows that belong together of 1[0-9][0-9] tokens") as caught:
        train(folder, "long", "dpo", **settings)
    assert caught.value.exit_code == 3
    assert not (folder / "long" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_real_memory_that_ends_is_gone_round(folder, tmp_path):
    """A limit of the address space: the CPU allocator fails at it as it does when memory runs out."""
    ended = run_alone(limited_run, str(folder), str(tmp_path / "run"))
    assert ended.exit_code == 0, ended.errors
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    said = [event["message"] for event in events if "out of memory" in event["message"]]
    assert "computed again with train.tokens_per_microbatch" in said[0]
    assert events[-1]["kind"] == "end"


def limited_run(folder: str, output: str) -> None:
    """One step of a wide model on long rows: the whole micro-batch needs more memory than is left, but saving fits."""
    torch.set_num_threads(1)
    place = Path(output).parent
    tiny_model(place / "wide", hidden_size=256, intermediate_size=1024, max_position_embeddings=1024)
    rows = [{"prompt": f"say {n} ", "completion": "abcdefgh " * 60} for n in range(16)]
    (place / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": str(place / "wide"),
        "algorithm": "sft",
        "data": {"train": str(place / "long.jsonl"), "eval_fraction": 0.0},
        "evaluation": {"writing": 0},
        "train": {"steps": 1, "prompts_per_step": 16, "tokens_per_microbatch": 100_000},
        "output": output,
        "report": False,
    }
    posttrain.train(
        {**config, "train": {**config["train"], "tokens_per_microbatch": 600}, "output": output + "-before"}
    )
    save = Run.save

    def save_without_limit(run: Run, *, required: bool = False) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        save(run, required=required)

    Run.save = save_without_limit
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 150 * 2**20, resource.RLIM_INFINITY))
    posttrain.train(config)
