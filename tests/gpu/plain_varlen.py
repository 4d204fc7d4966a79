"""The contract of a kernel for sequences of different lengths, in plain operations; and an acceleration that uses it.

Causality is aligned at the end: with q queries and k keys, query i sees the first k - q + i + 1 keys. No other code of
the library knows that: a kernel that aligned it at the beginning would give other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from posttrain.gpu.varlen import Sequences, attend
from posttrain.models.acceleration import Plain, RowAttention
from posttrain.models.packing import Segment

calls: list[str] = []
"""One entry for each call of the kernel."""
WIDE = (torch.float32, torch.float64)


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    calls.append("varlen")
    assert window_size == (-1, 0)
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert enable_gqa == (query.shape[1] != key.shape[1])
    outputs = []
    for (q0, q1), (k0, k1) in zip(_pairs(query_ends), _pairs(key_ends), strict=True):
        assert 0 < q1 - q0 <= min(most_queries, k1 - k0)
        assert k1 - k0 <= most_keys
        heads = query.shape[1] // key.shape[1]
        q, k, v = query[q0:q1], *(x[k0:k1].repeat_interleave(heads, dim=1) for x in (key, value))
        scores_HTS = torch.einsum("thd,shd->hts", q, k) * (query.shape[2] ** -0.5 if scale is None else scale)
        seen_TS = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        outputs.append(torch.einsum("hts,shd->thd", scores_HTS.masked_fill(~seen_TS, -torch.inf).softmax(-1), v))
    return torch.cat(outputs)


def _pairs(ends: Tensor) -> list[tuple[int, int]]:
    return list(zip(ends.tolist()[:-1], ends.tolist()[1:], strict=True))


def row_attention(segments: Sequence[Segment], device: torch.device) -> RowAttention:
    return partial(attend, Sequences.of(segments, device), varlen, dtypes=WIDE)


_plain = Plain()
choose, decoder, draw, grid_attention, pack, training = (
    _plain.choose,
    _plain.decoder,
    _plain.draw,
    _plain.grid_attention,
    _plain.pack,
    _plain.training,
)
