"""Weights in the object store of the cluster: put there once per publication, and pulled by every node.

Tensors are grouped into buckets, so that the trainer and a node never hold more than one bucket as a temporary copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from posttrain.engines.delivery import digest
from posttrain.engines.published import layout, require_all
from posttrain.engines.sampler import Digest
from posttrain.models.footprint import PUBLICATIONS

BUCKET = 256 << 20
"""Maximum bytes of a bucket. A larger tensor gets a bucket of its own."""


class PutWeights:
    """The latest publications in the object store. Implements `Publications`."""

    def __init__(self, tensors: Mapping[str, tuple[str, Sequence[int]]], bucket: int = BUCKET) -> None:
        """`tensors` are the tensors that an engine decodes with: precision and shape by name."""
        self.places = layout(tensors)
        self.size = max([1, *(place.end for place in self.places.values())])
        self._bucket = bucket
        self._put: dict[int, list[Any]] = {}

    @torch.no_grad()
    def write(self, number: int, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Digest]:
        """See `Publications`."""
        given, refs = dict[str, Digest](), list[Any]()
        waiting, size = list[tuple[str, int, np.ndarray]](), 0
        for name, tensor in tensors:
            if (place := self.places.get(name)) is None:
                continue
            if waiting and size + place.end - place.start > self._bucket:
                refs.append(ray.put(waiting))
                waiting, size = [], 0
            own = torch.empty(place.shape, dtype=place.dtype).copy_(tensor.detach())
            given[name] = digest(own)
            waiting.append((name, place.start, own.reshape(-1).view(torch.uint8).numpy()))
            size += place.end - place.start
        if waiting:
            refs.append(ray.put(waiting))
        require_all(self.places, given)
        self._put[number] = refs
        for old in sorted(self._put)[:-PUBLICATIONS]:
            del self._put[old]  # the store frees objects without references
        return given

    def buckets(self, number: int) -> list[Any]:
        """References to the buckets of a publication."""
        return self._put[number]

    def read(self, number: int) -> Iterator[tuple[str, Tensor]]:
        """See `Publications`."""
        for bucket in self._put[number]:
            for name, _, data in ray.get(bucket):
                place = self.places[name]
                yield name, torch.from_numpy(data.copy()).view(place.dtype).view(place.shape)
