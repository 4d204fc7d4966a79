"""Weights in memory that several processes share: reads return the written bits, and two publications exist
side by side."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.engines.delivery import digest
from posttrain.engines.published import Published, layout, new_files
from posttrain.errors import DoesNotFit, PublishError

DTYPES = ["float32", "bfloat16", "float64", "int64", "bool"]
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tensors = st.dictionaries(
    st.text("abc.", min_size=1, max_size=5), st.tuples(st.sampled_from(DTYPES), shapes), max_size=6
)


@given(tensors)
def test_places_do_not_overlap_and_are_aligned(found):
    places = list(layout(found).values())
    for place, following in pairwise(places):
        assert place.end <= following.start
    assert all(place.start % 64 == 0 for place in places)


@given(tensors, st.integers(0, 2**16))
def test_what_is_written_is_read_in_the_precision_of_the_reader(found, seed):
    torch.manual_seed(seed)
    files = new_files()
    try:
        writer, reader = Published(files, found, write=True), Published(files, found, write=False)
        given = {name: torch.randn(shape, dtype=torch.float64) * 9 for name, (_, shape) in found.items()}
        digests = writer.write(0, given.items())
        for name, tensor in reader.read(0):
            expected = given[name].to(tensor.dtype)
            assert tensor.equal(expected)
            assert digests[name] == digest(expected)
        writer.write(1, ((name, x + 1) for name, x in given.items()))
        assert all(tensor.equal(given[name].to(tensor.dtype)) for name, tensor in reader.read(0))
    finally:
        for file in files:
            os.close(file)


def test_a_tensor_that_engines_have_and_the_trainer_lacks_is_named():
    files = new_files()
    published = Published(files, {"head": ("float32", (2,)), "body": ("float32", (2,))}, write=True)
    with pytest.raises(PublishError, match="decodes with head, which the trained model does not have"):
        published.write(0, [("body", torch.zeros(2))])


def test_more_than_there_is_shows_when_it_is_asked_for():
    with pytest.raises(DoesNotFit, match=r"2 copies of the weights, .* do not fit into the"):
        Published(new_files(), {"huge": ("float32", (1 << 50,))}, write=True)
