"""The performance of accelerators (hardware.yaml), this machine, and the memory that a run may use here.

Peaks come from data sheets. A plan multiplies them by the shares in `Efficiency`, or uses the measurements of a probe
instead. No table has this machine's processor: a short measurement gives its peak.
"""

from __future__ import annotations

import difflib
import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.control_groups import cores
from posttrain.errors import ConfigError
from posttrain.verify import read_table

FILE = Path(__file__).with_name("hardware.yaml")
CONTEXT = 600 * 2**20
"""Bytes of a GPU that the driver's context and libraries take."""
_COUNTED = (
    re.compile(r"(?P<count>\d+)(?!\d|\s*gi?b?\b)[\s,_x*×:-]*(?P<name>.+)"),
    re.compile(r"(?P<name>.+?)\s*[x*×:]\s*(?P<count>\d+)"),
)
"""`8xh100` or `8 h100`, though `80 gb` has no count; `h100x8` or `h100:8`, as schedulers write it."""
_COUNTED_LAST = re.compile(r"(?P<name>.+?)[\s,_-]+(?P<count>\d+)")
"""`h100 8`. The number may also be a part of the name (`rtx 4090`) or the memory (`a100 80`)."""
_MOST_BARE = 64
"""A larger bare number behind a name is no count, but the memory of a variant that is not in the table: `h100 94`."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The peak performance of an accelerator or processor, per second and in bytes."""

    key: str
    title: str
    bfloat16: float | None
    """Dense floating-point operations per second. None if the device has no bfloat16 products."""
    float32: float
    memory: int
    bandwidth: float
    link: float
    """Bytes per second between devices of one machine, in one direction."""
    network: float
    """Bytes per second from a device to another machine, in one direction: its share of the network cards."""
    price: tuple[float, float] | None
    """US dollars per hour: (cheapest, dearest) usual offer. None for a machine that the user already has."""
    source: str

    def peak(self, precision: str) -> float:
        """Return the peak rate of products in this precision. Without bfloat16, that of float32."""
        return self.bfloat16 if precision == "bfloat16" and self.bfloat16 else self.float32


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The shares of the peaks that a run reaches. Assumed, unless a probe has measured them."""

    compute: float
    bandwidth: float
    link: float
    network: float
    layer_call: float
    """Minimum time of a layer's forward pass, in seconds. It dominates decoding with a small model."""
    source: str = "assumed"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware of a plan: devices of one kind, and how efficiently they are used."""

    device: Device
    count: int = 1
    node: int = 8
    """Number of devices per machine, if there are several machines."""
    efficiency: Efficiency
    free_memory: int | None = None
    """Free bytes on each device now, if this is the current machine. Otherwise None."""
    swap: int = 0
    """Bytes of swap. A run that needs it fits, but is very slow."""
    memory_factor: float = 1.0
    """Ratio of measured to predicted bytes, for the parts that are not known exactly. A probe measures it."""

    @property
    def memory(self) -> int:
        """Bytes that a run may use on each device."""
        if self.free_memory is None:
            return self.device.memory - CONTEXT
        return self.free_memory

    @property
    def name(self) -> str:
        return f"{self.count} x {self.device.title}" if self.count > 1 else self.device.title

    def rate(self, precision: str) -> float:
        """Floating-point operations per second that a device is expected to reach."""
        return self.device.peak(precision) * self.efficiency.compute

    @property
    def bandwidth(self) -> float:
        """Expected bytes per second of a device's memory."""
        return self.device.bandwidth * self.efficiency.bandwidth

    @property
    def link(self) -> float:
        """Expected bytes per second that a device receives from others of its machine."""
        return self.device.link * self.efficiency.link

    @property
    def network(self) -> float:
        """Expected bytes per second that a device receives from other machines."""
        return self.device.network * self.efficiency.network

    def price(self, own: float | None = None) -> tuple[float, float] | None:
        """Return the dollars per hour for all devices: the usual range, or `own` per device."""
        low_high = (own, own) if own is not None else self.device.price
        return None if low_high is None else (low_high[0] * self.count, low_high[1] * self.count)


@functools.cache
def table() -> Mapping[str, Any]:
    """Return the content of hardware.yaml."""
    return read_table(FILE)


@functools.cache
def devices() -> Mapping[str, Device]:
    """Map keys to devices, in the units of `Device`."""
    return {key: _device(key, told) for key, told in table()["devices"].items()}


