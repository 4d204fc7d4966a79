"""Timing and probing matrix products at the shapes of a model, in each of the ways in which they can run on a CPU.

N rows, K inputs, M outputs of a linear layer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from posttrain.models import onednn
from posttrain.models.kernels import Kernels, in_panels

Way = Literal["plain", "onednn", "bfloat16"]
Product = Callable[[Tensor, Tensor], Tensor]
"""`a @ b` of two float32 matrices, with whatever has to happen to them on the way."""
Key = TypeVar("Key", bound=Hashable)

SHAPES = 3
"""Of the shapes in a model, those that cost most."""
WIDEST = 1024
"""Larger matrices are cut to this: the way matters, not the whole product."""
TRAINED_ROWS, DECODED_ROWS = 256, 16
REPEATS = 3
COLD_BYTES = 8_000_000
"""Of different weights that are taken in turn, as a model that decodes does: a single one would stay in the cache."""


class Shape(NamedTuple):
    """Of the linear layers of a model."""

    inputs: int
    outputs: int
    layers: int


class Decoder(NamedTuple):
    """What a few rows go through."""

    dtype: torch.dtype
    packed: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How fast each way is, and how exact those are that compute in float32."""

    training: Mapping[Way, float]
    """Seconds for the three products of forward and backward pass, of layers of all shapes together."""
    decoding: Mapping[Decoder, float]
    """Seconds for the product with `DECODED_ROWS` rows."""
    inexact: Mapping[Literal["onednn", "packed"], float]
    """Error against float64 (root mean square), in errors of the plain product; the worst of all shapes."""


def plain(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def through_onednn(a: Tensor, b: Tensor) -> Tensor:
    with onednn.onednn_products():
        return a @ b


def in_bfloat16(a: Tensor, b: Tensor) -> Tensor:
    """With the casts of both factors, as autocast makes them."""
    return a.bfloat16() @ b.bfloat16()


PRODUCTS: Mapping[Way, Product] = {"plain": plain, "onednn": through_onednn, "bfloat16": in_bfloat16}
DECODERS = [Decoder(dtype, packed) for dtype in (torch.float32, torch.bfloat16) for packed in (False, True)]


def linear_shapes(model: nn.Module) -> list[Shape]:
    """The `SHAPES` shapes of linear layers that hold the most weights, the most first; none without such layers."""
    count = Counter((layer.in_features, layer.out_features) for layer in model.modules() if type(layer) is nn.Linear)
    shapes = [Shape(*size, layers) for size, layers in count.items()]
    return sorted(shapes, key=lambda shape: (-shape.inputs * shape.outputs * shape.layers, shape))[:SHAPES]


def measure(
    shapes: Sequence[Shape], products: Mapping[Way, Product] = PRODUCTS, *, compiled: Kernels | None = None
) -> Measured:
    """Time and probe the products of layers of these shapes. The random state of PyTorch is not touched.

    `compiled`: what multiplies a few rows, if it can, by float32 weights that are not packed and by bfloat16 copies.
    """
    generator = torch.Generator().manual_seed(0)
    training, decoding = Counter[Way](), Counter[Decoder]()
    onednn_errors, packed_errors = [0.0], [0.0]
    with torch.no_grad():
        for shape in shapes:
            weights = random_weights(shape, generator)
            factors = factors_of_training(weights[0], generator)
            ways = {way: partial(_all, product, factors) for way, product in products.items()}
            training.update({way: shape.layers * seconds for way, seconds in fastest(ways).items()})  # pyright: ignore[reportCallIssue, reportArgumentType]
            rows_NK = factors[0][0][:DECODED_ROWS]
            decoders = {way: _decoder(way, weights, rows_NK, compiled) for way in DECODERS}
            turns = shape.layers / len(weights)
            decoding.update({way: turns * seconds for way, seconds in fastest(decoders).items()})
            onednn_errors += [error(products["onednn"], a, b) / error(plain, a, b) for a, b in factors]
            packed_errors += [error(_packed_product, a, b) / error(plain, a, b) for a, b in factors[:1]]
    return Measured(
        training=dict(training),
        decoding=dict(decoding),
        inexact={"onednn": max(onednn_errors), "packed": max(packed_errors)},
    )


def random_weights(shape: Shape, generator: torch.Generator) -> list[Tensor]:
    """`[M, K]` weights of this shape, as many as are taken in turn."""
    size = (min(shape.outputs, WIDEST), min(shape.inputs, WIDEST))
    turns = max(1, min(shape.layers, COLD_BYTES // (4 * size[0] * size[1])))
    return [torch.randn(size, generator=generator) for _ in range(turns)]


def factors_of_training(weight_MK: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Of outputs, of the gradient of inputs and of that of weights."""
    x_NK = torch.randn(TRAINED_ROWS, weight_MK.shape[1], generator=generator)
    grad_NM = torch.randn(TRAINED_ROWS, weight_MK.shape[0], generator=generator)
    return [(x_NK, weight_MK.T), (grad_NM, weight_MK), (grad_NM.T, x_NK)]


def error(product: Product, a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference from the product in float64."""
    return float((product(a, b).double() - a.double() @ b.double()).square().mean().sqrt())


def fastest(tasks: Mapping[Key, Callable[[], object]]) -> dict[Key, float]:
    """Seconds of each at its best, with the tasks taking turns: whatever else the machine does meets all of them."""
    seconds: dict[Key, list[float]] = {name: [] for name in tasks}
    for turn in range(1 + REPEATS):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            if turn > 0:  # the first time it also chooses kernels and finds memory
                seconds[name].append(time.perf_counter() - begin)
    return {name: min(times) for name, times in seconds.items()}


def _all(product: Product, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
    for a, b in factors:
        product(a, b)


def _decoder(way: Decoder, weights: Sequence[Tensor], x_NK: Tensor, compiled: Kernels | None) -> Callable[[], None]:
    """What puts a few rows through layers with these weights; casting and packing them is done before."""
    x = x_NK.to(way.dtype)
    ready = [weight.to(way.dtype) for weight in weights]
    product: Callable[[Tensor, Tensor], Tensor] = linear
    outputs, inputs = ready[0].shape
    for_kernel = way in (Decoder(torch.float32, False), Decoder(torch.bfloat16, True))
    if compiled is not None and for_kernel and compiled.can_multiply(way.dtype, inputs, outputs):
        product = partial(compiled.linear, bias_M=None, outputs=outputs)
        ready = [in_panels(weight) for weight in ready]
    elif way.packed:
        ready = [onednn.pack(weight) for weight in ready]
        product = partial(onednn.packed_linear, bias_M=None)

    def decode() -> None:
        for weight in ready:
            product(x, weight)

    return decode


def _packed_product(a: Tensor, b: Tensor) -> Tensor:
    return onednn.packed_linear(a, onednn.pack(b.T), None)
