"""Random data of any kind for one whole optimizer step, to test an algorithm.

The step has everything that breaks losses: rows of different lengths, gaps in the mask, a row without trained tokens, a
completion without a reward, log-ratios on both sides of each usual clip, and nan or infinity where no loss may read.

P prompts, G completions each, B = P·G rows, T tokens, K rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from posttrain.algorithms import Algorithm
from posttrain.types import Batch, Experience, Outputs

NAN = float("nan")
P, G, T = 3, 4, 7
ROWS = P * G
Raw = Experience | Batch
"""A step before the algorithm processes it: sampled experience, or given rows."""


def raw_step(algorithm: Algorithm, seed: int = 0) -> Raw:
    """Return twelve random rows of the kind of data that the algorithm learns from."""
    if algorithm.data_kind in ("prompts", "examples"):
        return make_experience(seed)
    return random_step(algorithm.data_kind, seed)[1]


def make_experience(seed: int = 0) -> Experience:
    """Return three prompts with four completions each: gaps in the mask, one empty, one unscored, nan elsewhere.

    The ratios stay away from the kinks of the clips at 0.8, 1.2, 1.28 and 1.5.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = P * G

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask_BT = uniform(rows, T) < 0.7
    mask_BT[:, 0] = False
    mask_BT[5] = False
    log_ratios = torch.tensor([-0.6, -0.1, 0.02, 0.05, 0.3, 0.9], dtype=torch.float64)
    old_BT = -2 * uniform(rows, T)
    outside = ~mask_BT
    rewards_KPG = uniform(2, P, G)
    rewards_PG = rewards_KPG.mean(dim=0)
    rewards_PG[2, 1] = NAN
    return Experience.from_rewards(
        rewards_PG,
        rewards_KPG=rewards_KPG,
        greedy_rewards_P=uniform(P),
        values_BT=uniform(rows, T).masked_fill(outside, NAN),
        teacher_logprobs_BT=(old_BT + uniform(rows, T) - 0.5).masked_fill(outside, NAN),
        completion_mask_BT=mask_BT,
        old_logprobs_BT=old_BT.masked_fill(outside, NAN),
        sampling_logprobs_BT=(old_BT + log_ratios[(6 * uniform(rows, T)).long()]).masked_fill(outside, -torch.inf),
        ref_logprobs_BT=(old_BT + 0.4 * uniform(rows, T) - 0.2).masked_fill(outside, torch.inf),
        squared_probs_BT=((2 * old_BT).exp() + 0.2 * uniform(rows, T)).masked_fill(outside, NAN),
    )


