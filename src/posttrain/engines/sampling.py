"""Choice of the next token: pure functions of logits and of uniform random numbers.

    s = z / temperature               float32 (RULE 1, RULE 2)
    s = truncate(s)                   -inf outside of top-k, top-p and min-p
    y ~ softmax(s)                    inverse CDF: first a block of the vocabulary, then a token of the block
    logprob = log_softmax(s)_y

The log-probability refers to the distribution that the token was sampled from. With truncation, that distribution is
truncated and renormalised, so the number is not comparable with a forward pass over the whole vocabulary.

B rows, V vocabulary, T tokens; N blocks of b tokens.

Stop strings are searched in decoded text, because a string may begin inside one token and end inside another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from posttrain.data.harmony import Channels, final_text
from posttrain.engines.sampler import SamplingSettings
from posttrain.errors import ConfigError
from posttrain.models.footprint import SAMPLING_BLOCK

_WORD = 2**64
_WORDS_AT_ONCE = 64
_NUCLEUS_GUESSES = (256, 4096)


def choose(
    logits_BV: Tensor, settings: SamplingSettings, uniforms_B2: Tensor | None, *, temperature: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return the next token of every row and its log-probability, `[B]` each. `temperature` replaces the settings'.

    Temperature 0 takes the most likely token (the first of equals), and needs no random numbers. It ignores truncation,
    which could not change the choice, and reports log-probabilities at temperature 1.
    """
    temperature = settings.temperature if temperature is None else temperature
    if temperature == 0:
        ids_B = logits_BV.argmax(dim=-1)
        return ids_B, token_logprobs(logits_BV, ids_B, temperature=0)
    assert uniforms_B2 is not None, "sampling at a temperature above 0 needs random numbers"
    scaled_BV = _scale(logits_BV, temperature)
    scaled_BV = truncate(scaled_BV, top_k=settings.top_k, top_p=settings.top_p, min_p=settings.min_p)
    highest_B1 = scaled_BV.amax(dim=-1, keepdim=True)
    ids_B, total_B = inverse_cdf((scaled_BV - highest_B1).exp_(), uniforms_B2)
    return ids_B, _pick(scaled_BV, ids_B) - highest_B1.squeeze(-1) - total_B.log().float()


def token_logprobs(logits_BV: Tensor, ids_B: Tensor, *, temperature: float) -> Tensor:
    """Return the log-probability of given tokens, `[B]`, without truncation; temperature 0 is read as 1.

    `s_y - logsumexp(s)` is exact to 2e-6 with 32000 tokens; `torch.log_softmax` is exact to 5e-5 (CPU, float32).
    """
    scaled_BV = _scale(logits_BV, temperature or 1.0)
    return _pick(scaled_BV, ids_B) - scaled_BV.logsumexp(dim=-1)


