"""How a model is decoded, found by trying it on a few short rows, never by its name.

slots    keys and values per position in static storage; rows join and leave at any time (slots.py). On a GPU in half
         precision, each row reads only its own columns if a kernel is about as exact (varlen_attention.py)
padded   rows padded on the left that begin together (decoding.py), for recurrent and hybrid models and others that
         keep more than keys and values

If a registered acceleration (models/acceleration.py) supports a model that runs in slots, it decodes in place of the
model's own forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.engines import varlen_attention
from posttrain.engines.decoding import PaddedRows, accepted_arguments, base_model, is_hooked
from posttrain.engines.engine import Arrival, Rows
from posttrain.engines.precision import HALF, precision_of
from posttrain.engines.slots import Slots
from posttrain.engines.transfer import to_device
from posttrain.models.acceleration import acceleration
from posttrain.models.compute import PLAIN, Compute
from posttrain.models.transformers_private import attention_name, can_set_attention

_PROBE_LENGTHS = (9, 3, 6)
_PROBE_STEPS = 3
_ROUNDING = 5e-2
"""Rounding error of a shallow model in half precision, relative to the largest logit."""


class Decoder(Protocol):
    """Decodes models of one kind faster than their own forward pass; made by `Acceleration.decoder`."""

    def rows(self, model: nn.Module, compute: Compute) -> Rows:
        """Return rows that this model decodes, with its weights as they are now."""
        ...

    def passes_by(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the modules that it does not call, although the model's own forward pass would."""
        ...


@dataclass(frozen=True, kw_only=True)
class DecodingPath:
    """The way in which one model is decoded."""

    implementation: str | None
    """The attention implementation under which the model runs in slots; None: padded rows."""
    note: str = ""
    """Why rows are padded; empty for slots."""
    decoder: Decoder | None = None
    """The decoder that replaces the model's own forward pass; None if there is none."""

    def rows(self, model: nn.Module, *, max_rows: int, holds_prompt: bool, compute: Compute = PLAIN) -> Rows:
        """Return room for `max_rows` rows. `holds_prompt`: groups may be split when slots run out."""
        if self.implementation is None:
            return PaddedRows(model)
        if self.decoder is not None:
            return self.decoder.rows(model, compute)
        return Slots(
            model,
            accepted_arguments(base_model(model)),
            max_rows=max_rows,
            holds_prompt=holds_prompt,
            columns_first=self.implementation == varlen_attention.NAME,
        )

    def in_force(self, model: nn.Module) -> AbstractContextManager[None]:
        """Use the attention implementation of this path inside the `with` block, and restore the old one after it."""
        if self.implementation is None or self.decoder is not None:
            return nullcontext()
        return _attention(base_model(model), self.implementation)


_Kinds = tuple[type[nn.Module], ...]
_paths: WeakKeyDictionary[nn.Module, tuple[_Kinds, dict[torch.dtype | None, DecodingPath]]] = WeakKeyDictionary()
"""Paths by precision, if a kernel computes only in that one; None: the path for all others."""


def decoding_path(model: nn.Module, dtype: torch.dtype | None = None) -> DecodingPath:
    """Return slots if they give a few short rows the same logits as each row alone; else padded rows.

    The path is found once per model, in the precision of its weights, and again if modules were replaced by others of
    another class. On a GPU, the kernel of `varlen_attention.py` is also tried, once in each half precision in use.
    `dtype` is the precision of the products; None: as the weights are stored.
    """
    causal_lm = base_model(model)
    kinds: _Kinds = tuple(map(type, causal_lm.modules()))
    found_for, paths = _paths.get(causal_lm, ((), dict[torch.dtype | None, DecodingPath]()))
    if found_for != kinds:
        paths: dict[torch.dtype | None, DecodingPath] = {None: _find_path(model, dtype)}
        _paths[causal_lm] = kinds, paths
    path, computes_in = paths[None], _computes_in(causal_lm, dtype)
    if path.implementation == "slots_sdpa" and causal_lm.device.type != "cpu" and computes_in in HALF:
        if computes_in not in paths:
            paths[computes_in] = _by_the_kernel(model, path, dtype)
        path = paths[computes_in]
    if path.decoder is not None and any(map(is_hooked, path.decoder.passes_by(model))):
        return replace(path, decoder=None)  # a hooked module must be called
    return path