def _device(key: str, told: Mapping[str, Any]) -> Device:
    return Device(
        key=key,
        title=told["title"],
        bfloat16=None if told["bfloat16"] is None else told["bfloat16"] * 1e12,
        float32=told["float32"] * 1e12,
        memory=told["memory_mib"] * 2**20,
        bandwidth=told["bandwidth"] * 1e9,
        link=told["link"] * 1e9,
        network=told["network"] * 1e9,
        price=tuple(told["price"]),
        source=told["source"],
    )


def assumed_efficiency() -> Efficiency:
    """Return the shares in hardware.yaml."""
    return Efficiency(**table()["efficiency"])


def find_hardware(text: str) -> Hardware:
    """Return the devices for a name as people or drivers write it: `8xH100`, `a100-40gb`, `2 x RTX 4090`, `H100:8`,
    `NVIDIA H100 80GB HBM3`. An unknown name raises a ConfigError that lists the known ones.

    >>> find_hardware("8xH100").count, find_hardware("NVIDIA GeForce RTX 4090").device.memory // 2**20
    (8, 24564)
    """
    name, count = max(_readings(text.strip().lower()), key=lambda reading: _likeness(reading[0]))
    key = _names().get(name)
    if key is None or count < 1:
        raise ConfigError(
            given=f"gpus = {text!r}",
            allowed=f"a count and one of {', '.join(devices())}",
            fix=f"{_nearest(name, count)} Without it, the plan is for this machine.",
        )
    return Hardware(device=devices()[key], count=count, efficiency=assumed_efficiency())


def hardware_with(memory: int, count: int) -> Hardware:
    """Return GPUs with this many bytes: the ones of the table that have them up to 1 %, otherwise unknown ones, which
    have bfloat16.

    >>> hardware_with(24 * 2**30, 2).name, hardware_with(50 * 2**30, 1).device.memory == 50 * 2**30
    ('2 x NVIDIA GeForce RTX 3090 24 GB', True)
    """
    device = min(devices().values(), key=lambda one: abs(one.memory - memory))
    if abs(device.memory - memory) > 0.01 * memory:
        device = replace(devices()["a100-80gb"], key="", title=f"GPU with {memory / 2**30:g} GiB", memory=memory)
    return Hardware(device=device, count=count, efficiency=assumed_efficiency())


def _readings(text: str) -> Iterator[tuple[str, int]]:
    """Yield the ways to read a text as a name and a count.

    >>> [list(_readings(text)) for text in ("a100 8", "a100 80")]
    [[('a100-8', 1), ('a100', 8)], [('a100-80', 1)]]
    """
    yield _short(text), 1
    for form in _COUNTED:
        if (found := form.fullmatch(text)) and found["count"] not in _names():
            yield _short(found["name"]), int(found["count"])
    found = _COUNTED_LAST.fullmatch(text)
    if found and found["count"] not in _names() and int(found["count"]) <= _MOST_BARE:
        words = set(_words(found["name"])) | {found["count"]}
        if not any(words.issubset(_words(device.title)) for device in devices().values()):
            yield _short(found["name"]), int(found["count"])


def _likeness(name: str) -> float:
    """Return how similar a name is to the nearest known one: 1 for that name itself, and for the memory of a device."""
    if _with_memory(name):
        return 1.0
    return max(difflib.SequenceMatcher(None, known, name).ratio() for known in _names())


@functools.cache
def _names() -> Mapping[str, str]:
    """Map every name of a device to its key: the key itself, the title, and other names."""
    titles = {_short(device.title): key for key, device in devices().items()}
    return {**titles, **{key: key for key in devices()}, **table()["names"]}


def _short(name: str) -> str:
    """Remove the words of a name that do not identify the device.

    >>> _short("NVIDIA A100-SXM4-80GB"), _short("GeForce RTX 4090 Laptop GPU")
    ('a100-80gb', 'rtx-4090-laptop')
    """
    words = _words(re.sub(r"(?<![a-z0-9])(\d+)\s*gi?b?\b", r"\1gb", name.lower()))
    return "-".join(word for word in words if word not in table()["plain_words"])


def _nearest(name: str, count: int) -> str:
    """Return a suggestion, in the form of the command line."""
    if of_it := _with_memory(name):
        example = f"{count}x{of_it[0]}" if count > 1 else of_it[0]
        return f"{name.removesuffix('gb')} GB have {', '.join(of_it)}: for example --gpus {example}."
    part = known_device(name)
    close = [part.key] if part else [_names()[one] for one in difflib.get_close_matches(name, _names(), n=1)]
    if not close:
        return "For example --gpus 8xH100, or --gpus rtx-4090."
    return f"Did you mean --gpus {f'{count}x' if count > 1 else ''}{close[0]}?"


