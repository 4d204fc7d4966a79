"""The sampler that runs in the trainer's process: batched key-value-cache decoding of any transformers causal LM.

Each prompt goes through the model once, whatever the group size; its cache is then repeated for the group. Rows of
different lengths are decoded together; finished rows leave the batch. When there are more rows than may be decoded
together, prompts are taken in waves, those with the longest prompts first, so that what does not fit fails at once.

**Reproducibility.** A completion depends on `(seed, prompt.index, g)`, the prompt, the weights and the settings, not on
the rows beside it: each row has its own random stream. What may differ with the composition of a batch are the last
bits of a logit, because padding and the shape of a product decide in which order it is summed. In float32 that changes
few draws (measured with 15M parameters and 32000 tokens, batches of 64 against 8 and 24: 2 of 65536), in bfloat16 many.
The same call always gives the same result.

B rows, P prompts, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from posttrain.errors import ConfigError, DataError, NonFiniteError, PublishError
from posttrain.rollout.decoding import Decoding, base_model
from posttrain.rollout.modes import evaluating
from posttrain.rollout.sampler import SamplingSettings
from posttrain.rollout.sampling import choose, token_logprobs, uniform_streams
from posttrain.rollout.stop import StopStrings
from posttrain.rollout.transcript import Transcript
from posttrain.rollout.weights import copy_weights, plain_copy
from posttrain.types import Completion, Prompt

PREFILL_TOKENS = 16384
"""Prompt tokens, padding included, that go through the model at once; a single longer prompt still does."""


class LocalSampler:
    """Implements `Sampler`.

    With `shared`, it decodes with the very modules of the policy: no copy, and new weights are there without being
    sent. Without, it owns a plain copy in its own precision, adapters merged, that `load_weights` overwrites.
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
        max_batch_rows: int = 64,
        version: int = 0,
    ) -> None:
        """`model` is the policy, a peft model or not.

        `dtype` is the precision of decoding (None: that of the modules): the copy is stored in it, shared modules run
        under autocast where it is a half precision. The linear layers of a copy may be `packed` (packed_linear.py); that
        raises ModelError for a model that does not allow it. `max_batch_rows` bounds the rows that `score` decodes together;
        `generate` is told by its settings. `version` is the policy version of the weights as they are now.
        """
        base_model(model)  # refuses what it cannot decode with
        self.model = model if shared else plain_copy(model, dtype, packed=packed)
        self.shared = shared
        self.tokenizer = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.version = version
        self.max_batch_rows = max_batch_rows
        self._autocast_dtype = dtype if shared else None

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """`group_size` completions of each prompt, in the order of the prompts. See `Sampler` and the module.

        A completion ends with the first EOS id (`eos`, the id is part of it), with the token that completes a stop
        string (`stop`; the ids are kept, the text is cut) or after `sampling.max_completion_length` tokens (`length`).
        What the log-probabilities mean under truncation and at temperature 0 is said in `posttrain.rollout.sampling`.
        Two prompts of the same index get the same random numbers.

        Raises ConfigError when a prompt and its completion do not fit the context window, DataError for an empty
        prompt, NonFiniteError when the model returns numbers that are not finite.
        """
        groups = dict(self.stream(prompts, sampling, group_size=group_size, seed=seed))
        return [groups[i] for i in range(len(prompts))]

    def stream(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, list[Completion]]]:
        """(place of the prompt, its group) of every prompt, as soon as the group is complete: wave by wave.

        Raises as `generate` does, when the first group is asked for.
        """
        if group_size < 1:
            raise ConfigError(
                given=f"group_size = {group_size}", allowed="at least 1", fix="Set sampling.group_size = 8."
            )
        stop = StopStrings(self.tokenizer, sampling.stop)
        for prompt in prompts:
            self._check_length(prompt.ids, sampling.max_completion_length, where=f"prompt {prompt.index}")
        lengths = [len(prompt.ids) for prompt in prompts]
        for wave in waves(lengths, max_prompts=max(1, sampling.max_batch_rows // group_size)):
            with self._decoding_mode():  # not while the groups are looked at: whoever does may want gradients
                found = list(self._generate_wave([prompts[i] for i in wave], sampling, stop, group_size, seed))
            yield from zip(wave, found, strict=True)

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """Log-probability of each given token under the whole distribution at `temperature` (0 is read as 1).

        The prompt is prefilled and the completion fed one token at a time through the key-value cache, as in
        `generate`. Raises as `generate` does when a row does not fit the context window or has no prompt.
        """
        pairs = list(zip(prompt_ids, completion_ids, strict=True))
        for row, (prompt, completion) in enumerate(pairs):
            self._check_length(prompt, len(completion), where=f"row {row}")
        scores: dict[int, list[float]] = {}
        with self._decoding_mode():
            for wave in waves([len(prompt) for prompt, _ in pairs], max_prompts=self.max_batch_rows):
                scores.update(zip(wave, self._score_wave([pairs[i] for i in wave], temperature), strict=True))
        return [scores[i] for i in range(len(pairs))]

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Decode with the weights of `policy` from now on.

        Shared modules have them already, and nothing that was computed from weights outlives a call of `generate` or
        `score`. An own copy is overwritten, every parameter and buffer. Raises PublishError when `policy` is not the
        model whose modules are shared, or has other tensor names than the copy.
        """
        if not self.shared:
            copy_weights(policy, self.model)
        elif policy is not self.model:
            raise PublishError(
                given="the sampler shares the modules of another model than the one whose weights are published",
                allowed="the model that the sampler was built with",
                fix="Build the sampler with the policy, or with shared=False.",
            )
        self.version = version

    def _generate_wave(
        self, prompts: list[Prompt], sampling: SamplingSettings, stop: StopStrings, group_size: int, seed: int
    ) -> Iterator[list[Completion]]:
        """The groups of prompts that are prefilled together, decoded `max_batch_rows` rows at a time."""
        prefilled = Decoding(self.model)
        logits_PV = prefilled.prefill([prompt.ids for prompt in prompts])
        rows = [(p, g) for p in range(len(prompts)) for g in range(group_size)]
        completions: list[Completion] = []
        for start in range(0, len(rows), sampling.max_batch_rows):
            part = rows[start : start + sampling.max_batch_rows]
            decoding = prefilled if start + len(part) == len(rows) else prefilled.fork()
            rows_B = torch.tensor([p for p, _ in part], device=decoding.device)
            decoding.select(rows_B)
            streams = [(prompts[p].index, g) for p, g in part]
            transcript = self._decode(decoding, logits_PV[rows_B], streams, sampling, stop, seed)
            completions += self._completions(transcript, streams, stop)
        return (completions[p * group_size : (p + 1) * group_size] for p in range(len(prompts)))

    def _decode(
        self,
        decoding: Decoding,
        logits_BV: Tensor,
        streams: Sequence[tuple[int, int]],
        sampling: SamplingSettings,
        stop: StopStrings,
        seed: int,
    ) -> Transcript:
        """Sample token after token until every row has ended."""
        device, length = decoding.device, sampling.max_completion_length
        greedy = sampling.temperature == 0
        uniforms_BT2 = None if greedy else uniform_streams(seed, streams, length).to(device)
        eos_ids = torch.tensor(sorted(self.eos_ids), dtype=torch.long, device=device)
        transcript = Transcript(len(streams), length, device)
        for t in range(length):
            uniforms_B2 = None if uniforms_BT2 is None else uniforms_BT2[transcript.rows_B, t]
            ids_B, logprobs_B = choose(logits_BV, sampling, uniforms_B2)
            transcript.append(ids_B, logprobs_B)
            transcript.end(torch.isin(ids_B, eos_ids), "eos")
            if stop:
                transcript.end(stop.completed(transcript.ids_so_far()).to(device), "stop")
            staying_B = transcript.let_finished_leave()
            if len(transcript.rows_B) == 0 or t + 1 == length:
                break
            if staying_B is not None:
                decoding.select(staying_B)
                ids_B = ids_B[staying_B]
            logits_BV = decoding.step(ids_B)
        return transcript

    def _completions(
        self, transcript: Transcript, streams: Sequence[tuple[int, int]], stop: StopStrings
    ) -> Iterator[Completion]:
        for (index, g), (ids, logprobs, reason) in zip(streams, transcript.read(), strict=True):
            if not all(map(math.isfinite, logprobs)):
                raise NonFiniteError(
                    given=f"the policy's logits for completion {g} of prompt {index} are not finite",
                    fix="The weights or the precision overflowed: lower train.learning_rate, or sample in float32.",
                )
            yield Completion(
                ids=ids,
                logprobs=logprobs,
                versions=(self.version,) * len(ids),
                finish_reason=reason,
                text=stop.text(ids, stopped=reason == "stop"),
            )

    def _score_wave(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> Iterator[list[float]]:
        """Log-probabilities of given completions; a row whose completion has ended leaves the batch."""
        decoding = Decoding(self.model)
        lengths = [len(completion) for _, completion in pairs]
        longest = max(lengths)
        ids_BT = torch.tensor([[*ids, *[0] * (longest - len(ids))] for _, ids in pairs], device=decoding.device)
        logprobs_BT = torch.zeros(len(pairs), longest, device=decoding.device)
        rows_B, lengths_B = torch.arange(len(pairs)), torch.tensor(lengths)
        logits_BV = decoding.prefill([prompt for prompt, _ in pairs])
        for t in range(longest):
            going_B = lengths_B[rows_B] > t
            if not going_B.all():
                staying_B = going_B.nonzero().squeeze(-1).to(decoding.device)
                decoding.select(staying_B)
                rows_B, logits_BV = rows_B[going_B], logits_BV[staying_B]
            logprobs_BT[rows_B, t] = token_logprobs(logits_BV, ids_BT[rows_B, t], temperature=temperature)
            if t + 1 < longest:
                logits_BV = decoding.step(ids_BT[rows_B, t])
        return (row[:length] for row, length in zip(logprobs_BT.tolist(), lengths, strict=True))

    def _check_length(self, prompt_ids: Sequence[int], num_new: int, *, where: str) -> None:
        """Raises before anything is computed when a row cannot be decoded."""
        if not prompt_ids:
            raise DataError(
                given=f"{where} has no tokens",
                allowed="at least one token to continue from",
                fix="Remove empty prompts, or use a tokenizer or chat template that begins with a token.",
            )
        window = getattr(base_model(self.model).config.get_text_config(), "max_position_embeddings", None)
        if window is not None and len(prompt_ids) + num_new > window:
            raise ConfigError(
                given=f"{where} has {len(prompt_ids)} tokens and its completion may have {num_new}",
                allowed=f"{window} tokens together, the context window of the model",
                fix=f"Set data.max_prompt_length = {window - num_new}, or lower sampling.max_completion_length."
                if num_new < window
                else f"Set sampling.max_completion_length below {window}.",
            )

    @contextmanager
    def _decoding_mode(self) -> Iterator[None]:
        """No gradient, no dropout, the precision of decoding; every module is in its former mode afterwards.

        `no_grad`, not `inference_mode`: a buffer that a shared module replaced meanwhile could not be trained with.
        """
        device = next(self.model.parameters()).device
        with evaluating(self.model), torch.no_grad(), _autocast(device, self._autocast_dtype):
            yield


def waves(lengths: Sequence[int], *, max_prompts: int) -> Iterator[list[int]]:
    """Which prompts are prefilled together, longest first: at most `max_prompts` and `PREFILL_TOKENS` with padding.

    >>> list(waves([3, 9, 5], max_prompts=2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        size = max(1, min(max_prompts, PREFILL_TOKENS // lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    half = dtype in (torch.bfloat16, torch.float16)
    return torch.autocast(device.type, dtype=dtype) if half else nullcontext()
