"""A judge in this process: a model from a folder, or the policy that is trained, with its current weights."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from posttrain.config import ModelConfig, SamplingConfig
from posttrain.data.literal import Literal
from posttrain.data.prompts import Renderer
from posttrain.engines import Sampler, make_sampler
from posttrain.engines.held import hold_frozen
from posttrain.engines.sampler import Judging
from posttrain.errors import ConfigError
from posttrain.models.identity import model_identity
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.named import resolve_model_path
from posttrain.models.reading import called
from posttrain.rewards.judge.records import Conversation, Reply
from posttrain.rewards.model import find_model
from posttrain.types import Prompt

if TYPE_CHECKING:
    from posttrain.config import JudgeConfig

POLICY = "policy"
CODE = ("engines/*.py", "functional/*.py", "data/prompts.py", "rewards/judge/local.py")
"""The modules that a reply depends on, in addition to those of the model."""


class LocalJudge:
    """A `Backend` that uses a sampler and the chat template of its tokenizer."""

    def __init__(self, settings: JudgeConfig, *, folder: Path | None = None, device: str = "auto") -> None:
        self.settings, self._folder, self._device = settings, folder, device
        self._bound: Judging | None = None
        self._template_kwargs: Mapping[str, Any] = {}
        self._alone = Lock()

    @property
    def is_policy(self) -> bool:
        return self.settings.model == POLICY

    def bind(self, sampler: Judging, template_kwargs: Mapping[str, Any]) -> None:
        """Set the sampler that judges, always with its current weights."""
        self._bound, self._template_kwargs = sampler, template_kwargs

    @cached_property
    def _loaded(self) -> LoadedModel:
        place = find_model(self.settings.model, self._folder)
        with called("judge.model"):
            loaded = load_model(resolve_model_path(ModelConfig(path=place, device=self._device), 0))  # type: ignore[arg-type]
        loaded.model.requires_grad_(False)
        return hold_frozen(loaded, decodes=True)

    @cached_property
    def _own(self) -> Sampler:
        return make_sampler(self._loaded)

    @property
    def sampler(self) -> Judging:
        if not self.is_policy:
            return self._own
        if self._bound is None:
            raise ConfigError(
                given="judge.model = policy, but no policy is being trained or evaluated",
                allowed="policy in a run or in an evaluation, or a model folder",
                fix="Name the model: judge: {model: FOLDER}. For a folder with the name policy, write ./policy.",
            )
        return self._bound

    def identity(self) -> str | None:
        """The identity of the model; None for the policy, which changes at each step. Replies of the policy are not
        cached, and a repeated step computes the same replies again."""
        return None if self.is_policy else self._identity

    @cached_property
    def _identity(self) -> str:
        loaded = self._loaded
        return model_identity(
            loaded.model,
            compute_dtype=loaded.compute_dtype,
            tokenizer=loaded.tokenizer,
            eos_ids=loaded.eos_ids,
            code=CODE,
        )

    @property
    def control(self) -> Collection[str]:
        """The texts that the tokenizer would read as special tokens."""
        return Literal.of(self.sampler.tokenizer, ordinary=False).names

    def answer(self, conversations: Sequence[Conversation], keep: Callable[[int, Reply], None]) -> list[Reply]:
        """One reply per conversation, in order. A question that does not fit into the context is a failure.

        An asynchronous run scores in one thread and evaluates in another. They take turns, because decoding changes the
        model while it lasts.
        """
        with self._alone:
            return self._answer(conversations, keep)

    def _answer(self, conversations: Sequence[Conversation], keep: Callable[[int, Reply], None]) -> list[Reply]:
        started, sampler = time.perf_counter(), self.sampler
        rows = [self._ids(conversation) for conversation in conversations]
        fits = [place for place, row in enumerate(rows) if not isinstance(row, Reply)]
        prompts = [Prompt(index=_stream(conversations[p]), ids=rows[p], text="") for p in fits]  # type: ignore[arg-type]
        settings = self.settings
        sampling = SamplingConfig(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_completion_length=settings.max_tokens,
            max_batch_rows=settings.concurrency,
        )
        groups = sampler.generate(prompts, sampling, group_size=1, seed=0) if prompts else []
        seconds = (time.perf_counter() - started) / max(1, len(prompts))
        for place, prompt, (completion,) in zip(fits, prompts, groups, strict=True):
            tokens = len(prompt.ids) + len(completion.ids)
            reason = completion.finish_reason
            rows[place] = Reply(text=completion.text, tokens=tokens, calls=1, seconds=seconds, finish_reason=reason)
            keep(place, rows[place])  # type: ignore[arg-type]
        return rows  # type: ignore[return-value]

    def _ids(self, conversation: Conversation) -> tuple[int, ...] | Reply:
        """The token ids of a question; a failure if they do not fit into the context."""
        sampler = self.sampler
        chat = bool(sampler.tokenizer.chat_template)
        renderer = Renderer(tokenizer=sampler.tokenizer, chat=chat, template_kwargs=self._template_kwargs)
        if chat:
            text = renderer.text(conversation.messages)
        else:
            text = "\n\n".join(message["content"] for message in conversation.messages) + "\n"
        ids = renderer.ids(text, is_chat=chat)
        window = sampler.context_length
        if window is not None and len(ids) + self.settings.max_tokens > window:
            return Reply(
                error=f"the question has {len(ids)} tokens and the reply may have {self.settings.max_tokens} "
                f"(judge.max_tokens): too many for the judge's context of {window}{sampler.context_reason}"
            )
        return ids


def _stream(conversation: Conversation) -> int:
    """The random stream of a question: a pure function of its messages and of the number of the judgement."""
    text = json.dumps([conversation.messages, conversation.sample])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
