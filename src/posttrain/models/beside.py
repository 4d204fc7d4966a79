"""The pass that neighbours with divided matrices compute while the first rank passes through the model alone: the same
one.

Ranks with rows of their own keep company with any row, since FSDP brings weights together whatever these multiply.
Neighbours sum products, so that theirs have to be of the same tokens. The first rank tells them, where its tokens enter
the body of the model; heads are its own affair.
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
    """All that a pass through the body depends on, beside the weights."""

    given: tuple[Any, ...]
    named: Mapping[str, Any]
    rows: tuple[Sequence[Segment], Manner] | None
    autocast: torch.dtype | None


class Beside:
    """Of one rank and one model."""

    def __init__(self, company: Company, body: nn.Module, device: torch.device) -> None:
        self.company, self.body, self.device, self._tells = company, body, device, False
        body.register_forward_pre_hook(self._tell, with_kwargs=True)

    @contextmanager
    def telling(self, alone: bool) -> Iterator[None]:
        """Inside, if this rank passes alone, its neighbours hear of it; they call `follow`."""
        self._tells = alone
        try:
            yield
        finally:
            self._tells = False

    def follow(self) -> Tensor:
        """The pass of the first rank."""
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