def _with_memory(name: str) -> list[str]:
    """Return the devices with the memory that is given instead of a name: `24`, or `24gb`."""
    return [key for key, device in devices().items() if f" {name.removesuffix('gb')} GB" in device.title]


def known_device(name: str) -> Device | None:
    """Return the device for a driver's name ("NVIDIA A100-SXM4-80GB"), or a similar one ("... Laptop GPU"). None if it
    is not in the table."""
    words = set(_words(name))
    found = [device for device in devices().values() if words.issuperset(_words(device.key))]
    return max(found, key=lambda device: len(_words(device.key)), default=None)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


# --- this machine ----------------------------------------------------------------------------------------------------


def this_processor(
    free_memory: int, rates: tuple[float, float] | None = None, *, facts: Mapping[str, str] | None = None
) -> Hardware:
    """Return this machine's processor. `rates` are those of plain float32 products and of memory; None measures them
    briefly. `facts` are those of `processor_facts`, which say what the processor multiplies faster."""
    flops, bandwidth = rates or measured_processor()
    facts = processor_facts() if facts is None else facts
    shares = dict(table()["processor_efficiency"])
    onednn, in_halves = shares.pop("onednn_times"), shares.pop("onednn_times_in_halves")
    bfloat16 = shares.pop("bfloat16_times")
    if "avx512f" in facts.get("flags", "").split():
        flops *= in_halves if computes_in_halves(facts) else onednn
    device = Device(
        key="cpu",
        title=f"this machine ({cores()} CPU cores)",
        bfloat16=bfloat16 * flops if has_bfloat16(facts) else None,
        float32=flops,
        memory=free_memory,
        bandwidth=bandwidth,
        link=bandwidth,
        network=bandwidth,
        price=None,
        source="measured in a few milliseconds",
    )
    return Hardware(device=device, efficiency=Efficiency(**shares), free_memory=free_memory)


@functools.cache
def processor_facts(file: Path = Path("/proc/cpuinfo")) -> Mapping[str, str]:
    """Return the kernel's description of the first core. Empty if there is none."""
    told: dict[str, str] = {}
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            told.setdefault(name.strip(), value.strip())
    except OSError:  # not Linux
        pass
    return told


def computes_in_halves(facts: Mapping[str, str]) -> bool:
    """Does the processor split an operation on 512 bits into two on 256? AMD's Zen 4 does, which is family 25."""
    return (facts.get("vendor_id"), facts.get("cpu family")) == ("AuthenticAMD", "25")


def has_bfloat16(facts: Mapping[str, str] | None = None) -> bool:
    """Does the processor have bfloat16 instructions, as models/compute.py asks PyTorch? False if nothing is known."""
    told = processor_facts() if facts is None else facts
    words = {*told.get("flags", "").split(), *told.get("Features", "").split()}
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


@functools.cache
def measured_processor() -> tuple[float, float]:
    """Measure (float32 operations, bytes of memory) per second of all cores, in a few milliseconds.

    The best of several short tries counts, so that other programs disturb little. One core multiplies matrices so small
    that no library uses several threads: on a busy machine, threads that wait for each other would distort the result.
    """
    import numpy as np

    size = 64
    matrix, out = np.ones((size, size), np.float32), np.empty((size, size), np.float32)
    source = np.ones(2**23, np.float32)
    target = np.empty_like(source)
    product = _best_seconds(lambda: np.matmul(matrix, matrix, out=out), tries=200)
    copy = _best_seconds(lambda: np.copyto(target, source), tries=3)
    return cores() * 2 * size**3 / product, 2 * source.nbytes / copy


def _best_seconds(work: Callable[[], object], tries: int) -> float:
    work()  # the first call touches pages
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return max(min(seconds), 1e-9)


def this_gpu(name: str, total: int, free: int) -> Hardware:
    """Return this machine's GPU by the driver's name for it. A GPU that is not in the table counts as an A100."""
    device = known_device(name)
    source = "" if device is not None else "not in the table: as fast as an A100"
    base = device or devices()["a100-80gb"]
    title = f"this machine's {name}" + (f" ({source})" if source else "")
    own = replace(base, title=title, memory=total, price=base.price if device else None)
    return Hardware(device=own, efficiency=assumed_efficiency(), free_memory=free)
