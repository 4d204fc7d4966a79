"""Runs inside a vLLM server, in its environment: loads weights from the trainer's memory, and reports what it holds.

The server is started with `--worker-extension-cls posttrain_vllm.Extension` and
`--weight-transfer-config '{"backend": "posttrain"}'`; the folder of this file is on its path. It imports nothing of
posttrain, and nothing outside of vLLM imports it.

Weights lie one after the other in a file without a name that the trainer holds open. `update_weights` gets the places:

    {"path": "/proc/PID/fd/N", "places": {"model.norm.weight": ["float32", [288], 0], ...}}
"""

from __future__ import annotations

import hashlib
import mmap
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm._custom_ops import cpu_prepack_moe_weight
from vllm.device_allocator import get_mem_allocator_instance
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "posttrain"
HEAD = "lm_head.weight"
"""The head. Some models have no such tensor in vLLM, because they multiply with their embeddings."""
PART = 16 * 2**20
"""Bytes that one call takes off the device for hashing, during which decoding waits."""
HASHED_AT_ONCE = min(4, os.cpu_count() or 1)
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""File with an id of this machine that changes at each boot."""


class Memory:
    """Tensors in a file that another process writes."""

    def __init__(self, path: str, places: dict[str, list[Any]]) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            self.map = mmap.mmap(file, os.fstat(file).st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
        self.places = places

    def __getitem__(self, name: str) -> torch.Tensor:
        dtype, shape, start = self.places[name]
        kind = getattr(torch, dtype)
        count = 1
        for size in shape:
            count *= size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about read-only memory
            return torch.frombuffer(self.map, dtype=kind, count=count, offset=start).view(shape)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, self[name]) for name in self.places)


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Empty: nothing has to be agreed on beforehand."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The places of the weights in the file."""

    path: str = ""
    places: dict[str, list[Any]] = field(default_factory=dict)


class MemoryEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Reloads all weights, as if they came from a checkpoint."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    newest: Memory | None = None
    """The weights that were loaded last."""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load weights. Unlike the inherited method, it does not synchronise on a CPU, where that fails."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        memory = Memory(update_info.path, update_info.places)
        headless = not hasattr(self.model, "lm_head")
        self.model.load_weights((name, tensor) for name, tensor in memory if not (headless and name == HEAD))
        MemoryEngine.newest = memory

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)  # else it multiplies with the old weights
            if isinstance(module, RoutedExperts) and is_laid_out(module):
                kernel_of(module).process_weights_after_loading(module)  # vLLM does this only for the first weights

    def shutdown(self) -> None:
        MemoryEngine.newest = None


WeightTransferEngineFactory.register_engine(BACKEND, MemoryEngine)


class Hashing:
    """Hashes all tensors of a model in parts: threads hash what a call has taken, while decoding goes on."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.newest, MemoryEngine.newest = MemoryEngine.newest, None
        self.tensors = held(model)
        self.threads = ThreadPoolExecutor(HASHED_AT_ONCE)
        self.taken: dict[str, Future[list[str]]] = {}

    def part(self) -> dict[str, Any]:
        """Return the hashes of what the last call took off the device. It is done when nothing was left to take."""
        digests = {name: hashed.result() for name, hashed in self.taken.items()}
        self.taken, size = {}, 0
        while size < PART and (one := next(self.tensors, None)):
            name, tensor = one
            plain = as_sent(tensor, name, self.newest).detach().cpu()
            self.taken[name] = self.threads.submit(digest, plain)
            size += plain.numel() * plain.element_size()
        if not self.taken:
            self.threads.shutdown()
            self.newest = None  # else this process would keep the trainer's memory alive
        return {"digests": digests, "done": not self.taken}


class Extension:
    """Methods of each worker, for `/collective_rpc`."""

    device: torch.device
    model_runner: Any
    vllm_config: Any
    _weight_update_active: bool
    finish_weight_update: Any
    hashing: Hashing | None = None

    def posttrain_facts(self) -> dict[str, Any]:
        """Return the settings that decide what log-probabilities mean, and facts about the server."""
        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        return {
            "logprobs_mode": str(getattr(model.logprobs_mode, "value", model.logprobs_mode)),
            "dtype": str(model.dtype).removeprefix("torch."),
            "vocabulary": model.get_vocab_size(),
            "max_model_len": model.max_model_len,
            "workers": parallel.world_size,
            "shape": {name: value for name, value in vars(model.hf_text_config).items() if type(value) in (int, float)},
            "sleeps": model.enable_sleep_mode,
            "device": device_name(self.device),
            "machine": BOOT.read_text().strip() if BOOT.exists() else "",
        }

    @torch.no_grad()
    def posttrain_digests(self, begin: bool = False) -> dict[str, Any]:
        """Return dtype and SHA-256 of each tensor that decoding reads, by its name in the model's folder.

        Each call returns a part; `begin` starts with the first. The weights must not change in the meantime.
        """
        if begin:
            Extension.hashing = Hashing(self.model_runner.model)
        assert Extension.hashing, "the first call must have begin"
        return Extension.hashing.part()

    def posttrain_held(self) -> dict[str, int]:
        """Return the bytes of its device that this worker would free by sleeping; 0 if it sleeps, or cannot."""
        if self.device.type != "cuda":
            return {"bytes": 0}
        pools: Any = get_mem_allocator_instance()
        return {"bytes": sum(one.handle[1] for one in pools.pointer_to_data.values() if not one.is_asleep)}

    def posttrain_reset(self) -> None:
        """End an update that an earlier trainer has left unfinished."""
        if self._weight_update_active:
            self.finish_weight_update()


def device_name(device: torch.device) -> str:
    """Return the driver's identifier of a GPU, which is the same in all processes."""
    return device.type if device.type != "cuda" else str(torch.cuda.get_device_properties(device).uuid)


