"""The comparison of a replay with the records of its run, bit by bit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

COMPARED = ("policy", "critic", "optimizer")
"""Parts of a checkpoint that are compared. Training does not compute the sampler's state, so it is not one."""
PLAIN = ("algorithm", "adapters")


class Difference(NamedTuple):
    """One value that differs between the run and its replay."""

    step: int
    kind: Literal["metric", "row", "tensor", "state"]
    name: str
    what: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.kind} {self.name}: {self.what}"


@dataclass
class Compared:
    """Counts of what was compared, and the differences found."""

    steps: int = 0
    metrics: int = 0
    rows: int = 0
    """The compared rows of completions, by their advantages or by their roles in pairs."""
    tensors: int = 0
    checkpoints: list[int] = field(default_factory=list)
    """The steps whose checkpoints were compared."""
    differences: list[Difference] = field(default_factory=list)

    def step(self, step: int, now: Mapping[str, float], then: Mapping[str, Any]) -> None:
        """Compare the metrics of a replayed step with those on file."""
        self.steps += 1
        self.metrics += len(now)
        for name, value in now.items():
            found, before = value if math.isfinite(value) else None, then.get(name)
            if found != before:
                self._differs(step, "metric", name, f"{before} in the run, {found} replayed")

    def columns(self, step: int, name: str, now: Sequence[Any], then: Sequence[Any]) -> None:
        """Compare one value per row with the values in the rollout file."""
        self.rows += len(now)
        for row, (value, before) in enumerate(zip(now, then, strict=True)):
            if value != before and str(value) != str(before):  # NaN is never equal to itself
                self._differs(step, "row", f"{row}, {name}", _first_other(value, before))

    def checkpoint(self, step: int, tensors: tuple[Mapping[str, Any], Mapping[str, Any]], plain: Sequence[Any]) -> None:
        """Compare (replayed, recorded) tensors, and the plain values that a checkpoint holds next to them."""
        now, then = (dict(named(tree)) for tree in tensors)
        self.checkpoints.append(step)
        self.tensors += len(now)
        for name in {**then, **now}:
            if name not in now or name not in then:
                self._differs(step, "tensor", name, f"only in the {'run' if name in then else 'replay'}")
            elif not same_bits(now[name], then[name]):
                self._differs(step, "tensor", name, size_of_difference(now[name], then[name]))
        for name in PLAIN:
            if (found := plain[0].get(name)) != (before := plain[1].get(name)):
                self._differs(step, "state", name, f"{before} in the run, {found} replayed")

    def _differs(self, step: int, kind: Literal["metric", "row", "tensor", "state"], name: str, what: str) -> None:
        self.differences.append(Difference(step, kind, name, what))


def named(tree: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each compared part, such as `optimizer/0/exp_avg`."""
    for part in COMPARED:
        yield from _leaves(tree.get(part, {}), part)


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in tree.items():
        if isinstance(value, Tensor):
            yield f"{prefix}/{key}", value
        else:
            yield from _leaves(value, f"{prefix}/{key}")


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits_of(a), bits_of(b))


def hash_of(tensor: Tensor) -> str:
    return hashlib.sha256(bits_of(tensor).numpy().data).hexdigest()


def size_of_difference(now: Tensor, then: Tensor) -> str:
    if now.shape != then.shape or now.dtype != then.dtype:
        return f"{then.dtype} {list(then.shape)} in the run, {now.dtype} {list(now.shape)} replayed"
    gap = (now.detach().cpu().double() - then.double()).abs()
    many = int((gap != 0).sum())
    return f"{many} of {gap.numel()} numbers differ, by {float(gap.max()):.3g} at most"


def moved_apart(now: Mapping[str, Any], then: Mapping[str, Any], start: Mapping[str, Any]) -> float:
    """Distance between two trained policies, relative to how far the second moved: |now - then| / |then - start|."""
    parts = [dict(named({"policy": tree.get("policy", {})})) for tree in (now, then, start)]

    def length(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
        return math.sqrt(sum(float((a[name].cpu().double() - b[name].cpu().double()).square().sum()) for name in a))

    way = length(parts[1], parts[2])
    return length(parts[0], parts[1]) / way if way else math.nan


def _first_other(now: Any, then: Any) -> str:
    """The difference between two values; for lists of equal length, the first token at which they differ."""
    if not isinstance(now, list) or not isinstance(then, list) or len(now) != len(then):
        return f"{then} in the run, {now} replayed"
    places = [place for place, (a, b) in enumerate(zip(now, then, strict=True)) if a != b]
    return f"at token {places[0]} {then[places[0]]} in the run, {now[places[0]]} replayed"
