"""The pass that neighbours with divided matrices compute while the first rank scores rows alone: the same pass.

Ranks with rows of their own can accompany it with any row, because FSDP gathers weights whatever they multiply.
Neighbours sum products, so they need the same tokens. The first rank sends these when they enter the body of the model.
It computes the heads alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.packed_attention import Manner, packed_rows, rows_of_now
from posttrain.models.packing import Segment
from posttrain.ranks.agreement import Company


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """All that a pass through the body depends on, besides the weights."""

    given: tuple[Any, ...]
    named: Mapping[str, Any]
    rows: tuple[Sequence[Segment], Manner] | None
    autocast: torch.dtype | None


class Beside:
    """The side of one rank in the shared passes of one model."""

    def __init__(self, company: Company, body: nn.Module, device: torch.device) -> None:
        self.company, self.body, self.device, self._tells = company, body, device, False
        body.register_forward_pre_hook(self._tell, with_kwargs=True)

    @contextmanager
    def telling(self, alone: bool) -> Iterator[None]:
        """If this rank passes `alone` inside the `with` block, send its pass to the neighbours, which call `follow`."""
        self._tells = alone
        try:
            yield
        finally:
            self._tells = False

    def follow(self) -> Tensor:
        """Compute the pass of the first rank."""
        told: _Pass = self.company.from_first(None)  # type: ignore[assignment]  # the first gives one
        packed = nullcontext() if told.rows is None else packed_rows(told.rows[0], self.device, told.rows[1])
        autocast = torch.autocast(self.device.type, dtype=told.autocast, enabled=told.autocast is not None)
        given, named = _on(self.device, told.given), _on(self.device, told.named)
        with packed, autocast:
            return self.body(*given, **named).last_hidden_state

    def _tell(self, body: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if self._tells:
            kind = self.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            host = torch.device("cpu")
            told = _Pass(given=_on(host, given), named=_on(host, named), rows=rows_of_now(), autocast=dtype)
            self.company.from_first(told)


def _on(device: torch.device, given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _on(device, one) for name, one in given.items()}
    if isinstance(given, tuple):
        return tuple(_on(device, one) for one in given)
    return given.to(device) if isinstance(given, Tensor) else given
