"""The prompts that a run answers: rendered, short enough, and such that its rewards can judge the answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from posttrain.data.prompts import PromptSet, Renderer, overlap, render_prompts, with_all_columns
from posttrain.data.split import Split, first_rows
from posttrain.data.stream import StreamedRecords
from posttrain.errors import ConfigError
from posttrain.models.load import LoadedModel
from posttrain.rewards.missing import HELD_OUT
from posttrain.train.source import context_length

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.train.judges import Judges
    from posttrain.types import Prompt

CHECKED = 1_000
"""Streamed prompts whose gold answers are tried on the rewards before the run."""


def checked_prompts(config: RunConfig, rows: Split, loaded: LoadedModel, judges: Judges) -> tuple[PromptSet, PromptSet]:
    """The training prompts and the held-out ones. Raises what rewards and check find wrong with their columns."""
    train, heldout = prompt_sets(config, rows, loaded)
    for what, part in (("training data", train), (HELD_OUT, heldout)):
        if part.prompts and judges.rewards is not None:
            judges.rewards.check(first(part.prompts), what)
    if judges.check is not None and heldout.prompts:
        judges.check.require(heldout.prompts, HELD_OUT)
    return train, heldout


def prompt_sets(config: RunConfig, rows: Split, loaded: LoadedModel) -> tuple[PromptSet, PromptSet]:
    """The training prompts and the held-out ones, none longer than the context leaves room for."""
    renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    context, longest = context_length(loaded), config.sampling.max_completion_length
    room = context - longest
    if room < 1:
        raise ConfigError(
            given=f"sampling.max_completion_length = {longest} in a context of {context} tokens"
            f"{loaded.context_reason}: no prompt fits",
            allowed="less than the context, with room for the prompts",
            fix=f"Set sampling.max_completion_length = {context // 2}.",
        )
    render = partial(render_prompts, config=config.data, renderer=renderer, max_prompt_length=room)
    train = render(rows.train, what=loaded.named("training data"))
    if not rows.heldout:
        return train, PromptSet(prompts=())
    heldout = render(first_rows(rows.heldout, config.evaluation.prompts), what=loaded.named("held-out data"))
    if config.data.eval is None:  # rows of the same data, whichever of them were held out
        train, heldout = with_all_columns(train, heldout)
    return train, heldout


def prompt_notes(train: PromptSet, heldout: PromptSet, system_prompt: str | None) -> list[str]:
    """What the user should know about the data, in sentences; `system_prompt` is the one of the config."""
    parts = (("training data", train), ("held-out data", heldout))
    notes = [f"{what}: {part.dropped_summary}" for what, part in parts if part.dropped]
    for what, part in parts:
        if system_prompt is not None and (
            own := sum(_has_system_turn(one, system_prompt) for one in first(part.prompts))
        ):
            notes.append(
                f"{what}: {own} of {len(first(part.prompts))} prompts bring a system turn of their own, which stands "
                "in place of data.system_prompt"
            )
    if shared := overlap(train, heldout):
        notes.append(
            f"{shared} of {len(heldout)} held-out prompts are in the training data word for word: their score does not "
            "show what the model learned to do"
        )
    if not heldout.prompts:
        notes.append(
            "there are no held-out prompts: improvement cannot be measured; set data.eval or data.eval_fraction"
        )
    return notes


def first(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Those that are looked at before the run: all, or the first of those that are tokenised when they are taken."""
    return prompts[:CHECKED] if isinstance(prompts, StreamedRecords) else prompts


def _has_system_turn(prompt: Prompt, system_prompt: str) -> bool:
    """One that the config did not give it."""
    first = prompt.messages[0] if prompt.messages else {}
    return first.get("role") == "system" and first.get("content") != system_prompt
