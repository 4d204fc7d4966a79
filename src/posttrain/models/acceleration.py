"""The one hook for code faster than PyTorch's, which models and engines call before they compute the plain way.

By default nothing is registered, and PyTorch and transformers compute everything. The package root registers a module
by name for each type of device. It is imported at the first call, so that commands without a model do not pay for it.
An acceleration computes the same as the plain way, up to rounding.

L packed tokens, R rows, T queries, S keys, H query heads, K key-value heads, D width of a head; n rows, V vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from posttrain.models.compute import Compute
    from posttrain.models.packing import Segment

Settings = Mapping[str, Any]
"""The arguments other than tensors that a layer passes to its attention function."""
RowAttention = Callable[["nn.Module", "Tensor", "Tensor", "Tensor", Settings], "Tensor | None"]
"""(layer, queries `[L, H, D]`, keys and values `[L, K, D]`, settings) -> `[L, H, D]`; None: use the plain way."""
Draw = Callable[["Tensor", "Tensor", float], "tuple[Tensor, Tensor]"]
"""(logits `[n, V]`, uniform numbers `[n, 2]`, temperature) -> tokens and their log-probabilities, `[n]` each."""


class Acceleration(Protocol):
    """A module with these functions. A result of None means: use the plain way."""

    def choose(self, model: nn.Module, plain: Compute, saved: Compute | None, *, decodes: bool) -> Compute:
        """Return how products run, measured on this machine for this model; `saved` is an earlier choice, if any."""
        ...

    def training(self, compute: Compute) -> AbstractContextManager[None]:
        """Return a context manager for the forward and backward passes of training."""
        ...

    def row_attention(self, segments: Sequence[Segment], device: torch.device) -> RowAttention | None:
        """Return causal attention for packed rows that are cut like this, for one pass."""
        ...

    def grid_attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Settings
    ) -> Tensor | None:
        """Return `[R, T, H, D]` for `[R, H, T, D]` and `[R, K, S, D]`, as transformers' `sdpa` computes it."""
        ...

    def decoder(self, model: nn.Module, run_in_slots: Callable[[], object]) -> Any:
        """Return a `posttrain.engines.decoding_path.Decoder` for this model. `run_in_slots` runs it on a few short
        rows."""
        ...

    def draw(self, compute: Compute, logits_nV: Tensor) -> Draw | None:
        """Return a function that samples tokens without truncation."""
        ...

    def pack(self, model: nn.Module) -> None:
        """Give the weights of a model that only decodes a faster layout. Raises ModelError, with the model unchanged,
        if that is impossible.

        A layer with a changed weight gets `load_weight(weight)`; `Tensor.to_dense` reads the weight.
        """
        ...


class Plain:
    """No acceleration: everything runs the plain way. Implements `Acceleration`."""

    def choose(self, model: nn.Module, plain: Compute, saved: Compute | None, *, decodes: bool) -> Compute:
        return plain

    def training(self, compute: Compute) -> AbstractContextManager[None]:
        return nullcontext()

    def row_attention(self, segments: Sequence[Segment], device: torch.device) -> None:
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


_registered: dict[str, str] = {}
_found: dict[str, Acceleration] = {}


def register(module: str | None, device: str = "cpu") -> None:
    """Use this module from now on, for tensors on this type of device; None: use no acceleration."""
    _found.pop(device, None)
    _registered.pop(device, None)
    if module is not None:
        _registered[device] = module


def acceleration(device: str = "cpu") -> Acceleration:
    """Return the registered acceleration, imported at the first call; the plain one if it is not installed."""
    if device not in _found:
        _found[device] = _imported(_registered[device]) if device in _registered else Plain()
    return _found[device]


def _imported(module: str) -> Acceleration:
    try:
        return importlib.import_module(module)  # pyright: ignore[reportReturnType]
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return Plain()


def attends_alone(module: nn.Module, settings: Settings) -> bool:
    """Return whether attention with these settings is only causal: no dropout, soft cap, bias or sinks."""
    if settings.get("dropout") or any(
        settings.get(name) is not None for name in ("softcap", "position_bias", "s_aux", "cache")
    ):
        return False
    causal = settings.get("is_causal")
    return bool(getattr(module, "is_causal", True) if causal is None else causal)
