"""From groups to experience: token ids and per-token numbers into `[B, T]`, rewards into `[P, G]`.

Row p * G + g is completion g of group p. Prompts and an environment's text are context. The mask is True only on
sampled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.data.collate import collate_examples, pad_rows
from posttrain.experience.group import Group, completions_of, rewards_of, scores_of
from posttrain.rewards.scores import Scores
from posttrain.types import Batch, Example, Experience, whole_pairs


def experience_of(
    groups: Sequence[Group],
    greedy: Sequence[Group] = (),
    weights: Sequence[float] | None = None,
    *,
    pad_id: int,
    version: int,
    max_lag: int | None = None,
) -> Experience:
    """Return the experience of a step; `weights` are the rewards' weights, None if nothing is learned from rewards.

    A pure function of the content of a rollout file.
    """
    experience = assemble(groups, pad_id=pad_id, version=version, max_lag=max_lag)
    return experience if weights is None else with_rewards(experience, groups, weights, greedy)


def assemble(
    groups: Sequence[Group], *, pad_id: int, version: int | None = None, max_lag: int | None = None
) -> Experience:
    """Return the experience without rewards: each completion counts as scored, with reward 0, until `with_rewards`.

    Tokens that are older than `max_lag` versions are context: the mask is False on them. A completion keeps its reward,
    which applies to the whole text. Raises ValueError for a token of a version that does not exist yet.
    """
    rows = [
        Example(
            index=group.prompt.index,
            input_ids=(*group.prompt.ids, *completion.ids),
            completion_mask=(False,) * len(group.prompt.ids) + completion.drawn,
        )
        for group in groups
        for completion in group.completions
    ]
    tokens, completion_mask_BT = collate_examples(rows, pad_id)
    tokens = replace(tokens, starts_BT=starts_of(groups, completion_mask_BT))
    completions = completions_of(groups)
    versions_BT = pad_rows([c.versions for c in completions], completion_mask_BT, dtype=torch.long)
    logprobs_BT = pad_rows([c.logprobs for c in completions], completion_mask_BT, dtype=torch.float32)
    drawn_BT = completion_mask_BT
    if version is not None:
        completion_mask_BT = drawn_BT & fresh(versions_BT, drawn_BT, version, max_lag)
    all_fresh = torch.equal(drawn_BT, completion_mask_BT)
    truncated_PG = torch.tensor([[c.truncated for c in group.completions] for group in groups], dtype=torch.bool)
    return Experience.from_rewards(
        torch.zeros(truncated_PG.shape),
        completion_mask_BT=completion_mask_BT,
        sampling_logprobs_BT=logprobs_BT,
        versions_BT=versions_BT,
        truncated_PG=truncated_PG,
        drawn_PG=None if all_fresh else drawn_BT.sum(dim=-1).reshape(truncated_PG.shape),
        version=version,
        tokens=tokens,
    )


def starts_of(groups: Sequence[Group], like_BT: Tensor) -> Tensor | None:
    """Return `[B, T]`: True where a new context begins within a row; None if that happens nowhere."""
    places = [
        (row, len(group.prompt.ids) + start)
        for row, (group, completion) in enumerate((group, one) for group in groups for one in group.completions)
        for start in completion.starts
    ]
    if not places:
        return None
    starts_BT = torch.zeros_like(like_BT)
    starts_BT[tuple(torch.tensor(places).T)] = True
    return starts_BT


def fresh(versions_BT: Tensor, drawn_BT: Tensor, version: int, max_lag: int | None) -> Tensor:
    """Return `[B, T]`: whether a token is at most `max_lag` versions older than the policy that learns from it."""
    lags_BT = version - versions_BT
    if (drawn_BT & (lags_BT < 0)).any():
        newest = int(versions_BT[drawn_BT].max())
        raise ValueError(f"a token of policy version {newest} cannot exist yet at version {version}")
    return torch.ones_like(drawn_BT) if max_lag is None else lags_BT <= max_lag


def with_rewards(
    experience: Experience, groups: Sequence[Group], weights: Sequence[float], greedy: Sequence[Group] = ()
) -> Experience:
    """Return the experience with the groups' rewards, total and by component; `greedy` has the prompts' greedy
    completions."""
    scores = scores_of(groups)
    assert scores is not None, "only scored groups have rewards"
    rewards_PG, scored_PG = rewards_of(groups)
    counted = scores.counted.values()
    token_rewards_BT = None
    if any(numbers is not None for part in scores.tokens.values() for group in part for numbers in group):
        rewards_PG, token_rewards_BT = of_single_tokens(experience, groups, scores, weights)
    rewards_KPG = [[[float("nan") if r is None else r for r in group] for group in part] for part in counted]
    return replace(
        experience,
        rewards_PG=rewards_PG,
        scored_PG=scored_PG,
        rewards_KPG=torch.tensor(rewards_KPG, dtype=torch.float32),
        reward_weights_K=torch.tensor(weights, dtype=torch.float32),
        token_rewards_BT=token_rewards_BT,
        greedy_rewards_P=rewards_of(greedy)[0][:, 0] if greedy else None,
    )


def of_single_tokens(
    experience: Experience, groups: Sequence[Group], scores: Scores, weights: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return `[P, G]` rewards of whole completions, NaN if unscored, and `[B, T]` rewards of single tokens."""
    weight_of = dict(zip(scores.parts, weights, strict=True))
    rest_PG = torch.zeros(len(groups), len(scores.rewards_PG[0]), dtype=torch.float64)
    rows: list[list[float]] = []
    for p, group in enumerate(groups):
        for g, completion in enumerate(group.completions):
            numbers = torch.zeros(len(completion.ids), dtype=torch.float64)
            for label, part in scores.counted.items():
                value, tokens = part[p][g], scores.tokens.get(label)
                if value is None:
                    continue
                if tokens is None or tokens[p][g] is None:
                    rest_PG[p, g] += weight_of[label] * value
                elif is_open_at(scores, label, p, g):
                    numbers += weight_of[label] * torch.tensor(tokens[p][g], dtype=torch.float64)
            start = len(group.prompt.ids)
            trained_T = experience.completion_mask_BT[len(rows), start : start + len(completion.ids)]
            rows.append(numbers[trained_T].tolist())
    rest_PG.masked_fill_(~torch.tensor(scores.scored_PG), torch.nan)
    return rest_PG.float(), pad_rows(rows, experience.completion_mask_BT, dtype=torch.float32)


