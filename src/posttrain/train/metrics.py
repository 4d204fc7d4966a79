"""The numbers of a step: merged over micro-batches by what they are, never by what they are called (RULE 52)."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import torch
from torch import Tensor

from posttrain.types import Max, Metric, Metrics, Percentile

_GB = 1e9


class MetricLog:
    """Metrics that add up.

    >>> from posttrain.types import Mean
    >>> log = MetricLog()
    >>> log.add({"kl": Mean(2.0, 1), "ratio_max": Max(1.5)})     # one token
    >>> log.add({"kl": Mean(3.0, 4), "ratio_max": Max(1.2)})     # four tokens
    >>> log.reduce()
    {'kl': 1.0, 'ratio_max': 1.5}
    """

    def __init__(self) -> None:
        self.merged: Metrics = {}

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Merge by name. Raises `TypeError` when a name is a mean here and a maximum there."""
        for name, metric in metrics.items():
            known = self.merged.get(name)
            if known is None:
                self.merged[name] = metric
            elif type(known) is type(metric):
                self.merged[name] = known.merge(metric)  # pyright: ignore[reportArgumentType]
            else:
                raise TypeError(f"{name} is {known} here and {metric} there: a metric reduces in one way")

    def read(self) -> None:
        """Let every metric hold plain numbers: those that stand on a GPU are read in one copy."""
        self.merged = read(self.merged)

    def reduce(self) -> dict[str, float]:
        """One number per name, in the order in which they came; NaN for a mean over nothing."""
        return {name: float(metric.item()) for name, metric in self.merged.items()}


def read(metrics: Mapping[str, Metric]) -> Metrics:
    """The same metrics with plain numbers, by one copy from the GPU; where nothing stands there, as they are."""
    waiting = list(_tensors(tuple(metrics.values())))
    if not waiting:
        return dict(metrics)
    numbers = iter(torch.stack(waiting).cpu().tolist())
    return {name: _filled(metric, numbers) for name, metric in metrics.items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.double()
    elif isinstance(value, tuple) and not isinstance(value, Percentile):
        for part in value:
            yield from _tensors(part)


def _filled(value: Any, numbers: Iterator[float]) -> Any:
    """`value` with the next number in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return next(numbers)
    if not isinstance(value, tuple) or isinstance(value, Percentile):
        return value
    return type(value)(*(_filled(part, numbers) for part in value))


def memory_metrics() -> Metrics:
    """Memory in GB (1e9 bytes): resident now and at its highest, and the highest on the GPU if there is one."""
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    metrics: Metrics = {
        "memory/rss_gb": Max(psutil.Process().memory_info().rss / _GB),
        "memory/peak_rss_gb": Max(highest / _GB),
    }
    if torch.cuda.is_initialized():
        metrics["memory/peak_cuda_gb"] = Max(torch.cuda.max_memory_allocated() / _GB)
    return metrics
