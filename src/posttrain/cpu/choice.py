"""Choose how a model computes on this CPU, by measuring matrix products of its own shapes in well under a second.

The time of a product depends strongly on how it is called, and the fastest way differs between processors. A faster way
is used only if it is as exact as the config demands: in float32, its error against the product in float64 may be at
most `EXACT` times the error of PyTorch's plain float32 product.

Times are CPU times of a single thread, and measurements repeat until they agree. So other programs on a shared machine
affect neither.

N rows, K inputs, M outputs of a linear layer.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Literal, NamedTuple, TypeVar

import psutil
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.nn.functional import linear

from posttrain.cpu import kernels, onednn
from posttrain.cpu.joint_linear import merges_adapters
from posttrain.cpu.kernel_formulas import in_panels
from posttrain.cpu.kernels import Kernels
from posttrain.engines.decoding_path import decoding_path
from posttrain.importing import WAITING
from posttrain.models.compute import DTYPES, Compute, dtype_name, has_bfloat16, machine
from posttrain.models.footprint import COPIED_WEIGHTS
from posttrain.models.modes import evaluating

FASTER = 1.2
"""Factor by which another way must be faster than the plain one to be used."""
EXACT = 4.0
"""Largest allowed ratio of a float32 product's error to the plain product's. For bfloat16 it is in the hundreds."""
COPY_SHARE = 0.25
"""Share of the memory that is free after loading the model that a packed copy for sampling may take."""
Way = Literal["plain", "onednn", "bfloat16"]
Product = Callable[[Tensor, Tensor], Tensor]
"""A function that computes `a @ b` of two float32 matrices, including any conversion of them."""
Key = TypeVar("Key", bound=Hashable)

SHAPES = 3
"""Number of shapes in a model that are measured: the most expensive ones."""
WIDEST = 1024
"""Largest side of a measured matrix. Larger ones are cut, because only the ratio of the ways matters."""
TRAINED_ROWS, DECODED_ROWS = 256, 16
LEAST_TURNS, MOST_TURNS = 3, 24
AGREE = 1.05
"""Measurements end when the two best times of each way differ by at most this factor."""
BUSY = 1.5
"""Ratio of elapsed time to CPU time above which the machine counts as busy with other programs."""
COLD_BYTES = 8_000_000
"""Size of the different weights that are used in turn, as in decoding, in bytes. A single weight would stay in the
cache."""


class Shape(NamedTuple):
    """A shape of linear layers in a model, and the number of layers with it."""

    inputs: int
    outputs: int
    layers: int


class Decoder(NamedTuple):
    """A way to multiply a few rows in decoding."""

    dtype: torch.dtype
    packed: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The speed of each way, and the errors of those that compute in float32."""

    training: Mapping[Way, float]
    """Time of the three products of forward and backward pass, summed over the layers of all shapes, in seconds.
    Without bfloat16 where the processor has no instructions for it: such a product takes some 50 times as long."""
    decoding: Mapping[Decoder, float]
    """Time of the product with `DECODED_ROWS` rows, summed in the same way, in seconds. Without the ways that this
    processor does not have."""
    inexact: Mapping[Literal["onednn", "packed"], float]
    """Root mean square error against float64, divided by the error of the plain product: the worst of all shapes."""
    doubts: str = ""
    """A remark for the user about doubtful measurements; empty if there are no doubts."""


def choose(
    model: nn.Module,
    plain: Compute,
    saved: Compute | None,
    *,
    decodes: bool,
) -> Compute:
    """See `Acceleration`. Return `saved` if it was chosen on this processor for this precision; otherwise measure."""
    shapes = linear_shapes(model)
    if not shapes or not onednn.available():
        return plain
    if saved is not None and (saved.machine, saved.precision) == (machine(), plain.precision):
        others = saved.kernels == "compiled" and saved.compiler != kernels.made_by()
        return with_kernels(saved) if others else saved
    compiled = kernels.kernels() if decodes and multiplies_by_kernels(model) else None
    measured = measure_products(shapes, compiled=compiled)
    size = sum(parameter.numel() for parameter in model.parameters())
    free_bytes = psutil.virtual_memory().available
    found = decide(measured, plain.precision, size=size, free_bytes=free_bytes)
    waiting = [f"{name} = {os.environ[name]}" for name in WAITING if name in os.environ]
    return with_kernels(replace(found, why="; ".join([found.why, *waiting])))


