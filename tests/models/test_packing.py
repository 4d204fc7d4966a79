"""Packing keeps every needed token once, and buckets separate rows without losing any."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.models.packing import Segment, make_buckets, pack, pack_whole
from posttrain.types import Tokens

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def record(lengths_B: list[int], width: int) -> Tokens:
    """Ids that identify row and place: 1000 * row + place."""
    ids_BT = 1000 * torch.arange(len(lengths_B))[:, None] + torch.arange(width)
    return Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor(lengths_B))


def alone(lengths_S: Sequence[int]) -> list[Segment]:
    """Segments of these lengths, without a prefix."""
    return [Segment(end - length, length) for length, end in zip(lengths_S, accumulate(lengths_S), strict=True)]


@examples(25, 60)
@given(lengths, st.randoms(use_true_random=False))
def test_a_scored_token_is_predicted_by_the_token_before_it_in_its_row(lengths_B, random):
    width = max(lengths_B) + random.randint(0, 3)
    tokens = record(lengths_B, width)
    scored = [[0 < t < n and random.random() < 0.5 for t in range(width)] for n in lengths_B]
    mask_BT = torch.tensor(scored)
    packed = pack(tokens, mask_BT)
    ids = tokens.input_ids_BT.flatten()

    assert ids[packed.target_index_N].tolist() == tokens.input_ids_BT[mask_BT].tolist()
    assert ids[packed.token_index_L][packed.source_N].tolist() == [i - 1 for i in ids[packed.target_index_N].tolist()]
    assert packed.position_ids_L.tolist() == (ids[packed.token_index_L] % 1000).tolist()
    last = [max((t for t in range(width) if row[t]), default=0) for row in scored]
    assert [segment.length for segment in packed.segments] == sorted((n for n in last if n), reverse=True)
    needed = [1000 * b + t for b, n in enumerate(last) for t in range(n)]
    assert sorted(ids[packed.token_index_L].tolist()) == needed
    assert packed.num_tokens == len(needed)


@examples(25, 60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=8), st.integers(0, 2))
def test_every_token_of_rows_that_begin_alike_has_a_place_that_holds_it(rows, padding):
    """There are three kinds of rows. Rows of one kind share a prefix, and some rows are equal, also the longest
    ones."""
    lengths_B = [length for _, length in rows]
    width = max(lengths_B) + padding
    ids_BT = torch.tensor([[1000 * kind + t for t in range(width)] for kind, _ in rows])
    tokens = Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor(lengths_B))
    packed = pack_whole(tokens)
    ids_L = ids_BT.flatten()[packed.token_index_L]
    for row, length in enumerate(lengths_B):
        assert ids_L[packed.place_BT[row, :length]].tolist() == ids_BT[row, :length].tolist()
        assert int(packed.source_N[row]) == int(packed.place_BT[row, length - 1])


@examples(25, 60)
@given(lengths)
def test_buckets_spread_and_collect_every_token(lengths_B):
    longest_first = tuple(sorted(lengths_B, reverse=True))
    x_LD = torch.arange(2.0 * sum(longest_first)).view(-1, 2) + 1
    buckets = make_buckets(alone(longest_first), torch.device("cpu"))
    assert [b.start for b in buckets] == [0, *(b.stop for b in buckets[:-1])]
    grids = [b.spread(x_LD) for b in buckets]
    assert torch.equal(torch.cat([b.collect(g) for b, g in zip(buckets, grids, strict=True)]), x_LD)
    assert sum(int((g != 0).any(-1).sum()) for g in grids) == sum(lengths_B), "padding holds zeros"
    assert sum(b.rows for b in buckets) == len(lengths_B)


def test_rows_of_one_length_need_no_copy():
    (bucket,) = make_buckets(alone((7, 7, 7)), torch.device("cpu"))
    x_LD = torch.randn(21, 4)
    assert bucket.slots is None
    assert bucket.spread(x_LD).data_ptr() == x_LD.data_ptr()


def test_a_grid_is_padding_by_a_quarter_at_most_once_rows_are_long():
    generator = torch.Generator().manual_seed(0)
    lengths_R = torch.randint(100, 4000, (200,), generator=generator).sort(descending=True).values
    buckets = make_buckets(alone(lengths_R.tolist()), torch.device("cpu"))
    computed = sum(b.rows * b.longest for b in buckets)
    assert computed <= int(lengths_R.sum()) / 0.75
    assert len(buckets) <= 15


def test_a_first_token_has_no_log_probability():
    mask_BT = torch.tensor([[False, True], [True, True]])
    with pytest.raises(ValueError, match="row 1 scores its first token"):
        pack(record([2, 2], 2), mask_BT)


def test_padding_cannot_be_scored():
    mask_BT = torch.tensor([[False, True, False], [False, True, True]])
    with pytest.raises(ValueError, match=r"row 1 scores a token past its end: it has 2 real tokens"):
        pack(record([3, 2], 3), mask_BT)


def test_mask_and_ids_must_have_one_shape():
    with pytest.raises(ValueError, match="differ in shape"):
        pack(record([3, 2], 3), torch.zeros(2, 2, dtype=torch.bool))
