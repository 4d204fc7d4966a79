"""What the trained model itself says to the probes: greedy tokens, their log-probabilities, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from posttrain.config import SamplingConfig
from posttrain.engines import make_sampler
from posttrain.export.origin import Head
from posttrain.export.probes import Probe
from posttrain.models.compute import PLAIN
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import row_scores, step_scores
from posttrain.types import Prompt, Tokens


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One probe and what the exported model has to say to it."""

    probe: Probe
    ids: tuple[int, ...] = ()
    """Greedy tokens of the trained model, EOS included."""
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    """At each token, by how many nats the best token leads the second."""
    score: float = 0.0


def answers(loaded: LoadedModel, head: Head, probes: Sequence[Probe], *, max_new_tokens: int) -> list[Expected]:
    """What the model says, through the code that trained and sampled it."""
    if head == "tokens":
        return _continued(loaded, probes, max_new_tokens)
    return [Expected(probe=probe, score=_score(loaded, head, probe)) for probe in probes]


def _continued(loaded: LoadedModel, probes: Sequence[Probe], max_new_tokens: int) -> list[Expected]:
    sampler = make_sampler(replace(loaded, compute=PLAIN))
    sampling = SamplingConfig(temperature=0.0, max_completion_length=max_new_tokens)
    prompts = [Prompt(index=place, ids=probe.ids, text=probe.text or "") for place, probe in enumerate(probes)]
    completions = [group[0] for group in sampler.generate(prompts, sampling, group_size=1, seed=0)]
    return [
        Expected(probe=probe, ids=done.ids, logprobs=done.logprobs, gaps=_gaps(loaded, probe.ids, done.ids))
        for probe, done in zip(probes, completions, strict=True)
    ]


@torch.no_grad()
def _gaps(loaded: LoadedModel, prompt: Sequence[int], completion: Sequence[int]) -> tuple[float, ...]:
    ids_1T = torch.tensor([[*prompt, *completion]], device=loaded.device)
    logits_TV = loaded.model(input_ids=ids_1T, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    best_T2 = logits_TV.topk(2, dim=-1).values
    return tuple((best_T2[:, 0] - best_T2[:, 1]).tolist())


@torch.no_grad()
def _score(loaded: LoadedModel, head: Head, probe: Probe) -> float:
    """Of the row, read at its last token."""
    ids_1T = torch.tensor([probe.ids], device=loaded.device)
    tokens = Tokens(input_ids_BT=ids_1T, lengths_B=torch.tensor([len(probe.ids)]))
    if head == "score":
        return row_scores(loaded.model, tokens)[0].item()
    ends_1T = torch.zeros(ids_1T.shape, dtype=torch.bool)
    ends_1T[0, -1] = True
    return step_scores(loaded.model, tokens, ends_1T)[0, -1].item()
