"""Completions of a model, and whether groups of them would give a training signal under a reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from posttrain.rewards.audit.finding import Measured, mean, share
from posttrain.rewards.audit.subject import Case, Subject

if TYPE_CHECKING:
    from posttrain.types import Prompt

PROMPTS, GROUP_SIZE = 16, 8
"""Number of prompts to answer, and of answers to each."""


def sampled(model: str, prompts: Sequence[Prompt]) -> list[list[str]]:
    """Groups of completions of the first prompts. Raises `ModelError` if the model cannot be loaded."""
    from posttrain.config import DataConfig, ModelConfig, SamplingConfig
    from posttrain.data.prompts import Renderer
    from posttrain.engines import make_sampler
    from posttrain.models.load import load_model
    from posttrain.models.named import resolve_model_path

    loaded = load_model(resolve_model_path(ModelConfig(path=model), seed=0))
    sampler = make_sampler(loaded)
    renderer = Renderer.of(DataConfig(train="rows"), loaded.tokenizer)
    rendered = []
    for prompt in prompts[:PROMPTS]:
        given = prompt.plain if prompt.plain is not None else list(prompt.messages or ())
        text = renderer.text(given)
        is_chat = renderer.messages(given) is not None
        rendered.append(replace(prompt, text=text, ids=renderer.ids(text, is_chat=is_chat)))
    groups = sampler.generate(rendered, SamplingConfig(), group_size=GROUP_SIZE, seed=0)
    return [[completion.text for completion in group] for group in groups]


def group_signal(subject: Subject) -> Measured:
    """Share of the groups of completions in which all scores are equal, so that the advantages are 0."""
    if not subject.completions:
        return Measured(text="no completions of a model were given")
    groups = [
        [answer.value for answer in subject.score([Case(row=row, text=text) for text in texts])]
        for row, texts in enumerate(subject.completions[: len(subject.prompts)])
    ]
    scored = [[value for value in group if value is not None] for group in groups]
    same = sum(len(set(group)) < 2 for group in scored)
    average = mean([value for group in scored for value in group])
    return Measured(
        value=same / len(scored),
        text=f"{share(same, len(scored))} groups have equal scores; the mean score is {average:.3g}",
        examples=("The policy learns nothing from such a group. Choose easier or harder prompts, or larger groups.",),
    )
