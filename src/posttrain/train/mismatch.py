"""Metrics of how far engine and trainer log-probabilities differ, and the search for the cause (watch/bisection.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from posttrain.algorithms.metrics import if_any
from posttrain.engines.decoding import accepted_arguments
from posttrain.engines.port import Token
from posttrain.engines.weights import plain_copy, write_tensors
from posttrain.functional.readings import nothing_in, number, picked
from posttrain.models.entering import computes_on, enter, is_sharded
from posttrain.models.forward_path import causal_lm
from posttrain.models.microbatches import plan_microbatches
from posttrain.models.modes import evaluating
from posttrain.train.memory import free_memory, reason_of, tried
from posttrain.types import Batch, Completion, Max, Mean, Metrics, Outputs, Percentile
from posttrain.watch.bisection import Answered, Cause, Row, Score, Trainer, find_cause
from posttrain.watch.rounding import Level

if TYPE_CHECKING:
    from posttrain.experience.deliveries import TrainerScores
    from posttrain.experience.group import Group
    from posttrain.models.load import LoadedModel
    from posttrain.models.policy import Forward

ROWS, PLACES = 32, 16
"""Number of examined rows (those with the largest differences), and of examined tokens per row, evenly spread."""
NUMBERS = 2**24
"""Maximum number of log-probabilities in memory: with a large vocabulary fewer rows are examined."""
ASKED = 24
"""Number of tokens that each engine is asked to score again."""


def mismatch_metrics(outputs: Outputs, batch: Batch, *, moved: bool = False, dropout: bool = False) -> Metrics:
    """Absolute differences between the sampler's and the trainer's log-probabilities of the same tokens, in nats.

    `sampling/sampling_logp_difference/*` cover all trained tokens. `mismatch/fresh_*` cover tokens drawn with the
    present weights, and `mismatch/stale_mean` older tokens, for which the policy has also moved. If an update of this
    step has `moved` the weights, or if `outputs` were computed with `dropout`, only log-probabilities computed before
    the updates can be compared.
    """
    mask_BT = batch.completion_mask_BT
    if batch.sampling_logprobs_BT is None or nothing_in(mask_BT):
        return {}
    before_update_BT = outputs.logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT
    gap_BT = (before_update_BT - batch.sampling_logprobs_BT).abs()
    told_BT = mask_BT & gap_BT.isfinite()
    metrics: Metrics = {
        "sampling/sampling_logp_difference/mean": _mean(gap_BT, mask_BT),
        "sampling/sampling_logp_difference/max": _largest(gap_BT, mask_BT),
    }
    if (moved or dropout) and batch.old_logprobs_BT is None:
        return metrics
    fresh_BT = told_BT
    if batch.versions_BT is not None and batch.version is not None:
        is_fresh_BT = batch.versions_BT == batch.version
        fresh_BT, stale_BT = told_BT & is_fresh_BT, told_BT & ~is_fresh_BT
        metrics |= if_any(stale_BT, lambda: {"mismatch/stale_mean": _mean(gap_BT, stale_BT)})
    return metrics | if_any(fresh_BT, lambda: _of_fresh(gap_BT, fresh_BT))


def _of_fresh(gap_BT: Tensor, fresh_BT: Tensor) -> Metrics:
    return {
        "mismatch/fresh_mean": _mean(gap_BT, fresh_BT),
        "mismatch/fresh_p99": Percentile(0.99, (picked(gap_BT.float(), fresh_BT, otherwise=math.nan),)),
        "mismatch/fresh_max": _largest(gap_BT, fresh_BT),
    }


def _mean(gap_BT: Tensor, mask_BT: Tensor) -> Mean:
    return Mean(number(picked(gap_BT, mask_BT, otherwise=0.0).sum()), number(mask_BT.sum()))


def _largest(gap_BT: Tensor, mask_BT: Tensor) -> Max:
    return Max(number(picked(gap_BT, mask_BT, otherwise=0.0).max()))


class Examiner:
    """Scores rows of a step again with trainer and engines, before the update, to find the cause of a mismatch."""

    def __init__(
        self,
        loaded: LoadedModel,
        forward: Forward,
        scores: TrainerScores,
        tokens: int,
        *,
        engines: Callable[[Sequence[Token]], Sequence[Answered]] = lambda tokens: (),
        published: Callable[[int], Mapping[int, Iterable[tuple[str, Tensor]]]] = lambda version: {},
    ) -> None:
        """At most `tokens` tokens go through the model in one pass. `engines` asks every engine that can answer.
        `published` gives the tensors of other versions that still exist."""
        self.loaded, self.forward, self.scores, self.tokens = loaded, forward, scores, tokens
        self.engines, self.published = engines, published

    @torch.no_grad()
    def __call__(self, groups: Sequence[Group], version: int, level: Level) -> Cause:
        """Find why engines and trainer disagree on tokens of these groups that the trainer's `version` has drawn.

        Raises nothing, because the run does not depend on it. If memory runs out, questions that need a second model
        are left out.
        """
        engines, reason = cache(self.engines), ""
        with evaluating(self.loaded.model):
            for copies in (False,) if is_sharded(self.loaded.model) else (True, False):
                try:
                    found, reason = tried(partial(self._cause, groups, version, level, engines, copies=copies))
                except Exception as error:
                    return Cause(kind="unknown", text=f"the request failed: {type(error).__name__}: {reason_of(error)}")
                if found is not None:
                    return found[0]
                free_memory()
        return Cause(kind="unknown", text=f"there was not enough memory for the request ({reason})")

    def _cause(
        self,
        groups: Sequence[Group],
        version: int,
        level: Level,
        engines: Callable[[tuple[Token, ...]], Sequence[Answered]],
        *,
        copies: bool,
    ) -> Cause:
        """The cause. `copies`: also ask the questions that need a second model."""
        rows = self._rows(groups, version)
        if not rows:
            return Cause(kind="unknown", text=f"there is no token of version {version} to examine")
        asked = tuple(
            ((*row.prompt_ids, *row.ids[:place]), row.ids[place])
            for row in rows[: ASKED // 4]
            for place in row.places[: ASKED // 6]
        )
        trainer = self._trainer(version)
        return find_cause(
            rows, trainer if copies else replace(trainer, earlier={}, rounded=None), engines(asked), level
        )

    def _rows(self, groups: Sequence[Group], version: int) -> list[Row]:
        """The rows with the largest differences. A trajectory counts with its first turn that has a fitting token."""
        whole = [
            row
            for group in groups
            for completion in group.completions
            if (row := _row_of(group.prompt.ids, completion, version)) is not None
        ]
        vocabulary = self.loaded.model.get_output_embeddings().weight.shape[0]  # pyright: ignore
        count = max(1, min(ROWS, NUMBERS // vocabulary // PLACES))
        return sorted(map(spread, whole), key=partial(_apart, self._says(whole)), reverse=True)[:count]

    def _says(self, rows: Sequence[Row]) -> dict[tuple[int, ...], Sequence[float]]:
        found: dict[tuple[int, ...], Sequence[float]] = {}
        temperature = self.forward.temperature
        for places in plan_microbatches([len(row.prompt_ids) + len(row.ids) for row in rows], self.tokens):
            part = [rows[place] for place in places]
            own = self.scores([row.prompt_ids for row in part], [row.ids for row in part], temperature=temperature)
            found |= {(*row.prompt_ids, *row.ids): said for row, said in zip(part, own, strict=True)}
        return found

    def _trainer(self, version: int) -> Trainer:
        model, dtype = self.loaded.model, self.loaded.compute_dtype
        other = torch.bfloat16 if dtype == torch.float32 else torch.float32

        def present(rows: Sequence[Row]) -> Tensor:
            with self.forward.scope(), self.forward.computing():
                return whole_logprobs(model, rows)

        def earlier(tensors: Iterable[tuple[str, Tensor]]) -> Score:
            def score(rows: Sequence[Row]) -> Tensor:
                copy = plain_copy(model, torch.float32)
                write_tensors(copy, tensors)
                return whole_logprobs(copy, rows)

            return score

        return Trainer(
            present=present,
            rounded=lambda rows: whole_logprobs(plain_copy(model, other), rows),
            earlier={number: earlier(tensors) for number, tensors in self.published(version).items()},
            readings=readings_of(self.loaded),
            temperature=self.forward.temperature,
        )


def _row_of(prompt_ids: Sequence[int], completion: Completion, version: int) -> Row | None:
    """The first turn with a token of this version, and the context that the model saw before it; None without one.

    >>> told = {"logprobs": (-1.0, -2.0), "versions": (0, 1), "finish_reason": "eos", "text": ""}
    >>> row = _row_of((1, 2), Completion(ids=(5, 6, 7, 8), given=((0, 1), (2, 3)), **told), 1)
    >>> row.prompt_ids, row.ids, row.logprobs, row.places
    ((1, 2, 5, 6, 7), (8,), (-2.0,), (0,))
    """
    drawn, told, begin = completion.drawn, 0, 0
    for last in completion.turn_ends:
        begin = drawn.index(True, begin)
        size = last + 1 - begin
        versions = completion.versions[told : told + size]
        if version in versions:
            start = max((place for place in completion.starts if place <= begin), default=None)
            before = (*prompt_ids, *completion.ids[:begin]) if start is None else completion.ids[start:begin]
            return Row(
                prompt_ids=before,
                ids=completion.ids[begin : last + 1],
                logprobs=completion.logprobs[told : told + size],
                places=tuple(place for place, one in enumerate(versions) if one == version),
            )
        begin, told = last + 1, told + size
    return None


def spread(row: Row) -> Row:
    """The row with at most `PLACES` of its places, evenly spread."""
    count = len(row.places)
    kept = sorted({round(n * (count - 1) / max(1, PLACES - 1)) for n in range(PLACES)}) if count > PLACES else None
    places = row.places if kept is None else tuple(row.places[n] for n in kept)
    return replace(row, places=places)


def _apart(says: Mapping[tuple[int, ...], Sequence[float]], row: Row) -> float:
    own = says[(*row.prompt_ids, *row.ids)]
    return sum(abs(own[place] - row.logprobs[place]) for place in row.places) / len(row.places)


def whole_logprobs(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """`[N, V]` log-probabilities at temperature 1 for the places of the rows, one row after the other."""
    device, found = computes_on(model), list[Tensor]()
    picks = "logits_to_keep" in accepted_arguments(causal_lm(model))  # otherwise all logits are in memory together
    for row in rows:
        ids_1T = torch.tensor([(*row.prompt_ids, *row.ids[: row.places[-1] + 1])], device=device)
        before = torch.tensor([len(row.prompt_ids) + place - 1 for place in row.places], device=device)
        if picks:
            logits_nV = enter(model, partial(model, input_ids=ids_1T, use_cache=False, logits_to_keep=before)).logits[0]
        else:
            logits_nV = enter(model, partial(model, input_ids=ids_1T, use_cache=False)).logits[0, before]
        found.append(logits_nV.float().log_softmax(dim=-1))
    return torch.cat(found)


def readings_of(loaded: LoadedModel) -> dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]]:
    """Ways in which an engine may wrongly change a prompt that it should take unchanged."""
    tokenizer = loaded.tokenizer

    def again(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(tokenizer(tokenizer.decode(list(ids)), verbose=False).input_ids)

    ways: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
        "without their first token": lambda ids: ids[1:],
        "without their last token": lambda ids: ids[:-1],
        "as text, tokenised again": again,
    }
    begin = tokenizer.bos_token_id
    if isinstance(begin, int):
        ways[f"with {tokenizer.bos_token} in front"] = lambda ids: (begin, *ids)
    for end in sorted(loaded.eos_ids):
        ways[f"with {tokenizer.convert_ids_to_tokens(end)} behind"] = lambda ids, end=end: (*ids, end)
    return ways