def random_step(kind: str, seed: int, pairs: int = 6, columns: int = 8) -> tuple[Tensor, Batch]:
    """Return log-probabilities with gradient, and a batch: gaps in the mask, one empty row, nan or infinity outside."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask_BT = uniform(2 * pairs, columns) < 0.6
    mask_BT[:, 0], mask_BT[:, 1], mask_BT[pairs + 2] = False, True, False
    logprobs_BT = (-2 * uniform(*mask_BT.shape) - 0.1).masked_fill(~mask_BT, NAN).requires_grad_()
    ref_BT = (-2 * uniform(*mask_BT.shape) - 0.1).masked_fill(~mask_BT, torch.inf)
    if kind == "pairs":
        batch = Batch.from_pairs(mask_BT, ref_BT)
    elif kind == "labels":
        mismatched_B = (uniform(2 * pairs) - 0.3).where(mask_BT.any(dim=-1), NAN)
        batch = Batch.from_labels(mask_BT, uniform(2 * pairs) < 0.5, ref_BT, mismatched_B)
    elif kind == "ratings":
        batch = Batch.from_ratings(mask_BT, uniform(2 * pairs))
    else:
        batch = Batch.from_steps(mask_BT, (uniform(*mask_BT.shape) < 0.5).double())
    return logprobs_BT, replace(batch, current_logprobs_BT=logprobs_BT.detach())


def make_outputs(raw: Raw, *, scores: bool = False) -> Outputs:
    """Return the outputs of a forward pass, as leaves with gradient. The sampler's log-probabilities stand in for those
    of an updated policy. Entropies, values and scores are computed from the log-probabilities."""
    moved_BT = raw.sampling_logprobs_BT if isinstance(raw, Experience) else raw.current_logprobs_BT
    assert moved_BT is not None
    logprobs_BT = moved_BT.detach().clone().requires_grad_()
    entropy_BT = (1 + logprobs_BT.detach() ** 2).requires_grad_()
    values_BT = (0.3 * logprobs_BT.detach() + 0.4).requires_grad_()
    outputs = Outputs(logprobs_BT=logprobs_BT, entropy_BT=entropy_BT, values_BT=values_BT)
    if not scores:
        return outputs
    ends_BT = logprobs_BT.detach().masked_fill(~raw.completion_mask_BT, 0.0)
    return replace(
        outputs,
        scores_B=(0.7 * ends_BT.sum(dim=-1) + 1).requires_grad_(),
        scores_BT=(1 + 0.7 * logprobs_BT.detach()).requires_grad_(),
    )


def make_batch(algorithm: Algorithm, raw: Raw) -> Batch:
    """Return the batch that the algorithm makes from the step, after `prepare`."""
    if isinstance(raw, Batch):
        return algorithm.prepare(raw)
    batch = Batch.from_experience(raw)
    if algorithm.data_kind == "prompts":
        batch = algorithm.to_batch(raw, algorithm.initial_state())
    assert batch.sampling_logprobs_BT is not None
    entropy_BT = 1 + batch.sampling_logprobs_BT**2
    looked = replace(batch, current_logprobs_BT=batch.sampling_logprobs_BT, current_entropy_BT=entropy_BT)
    return algorithm.prepare(looked)


def rows_of(outputs: Outputs, index: Tensor | Sequence[int]) -> Outputs:
    """Return the outputs of the rows in `index`."""
    return outputs.each(lambda x: x[index])


def leaves_of(outputs: Outputs) -> dict[str, Tensor]:
    """Return the output tensors that require a gradient."""
    found = {field.name: getattr(outputs, field.name) for field in fields(outputs)}
    return {name: x for name, x in found.items() if isinstance(x, Tensor) and x.requires_grad}


def gradients(outputs: Outputs, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient with respect to each output; 0 for an output that the loss does not read."""
    leaves = leaves_of(outputs)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(x) if gradient is None else gradient
        for (name, x), gradient in zip(leaves.items(), found, strict=True)
    }


def padded(raw: Raw, columns: int) -> Raw:
    """Return the step with `columns` additional columns of nan."""
    wide = {
        field.name: _pad(x, columns)
        for field in fields(raw)
        if field.name.endswith("_BT") and isinstance(x := getattr(raw, field.name), Tensor)
    }
    return replace(raw, **wide)


def _pad(x_BT: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(x_BT, (0, columns), value=False if x_BT.dtype == torch.bool else NAN)


def select(experience: Experience, prompts: Sequence[int], members: Sequence[int]) -> tuple[Experience, Tensor]:
    """Return the experience with reordered prompts and completions, and the old index of each row."""
    index_B = torch.tensor([p * G + g for p in prompts for g in members])
    prompts, members = list(prompts), list(members)
    tensors = {f.name: getattr(experience, f.name) for f in fields(experience)}
    by_row = {n: v[index_B] for n, v in tensors.items() if isinstance(v, Tensor) and n.endswith("_BT")}
    by_group = {n: v[prompts][:, members] for n, v in tensors.items() if isinstance(v, Tensor) and n.endswith("_PG")}
    by_reward = {"rewards_KPG": experience.rewards_KPG[:, prompts][:, :, members]}  # type: ignore[index]
    by_prompt = {"greedy_rewards_P": experience.greedy_rewards_P[prompts]}  # type: ignore[index]
    return replace(experience, **by_row, **by_group | by_reward | by_prompt), index_B
