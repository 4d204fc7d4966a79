"""The maximum length of a row: the end of the context, or less if longer rows would change each other's results.

Two kinds of rotary embedding choose their factors in every forward pass from its longest row (transformers,
`modeling_rope_utils.dynamic_rope_update`):

    longrope   other factors for all rows once one is longer than `original_max_position_embeddings` (arXiv:2402.13753)
    dynamic    a base that grows with the longest row from `max_position_embeddings` on

Up to that length, the factors are the same in every pass. Beyond it, a row's log-probabilities depend on the other rows
of the pass. A gradient would then depend on how a batch is split, and an answer would be sampled with one set of
factors and trained with another. The context of such a model therefore ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from posttrain.errors import DataError


class RotaryLimit(NamedTuple):
    """The length up to which rotary factors are the same in every pass."""

    tokens: int
    rope_type: str

    @property
    def reason(self) -> str:
        """Why a row may not be longer, as a text to follow the length."""
        return f"beyond them the model's {self.rope_type} rotary factors depend on the longest row of a pass"

    def check(self, length: int) -> None:
        """Raise DataError for a pass with a longer row."""
        if length > self.tokens:
            raise DataError(
                given=f"a row has {length} tokens in a forward pass",
                allowed=f"{self.tokens} tokens, its context ({self.reason})",
                fix="Shorten the rows, or use a model with a longer context.",
            )


def context_window(config: PreTrainedConfig) -> int | None:
    """Return the maximum tokens of a row, prompt and completion together; None if the architecture sets no limit."""
    limit = rotary_limit(config)
    return own_window(config) if limit is None else limit.tokens


def window_reason(config: PreTrainedConfig) -> str:
    """Return why the context ends there, as a text to follow its length; "" if the architecture itself ends there."""
    limit = rotary_limit(config)
    return "" if limit is None else f" ({limit.reason})"


def window_note(config: PreTrainedConfig) -> list[str]:
    """Return a sentence for the log if the context is shorter than the model declares."""
    limit, own = rotary_limit(config), own_window(config)
    if limit is None or limit.tokens == own:
        return []
    return [
        f"the context is {limit.tokens} tokens, not {own}: {limit.reason}, so that a row's log-probabilities would "
        "depend on the other rows of a pass"
    ]


def own_window(config: PreTrainedConfig) -> int | None:
    """The context that the model declares, regardless of its rotary factors."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def rotary_limit(config: PreTrainedConfig) -> RotaryLimit | None:
    """Return the limit; None for a model whose rotary factors, if any, do not depend on the longest row."""
    own = own_window(config)
    limits = [
        RotaryLimit(min(end for end in (tokens, own) if end is not None), rope_type)
        for rope_type, tokens in _changing(config.get_text_config(), own)
        if tokens is not None
    ]
    return min(limits, default=None)


def _changing(text_config: PreTrainedConfig, own: int | None) -> Iterator[tuple[str, int | None]]:
    """Yield (rope type, length up to which its factors are fixed) for each kind of layer whose factors change."""
    pretrained = getattr(text_config, "original_max_position_embeddings", own)
    for parameters in _by_layer_type(text_config):
        rope_type = parameters.get("rope_type") or "default"
        if rope_type == "longrope":
            yield rope_type, parameters.get("original_max_position_embeddings") or pretrained
        elif "dynamic" in rope_type:
            yield rope_type, own


def _by_layer_type(text_config: PreTrainedConfig) -> list[Mapping[str, Any]]:
    """Return the rotary settings: one set for all layers, or one for each type of layer."""
    parameters = getattr(text_config, "rope_parameters", None) or {}
    nested = [part for part in parameters.values() if isinstance(part, Mapping)]
    return nested or [parameters]
