"""The target of a plan: hardware, free memory of this machine, and inputs that the config does not contain.

The cache folder holds the measurements of probes, one entry per processor or GPU. An entry replaces the peaks of the
table and the assumed shares. An unreadable file is ignored. measured.json has such entries for GPUs on which
`make bench-gpu` has run. They apply to every GPU of that kind, until a probe has run on it.

A run may use the least memory that any limit leaves. A container can have less than the machine, by a control group of
either version; `ulimit -v` limits a process. Memory that the kernel would release (file cache) counts as free. Swap is
separate: a run that needs it fits, but is very slow.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import resource
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import psutil

from posttrain.cache import cache_folder
from posttrain.config import RunConfig
from posttrain.control_groups import CONTROL_GROUPS, OWN_GROUPS, cores, memory_left
from posttrain.errors import ConfigError
from posttrain.files import write_durably
from posttrain.lab.plan.hardware import Hardware, find_hardware, known_device, processor_facts, this_gpu, this_processor
from posttrain.lab.plan.records import Engine, MemoryPlan, Phase, Sharding
from posttrain.lab.plan.turns import Answering
from posttrain.lab.plan.workload import RowLengths
from posttrain.placement import visible_count
from posttrain.ranks.environment import place_of_process

MEASURED = Path(__file__).with_name("measured.json")
EXACT = ("weights", "adapters", "gradients", "optimizer state", "copy of the weights", "in their own processes")
"""Kinds of memory whose bytes are known; a probe corrects the others."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measurements of one machine, with random weights."""

    machine: str
    date: str
    what: str
    """The measured model, in words."""
    float32: float
    """Operations per second of matrix products."""
    bfloat16: float | None
    bandwidth: float
    """Bytes per second of copying in memory."""
    compute: float
    """Share of `float32` or `bfloat16` that training reached."""
    layer_call: float
    """Minimum time of a layer's forward pass, in seconds."""
    memory: float
    """Ratio of measured to predicted bytes, for the parts that are not known exactly."""


def apply_to(hardware: Hardware, found: Calibration) -> Hardware:
    """Return the hardware with its measured performance."""
    device = replace(hardware.device, float32=found.float32, bfloat16=found.bfloat16, bandwidth=found.bandwidth)
    shares = replace(
        hardware.efficiency,
        compute=found.compute,
        bandwidth=1.0,
        layer_call=found.layer_call,
        source=f"measured on {found.date} with {found.what}",
    )
    return replace(hardware, device=device, efficiency=shares, memory_factor=found.memory)


def corrected(memory: MemoryPlan, factor: float) -> int:
    """Return the peak bytes on training devices, with the parts that are not known exactly multiplied by `factor`."""

    def of(phase: Phase) -> float:
        return sum(part.bytes * (1 if part.what in EXACT else factor) for part in phase.parts)

    return round(max(of(phase) for phase in memory.phases if phase.place == "trainer"))


def saved(machine: str) -> Calibration | None:
    """Return earlier measurements of this machine, otherwise those of another device with the same name, if any."""
    return _entries(_file()).get(machine) or _entries(MEASURED).get(machine)


def as_measured(hardware: Hardware) -> Hardware:
    """Apply the measurements of a device of the same kind, if there are any."""
    kind = [found for name, found in _entries(MEASURED).items() if known_device(name) == hardware.device]
    return apply_to(hardware, kind[0]) if kind else hardware


def save(found: Calibration) -> Path:
    """Save the measurements, replacing older ones of the same machine, and return the file."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: asdict(one) for name, one in _entries(file).items()}
    write_durably(file, json.dumps({**kept, found.machine: asdict(found)}, indent=1) + "\n")
    return file


def _file() -> Path:
    return cache_folder("plan") / "calibration.json"


def _entries(file: Path) -> Mapping[str, Calibration]:
    """Read the measurements by machine. Entries of another version are skipped."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found = {}
    for machine, entry in told.items() if isinstance(told, Mapping) else ():
        with suppress(TypeError):
            found[machine] = Calibration(**entry)
    return found


