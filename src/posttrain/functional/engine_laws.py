"""Laws that explain an engine's log-probabilities by the trainer's: a different temperature, or a truncation.

    temperature   log_softmax(z / T)[token]                                      T by least squares
    truncation    log_softmax(z / T_run)[token] - log(mass that is kept)         top-k, top-p, min-p

z are the trainer's logits, so its log-probabilities `logprobs_NV` at temperature 1 are sufficient. N tokens, V
vocabulary. Both laws are exact if the engine computes as the trainer does: the residual is then rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

COLDEST, HOTTEST, TEMPERATURES = 0.1, 10.0, 61
"""Range and number of the temperatures of the first search, evenly spaced on a logarithmic scale."""
GOLDEN, REFINED = 0.6180339887498949, 30
"""Share of the interval that each refinement keeps (golden-section search), and the number of refinements."""
MOST_KEPT = 1024
"""Largest top-k that is tried."""
SHARES = (*(n / 200 for n in range(20, 200)), 0.999)
"""Values of top-p that are tried, in addition to values derived from the data."""
LEAST_SHARES = (*(n / 200 for n in range(1, 101)), 0.001, 0.002)
"""Values of min-p that are tried, in addition to values derived from the data."""
SUGGESTED = 64
"""Largest number of values derived from the data that are tried."""
BELOW = 1 - 1e-5
"""Factor that moves a bound slightly below a number that lies on it, so that rounding does not matter."""


class Law(NamedTuple):
    """A law with its parameter and its residual."""

    name: str
    value: float
    residual_N: Tensor
    """The engine's log-probability minus the prediction of the law, in nats."""

    @property
    def rms(self) -> float:
        return float(self.residual_N.double().square().mean().sqrt())


def fit_temperature(logprobs_NV: Tensor, tokens_N: Tensor, engine_N: Tensor) -> Law:
    """Return the temperature that fits the engine's numbers best, by least squares.

    >>> z_NV = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 3.0]])
    >>> law = fit_temperature(z_NV.log_softmax(-1), torch.tensor([0, 1]), (z_NV / 0.7).log_softmax(-1)[[0, 1], [0, 1]])
    >>> round(law.value, 4), law.rms < 1e-5
    (0.7, True)
    """

    def left_over(temperature: float) -> Tensor:
        return engine_N - at_temperature(logprobs_NV, tokens_N, temperature)

    def loss(log_temperature: float) -> float:
        return float(left_over(math.exp(log_temperature)).double().square().mean())

    tried = torch.linspace(math.log(COLDEST), math.log(HOTTEST), TEMPERATURES).tolist()
    best = min(range(TEMPERATURES), key=lambda place: loss(tried[place]))
    low, high = tried[max(0, best - 1)], tried[min(TEMPERATURES - 1, best + 1)]
    for _ in range(REFINED):
        step = GOLDEN * (high - low)
        if loss(high - step) <= loss(low + step):
            high = low + step
        else:
            low = high - step
    value = math.exp((low + high) / 2)
    return Law("temperature", value, left_over(value))


def fit_truncation(logprobs_NV: Tensor, tokens_N: Tensor, engine_N: Tensor, temperature: float) -> Law:
    """Return the truncation that fits the engine's numbers best: `top_k`, `top_p` or `min_p`, at `temperature`.

    An engine that samples from the tokens that it keeps reports `log p - log(mass that is kept)` for each, which is
    never less than the trainer's number. A token that a truncation would not have kept counts as not explained by it.

    >>> z_NV = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 2.0, 3.0, 1.0]])
    >>> kept = z_NV.masked_fill(z_NV < z_NV.topk(2).values[:, -1:], -torch.inf).log_softmax(-1)
    >>> fit_truncation(z_NV.log_softmax(-1), torch.tensor([1, 2]), kept[[0, 1], [1, 2]], 1.0)[:2]
    ('top_k', 2)
    """
    scaled_NV = (logprobs_NV / temperature).log_softmax(dim=-1)
    own_N = scaled_NV.gather(1, tokens_N[:, None])[:, 0]
    probs_NV = scaled_NV.double().exp().sort(dim=-1, descending=True).values
    mass_NV = probs_NV.cumsum(dim=-1)
    rank_N = (scaled_NV > own_N[:, None]).sum(dim=-1)
    observed_N = (own_N - engine_N).double().exp()

    def law(name: str, value: float, kept_N: Tensor) -> Law:
        kept_N = kept_N.clamp(1, probs_NV.shape[1])
        shift_N = -mass_NV.gather(1, kept_N[:, None] - 1)[:, 0].log()
        return Law(name, value, engine_N - own_N - torch.where(rank_N < kept_N, shift_N, 0.0).to(own_N.dtype))

    laws = [law("top_k", k, torch.full_like(tokens_N, k)) for k in range(1, min(MOST_KEPT, probs_NV.shape[1] - 1) + 1)]
    for share in _tried(SHARES, observed_N):
        laws.append(law("top_p", share, torch.searchsorted(mass_NV, share * mass_NV[:, -1:])[:, 0] + 1))
    last_N = torch.searchsorted(mass_NV, observed_N[:, None] * BELOW).clamp(max=probs_NV.shape[1] - 1)
    relative_NV = probs_NV / probs_NV[:, :1]
    for share in _tried(LEAST_SHARES, relative_NV.gather(1, last_N)[:, 0]):
        laws.append(law("min_p", share, (relative_NV >= share).sum(dim=-1)))
    least = min(one.rms for one in laws)
    return next(one for one in laws if one.rms <= 1.01 * least + 1e-9)  # the roundest of equally good ones


def at_temperature(logprobs_NV: Tensor, tokens_N: Tensor, temperature: float) -> Tensor:
    """`[N]` the trainer's log-probabilities of the tokens at `temperature`."""
    return (logprobs_NV / temperature).log_softmax(dim=-1).gather(1, tokens_N[:, None])[:, 0]


def _tried(round_ones: Sequence[float], suggested_N: Tensor) -> Iterator[float]:
    yield from round_ones
    found_N = suggested_N[(suggested_N > 0) & (suggested_N < 1)].sort().values
    places = torch.linspace(0, max(0, len(found_N) - 1), min(SUGGESTED, len(found_N))).long()
    yield from (found_N[places] * BELOW).tolist()