def is_open_at(scores: Scores, label: str, p: int, g: int) -> bool:
    """Return whether the component counts for this completion."""
    return label not in scores.is_open or scores.is_open[label][p][g] is True


def pair_roles(batch: Batch, groups: Sequence[Group]) -> list[str]:
    """Return the role of each completion in the pairs of its group, for a batch that holds pairs.

    chosen, rejected, or both; tie if the whole group gave no pair; unscored; unused for all others.
    """
    assert batch.row_ids_B is not None, "a batch of pairs has the row index of each completion"
    rows_2N = batch.row_ids_B[torch.stack(batch.pairs)]
    chosen, rejected = (set(side_N[whole_pairs(batch)].tolist()) for side_N in rows_2N)
    completions = completions_of(groups)
    size = len(completions) // max(1, len(groups))
    paired = {row // size for row in rows_2N.flatten().tolist()}

    def role(row: int, scored: bool) -> str:
        sides = [name for name, rows in (("chosen", chosen), ("rejected", rejected)) if row in rows]
        if sides or not scored:
            return " and ".join(sides) or "unscored"
        return "unused" if row // size in paired else "tie"

    scored_B = [True] * len(completions) if groups[0].scores is None else rewards_of(groups)[1].flatten().tolist()
    return [role(row, scored) for row, scored in enumerate(scored_B)]
