"""Force completion lengths on transformers (rows of a padded batch, or requests of its continuous batching) and on vLLM
inside a trainer."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from benchmarks.speed.gate import Gate
from transformers import LogitsProcessor, LogitsProcessorList


class ForcedLengths(LogitsProcessor):
    """A logits processor that ends row b after exactly `lengths_B[b]` tokens."""

    def __init__(self, lengths: list[int], eos_id: int) -> None:
        self.lengths_B, self.eos_id, self.columns = torch.tensor(lengths), eos_id, None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.columns = input_ids.shape[1] if self.columns is None else self.columns
        ends_B = self.lengths_B == input_ids.shape[1] - self.columns + 1
        scores[:, self.eos_id] = -torch.inf
        scores[ends_B] = -torch.inf
        scores[ends_B, self.eos_id] = 0
        return scores


def force_rows(model: Any, gate: Gate, lengths: list[int]) -> None:
    """Give every call of `generate` a processor that ends its rows."""
    generate, eos_id = model.generate, model.config.eos_token_id

    def forced(*inputs: Any, **more: Any) -> Any:
        processors = LogitsProcessorList([ForcedLengths(gate.lengths(lengths), eos_id)])
        return generate(*inputs, logits_processor=processors, **more)

    model.generate = forced


def force_requests(gate: Gate, lengths: list[int]) -> None:
    """Give request n of a batch exactly its number of tokens."""
    from transformers.generation.continuous_batching import ContinuousBatchingManager

    add_request = ContinuousBatchingManager.add_request

    def forced(self: Any, *inputs: Any, **more: Any) -> Any:
        given = inspect.signature(add_request).bind(self, *inputs, **more)
        number = int(given.arguments["request_id"].removeprefix("req_"))
        given.arguments |= {"max_new_tokens": gate.lengths(lengths)[number], "eos_token_id": -1}
        return add_request(*given.args, **given.kwargs)

    ContinuousBatchingManager.add_request = forced


def force_vllm(engine: Any, gate: Gate, lengths: list[int]) -> None:
    """Give every row in a call of `LLM.generate` its own sampling parameters."""
    generate = engine.generate

    def forced(prompts: Any, sampling_params: Any, **more: Any) -> Any:
        each = [copy.deepcopy(sampling_params) for _ in prompts]
        for one, length in zip(each, gate.lengths(lengths), strict=True):
            one.max_tokens, one.min_tokens, one.ignore_eos = length, length, True
        return generate(prompts, sampling_params=each, **more)

    engine.generate = forced
