"""Chat with a model, with the same rendering, sampler and stop conditions as in training."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from posttrain.config import ModelConfig, RolloutConfig, RunConfig, SamplingConfig, load_config
from posttrain.data.dropped import Unusable
from posttrain.data.prompts import Renderer
from posttrain.data.unknown import unwritten
from posttrain.engines import make_sampler
from posttrain.errors import DataError
from posttrain.evaluate.rollout import RolloutArgument, rollout_of, tell
from posttrain.evaluate.trained import run_in, trained_model
from posttrain.experience.serving import Serving, serving
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.named import resolve_model_path
from posttrain.store.fetching import folder_to_read
from posttrain.types import Prompt

SERVED_TOKENS = 4096
"""Maximum tokens of a conversation with a server, which reserves memory for it when it starts."""


class ChatSession:
    """A conversation with a model. As a context manager, it stops the server if one answers.

    With a chat template, each question follows all earlier turns. Without one, the model continues each text, and texts
    are independent.
    """

    def __init__(
        self,
        model_or_run: str | PathLike[str],
        *,
        system: str | None = None,
        temperature: float = 0.0,
        max_completion_length: int = 256,
        seed: int = 0,
        rollout: RolloutArgument | None = None,
    ) -> None:
        """`model_or_run` is a model folder or name, or a run folder. For a run, the chat uses its newest checkpoint,
        with the system prompt, chat template and stop strings of its training. `system` replaces the system prompt.
        `rollout` selects the engine, as for `evaluate`. For a run with an environment, tools or an agent, a message on
        stderr says that a chat has none.

        Raises what `run_in`, `trained_model` and `load_model` raise, and ConfigError or ModelError if a server cannot
        be started.
        """
        model, run = _model_and_run(folder_to_read(model_or_run, checkpoints=True))
        if run is not None and run.has_turns:
            tell(
                "This model was trained in several turns. A chat has no environment, tools or agent: the model "
                "answers alone."
            )
        self.model_path = model.path
        self.seed = seed
        self._told = False
        self.turns: list[dict[str, str]] = []
        """The conversation so far, as chat messages."""
        loaded = load_model(model)
        tokenizer, kwargs = loaded.tokenizer, model.chat_template_kwargs
        renderer = (
            Renderer(tokenizer=tokenizer, chat=bool(tokenizer.chat_template), template_kwargs=kwargs)
            if run is None
            else Renderer.of(run.data, tokenizer, kwargs)
        )
        self._renderer = renderer if system is None else replace(renderer, system_prompt=system)
        self._sampling = SamplingConfig(
            temperature=temperature,
            max_completion_length=max_completion_length,
            stop=[] if run is None else run.sampling.stop,
        )
        self._resources = ExitStack()
        answering = rollout_of(None if run is None else run.rollout, rollout)
        self._sampler = make_sampler(loaded) if answering.engine == "local" else self._served(answering, loaded, model)

    def _served(self, rollout: RolloutConfig, loaded: LoadedModel, model: ModelConfig) -> Serving:
        longest = min(loaded.context_length or SERVED_TOKENS, SERVED_TOKENS)
        one_row = self._sampling.model_copy(update={"max_batch_rows": 1})
        return self._resources.enter_context(serving(rollout, one_row, loaded, model, longest=longest, say=tell))

    def close(self) -> None:
        """Stop the server that this session started, if any."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._resources.__exit__(*raised)  # type: ignore[arg-type]

    def ask(self, text: str) -> str:
        """Return the model's answer without special tokens. Raises DataError if the context has no room for one, or if
        the text is not UTF-8 or the chat template refuses it."""
        prompt = self._prompt(self._with_earlier_turns(text))
        room = self._with_room(len(prompt.ids))
        self._tell_of_unknown_text(prompt)
        [[completion]] = self._sampler.generate([prompt], room, group_size=1, seed=self.seed)
        self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": completion.text}]
        return completion.text

    def _tell_of_unknown_text(self, prompt: Prompt) -> None:
        """Say on stderr, once, that the tokenizer cannot write a part of what the model is asked."""
        if not self._told and (sentence := unwritten(self._renderer.tokenizer, prompt)):
            self._told = True
            tell(sentence)

    def _with_earlier_turns(self, text: str) -> Any:
        return [*self.turns, {"role": "user", "content": text}] if self._renderer.chat else text

    def _prompt(self, asked: Any) -> Prompt:
        """Return what the model reads: the messages so far, or a text."""
        try:
            rendered = self._renderer.text(asked)
            ids = self._renderer.ids(rendered, is_chat=self._renderer.chat)
        except Unusable as refused:
            raise DataError(
                given=f"a message that the model cannot read: {refused}",
                allowed="text in UTF-8" + (" that the chat template accepts" if self._renderer.chat else ""),
                fix="Change the message, its encoding or the system prompt.",
            ) from refused
        return Prompt(index=len(self.turns) // 2, ids=ids, text=rendered)

    def _with_room(self, used: int) -> SamplingConfig:
        """Return the sampling settings, with the answer limited to the remaining context."""
        window = self._sampler.context_length
        if window is None:
            return self._sampling
        room = window - used
        if room < 1:
            given, fix = self._what_is_too_long(window)
            raise DataError(
                given=given.format(used),
                allowed=f"fewer than the model's context of {window}{self._sampler.context_reason}",
                fix=fix,
            )
        length = min(self._sampling.max_completion_length, room)
        return self._sampling.model_copy(update={"max_completion_length": length})

    def _what_is_too_long(self, window: int) -> tuple[str, str]:
        """Return what leaves no room for an answer, with a place for its tokens, and what to do about it."""
        shortest = len(self._prompt(self._with_earlier_turns("a")).ids)
        follows = bool(self._renderer.chat and self.turns)
        if follows and shortest < window:
            given = "the conversation has {} tokens with this message"
            return given, "Shorten the message, or start a new conversation."
        if follows:
            return "the conversation has {} tokens", "Start a new conversation."
        if shortest < window:
            return "the message has {} tokens", "Shorten it."
        return "the message has {} tokens with what the chat template writes before it", "Shorten the system prompt."


def _model_and_run(place: Path) -> tuple[ModelConfig, RunConfig | None]:
    """Return the model to load and, for a run, its config."""
    run = run_in(place)
    if run is None:
        return resolve_model_path(ModelConfig(path=str(place)), seed=0), None
    config = load_config(run / "config.yaml").config
    return trained_model(run, config), config
