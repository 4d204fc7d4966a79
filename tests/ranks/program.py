"""One rank of a job that takes one step with each algorithm, mostly in float64, and files gradients and metrics.

RANK=0 WORLD_SIZE=2 … python -m tests.ranks.program FOLDER OUT NAME...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.program import given
from tests.ranks.scenarios import SCENARIOS, Scenario
from torch.distributed.tensor import DTensor

import posttrain.train.setup as setup
from posttrain.config import RunConfig, load_config
from posttrain.experience import references
from posttrain.models import acceleration, policy, sharding
from posttrain.models.entering import whole
from posttrain.models.layout import everywhere
from posttrain.ranks.agreement import ONE, Ranks
from posttrain.ranks.environment import place_of_process
from posttrain.ranks.group import ProcessRanks
from posttrain.train.followers import END
from posttrain.train.guards import NonFinite
from posttrain.train.loop import train_step
from posttrain.train.trainer import Trainer
from posttrain.types import Batch, Experience


def main(folder: Path, out: Path, names: list[str]) -> None:
    acceleration.register(None)
    place = place_of_process()
    ranks: Ranks = ONE if place is None else ProcessRanks(place, deadline=120)
    if isinstance(ranks, ProcessRanks):
        ranks.inside = True  # every rank runs this program, so nothing is announced
    found = {name: one_step(folder, name, ranks) for name in names or SCENARIOS}
    if ranks.rank == 0:
        torch.save(found, out)


@contextmanager
def everything_in_float64() -> Iterator[None]:
    """A context in which the library loads every model in float64."""
    made_by = ((setup, "load_policy"), (setup, "load_scoring_model"), (setup, "build_critic"), (policy, "load_model"))
    with pytest.MonkeyPatch.context() as patch:
        for module, name in made_by:
            patch.setattr(module, name, partial(in_float64, getattr(module, name)))
        for module in (policy, references):  # a frozen model does not stay in the float32 of the computation
            patch.setattr(module, "hold_in", lambda model, dtype: model)
        yield


def in_float64(make: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """A model that the library loads, converted to float64."""
    made = make(*args, **how)
    if getattr(getattr(made, "model", None), "config", None) and "Moe" in type(made.model).__name__:
        return made  # PyTorch has no grouped products in float64
    for part in filter(None, (getattr(made, name, None) for name in ("model", "trunk", "head"))):
        part.double()
        for module in part.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = partial(exact_norm, module)
            elif hasattr(module, "inv_freq"):
                module.forward = partial(exact_rotary, module)
    return made


def exact_norm(module: Any, x_LD: torch.Tensor) -> torch.Tensor:
    """transformers computes norms in float32, whose last bit depends on the number of rows in the batch."""
    return module.weight * x_LD * (x_LD.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()


def exact_rotary(module: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotary factors in float64, for the same reason."""
    angles = position_ids[..., None].double() * module.inv_freq.double()
    both = torch.cat([angles, angles], dim=-1)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


def one_step(folder: Path, name: str, ranks: Ranks) -> dict[str, Any]:
    with everything_in_float64() if SCENARIOS[name].precision == "float64" else nullcontext():
        return step_of(folder, SCENARIOS[name], ranks)


def step_of(folder: Path, scenario: Scenario, ranks: Ranks) -> dict[str, Any]:
    config = config_of(folder, scenario)
    trainer = build(config, folder, ranks)
    experience = rows_for(scenario, config)
    gradients: dict[str, torch.Tensor] = {}
    step = trainer.optimizer.step

    def seen(*args: Any, **how: Any) -> Any:
        for key, parameter in parameters(trainer).items():
            if parameter.grad is not None:
                gradient = everywhere(parameter.grad) if isinstance(parameter.grad, DTensor) else parameter.grad
                gradients[f"{len(gradients)} {key}"] = gradient.detach().clone()
        return step(*args, **how)

    trainer.optimizer.step = seen  # type: ignore[method-assign]
    _, log = train_step(trainer, experience, 1)
    weights = {key: whole(parameter).detach().clone() for key, parameter in parameters(trainer).items()}
    alone = scored_alone(trainer, experience, ranks)
    return {"gradients": gradients, "metrics": log.reduce(), "weights": weights, "alone": alone}


def config_of(folder: Path, scenario: Scenario) -> RunConfig:
    precision = "bfloat16" if scenario.precision == "bfloat16" else "float32"
    return load_config(
        {
            "algorithm": scenario.algorithm,
            "data": {"train": str(folder / "unread.jsonl")},
            "output": str(folder / "run"),
            **{key: str(folder / "qwen3") if value == "TEACHER" else value for key, value in scenario.settings.items()},
            "train": {"steps": 2, "learning_rate": 1e-3, "tokens_per_microbatch": 60, **scenario.train},
            "model": {"path": str(folder / scenario.model), "precision": precision},
        }
    ).config


@torch.no_grad()
def scored_alone(trainer: Trainer, experience: Experience | Batch, ranks: Ranks) -> torch.Tensor:
    """Scores of all rows by the first rank, sent to the others; passes of the other ranks are discarded."""
    batch = Batch.from_experience(experience) if isinstance(experience, Experience) else experience
    if ranks.rank > 0:
        assert isinstance(ranks, ProcessRanks)
        for _, arguments in iter(ranks.follow, (END, ())):
            sharding.accompany(*arguments)
        return torch.empty(0)
    if isinstance(ranks, ProcessRanks):
        ranks.inside = False
    outputs = trainer.forward(batch)
    with ranks.together(END):
        pass
    if isinstance(ranks, ProcessRanks):
        ranks.inside = True
    return outputs.logprobs_BT if outputs.scores_B is None else outputs.scores_B


def rows_for(scenario: Scenario, config: RunConfig) -> Experience | Batch:
    """Rows of random letters, with the columns that the algorithm needs in addition to rewards."""
    experience, algorithm = given(config), config.algorithm.build()
    if isinstance(experience, Experience):
        rewards_PG = experience.rewards_PG
        if algorithm.key == "pass_at_k":  # the algorithm counts right and wrong answers
            experience = replace(experience, rewards_PG=torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0]]))
        if "greedy_reward" in algorithm.needs:
            experience = replace(experience, greedy_rewards_P=rewards_PG.mean(dim=1))
        if algorithm.key == "gdpo":
            both = {"rewards_KPG": torch.stack([rewards_PG, 1 - rewards_PG**2]), "reward_weights_K": torch.ones(2)}
            experience = replace(experience, **both)
    return experience if scenario.rows is None else fewer(experience, scenario.rows)


def parameters(trainer: Trainer) -> dict[str, torch.nn.Parameter]:
    critic = {} if trainer.critic is None else {f"critic.{k}": p for k, p in trainer.critic.parameters.items()}
    return trainer.trained_parameters() | critic


def fewer(experience: Experience | Batch, trained: int) -> Experience | Batch:
    """The same rows, only the first few of which are trained."""
    mask_BT = experience.completion_mask_BT.clone()
    mask_BT[trained:] = False
    return replace(experience, completion_mask_BT=mask_BT)


def build(config: RunConfig, folder: Path, ranks: Ranks) -> Trainer:
    algorithm = config.algorithm.build()
    beside = {"numbers": NonFinite(lambda step, rows: folder / "evidence"), "publish": lambda step: {}}
    sharding._sharded.clear()
    if "scores" in algorithm.needs:
        return setup.Scorer.of(config, algorithm, folder / "run", ranks).trainer(config, **beside)
    return setup.Policy.of(config, algorithm, folder / "run", ranks).trainer(config, [], **beside)[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