def multiplies_by_kernels(model: nn.Module) -> bool:
    """Whether compiled kernels, if there are any, would multiply by the float32 weights of this model. That is so if it
    is a plain decoder, its adapters can be merged, and no layer is too large to be copied."""
    modules = list(model.modules())
    large = any(type(module) is nn.Linear and module.weight.numel() > COPIED_WEIGHTS for module in modules)
    adapters = [module for module in modules if isinstance(module, BaseTunerLayer)]
    if large or not all(map(merges_adapters, adapters)):
        return False
    with evaluating(model):
        return decoding_path(model).decoder is not None


def with_kernels(chosen: Compute) -> Compute:
    """The choice with decoding by compiled kernels. If there are none, its `why` gives the reason."""
    reason = kernels.why_none()
    if not reason:
        return replace(chosen, kernels="compiled", compiler=kernels.made_by())
    return replace(chosen, kernels="torch", compiler="", why=f"{chosen.why}; no compiled kernels: {reason}")


def decide(measured: Measured, precision: str, *, size: int, free_bytes: int) -> Compute:
    """Choose from a measurement on a CPU, for a model of `size` parameters and `free_bytes` of free memory."""
    training, reasons = measured.training, list[str]()

    def gains(what: str, before: float, after: float, inexact: float = 0.0) -> bool:
        """Whether a way is fast and exact enough. Adds the result to the reasons in either case."""
        times = before / after
        exact = inexact <= EXACT
        verdict = "" if exact else f", but not used: its rounding errors are {inexact:.0f} times those of float32"
        reasons.append(f"{what} {times:.1f} times as fast{verdict}")
        return exact and times >= FASTER

    matmul = gains("float32 through oneDNN", training["plain"], training["onednn"], measured.inexact["onednn"])
    float32_seconds = training["onednn" if matmul else "plain"]
    dtype = DTYPES.get(precision)
    if dtype is None:
        faster = has_bfloat16() and gains("bfloat16", float32_seconds, training["bfloat16"])
        dtype = torch.bfloat16 if faster else torch.float32
    inexact = measured.inexact["packed"] if dtype == torch.float32 else 0.0
    copy = dtype == torch.bfloat16  # shared weights are float32: every decoding step would cast them again
    shared, packed = (Decoder(dtype, is_packed) for is_packed in (False, True))
    if packed in measured.decoding:
        times = measured.decoding[shared], measured.decoding[packed]
        copy |= gains(f"decoding from packed {dtype_name(dtype)} weights", *times, inexact)
    if copy and (needed := size * dtype.itemsize) > COPY_SHARE * free_bytes:
        reasons.append(f"but a copy for sampling takes {needed / 2**30:.1f} GiB and {free_bytes / 2**30:.1f} are free")
        copy = False
    reasons += [measured.doubts] if measured.doubts else []
    return Compute(
        dtype=dtype,
        matmul="onednn" if matmul else "plain",
        sampler="packed" if copy else "shared",
        why="; ".join(reasons),
        precision=precision,
        machine=machine(),
    )