def truncate(scaled_BV: Tensor, *, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Return logits with -inf on all tokens that truncation removes.

    Three rules apply in this order, each to what the one before has left: keep the `top_k` most likely tokens (and ties
    with the last of them); keep the smallest set of most likely tokens whose mass reaches `top_p`; keep tokens with at
    least `min_p` times the highest probability. A rule is off at top_k 0, top_p 1, min_p 0.

    >>> truncate(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_k=0, top_p=0.6, min_p=0.0).exp()
    tensor([[0.5000, 0.3000, 0.0000]])
    """
    if top_k > 0:
        lowest_B1 = scaled_BV.topk(min(top_k, scaled_BV.shape[-1])).values[:, -1:]
        scaled_BV = scaled_BV.masked_fill(scaled_BV < lowest_B1, -math.inf)
    if top_p < 1:
        scaled_BV = scaled_BV.masked_fill(~_nucleus(scaled_BV, top_p), -math.inf)
    if min_p > 0:
        lowest_B1 = scaled_BV.amax(dim=-1, keepdim=True) + math.log(min_p)
        scaled_BV = scaled_BV.masked_fill(scaled_BV < lowest_B1, -math.inf)
    return scaled_BV


def inverse_cdf(weights_BV: Tensor, uniforms_B2: Tensor) -> tuple[Tensor, Tensor]:
    """Return a token `[B]` sampled in proportion to the weights, which need not sum to 1, and the sum `[B]` of weights.

    The first uniform number (float64, in [0, 1)) selects a block of the vocabulary, the second a token of that block:
    the first one whose running sum (float64) exceeds `uniform * sum`. A token of weight 0 is never chosen.

    Two numbers make draws robust. With one running sum over the vocabulary, the last bit of a likely token's logit
    moves all the boundaries after it, where rare tokens are crowded. The same draw then often gives another token when
    a batch has other rows. With two numbers, such a change does not reach the second number's choice in its block.

    >>> inverse_cdf(torch.tensor([[0.5, 0.0, 1.5]]), torch.tensor([[0.0, 0.25]], dtype=torch.float64))
    (tensor([2]), tensor([2.], dtype=torch.float64))
    """
    num_rows, num_tokens = weights_BV.shape
    if missing := -num_tokens % SAMPLING_BLOCK:
        weights_BV = F.pad(weights_BV, (0, missing))
    blocks_BNb = weights_BV.view(num_rows, -1, SAMPLING_BLOCK)
    running_BN = blocks_BNb.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    block_B = _draw(running_BN, uniforms_B2[:, 0])
    first_B = torch.arange(num_rows, device=weights_BV.device) * blocks_BNb.shape[1]
    inside_Bb = blocks_BNb.flatten(0, 1).index_select(0, first_B + block_B)
    inside_B = _draw(inside_Bb.cumsum(dim=-1, dtype=torch.float64), uniforms_B2[:, 1])
    return (block_B * SAMPLING_BLOCK + inside_B).clamp(max=num_tokens - 1), running_BN[:, -1]


class UniformStream:
    """A stream of uniform numbers in [0, 1), two for every token: a pure function of `(seed, prompt index, g)`.

    It is counter-based (Philox4x64: Salmon et al., SC 2011). The key is (seed, prompt index), and the highest word of
    the counter is g. A 64-bit word gives the two numbers of a token. Words are generated in blocks, because single ones
    are slow to get.
    """

    def __init__(self, seed: int, index: int, g: int) -> None:
        key = np.array([seed % _WORD, index % _WORD], dtype=np.uint64)
        self._philox = np.random.Philox(key=key, counter=[0, 0, 0, g])
        self._waiting: list[int] = []

    def word(self) -> int:
        """Return the 64 random bits of the next token."""
        if not self._waiting:
            self._waiting = self._philox.random_raw(_WORDS_AT_ONCE)[::-1].tolist()
        return self._waiting.pop()

    def skip(self, tokens: int) -> None:
        """Skip the numbers of tokens that were sampled elsewhere."""
        for _ in range(tokens):
            self.word()


def uniforms(words: Sequence[int]) -> Tensor:
    """Return `[B, 2]` float64 in [0, 1): the upper and the lower half of each word."""
    halves_B2 = np.array(words, dtype="<u8").view("<u4").reshape(-1, 2)[:, ::-1]
    return torch.from_numpy(halves_B2 * 2.0**-32)


def is_whole(settings: SamplingSettings) -> bool:
    """Return whether the settings truncate nothing."""
    return settings.top_k <= 0 and settings.top_p >= 1 and settings.min_p <= 0


def _scale(logits_BV: Tensor, temperature: float) -> Tensor:
    logits_BV = logits_BV.float()
    return logits_BV if temperature == 1 else logits_BV / temperature


def _draw(running_BN: Tensor, uniforms_B: Tensor) -> Tensor:
    """Return the first index `[B]` whose running sum exceeds `uniform * sum`.

    If rounding leaves none, return the last index that adds anything. If a sum is NaN, return some index; its
    log-probability is then also NaN.
    """
    total_B1 = running_BN[:, -1:].contiguous()
    above_B1 = torch.searchsorted(running_BN, uniforms_B.unsqueeze(-1) * total_B1, right=True)
    last_B1 = torch.searchsorted(running_BN, total_B1)
    return torch.minimum(above_B1, last_B1).squeeze(-1).clamp(max=running_BN.shape[-1] - 1)


def _nucleus(scaled_BV: Tensor, top_p: float) -> Tensor:
    """Return a mask of the tokens for which all more likely ones together hold less than `top_p`.

    The CPU sorts the whole vocabulary only if needed. Other devices sort it immediately, because a check would wait.
    """
    num_tokens = scaled_BV.shape[-1]
    log_total_B1 = scaled_BV.logsumexp(dim=-1, keepdim=True)
    guesses = _NUCLEUS_GUESSES if scaled_BV.device.type == "cpu" else ()
    for count in (*guesses, num_tokens):
        sorted_Bk, order_Bk = scaled_BV.topk(min(count, num_tokens))
        mass_Bk = (sorted_Bk - log_total_B1).double().exp()
        likelier_Bk = mass_Bk.cumsum(dim=-1) - mass_Bk
        if count >= num_tokens or bool((likelier_Bk[:, -1] >= top_p).all()):
            break
    return torch.zeros_like(scaled_BV, dtype=torch.bool).scatter(-1, order_Bk, likelier_Bk < top_p)


def _pick(x_BV: Tensor, ids_B: Tensor) -> Tensor:
    return x_BV.gather(-1, ids_B.unsqueeze(-1)).squeeze(-1)


_MARGIN = 8
"""Extra tokens in the window: some decode to nothing, and the first token of a text may lose its space."""


class StopStrings:
    """Detects when a completion has just completed a stop string, and cuts the text there.

    Special tokens take part with their names, so `<|im_end|>` stops a completion although `.text` never shows it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        if any(not string for string in strings):
            raise ConfigError(
                given="sampling.stop contains an empty string",
                allowed="strings of at least one character",
                fix="Remove the empty string from sampling.stop.",
            )
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self._channels = Channels.of(tokenizer)
        self.window = max((len(string.encode()) for string in strings), default=0) + _MARGIN

    def __bool__(self) -> bool:
        return bool(self.strings)

    def completed(self, rows: Sequence[Sequence[int]]) -> list[bool]:
        """Return whether each row of ids contains a stop string, given that it did not before its last token.

        Every step decodes only the last `window` tokens: a string of n bytes spans at most n tokens that have any text.
        A hit is confirmed on the whole row, because the text of a part need not be part of the whole text.
        """
        texts = self.tokenizer.batch_decode(
            [list(ids[-self.window :]) for ids in rows], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return [
            self._find(text) is not None and self._find(self._decode(ids)) is not None
            for text, ids in zip(texts, rows, strict=True)
        ]

    def text(self, ids: Sequence[int], *, stopped: bool) -> str:
        """Return the text without special tokens; cut before the stop string if one `stopped` it. For a turn in
        channels, return the part that a user reads."""
        turn = None if self._channels is None else self._channels.turn(ids)
        text = self._decode(ids, skip_special_tokens=True) if turn is None else turn
        text = text[: self._find(text)] if stopped else text
        return text if turn is None else final_text(text)

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def _find(self, text: str) -> int | None:
        """Return where the first stop string begins; None if there is none."""
        return min((at for at in map(text.find, self.strings) if at >= 0), default=None)
