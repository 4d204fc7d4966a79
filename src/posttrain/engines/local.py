"""The sampler that runs in the trainer's process: continuous batching of any transformers causal LM.

Completions are requests in a queue (engine.py). Each prompt goes through the model once, whatever the group size. Up to
`max_batch_rows` rows of any length are decoded together; when one ends, the next request immediately takes its place.
The longest prompts come first, so that what does not fit fails early. Models run their own forward pass (slots.py), or
a registered acceleration decodes them faster. Models that keep more than keys and values per position are decoded in
padded rows that begin and end together; `LocalSampler.note` then says why.

**Reproducibility.** A completion depends on `(seed, prompt.index, g)`, the prompt, the weights and the settings, not on
the other rows of the batch: each row has its own random stream. Only the last bits of a logit may differ with the
composition of a batch, because the shape of a product decides the order of its sum. In float32 that changes few draws
(measured with 15M parameters and 32000 tokens, batches of 64 against 8 and 24: 2 of 65536), in bfloat16 many. In
float32, no bit differs if compiled kernels compute all that a row goes through; docs/speed.md lists the models for
which they do. The same call always gives the same result.

B rows, P prompts, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from posttrain.engines.call import Call
from posttrain.engines.decoding import base_model
from posttrain.engines.decoding_path import decode_by, decoding_path
from posttrain.engines.delivery import chosen_experts
from posttrain.engines.engine import Choose, Draw, Engine, Request, Row, Score
from posttrain.engines.reads import Reads, check_reads
from posttrain.engines.sampler import Receipt, SamplingSettings, check_length, rows_together
from posttrain.engines.sampling import StopStrings
from posttrain.engines.weights import (
    cast_in_place,
    dense,
    named_tensors,
    named_weights,
    pack_in_place,
    plain_copy,
    write_tensors,
)
from posttrain.errors import ConfigError, ModelError, NonFiniteError, PublishError
from posttrain.models.compute import PLAIN, Compute
from posttrain.models.context import context_window, window_reason
from posttrain.models.modes import evaluating
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.models.load import LoadedModel


class LocalSampler:
    """A sampler in the trainer's process. Implements `Sampler`.

    With `shared`, it decodes with the policy's own modules: there is no copy, and new weights need no delivery.
    Without, it owns a plain copy in its own precision, with adapters merged, which `deliver` overwrites.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Collection[int],
        *,
        shared: bool,
        dtype: torch.dtype | None = None,
        packed: bool = False,
        compute: Compute = PLAIN,
        max_batch_rows: int = 64,
        version: int = 0,
    ) -> None:
        """`model` is the policy, with or without peft adapters.

        `dtype` is the precision of decoding (None: the modules' own): the copy is stored in it, shared modules compute
        in it (precision.py). The linear layers of a copy may be `packed`; that raises ModelError for a model that does
        not allow it. `compute` says what acceleration may use. `max_batch_rows` is the maximum number of rows that
        `score` decodes together; `generate` gets its own from the settings. `version` is the policy version of the
        present weights.
        """
        base_model(model)  # raises an error for a model that it cannot decode with
        self.model = model if shared else _own_copy(model, dtype, packed=packed)
        self.owns_weights = not shared
        self.tokenizer = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.version = version
        self.max_batch_rows = max_batch_rows
        self.compute = compute
        self.lag = int(self.device.type != "cpu")
        """Number of passes launched before the ids of one are read (engine.py); 0 without a queue, as on a CPU."""
        self._dtype = dtype if shared else None

    @classmethod
    def of(cls, loaded: LoadedModel, weights: Literal["shared", "copied", "taken"] = "shared") -> LocalSampler:
        """See `make_sampler`. The sampler has the precision and the compute settings that were chosen for the model."""
        compute = loaded.compute
        dtype = None if compute.dtype == torch.float32 else compute.dtype
        packed, device = compute.sampler == "packed", next(loaded.model.parameters()).device
        if weights == "taken" and dtype is not None and device.type != "cpu":
            with evaluating(loaded.model):
                decoding_path(loaded.model)
            cast_in_place(loaded.model, dtype)
            return cls(loaded.model, loaded.tokenizer, loaded.eos_ids, shared=True, compute=compute)
        if weights == "taken" and packed:
            with evaluating(loaded.model):
                path = decoding_path(loaded.model)
            with suppress(ModelError):  # a model that does not allow packing stays dense
                pack_in_place(loaded.model, compute.dtype)
            decode_by(loaded.model, path)
            return cls(loaded.model, loaded.tokenizer, loaded.eos_ids, shared=True, compute=compute)
        copied = {"shared": weights != "copied", "packed": packed and weights == "copied"}
        return cls(loaded.model, loaded.tokenizer, loaded.eos_ids, dtype=dtype, compute=compute, **copied)

    @property
    def context_length(self) -> int | None:
        return context_window(base_model(self.model).config)

    @property
    def context_reason(self) -> str:
        return window_reason(base_model(self.model).config)

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """Return `group_size` completions of each prompt, in the order of the prompts. See `Sampler` and the module.

        A completion ends with the first EOS id (`eos`, the id is part of it), with the token that completes a stop
        string (`stop`; the ids are kept, the text is cut) or after `sampling.max_completion_length` tokens (`length`).
        `posttrain.engines.sampling` says what the log-probabilities mean under truncation and at temperature 0. Two
        prompts with the same index get the same random numbers.

        Raises ConfigError if a prompt and its completion do not fit into the context window, DataError for an empty
        prompt, NonFiniteError if the model returns numbers that are not finite.
        """
        each = self.each(prompts, sampling, group_size=group_size, seed=seed)
        found = {(place, g): completion for place, g, completion in each}
        return [[found[place, g] for g in range(group_size)] for place in range(len(prompts))]

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yield (index of the prompt, index in its group, completion) as soon as each completion has ended.

        The order depends only on the lengths of prompts and completions. Raises the errors of `generate` when the first
        completion is requested.
        """
        if group_size < 1:
            raise ConfigError(
                given=f"group_size = {group_size}", allowed="at least 1", fix="Set sampling.group_size = 8."
            )
        order = sorted(range(len(prompts)), key=lambda p: -len(prompts[p].ids))
        requests = [
            Request(
                prompt_ids=tuple(prompts[p].ids),
                max_new_tokens=sampling.max_completion_length,
                stream=(prompts[p].index, g),
            )
            for p in order
            for g in range(group_size)
        ]
        for number, completion in self.complete(requests, sampling, seed=seed):
            yield order[number // group_size], number % group_size, completion

    def complete(
        self, requests: Sequence[Request], sampling: SamplingSettings, *, seed: int
    ) -> Iterator[tuple[int, Completion]]:
        """Yield (index of the request, its completion) as soon as it has ended; requests begin in the given order.

        Each has its own `max_new_tokens` instead of `sampling.max_completion_length`. Raises the errors of `generate`.
        """
        stop = StopStrings(self.tokenizer, sampling.stop)
        for request in requests:
            where = f"prompt {request.stream[0]}"
            check_length(self, request.prompt_ids, request.max_new_tokens, where=where)
        choose = Draw(sampling, seed, self.compute)
        for row in self._run(requests, choose, rows_together(sampling), stop):
            yield row.number, self.completion(row, stop)

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """Return the log-probability of each given token, without truncation, at `temperature` (0 is read as 1).

        The prompt is prefilled, then the completion goes one token at a time through the key-value cache, as in
        `generate`. Raises the errors of `generate` if a row does not fit into the context window or has no prompt.
        """
        pairs = list(zip(prompt_ids, completion_ids, strict=True))
        for row, (prompt, completion) in enumerate(pairs):
            check_length(self, prompt, len(completion), where=f"row {row}")
        order = sorted((row for row, (_, ids) in enumerate(pairs) if ids), key=lambda row: -len(pairs[row][0]))
        requests = [
            Request(prompt_ids=tuple(prompt), max_new_tokens=len(ids), given_ids=tuple(ids))
            for prompt, ids in (pairs[row] for row in order)
        ]
        scores: list[list[float]] = [[] for _ in pairs]
        for row in self._run(requests, Score(temperature), self.max_batch_rows):
            scores[order[row.number]] = row.logprobs
        return scores

    def probe(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """See `Sampler`. Decoding must read the tensors that a plain forward pass of the sampler's model reads.

        If it reads casts, these must be casts of those tensors.
        """
        ids, casts = [*prompt_ids[0], completion_ids[0][0]], self._dtype is not None and self.device.type != "cpu"
        self.begin()  # tries a new model now: its trials read every tensor, and decoding may not
        with ExitStack() as in_place:
            with Reads() as reads:
                if casts:
                    in_place.enter_context(self.begin().precision())
                scores = self.score(prompt_ids, completion_ids, temperature=temperature)
            check_reads(self.model, reads, ids)
        if casts:  # without autocast, weights of two precisions, as in a frozen base, cannot be multiplied
            with torch.autocast(self.device.type, dtype=self._dtype):
                check_reads(self.model, reads, ids)
        return scores

    def routes(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[Tensor]:
        """See `Sampler`."""
        with chosen_experts(self.model) as chosen:
            self.score([prompt_ids], [completion_ids], temperature=1.0)
        return chosen()

    def deliver(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Receipt:
        """See `Sampler`. The sampler's own copy is overwritten.

        Shared modules already have the new weights, and nothing that was computed from old weights outlives a call of
        `generate` or `score`. Raises PublishError if the tensors do not belong to the sampler's modules.
        """
        if self.owns_weights:
            return self.overwrite(tensors, version)
        own = {id(tensor) for _, tensor in named_tensors(self.model)}
        given = dict(tensors)
        if any(id(tensor) not in own for tensor in given.values()):
            raise PublishError(
                given="the sampler shares the modules of a different model than the one whose weights are published",
                allowed="the model that the sampler was built with",
                fix="Build the sampler with the policy, or with a copy of its weights.",
            )
        self.version = version
        return self.receipt(in_place=given)

    def overwrite(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Receipt:
        """Overwrite the tensors of the same names, for a sampler whose model nobody else uses."""
        write_tensors(self.model, tensors)
        self.version = version
        return self.receipt()

    def receipt(self, in_place: Mapping[str, Tensor] = MappingProxyType({})) -> Receipt:
        """Return the receipt for the tensors that decoding reads now. Given tensors that it reads itself are not
        compared."""
        held = dict(named_tensors(self.model))
        shared = {name for name, tensor in held.items() if tensor is in_place.get(name)}
        own = {name: tensor for name, tensor in held.items() if name not in shared}
        return Receipt(version=self.version, tensors=own, in_place=shared)

    def held(self) -> Iterator[tuple[str, Tensor]]:
        """See `Sampler`."""
        return ((name, dense(tensor).detach()) for name, tensor in named_weights(self.model))

    @property
    def note(self) -> str:
        """Why this model decodes padded rows that cannot join later; empty if its rows can join at any time."""
        return self.begin().path.note

    def begin(self) -> Call:
        """Begin a call, which decodes with the weights as they are now."""
        return Call(self.model, self._dtype, self.compute, owns_weights=self.owns_weights)

    def open(
        self, call: Call, choose: Choose, max_rows: int, stop: StopStrings | None = None, *, holds_prompt: bool = True
    ) -> Engine:
        """Return an engine without rows. `holds_prompt`: groups may be split when slots run out."""
        return Engine(
            call.rows(max_rows, holds_prompt=holds_prompt),
            choose,
            max_rows=max_rows,
            eos_ids=() if stop is None else self.eos_ids,
            stop=stop,
            version=lambda: self.version,
            lag=self.lag,
        )

    def up_to_date(self) -> LocalSampler:
        """See `HasRows`."""
        return self

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _run(
        self, requests: Sequence[Request], choose: Choose, max_rows: int, stop: StopStrings | None = None
    ) -> Iterator[Row]:
        """Yield the rows as they end. Between two of them, no mode of the sampler is in force."""
        if not requests:
            return
        max_rows = max(1, min(max_rows, len(requests)))
        call = self.begin()
        engine = self.open(call, choose, max_rows, stop, holds_prompt=len(requests) > max_rows)
        ended = engine.run(requests, self.device)
        while True:
            with call.in_force():
                rows_ended = next(ended, None)
            if rows_ended is None:
                return
            yield from rows_ended

    def completion(self, row: Row, stop: StopStrings) -> Completion:
        """Return the completion of a row that has ended. Raises NonFiniteError if its numbers are not finite."""
        if not all(map(math.isfinite, row.logprobs)):
            index, g = row.request.stream
            raise NonFiniteError(
                given=f"the policy's logits for completion {g} of prompt {index} are not finite",
                fix="The weights or the precision overflowed: lower train.learning_rate, or sample in float32.",
            )
        assert row.reason is not None, "the engine hands out rows that have ended"
        return Completion(
            ids=tuple(row.ids),
            logprobs=tuple(row.logprobs),
            versions=tuple(row.versions),
            finish_reason=row.reason,
            text=stop.text(row.ids, stopped=row.reason == "stop"),
        )


def _own_copy(model: nn.Module, dtype: torch.dtype | None, *, packed: bool) -> nn.Module:
    """Return a copy. If it is less exact than the model, it gets the model's decoding path."""
    copied = plain_copy(model, dtype, packed=packed)
    if next(model.parameters()).dtype == torch.float32 and dtype in (torch.bfloat16, torch.float16):
        with evaluating(model):
            decode_by(copied, decoding_path(model))
    return copied
