"""Which ids end an answer, and which id pads.

The two traps (a pad id that is also an EOS id, an EOS id that only `generation_config.json` knows) make a model that
never stops, or one whose saved copy stops at once. Nothing in this library tells EOS by `token != pad`; the pad id is
chosen so that nobody downstream can fall into it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from posttrain.errors import ModelError


def find_eos_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None, vocab_size: int
) -> frozenset[int]:
    """Every id that ends an answer (RULE 3): the tokenizer's and those of the generation config.

    Raises ModelError when there is none that the model can emit: its answers would all be cut off for length.
    """
    listed = {*_as_ids(tokenizer.eos_token_id), *_as_ids(getattr(generation_config, "eos_token_id", None))}
    eos_ids = frozenset(i for i in listed if 0 <= i < vocab_size)
    if not eos_ids:
        outside = f"; {sorted(listed)} lie outside the vocabulary of {vocab_size}" if listed else ""
        raise ModelError(
            given=f"neither the tokenizer nor generation_config.json has an end-of-sequence token{outside}",
            allowed="at least one EOS id, without which no answer ever ends",
            fix='Add "eos_token": "..." to tokenizer_config.json, or "eos_token_id": N to generation_config.json.',
        )
    return eos_ids


def choose_pad_id(
    tokenizer: PreTrainedTokenizerBase,
    configs: Iterable[GenerationConfig | PreTrainedConfig | None],
    eos_ids: frozenset[int],
    vocab_size: int,
) -> int:
    """The id that pads: the declared one, else another special token; an EOS id only where there is nothing else."""
    declared = [tokenizer.pad_token_id, *(getattr(config, "pad_token_id", None) for config in configs)]
    candidates = [*declared, tokenizer.unk_token_id, *_other_specials(tokenizer), tokenizer.bos_token_id]
    suitable = (i for i in candidates if i is not None and 0 <= i < vocab_size and i not in eos_ids)
    return next(suitable, min(eos_ids))


def _other_specials(tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """Ids of special tokens without a role of their own, lowest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return (i for i, token in sorted(added.items()) if token.special and i != tokenizer.bos_token_id)


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