@functools.cache
def processor() -> str:
    """Return the name of this processor, with a hash of its instructions and the number of usable cores."""
    told = processor_facts()
    flags = hashlib.sha256(told.get("flags", "").encode()).hexdigest()[:8]
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name} (instructions {flags}), {cores()} cores"


# --- this machine now ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Available:
    """Bytes that a new run may use."""

    memory: int
    swap: int
    limit: str
    """The limit that bounds the memory, in words."""


def available_memory(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> Available:
    """Return the available main memory: the least that machine, control groups and process limit leave."""
    free = psutil.virtual_memory().available
    limits = [(free, "what the machine has free")]
    limits += [(left, "the limit of the control group") for left in memory_left(groups, own)]
    bound, _ = resource.getrlimit(resource.RLIMIT_AS)
    if bound != resource.RLIM_INFINITY:
        limits.append((max(0, bound - psutil.Process().memory_info().vms), "the limit of this process (ulimit -v)"))
    memory, limit = min(limits)
    return Available(memory=memory, swap=psutil.swap_memory().free if memory == free else 0, limit=limit)


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of this folder, which need not exist yet."""
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(place).free


def this_machine(device: str = "auto") -> Hardware:
    """Return the device that a run with `model.device` would use here: the first GPU that the driver reports,
    otherwise the processor."""
    gpus = [] if device == "cpu" else _reported_gpus()
    return gpu_here(*gpus[0]) if gpus else processor_here()


def processor_here() -> Hardware:
    """Return this processor, with the measurements of a probe or of a few milliseconds."""
    free, found = available_memory(), saved(processor())
    rates = None if found is None else (found.float32, found.bandwidth)
    hardware = replace(this_processor(free.memory, rates), swap=free.swap)
    return hardware if found is None else apply_to(hardware, found)


def gpu_here(name: str, total: int, free: int) -> Hardware:
    """Return this machine's GPU, with the measurements of a probe or the values of the table."""
    hardware, found = this_gpu(name, total, free), saved(name)
    return hardware if found is None else apply_to(hardware, found)


def _reported_gpus() -> list[tuple[str, int, int]]:
    """Return (name, bytes, free bytes) of each GPU from nvidia-smi, because importing torch takes seconds."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [line.rsplit(", ", 2) for line in told.splitlines()]
        return [(name, int(total) * 2**20, int(free) * 2**20) for name, total, free in rows]
    except (OSError, subprocess.SubprocessError, ValueError):  # no driver, or no valid answer from it
        return []


@dataclass(frozen=True, kw_only=True)
class Target:
    """The inputs of a plan other than the config: hardware, and how the run uses it."""

    hardware: Hardware
    cards: int = 1
    """Number of GPUs that the run sees."""
    engine: Engine | None = None
    """None means the config's."""
    engine_ranks: int = 1
    engine_tensor: int | None = None
    """Devices per engine. None means all engine devices, up to those of one machine."""
    sharding: Sharding | None = None
    """None means the run's, by `train.shard` (train/sizes.py)."""
    tensor: int | None = None
    """Devices that divide matrices. None means `train.tensor`."""
    network: float | None = None
    """GB/s from each device to other machines. None means the table's value."""
    mean_completion_tokens: int | None = None
    prompt_tokens: int | None = None
    mean_turns: float | None = None
    """Mean turns of a trajectory."""
    given_tokens: int | None = None
    """Mean tokens of a reply from tools or an environment."""
    call_seconds: float | None = None
    """Time of a reply, in seconds."""
    price: float | None = None
    """Dollars per device and hour. None means the table's range."""
    length_spread: float | None = None
    """Sigma of the lengths of answers, which are assumed to be log-normal."""
    main_memory: float | None = None
    """Free main memory of a machine, in GiB. None means that of this machine; for other machines it is unknown."""
    lengths: RowLengths | None = None
    """Row lengths of the data, if it is on this machine."""
    missing: tuple[str, ...] = ()
    """Files of the data that do not exist on this machine."""

    @property
    def answering(self) -> Answering:
        """The inputs about tools and environments."""
        return Answering(self.given_tokens, self.call_seconds or 0.0, self.mean_turns, self.mean_completion_tokens)

    @property
    def main_memory_bytes(self) -> int | None:
        """Free main memory of a machine, in bytes. None if unknown."""
        if self.main_memory is not None:
            return int(self.main_memory * 2**30)
        return available_memory().memory if self.here else None

    @property
    def here(self) -> bool:
        """Is the target this machine? Its free memory and disk then count."""
        return self.hardware.free_memory is not None


INPUTS = tuple(each.name for each in fields(Target) if each.name not in ("hardware", "cards", "lengths", "missing"))
"""Fields that a user may give."""


def over_ranks(hardware: Hardware, cards: int, config: RunConfig) -> Hardware:
    """Set the number of GPUs that the run trains on: those of this process's job, otherwise `train.devices`.

    Ranks on a CPU are only for trials, so they are timed as one. `Workload.rank_processes` counts their memory.
    """
    if hardware.device.key == "cpu":
        return hardware
    place, asked = place_of_process(), config.train.devices
    if place is not None:
        return replace(hardware, count=place.size, node=place.beside or hardware.node)
    count = max(1, cards if asked == "auto" else asked)
    return replace(hardware, count=count, node=max(hardware.node, count))


def target_of(config: RunConfig, gpus: str | None, **how: Any) -> Target:
    """Return the target for the named `gpus`, or for this machine if None."""
    if gpus is None:
        cards = visible_count(len(_reported_gpus()))
        hardware = over_ranks(this_machine(config.model.device), cards, config)
    else:
        hardware = as_measured(find_hardware(gpus))
        cards = hardware.count
    if unknown := how.keys() - set(INPUTS):
        raise ConfigError(
            given=f"{min(unknown)!r} is not an input of a plan",
            allowed=f"gpus, {', '.join(INPUTS)}",
            fix="Settings of the config go into overrides: {'train.steps': 50}.",
        )
    given = {name: value for name, value in how.items() if value is not None}
    _check_target(config, given)
    if "network" in given:
        hardware = replace(hardware, device=replace(hardware.device, network=1e9 * given["network"]))
    return Target(hardware=hardware, cards=cards, **given)


OF_TURNS = ("mean_turns", "given_tokens", "call_seconds")
"""Inputs that apply only to trajectories with several turns."""


def _check_target(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for impossible numbers."""
    sampling = config.sampling
    within = {
        "engine_ranks": ("--engine-gpus", 1, inf),
        "engine_tensor": ("--engine-tensor", 1, inf),
        "tensor": ("--tensor", 1, inf),
        "network": ("--network", 0.1, inf),
        "mean_completion_tokens": ("--mean-completion-length", 1, sampling.max_completion_length),
        "prompt_tokens": ("--prompt-length", 1, inf),
        "mean_turns": ("--mean-turns", 1, sampling.max_turns),
        "given_tokens": ("--given-length", 0, inf),
        "call_seconds": ("--call-seconds", 0, inf),
        "price": ("--price", 0, inf),
        "main_memory": ("--main-memory", 1, inf),
        "length_spread": ("--length-spread", 0, inf),
    }
    if not config.has_turns and (alone := next((name for name in OF_TURNS if name in given), None)):
        raise ConfigError(
            given=f"{within[alone][0]} for a run whose answers have a single turn",
            allowed="a run with tools, an environment or an agent",
            fix="Omit it, or add tools: [...] or environment: ... to the configuration (docs/environments.md).",
        )
    bounds = {"--mean-completion-length": "sampling.max_completion_length", "--mean-turns": "sampling.max_turns"}
    for name, (option, least, most) in within.items():
        if name in given and not least <= given[name] <= most:
            until = f" to {most}, which is {bounds[option]}" if most != inf else " or more"
            raise ConfigError(
                given=f"{name} = {given[name]} ({option})",
                allowed=f"{least}{until}",
                fix=f"For example, use {option} {max(1, least) if most == inf else max(1, most // 2)}.",
            )
