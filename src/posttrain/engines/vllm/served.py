"""What a run asks of its vLLM servers, and the folder that they are started with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.engine_environment import interpreter
from posttrain.engines.decoding import base_model
from posttrain.engines.delivery import routers
from posttrain.engines.published import layout
from posttrain.engines.vllm.port import ServerSetup
from posttrain.engines.vllm.server import Launch
from posttrain.engines.weights import merged_tensors
from posttrain.errors import ModelError
from posttrain.models.compute import dtype_name
from posttrain.placement import RESERVE, server_memory, visible

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.engines.vllm.sleeping import SharedDevice
    from posttrain.models.load import LoadedModel

MOMENTS = 8
"""Bytes of AdamW's two moments of a trained number: they come with the first step, and stay."""
AWAY = 5.0
"""Seconds that a server which nobody has seen yet is waited for."""
MIXTURES = ("qwen2_moe", "qwen3_moe", "olmoe")
"""Mixtures of experts whose tensors have the same names in vLLM."""
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
    config: RunConfig,
    loaded: LoadedModel,
    folder: Path,
    place: int,
    *,
    threads: int,
    device: SharedDevice | None = None,
) -> ServerSetup:
    """Of server number `place`; `folder` is that of the run, `device` the trainer's GPU where the server shares it.

    Raises ConfigError where vLLM is not installed, ModelError for a model whose tensors a server holds in a form that
    is not understood.
    """
    kind = base_model(loaded.model).config.model_type
    if routers(loaded.model) and kind not in MIXTURES:
        raise ModelError(
            given=f"a mixture of experts of the kind {kind} with rollout.engine = vllm",
            allowed=f"dense models, and mixtures of the kinds {', '.join(MIXTURES)}",
            fix="Leave rollout.engine out: the local sampler decodes every mixture of experts.",
        )
    url = config.rollout.url[place] if config.rollout.url else ""
    lengths = (config.sampling.max_completion_length, config.evaluation.max_completion_length or 0)
    longest = max(lengths) + (config.data.max_prompt_length or loaded.context_length or 0)
    longest = min(longest, loaded.context_length or longest)
    launch, tensors = None, tensors_of(loaded)
    if not url:
        launch = Launch(
            python=interpreter(),
            model=write_served(loaded, folder / "engines" / "served"),
            dtype=dtype_name(loaded.compute_dtype),
            max_model_len=longest,
            max_num_seqs=config.sampling.max_batch_rows,
            threads=threads,
            device=loaded.device.type,
            **on_card(config, loaded, place, tensors, longest, shared=device is not None),
        )
    return ServerSetup(
        launch=launch,
        url=url,
        tensors=tensors,
        sampling=config.sampling,
        tokenizer=loaded.tokenizer,
        eos_ids=sorted(loaded.eos_ids),
        vocabulary=base_model(loaded.model).config.get_text_config().vocab_size,
        longest=longest,
        call_seconds=config.rollout.deadline,
        patience=AWAY,
        shape=shape_of(base_model(loaded.model).config.get_text_config()),
        device=device,
    )


def on_card(
    config: RunConfig,
    loaded: LoadedModel,
    place: int,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    longest: int,
    *,
    shared: bool,
) -> dict[str, Any]:
    """What of `Launch` says on which GPU a server is, and how much of it is for it; nothing on a CPU.

    Raises DoesNotFit where the trainer leaves no room for the server.
    """
    if loaded.device.type != "cuda":
        return {}
    own = loaded.device.index or 0
    if not shared:
        others = [card for card in range(torch.cuda.device_count()) if card != own]
        return {"card": visible(others[place])}
    free, whole = torch.cuda.mem_get_info(loaded.device)
    trained = sum(parameter.numel() for parameter in loaded.model.parameters() if parameter.requires_grad)
    memory = server_memory(
        weights=max(one.end for one in layout(tensors).values()),
        row=longest * token_bytes(base_model(loaded.model).config.get_text_config(), loaded.compute_dtype.itemsize),
        rows=config.sampling.max_batch_rows,
        room=free - MOMENTS * trained - RESERVE,
    )
    return {"card": visible(own), "shares": memory, "card_bytes": whole}


def token_bytes(config: Any, itemsize: int) -> int:
    """Keys and values of one token, of all layers.

    >>> from types import SimpleNamespace
    >>> token_bytes(SimpleNamespace(num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, head_dim=16), 2)
    512
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * itemsize


def shape_of(config: Any) -> dict[str, Any]:
    """What of a configuration decides what a model computes, beside its tensors; the extension says the same."""
    return {name: getattr(config, name) for name in DECISIVE if isinstance(getattr(config, name, None), int | float)}


def write_served(loaded: LoadedModel, folder: Path) -> Path:
    """The configuration of the model as it is served. Tied embeddings are two tensors there: a server takes new
    embeddings, and keeps the old ones as its head."""
    config = copy.deepcopy(base_model(loaded.model).config)
    config.tie_word_embeddings = False
    config.dtype = loaded.compute_dtype
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    return folder


def tensors_of(loaded: LoadedModel) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """What a server decodes with: every parameter of the plain model, adapters merged."""
    buffers = {name for name, _ in base_model(loaded.model).named_buffers()}
    with torch.no_grad():
        return {
            name: (dtype_name(loaded.compute_dtype), tuple(tensor.shape))
            for name, tensor in merged_tensors(loaded.model)
            if name not in buffers
        }
