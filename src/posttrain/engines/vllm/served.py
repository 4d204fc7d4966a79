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
from posttrain.engines.vllm.port import ServerSetup
from posttrain.engines.vllm.server import Launch
from posttrain.engines.weights import merged_tensors
from posttrain.errors import ModelError
from posttrain.models.compute import dtype_name

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.models.load import LoadedModel

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


def server_setup(config: RunConfig, loaded: LoadedModel, folder: Path, place: int, *, threads: int) -> ServerSetup:
    """Of server number `place`; `folder` is that of the run.

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
    launch = None
    if not url:
        launch = Launch(
            python=interpreter(),
            model=write_served(loaded, folder / "engines" / "served"),
            dtype=dtype_name(loaded.compute_dtype),
            max_model_len=longest,
            max_num_seqs=config.sampling.max_batch_rows,
            threads=threads,
            device=loaded.device.type,
        )
    return ServerSetup(
        launch=launch,
        url=url,
        tensors=tensors_of(loaded),
        sampling=config.sampling,
        tokenizer=loaded.tokenizer,
        eos_ids=sorted(loaded.eos_ids),
        vocabulary=base_model(loaded.model).config.get_text_config().vocab_size,
        longest=longest,
        call_seconds=config.rollout.deadline,
        patience=AWAY,
        shape=shape_of(base_model(loaded.model).config.get_text_config()),
    )


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