def _computes_in(causal_lm: PreTrainedModel, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype in HALF else next(causal_lm.parameters()).dtype


def decode_by(model: nn.Module, path: DecodingPath) -> None:
    """Decode this copy, or this model with cast weights, by the path that was found before.

    In a new trial in bfloat16, a deep model may differ from itself by as much as its rounding. Its path would then be
    luck, and might change in a resumed run. On a CPU, only a path with a decoder is kept. On a GPU, any path is kept,
    and only the kernel for half precision is still tried.
    """
    causal_lm = base_model(model)
    if path.decoder is not None or causal_lm.device.type != "cpu":
        _paths[causal_lm] = tuple(map(type, causal_lm.modules())), {None: path}


def _find_path(model: nn.Module, dtype: torch.dtype | None) -> DecodingPath:
    causal_lm = base_model(model)
    obstacle = "the model takes no position_ids"
    if {"position_ids", "past_key_values"} <= set(accepted_arguments(causal_lm)):
        path = DecodingPath(implementation=_slots(causal_lm))
        with _exact(model, dtype):
            alone = cache(lambda: _alone(model))
            obstacle = _try(model, path, alone)
            if obstacle is None:
                return _accelerated(model, path, alone)
    return DecodingPath(
        implementation=None,
        note=f"{type(causal_lm).__name__} decodes padded rows that begin and end together, which is slower than "
        f"continuous batching: {obstacle}",
    )


def _slots(causal_lm: PreTrainedModel) -> str:
    return "slots_eager" if attention_name(causal_lm.config).endswith("eager") else "slots_sdpa"


@contextmanager
def _exact(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Compute in the precision of the weights. If they have several, as with a frozen base in bfloat16, compute in
    `dtype`, because mixed weights cannot be multiplied without autocast."""
    mixed = len({x.dtype for x in model.parameters() if x.is_floating_point()}) > 1
    in_place = precision_of(model, dtype)() if mixed else nullcontext()
    with torch.no_grad(), in_place, torch.autocast(base_model(model).device.type, enabled=False):
        yield


def _by_the_kernel(model: nn.Module, path: DecodingPath, dtype: torch.dtype | None) -> DecodingPath:
    """Return the kernel for rows of different lengths, if its half-precision error against single rows is about as
    small as that of `path`, which was found in a better precision; else `path`."""
    kernel = DecodingPath(implementation=varlen_attention.NAME)
    with torch.no_grad(), precision_of(model, dtype)():
        try:
            alone = _alone(model)
            off_kernel = _largest_error(model, kernel, alone)
        except Exception:  # a width or a mask that the kernel refuses
            return path
        return kernel if off_kernel <= 3 * _largest_error(model, path, alone) + _ROUNDING else path


def _accelerated(model: nn.Module, path: DecodingPath, alone: Callable[[], list[Tensor]]) -> DecodingPath:
    """Return the path with an acceleration's decoder if that gives the same logits, else unchanged. Soft caps and
    other extras need the model's own code. Only on a CPU: elsewhere it would wait for host lists at each change of
    rows."""
    if path.implementation != "slots_sdpa" or next(model.parameters()).device.type != "cpu":
        return path
    try:
        decoder = acceleration().decoder(model, lambda: _decode_probe(model, path))
    except Exception:  # any peculiarity of an architecture; it is already known to run in slots
        return path
    faster = replace(path, decoder=decoder)
    return faster if _try(model, faster, alone) is None else path


def _try(model: nn.Module, path: DecodingPath, alone: Callable[[], list[Tensor]]) -> str | None:
    """Return None if rows get the same logits together as by `alone`, else the reason why not."""
    causal_lm = base_model(model)
    if not can_set_attention(causal_lm):
        return "its attention cannot be replaced"
    try:
        found = _decode_probe(model, path)
    except Exception as error:  # any failure of an architecture on unfamiliar inputs: there is another way
        return f"{type(error).__name__}: {error}"
    same = all(_same(a, b) for a, b in zip(found, alone(), strict=True))
    return None if same else "a row changes when other rows are decoded with it"


def _largest_error(model: nn.Module, path: DecodingPath, alone: Sequence[Tensor]) -> float:
    """Return the largest error of the rows together, relative to the largest value of each row alone."""
    pairs = zip(_decode_probe(model, path), alone, strict=True)
    return torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs]).max().item()


def _alone(model: nn.Module) -> list[Tensor]:
    """Return the logits `[_PROBE_STEPS, V]` of every row alone."""
    causal_lm = base_model(model)
    return [
        model(input_ids=to_device(row, causal_lm.device)[None], use_cache=False).logits[0, n - 1 : -1]
        for row, n in zip(_probe_ids(causal_lm), _PROBE_LENGTHS, strict=True)
    ]


def _decode_probe(model: nn.Module, path: DecodingPath) -> list[Tensor]:
    causal_lm = base_model(model)
    ids = _probe_ids(causal_lm)
    with path.in_force(model):
        return _decode(path.rows(model, max_rows=len(ids) + 1, holds_prompt=True), ids, causal_lm.device)


def _probe_ids(causal_lm: PreTrainedModel) -> list[list[int]]:
    vocabulary: int = causal_lm.config.get_text_config().vocab_size
    return [
        [(7 * row + 3 * t + t * t) % vocabulary for t in range(n + _PROBE_STEPS)]
        for row, n in enumerate(_PROBE_LENGTHS)
    ]


def _decode(rows: Rows, ids: list[list[int]], device: torch.device) -> list[Tensor]:
    """Return the logits `[_PROBE_STEPS, V]` of every row. The first row comes twice and leaves once; the last one comes
    late."""
    first, second, late = (ids_T[:n] for ids_T, n in zip(ids, _PROBE_LENGTHS, strict=True))

    def tokens(*places: tuple[int, int]) -> Tensor:
        return to_device([ids[row][_PROBE_LENGTHS[row] + t] for row, t in places], device)

    start_BV = rows.step(tokens(), [Arrival(first, 2, more=False), Arrival(second, 1, more=False)])
    rows.select([2, 1])
    then_BV = rows.step(tokens((1, 0), (0, 0)), [Arrival(late, 1, more=True)])
    later_BV = rows.step(tokens((1, 1), (0, 1), (2, 0)), [Arrival(late, 1, more=False)])
    last_BV = rows.step(tokens((1, 2), (0, 2), (2, 1), (2, 0)), [])
    return [
        torch.stack([start_BV[0], then_BV[1], later_BV[1]]),
        torch.stack([start_BV[2], then_BV[0], later_BV[0]]),
        torch.stack([later_BV[3], last_BV[3], last_BV[2]]),
    ]


def _same(actual: Tensor, expected: Tensor) -> bool:
    """Return whether both are equal up to rounding, relative to the largest value. Rows that mix differ far more."""
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-3}.get(expected.dtype, _ROUNDING)
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


@contextmanager
def _attention(causal_lm: PreTrainedModel, implementation: str) -> Iterator[None]:
    before = attention_name(causal_lm.config)
    causal_lm.set_attn_implementation(implementation)
    try:
        yield
    finally:
        causal_lm.set_attn_implementation(before)