def held(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors as in a checkpoint: fused layers split, packed ones unpacked."""
    fused = getattr(type(model), "packed_modules_mapping", {})
    parts: dict[str, list[str]] = {whole: list(names) for whole, names in fused.items()}
    module: Any
    if not hasattr(model, "lm_head"):
        embeddings: Any = next(one for one in model.modules() if isinstance(one, VocabParallelEmbedding))
        yield HEAD, unpacked(embeddings, embeddings.weight, multiplies=True)
    for prefix, module in model.named_modules():
        if isinstance(module, RoutedExperts):
            yield f"{module.layer_name}.gate_up_proj", unpacked_experts(module, module.w13_weight)
            yield f"{module.layer_name}.down_proj", unpacked_experts(module, module.w2_weight)
            continue
        for name, parameter in module.named_parameters(recurse=False):
            tensor = unpacked(module, parameter) if name == "weight" else parameter
            whole = f"{prefix}.{name}" if prefix else name
            last = prefix.rpartition(".")[2]
            if last in parts and len(parts[last]) > 1:
                stem = prefix.removesuffix(last)
                pieces = tensor.split(list(module.output_sizes))
                yield from ((f"{stem}{part}.{name}", piece) for part, piece in zip(parts[last], pieces, strict=True))
            else:
                yield whole, tensor


def unpacked(module: Any, weight: torch.Tensor, *, multiplies: bool = False) -> torch.Tensor:
    """Return the matrix that a layer really multiplies with; for embeddings the lookup matrix, unless `multiplies`.

    On a CPU the matrix is packed and cannot be read. Its products with the unit vectors are its columns, without
    rounding.
    """
    embeds = isinstance(module, VocabParallelEmbedding)
    looks_up = embeds and not isinstance(module, ParallelLMHead) and not multiplies
    multiply = getattr(module, "cpu_linear", None)
    if multiply is not None and not looks_up:
        width = module.embedding_dim if embeds else module.input_size
        weight = multiply(torch.eye(width, dtype=weight.dtype), weight, None).t()
    if embeds:
        weight = weight[: module.org_vocab_size]  # padding is not part of the model
    return weight


def kernel_of(experts: Any) -> Any:
    return experts.quant_method.moe_kernel.fused_experts


def is_laid_out(experts: RoutedExperts) -> bool:
    """Return whether the weights have the layout for products of a CPU build."""
    return hasattr(kernel_of(experts), "isa")


def unpacked_experts(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """Return `[experts, out, in]` in the layout before a CPU build changed it. That moves numbers without changing
    them: laying out the positions themselves, byte by byte, shows what was moved where."""
    if not is_laid_out(layer):
        return weight
    experts, shape = weight.shape[0], weight.shape[1:]
    places, moved = torch.arange(shape.numel()), torch.zeros(shape.numel(), dtype=torch.long)
    for byte in range(4):
        digit = (places >> 8 * byte) % 256
        laid_out = cpu_prepack_moe_weight(digit.view(1, *shape).to(weight.dtype), kernel_of(layer).isa)
        moved += laid_out.reshape(-1).long() << 8 * byte
    plain = torch.empty_like(weight).view(experts, -1)
    plain[:, moved] = weight.reshape(experts, -1)
    return plain.view(weight.shape)


def as_sent(tensor: torch.Tensor, name: str, newest: Memory | None) -> torch.Tensor:
    """Return the tensor with zeros signed as they were sent, because products do not show their signs."""
    if newest is None or name not in newest.places:
        return tensor
    sent = newest[name]
    if sent.shape != tensor.shape or sent.dtype != tensor.dtype or tensor.device.type != "cpu":
        return tensor
    return torch.where((tensor == 0) & (sent == 0), sent, tensor)


def digest(tensor: torch.Tensor) -> list[str]:
    """Return dtype and hash of shape and content, computed as in the trainer."""
    plain = tensor.contiguous()
    content = hashlib.sha256(str(list(plain.shape)).encode())
    content.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return [str(plain.dtype).removeprefix("torch."), content.hexdigest()]
