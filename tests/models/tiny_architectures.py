"""Tiny models of many architectures, built from configs, and the plain forward pass that tests compare with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as hf
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from posttrain.types import Tokens

VOCAB = 61
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "experts_implementation": "eager",  # the grouped kernel does not support float64
}

CONFIGS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama, grouped heads": lambda: hf.LlamaConfig(**_SIZES),
    "qwen2, tied": lambda: hf.Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "qwen3, tied": lambda: hf.Qwen3Config(**_SIZES, head_dim=8, tie_word_embeddings=True),
    "mistral, sliding window": lambda: hf.MistralConfig(**_SIZES, sliding_window=4),
    "gemma2, soft caps and sliding window": lambda: hf.Gemma2Config(
        **_SIZES, head_dim=8, sliding_window=4, attn_logit_softcapping=0.5, final_logit_softcapping=0.05
    ),
    "gemma3, sliding window": lambda: hf.Gemma3TextConfig(**_SIZES, head_dim=8, sliding_window=4),
    "gpt2, learned positions": lambda: hf.GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
    ),
    "qwen3-moe, experts": lambda: hf.Qwen3MoeConfig(**_SIZES, **_EXPERTS, head_dim=8, num_experts=4),
    "olmoe, experts": lambda: hf.OlmoeConfig(
        **_SIZES, num_experts=4, num_experts_per_tok=2, experts_implementation="eager"
    ),
    "gpt-oss, sinks": lambda: hf.GptOssConfig(
        **_SIZES, **_EXPERTS, head_dim=8, num_local_experts=4, sliding_window=4, rope_parameters={"rope_theta": 1e4}
    ),
    "llama4, chunked attention": lambda: hf.Llama4TextConfig(
        **_SIZES,
        head_dim=8,
        attention_chunk_size=4,
        intermediate_size_mlp=24,
        num_local_experts=2,
        layer_types=["chunked_attention", "full_attention"],
    ),
    "cohere, logit scale": lambda: hf.CohereConfig(**_SIZES),
    "granite, logit scale": lambda: hf.GraniteConfig(**_SIZES, logits_scaling=4.0),
    "opt, body within the body": lambda: hf.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
}
"""Architectures that run packed."""

PADDED: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "mamba, state space": lambda: hf.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, pad_token_id=0),
    "bloom, slopes for positions": lambda: hf.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=4),
    "lfm2, convolutions": lambda: hf.Lfm2Config(**_SIZES, layer_types=["conv", "full_attention"]),
}
"""Architectures that cannot run packed."""


def tiny_model(name: str, *, dtype: torch.dtype = torch.float64, attention: str | None = None) -> PreTrainedModel:
    """The same weights every time; large enough that a token that sees too much or too little has an effect."""
    config = (CONFIGS | PADDED)[name]()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def rows(lengths: list[int], prompt: int = 2, seed: int = 0) -> tuple[Tokens, Tensor]:
    """Random right-padded rows, scored from token `prompt` on. Padding holds ids that are as real as all others."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    lengths_B = torch.tensor(lengths)
    ids_BT = torch.randint(3, VOCAB, (len(lengths), width), generator=generator)
    places_T = torch.arange(width)
    mask_BT = (places_T >= prompt) & (places_T < lengths_B[:, None])
    return Tokens(input_ids_BT=ids_BT, lengths_B=lengths_B), mask_BT


def one_row_at_a_time(
    model: torch.nn.Module, tokens: Tokens, mask_BT: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies by the plain definition: whole logits of one row, then log-softmax."""
    logprobs, entropies = [], []
    for ids_T, mask_T, length in zip(tokens.input_ids_BT, mask_BT, tokens.lengths_B.tolist(), strict=True):
        logits_TV = model(input_ids=ids_T[None, :length], use_cache=False).logits[0, :-1] / temperature
        log_p_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32)).log_softmax(dim=-1)
        around = (1, len(ids_T) - length)
        logprobs_T = torch.nn.functional.pad(log_p_TV.gather(1, ids_T[1:length, None])[:, 0], around)
        entropies_T = torch.nn.functional.pad(-(log_p_TV.exp() * log_p_TV).sum(dim=-1), around)
        logprobs.append(torch.where(mask_T, logprobs_T, 0.0))
        entropies.append(torch.where(mask_T, entropies_T, 0.0))
    return torch.stack(logprobs), torch.stack(entropies)


def gradients(output: Tensor, model: torch.nn.Module) -> list[Tensor]:
    """Gradients of the trained parameters, with zeros for parameters without a gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(output, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
