"""Talking to a model: the same rendering, the same sampler and the same stopping as in training."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from posttrain.config import ModelConfig, RunConfig, SamplingConfig, load_config
from posttrain.data.prompts import Renderer
from posttrain.engines import make_sampler
from posttrain.errors import DataError
from posttrain.evaluate.trained import run_in, trained_model
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path
from posttrain.types import Prompt


class ChatSession:
    """A conversation with a model.

    With a chat template each question is asked after all the turns before it. Without one, the model goes on writing
    where the text ends, and every text stands for itself.
    """

    def __init__(
        self,
        model_or_run: str | PathLike[str],
        *,
        system: str | None = None,
        temperature: float = 0.0,
        max_completion_length: int = 256,
        seed: int = 0,
    ) -> None:
        """`model_or_run` is a model folder or name, or a run folder: its newest checkpoint that verifies, with the
        system prompt, the chat template and the stop strings that it was trained with. `system` goes before those.

        Raises what `run_in`, `trained_model` and `load_model` raise.
        """
        model, run = _model_and_run(Path(model_or_run))
        self.model_path = model.path
        self.seed = seed
        self.turns: list[dict[str, str]] = []
        """The conversation so far, as chat messages."""
        loaded = load_model(model)
        self._context_length, self._context_reason = loaded.context_length, loaded.context_reason
        self._sampler = make_sampler(loaded)
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

    def ask(self, text: str) -> str:
        """The model's answer, special tokens left out. Raises DataError when there is no room left for one."""
        question = {"role": "user", "content": text}
        asked: Any = [*self.turns, question] if self._renderer.chat else text
        rendered = self._renderer.text(asked)
        ids = self._renderer.ids(rendered, is_chat=self._renderer.chat)
        prompt = Prompt(index=len(self.turns) // 2, ids=ids, text=rendered)
        [[completion]] = self._sampler.generate([prompt], self._with_room(len(ids)), group_size=1, seed=self.seed)
        self.turns += [question, {"role": "assistant", "content": completion.text}]
        return completion.text

    def _with_room(self, used: int) -> SamplingConfig:
        """The sampling settings, with answers no longer than what the context leaves."""
        if self._context_length is None:
            return self._sampling
        room = self._context_length - used
        if room < 1:
            raise DataError(
                given=f"the conversation has {used} tokens",
                allowed=f"fewer than the model's context of {self._context_length}{self._context_reason}",
                fix="Start a new conversation.",
            )
        length = min(self._sampling.max_completion_length, room)
        return self._sampling.model_copy(update={"max_completion_length": length})


def _model_and_run(place: Path) -> tuple[ModelConfig, RunConfig | None]:
    """The model to open and, for a run, its settings."""
    run = run_in(place)
    if run is None:
        return resolve_model_path(ModelConfig(path=str(place)), seed=0), None
    config = load_config(run / "config.yaml").config
    return trained_model(run, config), config
