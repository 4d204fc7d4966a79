"""The settings of vLLM servers for a model, and the folder from which they start."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.engine_environment import interpreter
from posttrain.engines.decoding import base_model
from posttrain.engines.delivery import routers
from posttrain.engines.published import layout
from posttrain.engines.sampler import rows_together
from posttrain.engines.vllm.port import ServerSetup
from posttrain.engines.vllm.server import Launch
from posttrain.engines.weights import merged_tensors
from posttrain.errors import ModelError
from posttrain.models.compute import dtype_name
from posttrain.placement import RESERVE, server_memory, visible

if TYPE_CHECKING:
    from posttrain.config import RolloutConfig, SamplingConfig
    from posttrain.engines.vllm.sleeping import SharedDevice
    from posttrain.models.load import LoadedModel

AWAY = 5.0
"""Seconds to wait for a server that was never reached before."""
MIXTURES = ("qwen2_moe", "qwen3_moe", "olmoe")
"""Mixtures of experts whose tensors have the same names in vLLM."""
CPU_HEADS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM's CPU build supports: its own list, and 48."""
BLOCK = 128
"""Tokens per block of the cache. At most this many places after a row stay empty."""
DECISIVE = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "sliding_window",
    "rope_theta",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "num_experts",
    "num_experts_per_tok",
)


def server_setup(
    rollout: RolloutConfig,
    sampling: SamplingConfig,
    loaded: LoadedModel,
    folder: Path,
    place: int,
    *,
    longest: int,
    threads: int,
    device: SharedDevice | None = None,
) -> ServerSetup:
    """Return the setup of server number `place`. `folder` takes its start files, `longest` is the maximum tokens of a
    whole row, and `device` is the trainer's GPU if the server shares it.

    Raises ConfigError if vLLM is not installed, ModelError for a model that it cannot serve here, and DoesNotFit if a
    GPU has no room for it.
    """
    kind = base_model(loaded.model).config.model_type
    if routers(loaded.model) and kind not in MIXTURES:
        raise ModelError(
            given=f"a mixture of experts of the kind {kind} with rollout.engine = vllm",
            allowed=f"dense models, and mixtures of the kinds {', '.join(MIXTURES)}",
            fix="Set rollout.engine = local: the local sampler decodes every mixture of experts.",
        )
    url = rollout.url[place] if rollout.url else ""
    launch, tensors, rows = None, tensors_of(loaded), rows_together(sampling)
    if not url:
        python = interpreter()
        require_attention(loaded)
        launch = Launch(
            python=python,
            model=write_served(loaded, folder / "engines" / "served"),
            dtype=dtype_name(loaded.compute_dtype),
            max_model_len=longest,
            max_num_seqs=rows,
            threads=threads,
            device=loaded.device.type,
            cache_gib=cache_gib(loaded, longest),
            **on_card(loaded, place, tensors, servers=rollout.num_engines, longest=longest, rows=rows, device=device),
        )
    return ServerSetup(
        launch=launch,
        url=url,
        tensors=tensors,
        sampling=sampling,
        tokenizer=loaded.tokenizer,
        eos_ids=sorted(loaded.eos_ids),
        vocabulary=base_model(loaded.model).config.get_text_config().vocab_size,
        longest=longest,
        call_seconds=rollout.deadline,
        patience=AWAY,
        shape=shape_of(base_model(loaded.model).config.get_text_config()),
        device=device,
    )


def on_card(
    loaded: LoadedModel,
    place: int,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    *,
    servers: int,
    longest: int,
    rows: int,
    device: SharedDevice | None,
) -> dict[str, Any]:
    """Return the settings of `Launch` for a server's GPU and its share of it; empty on a CPU.

    Servers that share `device` take what the trainer leaves free. Otherwise each server gets one of the next GPUs. If
    there are not enough, the rest share the free memory of this GPU equally. Raises DoesNotFit if that is too little.
    """
    if loaded.device.type != "cuda":
        return {}
    own = loaded.device.index or 0
    others = [card for card in range(torch.cuda.device_count()) if card != own and device is None]
    if place < len(others):
        return {"card": visible(others[place])}
    free, whole = torch.cuda.mem_get_info(loaded.device)
    memory = server_memory(
        weights=max(one.end for one in layout(tensors).values()),
        row=longest * token_bytes(loaded),
        rows=rows,
        room=free - RESERVE - (0 if device is None else device.to_come()),
        servers=servers - len(others),
    )
    return {"card": visible(own), "shares": memory, "card_bytes": whole}


def require_attention(loaded: LoadedModel) -> None:
    """Raise ModelError for a head size that vLLM's CPU build does not support; the server would end at its start."""
    size = head_size(base_model(loaded.model).config.get_text_config())
    if loaded.device.type == "cpu" and size not in CPU_HEADS:
        raise ModelError(
            given=f"rollout.engine = vllm with a model whose attention heads have {size} numbers",
            allowed=f"on a CPU: {', '.join(map(str, CPU_HEADS))}",
            fix="Set rollout.engine = local: the local sampler decodes heads of any size.",
        )


def cache_gib(loaded: LoadedModel, longest: int) -> float:
    """Return the GiB for keys and values of the longest row, which vLLM requires; at least 1 GiB."""
    return max(1.0, math.ceil((longest + BLOCK) * token_bytes(loaded) / 2**28) / 4)


def token_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of keys and values of one token, in all layers."""
    config = base_model(loaded.model).config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_size(config) * loaded.compute_dtype.itemsize


def head_size(config: Any) -> int:
    """Return the size of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def shape_of(config: Any) -> dict[str, Any]:
    """Return the parts of a config that decide what a model computes, besides its tensors. The extension reports the
    same."""
    return {name: getattr(config, name) for name in DECISIVE if isinstance(getattr(config, name, None), int | float)}


def write_served(loaded: LoadedModel, folder: Path) -> Path:
    """Write the model's config in the form in which it is served. Tied embeddings become two tensors, because a server
    would load new embeddings but keep the old ones as its head."""
    config = copy.deepcopy(base_model(loaded.model).config)
    config.tie_word_embeddings = False
    config.dtype = loaded.compute_dtype
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    return folder


def tensors_of(loaded: LoadedModel) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors that a server decodes with: every parameter of the plain model, adapters merged."""
    buffers = {name for name, _ in base_model(loaded.model).named_buffers()}
    with torch.no_grad():
        return {
            name: (dtype_name(loaded.compute_dtype), tuple(tensor.shape))
            for name, tensor in merged_tensors(loaded.model)
            if name not in buffers
        }
