"""The rows of a run as the model reads them, prompts or given answers, and notes about them for the user."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from posttrain.data.prompts import PromptSet, Renderer, overlap, render_prompts, with_all_columns, words_of
from posttrain.data.same_prompts import known_keys
from posttrain.data.split import Split, first_rows
from posttrain.data.stream import StreamedRecords
from posttrain.data.unknown import refuse_unknown, unknown_text
from posttrain.models.load import LoadedModel
from posttrain.rewards import RewardSet
from posttrain.rewards.missing import HELD_OUT
from posttrain.types import Pair, Prompt

if TYPE_CHECKING:
    from posttrain.config import DataConfig, RunConfig


REPEATED = 1.25
"""Held-out rows per different prompt above which the run warns that intervals are too narrow."""
CHECKED = 1_000
"""Number of streamed prompts whose gold answers are checked by the rewards before the run, and of streamed rows that
are searched for text that the tokenizer cannot write."""


def longest_row(config: RunConfig, loaded: LoadedModel) -> int:
    """Return the maximum tokens of a given prompt and its answer together."""
    context = context_length(loaded)
    return min(context, config.data.max_length or context)


def context_length(loaded: LoadedModel) -> int:
    """Return the maximum tokens of prompt and completion together; some architectures set no limit."""
    return loaded.context_length if loaded.context_length is not None else sys.maxsize


# --- text without a token --------------------------------------------------------------------------------------------


def text_notes(train: Any, heldout: Any, config: RunConfig, loaded: LoadedModel) -> list[str]:
    """Return warnings about text and gold answers that the tokenizer cannot write. Raises DataError if the trained
    answers have no other text."""
    notes = unknown_notes("training data", train, config, loaded, refuse=True)
    if notes and config.data.eval is None:  # held-out rows of the same data say nothing new
        return notes
    return [*notes, *unknown_notes("held-out data", heldout, config, loaded)]


def unknown_notes(what: str, part: Any, config: RunConfig, loaded: LoadedModel, *, refuse: bool = False) -> list[str]:
    """Return the warnings about one set. Only the first streamed rows are looked at."""
    if part is None or not len(part):
        return []
    records = getattr(part, "pairs", None) or part.usable
    streamed = isinstance(records, StreamedRecords) and len(records) > CHECKED
    text = unknown_text(
        records,
        part.source,
        loaded.tokenizer,
        loaded.eos_ids,
        system_prompt=config.data.system_prompt,
        most=CHECKED if streamed else None,
    )
    if refuse and not streamed:
        refuse_unknown(text, what)
    where = f"the first {CHECKED:,} rows of the {what}" if streamed else what
    return [f"{where}: {one.message}. {one.fix}" for one in text.findings()]


# --- prompts ---------------------------------------------------------------------------------------------------------


def checked_prompts(
    config: RunConfig, rows: Split, loaded: LoadedModel, rewards: RewardSet | None, renderer: Renderer | None = None
) -> tuple[PromptSet, PromptSet]:
    """Return the training and the held-out prompts. Raises the rewards' error if a column is wrong."""
    train, heldout = prompt_sets(config, rows, loaded, renderer)
    for what, part in (("training data", train), (HELD_OUT, heldout)):
        if part.prompts and rewards is not None:
            rewards.check(looked_at(part.prompts), what)
    return train, heldout


def prompt_sets(
    config: RunConfig, rows: Split, loaded: LoadedModel, renderer: Renderer | None = None
) -> tuple[PromptSet, PromptSet]:
    """Return the training and the held-out prompts that leave room in the context for a completion."""
    renderer = renderer or Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    room = config.room_for_prompts(context_length(loaded), loaded.context_reason)
    render = partial(render_prompts, config=config.data, renderer=renderer, max_prompt_length=room)
    train = render(rows.train, what=loaded.named("training data"))
    if not rows.heldout:
        return train, PromptSet(prompts=())
    heldout = render(first_rows(rows.heldout, config.evaluation.prompts), what=loaded.named("held-out data"))
    if config.data.eval is None:  # the held-out rows come from the same data, so they have the same columns
        train, heldout = with_all_columns(train, heldout)
    return train, heldout


def prompt_notes(train: PromptSet, heldout: PromptSet, config: RunConfig) -> list[str]:
    """Return notes about the data for the user, one sentence each. An environment or agent reads the whole row, such as
    a seed, so two prompts for it are the same only if all their columns are."""
    system_prompt, whole = config.data.system_prompt, config.environment.function is not None or config.agent.is_given
    parts = (("training data", train), ("held-out data", heldout))
    notes = [f"{what}: {part.dropped_summary}" for what, part in parts if part.dropped]
    for what, part in parts:
        shown = looked_at(part.prompts)
        if system_prompt is not None and (own := sum(_has_system_turn(one, system_prompt) for one in shown)):
            notes.append(
                f"{what}: {own} of {len(shown)} prompts have their own system turn, which replaces data.system_prompt"
            )
    if shared := overlap(train, heldout, whole=whole):
        notes.append(
            f"{shared} of {len(heldout)} held-out prompts are in the training data word for word: their score does not "
            "show what the model learned to do"
        )
    measured = heldout.prompts[: config.evaluation.prompts]
    notes += repeated_notes([words_of(prompt, whole=whole) for prompt in measured])
    if not heldout.prompts:
        notes.append(
            "there are no held-out prompts: improvement cannot be measured; set data.eval or data.eval_fraction"
        )
    return notes


