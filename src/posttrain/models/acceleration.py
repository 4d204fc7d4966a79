"""The one hook for faster code than PyTorch's: what models and engines ask before they compute in the plain way.

By default nothing is registered, and PyTorch and transformers compute everything. The root registers a module by name.
It is imported when a model first asks, so that commands without a model do not pay for it. What answers computes the
same as the plain way, but for rounding.

L packed tokens, R rows, T queries, S keys, H query heads, K key-value heads, D width of a head; n rows, V vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from posttrain.models.compute import Compute
    from posttrain.models.packing import Segment

Settings = Mapping[str, Any]
"""What a layer hands to its attention function beside tensors."""
RowAttention = Callable[["nn.Module", "Tensor", "Tensor", "Tensor", Settings], "Tensor | None"]
"""(layer, queries `[L, H, D]`, keys and values `[L, K, D]`, settings) -> `[L, H, D]`, or None: not this one."""
Draw = Callable[["Tensor", "Tensor", float], "tuple[Tensor, Tensor]"]
"""(logits `[n, V]`, uniform numbers `[n, 2]`, temperature) -> tokens and their log-probabilities, `[n]` each."""


class Acceleration(Protocol):
    """A module with these functions. `None` means: the plain way."""

    def choose(self, model: nn.Module, plain: Compute, saved: Compute | None, *, decodes: bool) -> Compute:
        """How products run, measured on this machine for this model; `saved` where it was chosen here before."""
        ...

    def training(self, compute: Compute) -> AbstractContextManager[None]:
        """Entered around the forward and backward passes of training."""
        ...

    def row_attention(self, segments: Sequence[Segment]) -> RowAttention | None:
        """Causal attention of packed rows that are cut like this, for one pass."""
        ...

    def grid_attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Settings
    ) -> Tensor | None:
        """`[R, T, H, D]` of `[R, H, T, D]` and `[R, K, S, D]`, as `sdpa` of transformers computes it."""
        ...

    def decoder(self, model: nn.Module, run_in_slots: Callable[[], object]) -> Any:
        """A `posttrain.engines.decoding_path.Decoder` for this model. `run_in_slots` runs it on a few short rows."""
        ...

    def draw(self, compute: Compute, logits_nV: Tensor) -> Draw | None:
        """Draws tokens where nothing is truncated."""
        ...

    def pack(self, model: nn.Module) -> None:
        """Lay out the weights of a model that only decodes; raises ModelError, with the model as it was, if it cannot.

        A layer whose weight is then laid out in another way has `load_weight(weight)`; `Tensor.to_dense` reads it.
        """
        ...


class _Plain:
    """Implements `Acceleration`: nothing is accelerated."""

    def choose(self, model: nn.Module, plain: Compute, saved: Compute | None, *, decodes: bool) -> Compute:
        return plain

    def training(self, compute: Compute) -> AbstractContextManager[None]:
        return nullcontext()

    def row_attention(self, segments: Sequence[Segment]) -> None:
        return None

    def grid_attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Settings
    ) -> None:
        return None

    def decoder(self, model: nn.Module, run_in_slots: Callable[[], object]) -> None:
        return None

    def draw(self, compute: Compute, logits_nV: Tensor) -> None:
        return None

    def pack(self, model: nn.Module) -> None:
        return None


_registered: str | None = None
_found: Acceleration | None = None


def register(module: str | None) -> None:
    """Use this module from now on; None for nothing."""
    global _registered, _found
    _registered, _found = module, None


def acceleration() -> Acceleration:
    """What was registered, imported now if it was not before. Where it is not installed, nothing is accelerated."""
    global _found
    if _found is None:
        _found = _Plain() if _registered is None else _imported(_registered)
    return _found


def _imported(module: str) -> Acceleration:
    try:
        return importlib.import_module(module)  # pyright: ignore[reportReturnType]
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return _Plain()
