"""Which models can be divided among ranks; tests/ranks shows that a divided model trains like a whole one."""

from __future__ import annotations

import pytest
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config, Qwen3MoeConfig

from posttrain.errors import ConfigError
from posttrain.models.matrices import require_divisible


@pytest.mark.parametrize("kind", [Qwen3MoeConfig, Gemma3TextConfig, MistralConfig])
def test_models_of_which_nobody_has_shown_it_are_refused_by_name(kind: type[PreTrainedConfig]):
    told = (
        rf"train.tensor = 2, for the teacher, and a model of type {kind.model_type}; allowed: a dense model of one of"
    )
    with pytest.raises(ConfigError, match=told):
        require_divisible("teacher", kind(), 2)


@pytest.mark.parametrize(
    ("changes", "ranks", "fix"),
    [
        ({"num_attention_heads": 12, "num_key_value_heads": 2}, 4, 2),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, 2, 1),
        ({"intermediate_size": 9}, 2, 1),
    ],
)
def test_what_cannot_be_shared_out_evenly_is_refused_with_the_most_that_can(changes, ranks, fix):
    even = {"hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 96}
    require_divisible("policy", LlamaConfig(**even, head_dim=8), ranks)
    with pytest.raises(ConfigError, match=rf"a divisor of all four.\n  Set train.tensor = {fix}."):
        require_divisible("policy", LlamaConfig(**{**even, **changes}, head_dim=8), ranks)


def test_heads_of_keys_and_values_that_nobody_names_are_as_many_as_heads():
    require_divisible("policy", Qwen3Config(num_attention_heads=8, num_key_value_heads=None), 8)
