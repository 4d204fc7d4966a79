"""Training steps on the stand-in for a CUDA device, in a separate process: accounts as JSON on standard output.

    python -m tests.gpu.program FOLDER NAME...

Each name is a scenario: an algorithm with its settings and, in some scenarios, a fault planted into the loop.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.gpu import cuda_standin

if __name__ == "__main__":
    cuda_standin.load(Path(sys.argv[1]))

import torch
from tests.gpu.scenarios import SCENARIOS, Scenario

from posttrain.algorithms import ALGORITHMS
from posttrain.config import RunConfig, load_config
from posttrain.models.scoring import HEADS, ScoringForward, load_scoring_model
from posttrain.train.advantages import OfGivenData
from posttrain.train.guards import NonFinite
from posttrain.train.loop import train_step
from posttrain.train.optimizer import Updater
from posttrain.train.setup import Policy
from posttrain.train.trainer import Trainer
from posttrain.types import Batch, Experience, Mismatched, Tokens

ROWS, WIDTH, PROMPT = 8, 32, 20
"""Number of rows of two prompts, which share their first 20 tokens."""


def main(folder: Path, names: list[str]) -> None:
    found = {name: account_of(folder, SCENARIOS[name]) for name in names}
    json.dump(found, sys.stdout)


def account_of(folder: Path, scenario: Scenario) -> dict[str, Any]:
    """Waits, launches and bytes of the first step of training."""
    config = load_config(
        {
            "algorithm": scenario.algorithm,
            "data": {"train": str(folder / "unread.jsonl")},
            "train": {"steps": 2, "learning_rate": 1e-3, "tokens_per_microbatch": 60, **scenario.train},
            "output": str(folder / "run"),
            "teacher": str(folder / scenario.model) if "teacher" in needs_of(scenario) else None,
            **scenario.settings,
            "model": {"path": str(folder / scenario.model), **scenario.settings.get("model", {})},
        }
    ).config
    with cuda_standin.a_device() as device, ExitStack() as planted:
        trainer = build(config, folder)
        experience = given(config)
        assert trainer.forward.shares_prefixes  # how the models are run is decided before the counting starts
        if scenario.plant is not None:
            planted.enter_context(PLANTED[scenario.plant](trainer))
        try:
            with device.counting() as account:
                _, log = train_step(trainer, experience, 1)
                metrics = log.reduce()
        except cuda_standin.WrongDevice as error:
            return {"wrong_device": str(error)}
    return {
        "waits": dict(account.places()),
        "unsafe": account.unsafe(),
        "launches": account.launches,
        "moved": account.moved,
        "copies": dict(account.copies),
        "operations": dict(account.operations),
        "casts": dict(account.casts),
        "cast_matrices": dict(account.cast_matrices),
        "metrics": metrics,
        "microbatches": len(trainer._micros(minibatch(experience), trainer.room.tokens)),
    }


def needs_of(scenario: Scenario) -> frozenset[str]:
    name = scenario.algorithm if isinstance(scenario.algorithm, str) else scenario.algorithm["name"]
    return ALGORITHMS[name]().needs


def build(config: RunConfig, folder: Path) -> Trainer:
    """The trainer as a run has it, without data and without a sampler."""
    algorithm = config.algorithm.build()
    beside = {"numbers": NonFinite(lambda step, rows: folder / "evidence"), "publish": lambda step: {}}
    if "scores" not in algorithm.needs:
        return Policy.of(config, algorithm, folder / "run").trainer(config, [], **beside)[0]
    loaded = load_scoring_model(config, HEADS[algorithm.data_kind])
    return Trainer(
        config=config,
        algorithm=algorithm,
        loaded=loaded,
        forward=ScoringForward(loaded, HEADS[algorithm.data_kind].score),
        advantages=OfGivenData(algorithm, []),
        optimizer=Updater(loaded.model.parameters(), config.train),
        **beside,
    )


def given(config: RunConfig) -> Experience | Batch:
    """Rows of random letters, with a prompt of 20 tokens and answers of up to 12, in the form that the algorithm
    needs."""
    dice = torch.Generator().manual_seed(0)
    prompts_PT = torch.randint(3, 30, (2, PROMPT), generator=dice)
    answers_BT = torch.randint(3, 30, (ROWS, WIDTH - PROMPT), generator=dice)
    ids_BT = torch.cat([prompts_PT.repeat_interleave(ROWS // 2, dim=0), answers_BT], dim=1)
    lengths_B = torch.tensor([32, 25, 31, 28, 30, 22, 32, 27])
    places_T = torch.arange(WIDTH)
    mask_BT = (places_T >= PROMPT) & (places_T < lengths_B[:, None])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B)
    kind = config.algorithm.build().data_kind
    logprobs_BT = torch.where(mask_BT, -torch.rand(ROWS, WIDTH, generator=dice), 0.0)
    if kind == "examples":
        return Batch.from_examples(mask_BT, tokens=tokens)
    if kind == "labels":
        return Batch.from_labels(
            mask_BT, torch.arange(ROWS) % 2 == 0, logprobs_BT, tokens=tokens, mismatched=shifted(tokens, mask_BT)
        )
    if kind == "ratings":
        return Batch.from_ratings(mask_BT, torch.rand(ROWS, generator=dice), tokens=tokens)
    if kind == "steps":
        ends_BT = mask_BT & (places_T % 4 == 3)
        return Batch.from_steps(ends_BT, torch.where(ends_BT, (places_T % 8 == 3).float(), 0.0), tokens=tokens)
    if kind == "pairs":
        rows = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # the two answers of a pair share a prompt
        return Batch.from_pairs(mask_BT[rows], logprobs_BT[rows], tokens=tokens.rows(rows))
    return Experience.from_rewards(
        torch.rand(2, ROWS // 2, generator=dice),
        completion_mask_BT=mask_BT,
        sampling_logprobs_BT=logprobs_BT,
        tokens=tokens,
    )


def shifted(tokens: Tokens, mask_BT: torch.Tensor) -> Mismatched:
    """Each prompt with the answer of the next row."""
    ids_BT = torch.cat([tokens.input_ids_BT[:, :PROMPT], tokens.input_ids_BT.roll(-1, 0)[:, PROMPT:]], dim=1)
    lengths_B, rolled_BT = tokens.lengths_B.roll(-1, 0), mask_BT.roll(-1, 0)
    return Mismatched(
        tokens=Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B),
        completion_mask_BT=rolled_BT,
        ref_logprobs_BT=torch.where(rolled_BT, -1.0, 0.0),
    )


def minibatch(experience: Experience | Batch) -> Batch:
    return experience if isinstance(experience, Batch) else Batch.from_experience(experience)


# --- planted faults, each of which the stand-in must find ------------------------------------------------------------


def _around_the_loss(change: Callable[[torch.Tensor], Any]) -> Callable[[Trainer], Any]:
    def plant(trainer: Trainer) -> Any:
        stack, loss = ExitStack(), type(trainer.algorithm).loss

        def planted_loss(algorithm: Any, outputs: Any, batch: Any, totals: Any) -> Any:
            change(outputs.logprobs_BT)
            return loss(algorithm, outputs, batch, totals)

        type(trainer.algorithm).loss = planted_loss  # type: ignore[method-assign]
        stack.callback(setattr, type(trainer.algorithm), "loss", loss)
        return stack

    return plant


def _written_during_a_copy(logprobs_BT: torch.Tensor) -> None:
    pinned = torch.zeros(4).pin_memory()
    pinned.to(logprobs_BT.device, non_blocking=True)
    pinned.fill_(1.0)


PLANTED: dict[str, Callable[[Trainer], Any]] = {
    "item": _around_the_loss(lambda logprobs_BT: logprobs_BT.sum().item()),
    "cpu tensor": _around_the_loss(lambda logprobs_BT: logprobs_BT + torch.ones(logprobs_BT.shape)),
    "blocking copy": _around_the_loss(lambda logprobs_BT: torch.ones(3).to(logprobs_BT.device)),
    "missing wait": _around_the_loss(_written_during_a_copy),
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
