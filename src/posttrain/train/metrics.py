"""The metrics of a step: a metric's type decides how micro-batches are merged, never its name (RULE 52)."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil
import torch
from torch import Tensor

from posttrain.types import IfAny, Max, Metric, Metrics, Percentile

_GB = 1e9


class MetricLog:
    """Metrics that accumulate over the parts of a step.

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
        """Replace tensors by plain numbers. One copy reads everything that is on a GPU."""
        self.merged = read(self.merged)

    def reduce(self) -> dict[str, float]:
        """One number per name, in the order of their first `add`; NaN for a mean over nothing."""
        return {name: float(metric.item()) for name, metric in self.merged.items()}


def merge(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """The merged metrics of several parts of a step, such as its ranks."""
    log = MetricLog()
    for part in parts:
        log.add(part)
    return log.merged


def read(metrics: Mapping[str, Metric]) -> Metrics:
    """The same metrics with plain numbers, read in one copy from the GPU. Metrics without tensors stay as they are.

    An `IfAny` metric that counted nothing is left out, as if its mask had been read immediately (`if_any`).
    """
    waiting = list(_tensors(tuple(metrics.values())))
    if not waiting:
        return dict(metrics)
    numbers = torch.cat([x.double().flatten() for x in waiting]).cpu()
    parts = iter(numbers.split([x.numel() for x in waiting]))
    found = {name: _filled(metric, parts) for name, metric in metrics.items()}
    return {
        name: metric.metric if isinstance(metric, IfAny) else metric
        for name, metric in found.items()
        if not isinstance(metric, IfAny) or metric.count
    }


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors to read, in the order in which `_filled` takes their numbers; not a percentile's CPU tensors."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Percentile):
        yield from (part for part in value.parts if part.device.type != "cpu")
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)


def _filled(value: Any, parts: Iterator[Tensor]) -> Any:
    """`value` with the next number in place of each tensor, and the next values in place of a percentile's parts."""
    if isinstance(value, torch.Tensor):
        return next(parts).item()
    if isinstance(value, Percentile):
        return value._replace(
            parts=tuple(x if x.device.type == "cpu" else next(parts).to(x.dtype) for x in value.parts)
        )
    return type(value)(*(_filled(part, parts) for part in value)) if isinstance(value, tuple) else value


def memory_metrics() -> Metrics:
    """Memory in GB (1e9 bytes): resident now, resident at its peak, and the GPU's peak if a GPU is in use."""
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    metrics: Metrics = {
        "memory/rss_gb": Max(psutil.Process().memory_info().rss / _GB),
        "memory/peak_rss_gb": Max(highest / _GB),
    }
    if torch.cuda.is_initialized():
        metrics["memory/peak_cuda_gb"] = Max(torch.cuda.max_memory_allocated() / _GB)
    return metrics