def looked_at(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Return the prompts that are checked before the run: all, or the first ones if they are streamed."""
    return prompts[:CHECKED] if isinstance(prompts, StreamedRecords) else prompts


def _has_system_turn(prompt: Prompt, system_prompt: str) -> bool:
    """Return whether the prompt has a system message of its own, not the config's."""
    first = prompt.messages[0] if prompt.messages else {}
    return first.get("role") == "system" and first.get("content") != system_prompt


# --- given answers ----------------------------------------------------------------------------------------------------


def render_both(
    render: Callable[..., Any], config: RunConfig, rows: Split, loaded: LoadedModel, renderer: Renderer
) -> tuple[Any, Any]:
    """Return the training rows and the held-out ones; None if no row is held out."""
    heldout = first_rows(rows.heldout, config.evaluation.prompts)
    sets = [
        render(
            part,
            renderer,
            max_length=longest_row(config, loaded),
            max_dropped=config.data.max_dropped,
            what=loaded.named(what),
        )
        for part, what in ((rows.train, "training data"), (heldout, "held-out data"))
        if part
    ]
    return sets[0], sets[1] if len(sets) > 1 else None


def data_notes(train: Any, heldout: Any, config: RunConfig) -> list[str]:
    """Return notes about both sets for the user: dropped rows, and held-out rows or prompts that are also trained."""
    parts = (("training data", train), ("held-out data", heldout))
    notes = [f"{what}: {part.dropped_summary}" for what, part in parts if part is not None and part.dropped]
    if heldout is None:
        return notes
    prompt_of = _prompts(heldout, config.data)
    measured = islice(getattr(heldout, "pairs", None) or heldout.usable, config.evaluation.prompts)
    notes += repeated_notes(list(map(prompt_of, measured)))
    rows: list[Any] = [getattr(part, "pairs", None) for part in (train, heldout)]
    if any(pairs is None for pairs in rows):  # else a row is a pair, even if its two answers are trained separately
        rows = [train.usable, heldout.usable]
    trained = getattr(train, "pairs", None) or train.usable
    if isinstance(trained, StreamedRecords):
        shared, prompts = trained.shared_with(heldout.source), trained.prompts_shared_with(heldout.source)
    else:
        shared = _overlap(map(_answers, rows[0]), map(_answers, rows[1]))
        prompts = _overlap(map(_prompts(train, config.data), rows[0]), map(prompt_of, rows[1]))
    if shared:
        notes.append(
            f"{shared} of {len(rows[1])} held-out rows are in the training data word for word: measurements on "
            "them do not show what the model learned"
        )
    if prompts > shared:
        notes.append(
            f"{prompts} of {len(rows[1])} held-out rows have a prompt that is also trained: a better measurement on "
            "them may be memory; name rows with other prompts in data.eval, or leave it out to hold out whole prompts"
        )
    return notes


def repeated_notes(prompts: Sequence[Hashable]) -> list[str]:
    """Return a warning if many measured rows, which have these prompts, repeat one. Empty prompts repeat nothing."""
    known = [prompt for prompt in prompts if prompt]
    distinct = len(set(known)) + len(prompts) - len(known)
    if len(prompts) <= REPEATED * distinct:
        return []
    return [
        f"the {len(prompts)} measured held-out rows have only {distinct} different prompts: intervals treat the rows "
        "as independent, and are too narrow; hold out more prompts"
    ]


def _overlap(train: Iterable[Hashable], heldout: Iterable[Hashable]) -> int:
    """Return how many held-out rows have a value that a training row has, too. Empty values are shared with none."""
    held_out = Counter(heldout)
    return sum(held_out[one] for one in set(train) & held_out.keys() if one)


def _prompts(part: Any, data: DataConfig) -> Callable[[Any], int]:
    """Return a function that gives the prompt of a rendered row as the split of the data finds it; 0 for none."""
    keys = known_keys(part.source, data)
    return lambda row: keys[row.index]


def _answers(row: Any) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of a row, whatever its score or label; for a pair, of both answers."""
    sides = (row.chosen, row.rejected) if isinstance(row, Pair) else (getattr(row, "example", row),)
    return tuple(side.input_ids for side in sides)