def plain(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def through_onednn(a: Tensor, b: Tensor) -> Tensor:
    with onednn.onednn_products():
        return a @ b


def in_bfloat16(a: Tensor, b: Tensor) -> Tensor:
    """The product in bfloat16, including the casts of both factors that autocast makes."""
    return a.bfloat16() @ b.bfloat16()


PRODUCTS: Mapping[Way, Product] = {"plain": plain, "onednn": through_onednn, "bfloat16": in_bfloat16}
DECODERS = [Decoder(dtype, packed) for dtype in (torch.float32, torch.bfloat16) for packed in (False, True)]


def linear_shapes(model: nn.Module) -> list[Shape]:
    """The `SHAPES` shapes of linear layers with the most weights in total, largest first; empty without such layers."""
    count = Counter((layer.in_features, layer.out_features) for layer in model.modules() if type(layer) is nn.Linear)
    shapes = [Shape(*size, layers) for size, layers in count.items()]
    return sorted(shapes, key=lambda shape: (-shape.inputs * shape.outputs * shape.layers, shape))[:SHAPES]


def measure_products(
    shapes: Sequence[Shape], products: Mapping[Way, Product] = PRODUCTS, *, compiled: Kernels | None = None
) -> Measured:
    """Measure time and error of products for layers of these shapes. PyTorch's random state is not changed.

    `compiled`: kernels that multiply a few rows, if they can, by unpacked float32 weights and by bfloat16 copies.
    """
    products, usable = dict(products), [way for way in DECODERS if not way.packed or onednn.packs(way.dtype)]
    if not has_bfloat16():
        del products["bfloat16"]
        usable = [way for way in usable if way.dtype != torch.bfloat16]
    generator = torch.Generator().manual_seed(0)
    training, decoding = Counter[Way](), Counter[Decoder]()
    onednn_errors, packed_errors, timed = [0.0], [0.0], list[Timed]()
    with torch.no_grad(), one_thread():
        for shape in shapes:
            weights = random_weights(shape, generator)
            factors = factors_of_training(weights[0], generator)
            ways = {way: partial(_all, product, factors) for way, product in products.items()}
            of_training = fastest(ways)
            training.update({way: shape.layers * seconds for way, seconds in of_training.seconds.items()})  # pyright: ignore[reportCallIssue, reportArgumentType]
            rows_NK = factors[0][0][:DECODED_ROWS]
            decoders = {way: _decoder(way, weights, rows_NK, compiled) for way in usable}
            turns = shape.layers / len(weights)
            of_decoding = fastest(decoders)
            decoding.update({way: turns * seconds for way, seconds in of_decoding.seconds.items()})  # pyright: ignore[reportCallIssue, reportArgumentType]
            timed += [of_training, of_decoding]
            onednn_errors += [error(products["onednn"], a, b) / error(plain, a, b) for a, b in factors]
            packed_errors += [error(_packed_product, a, b) / error(plain, a, b) for a, b in factors[:1]]
    return Measured(
        training=dict(training),
        decoding=dict(decoding),
        inexact={"onednn": max(onednn_errors), "packed": max(packed_errors)},
        doubts=_doubts(timed),
    )


def random_weights(shape: Shape, generator: torch.Generator) -> list[Tensor]:
    """Random weights `[M, K]` of this shape, as many as are used in turn."""
    size = (min(shape.outputs, WIDEST), min(shape.inputs, WIDEST))
    turns = max(1, min(shape.layers, COLD_BYTES // (4 * size[0] * size[1])))
    return [torch.randn(size, generator=generator) for _ in range(turns)]


def factors_of_training(weight_MK: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """The factors of three products: of the outputs, of the inputs' gradient and of the weights' gradient."""
    x_NK = torch.randn(TRAINED_ROWS, weight_MK.shape[1], generator=generator)
    grad_NM = torch.randn(TRAINED_ROWS, weight_MK.shape[0], generator=generator)
    return [(x_NK, weight_MK.T), (grad_NM, weight_MK), (grad_NM.T, x_NK)]


def error(product: Product, a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference between a product and the one in float64."""
    return float((product(a, b).double() - a.double() @ b.double()).square().mean().sqrt())


@dataclass(frozen=True)
class Timed(Generic[Key]):
    """The best CPU time of each task, in seconds."""

    seconds: dict[Key, float]
    agree: bool
    """Whether the two best times of each task are about the same."""
    busy: bool
    """Whether much more time passed than CPU time was used."""


def fastest(tasks: Mapping[Key, Callable[[], object]]) -> Timed[Key]:
    """Measure tasks in turns until the two best times of each agree. Other load on the machine affects all of them."""
    seconds: dict[Key, list[float]] = {name: [] for name in tasks}
    worked, agree = 0.0, False
    for task in tasks.values():  # the first call also chooses kernels and allocates memory
        task()
    began = time.perf_counter()
    for turn in range(MOST_TURNS):
        for name, task in tasks.items():
            begin = time.thread_time()
            task()
            seconds[name].append(time.thread_time() - begin)
            worked += seconds[name][-1]
        agree = all(sorted(times)[1] <= AGREE * min(times) for times in seconds.values()) if turn else False
        if turn + 1 >= LEAST_TURNS and agree:
            break
    busy = time.perf_counter() - began > BUSY * worked
    return Timed({name: min(times) for name, times in seconds.items()}, agree, busy)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside, because the waiting of several threads for each other counts as CPU time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _doubts(timed: Sequence[Timed]) -> str:
    said = []
    if any(one.busy for one in timed):
        said.append("the machine was busy with something else (if it stays busy, OMP_NUM_THREADS=1 is faster)")
    if not all(one.agree for one in timed):
        said.append(f"times differed by more than {AGREE - 1:.0%} from turn to turn")
    return f"measured while {' and '.join(said)}" if said else ""


def _all(product: Product, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
    for a, b in factors:
        product(a, b)


def _decoder(way: Decoder, weights: Sequence[Tensor], x_NK: Tensor, compiled: Kernels | None) -> Callable[[], None]:
    """A function that multiplies a few rows by each of these weights, which are cast and packed beforehand."""
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
